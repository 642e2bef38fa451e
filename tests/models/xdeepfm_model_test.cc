#include "models/zoo/xdeepfm_model.h"

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "models/zoo/layers/cin_layer.h"
#include "tests/models/ctr_model_contract.h"
#include "tests/models/model_test_util.h"
#include "tests/support/status_matchers.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

XDeepFmOptions SmallOptions() {
  XDeepFmOptions options = {
      {.num_dense = 4, .num_sparse = 3, .embedding_dim = 4, .over_arch_layer_sizes = {7, 1}}};
  options.cin_layer_sizes = {5, 2};
  return options;
}

const CinLayer& CinOf(const GraphModel& model) {
  return dynamic_cast<const CinLayer&>(*model.FindPart("cin").layer);
}

// The rows of all X_k, each summed over its columns.
std::vector<double> Cin(const GraphModel& model, const XDeepFmOptions& o, const double* parameters,
                        const double* embeddings) {
  const auto at = [&](int64_t offset) {
    return parameters + model.FindPart("cin").offset + offset;
  };
  const auto dim = static_cast<size_t>(o.embedding_dim);
  std::vector<std::vector<double>> x0;
  for (int32_t s = 0; s < o.num_sparse; ++s) {
    const double* const row = embeddings + s * (o.embedding_dim + 1);
    x0.emplace_back(row, row + dim);
  }
  std::vector<double> sums;
  std::vector<std::vector<double>> x = x0;
  for (size_t k = 0; k < o.cin_layer_sizes.size(); ++k) {
    const double* w = at(CinOf(model).weight_offset(static_cast<int32_t>(k)));
    const double* const b = at(CinOf(model).bias_offset(static_cast<int32_t>(k)));
    std::vector<std::vector<double>> next;
    for (int32_t h = 0; h < o.cin_layer_sizes[k]; ++h) {
      std::vector<double> row(dim, b[h]);
      for (const std::vector<double>& xi : x) {
        for (const std::vector<double>& xj : x0) {
          for (size_t d = 0; d < dim; ++d) row[d] += *w * xi[d] * xj[d];
          ++w;
        }
      }
      double sum = 0;
      for (const double v : row) sum += v;
      sums.push_back(sum);
      next.push_back(std::move(row));
    }
    x = std::move(next);
  }
  return sums;
}

double ReferenceLogit(const GraphModel& model, const XDeepFmOptions& o, const double* parameters,
                      const float* dense, const double* embeddings) {
  double logit = test::WideReference(model, o.num_dense, o.num_sparse, o.embedding_dim, parameters,
                                     dense, embeddings);
  const double* weight = parameters + model.FindPart("cin_logit").offset;
  for (const double sum : Cin(model, o, parameters, embeddings)) logit += *weight++ * sum;
  return logit + test::MlpReference(model, "mlp", o.over_arch_layer_sizes, parameters,
                                    test::DeepInput(o.num_dense, o.num_sparse, o.embedding_dim,
                                                    o.embedding_dim + 1, dense, embeddings),
                                    false)[0];
}

test::Ranges Layers(const GraphModel& model) {
  test::RangesFromEnd layers(model);
  layers.AddMlp("mlp");
  layers.Add(model.FindPart("cin_logit").offset);
  layers.AddLayers("cin", CinOf(model), 2);
  layers.Add(0);
  return layers.ranges();
}

void Randomize(GraphModel& model, RandomStream& random) {
  test::RandomizeWidePart(model, random);
  for (int64_t i = 0; i < CinOf(model).output().dim; ++i) {
    model.parameters()[static_cast<size_t>(model.FindPart("cin_logit").offset + i)] =
        0.5f * random.Normal();
  }
}

test::CtrModelKind Kind(const XDeepFmOptions& base) {
  return test::KindOf<XDeepFmModel, XDeepFmOptions>(
      "XDeepFm", int64_t{base.num_sparse} * XDeepFmOptions::TableColumns(base.embedding_dim), base,
      ReferenceLogit, Layers, Randomize);
}

}  // namespace

namespace test {
INSTANTIATE_TEST_SUITE_P(XDeepFm, CtrModelContract, testing::Values(Kind(SmallOptions())),
                         NameOfKind);
}  // namespace test

namespace {

TEST(XDeepFmModelTest, OddSizesMatchTheReference) {
  XDeepFmOptions options = SmallOptions();
  options.num_sparse = 1;
  options.embedding_dim = 1;
  options.cin_layer_sizes = {1};
  test::CheckAgainstReference(Kind(options), {.num_dense = 1, .over_arch_layer_sizes = {1}}, 8, 4);
  options = SmallOptions();
  options.embedding_dim = 9;
  options.cin_layer_sizes = {3, 17, 2};
  test::CheckAgainstReference(Kind(options), {.over_arch_layer_sizes = {5, 3, 1}}, 3, 5);
}

TEST(XDeepFmModelTest, NamesTheFlagWhenOptionsDoNotFit) {
  XDeepFmOptions options = SmallOptions();
  options.max_batch_size = 8;
  options.cin_layer_sizes = {};
  EXPECT_THAT(XDeepFmModel::Create(options).status().message(),
              HasSubstr("--cin_layer_sizes is empty"));
  options.cin_layer_sizes = {4, 0};
  EXPECT_THAT(XDeepFmModel::Create(options).status().message(), HasSubstr("--cin_layer_sizes=4-0"));
  options.cin_layer_sizes = {4};
  options.embedding_dim = std::numeric_limits<int32_t>::max();
  EXPECT_THAT(XDeepFmModel::Create(options).status().message(),
              HasSubstr("--embedding_dim must be less than 2^31 - 1"));
}

}  // namespace
}  // namespace hotrow
