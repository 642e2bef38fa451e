#include "models/zoo/deepfm_model.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/models/ctr_model_contract.h"
#include "tests/models/model_test_util.h"
#include "tests/support/status_matchers.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

DeepFmOptions SmallOptions() {
  return {{.num_dense = 4,
           .num_sparse = 3,
           .embedding_dim = 5,
           .over_arch_layer_sizes = {7, 1},
           .seed = 11,
           .max_batch_size = 8}};
}

// The logit of one sample, pair by pair.
double ReferenceLogit(const GraphModel& model, const DeepFmOptions& o, const double* parameters,
                      const float* dense, const double* embeddings) {
  const int32_t dim = o.embedding_dim;
  const auto vector = [&](int32_t s) { return embeddings + s * (dim + 1); };
  double logit = parameters[model.FindPart("bias").offset];
  for (int32_t i = 0; i < o.num_dense; ++i) logit += parameters[i] * dense[i];
  std::vector<double> deep;
  for (int32_t s = 0; s < o.num_sparse; ++s) {
    logit += vector(s)[dim];
    for (int32_t t = 0; t < s; ++t) {
      for (int32_t d = 0; d < dim; ++d) logit += vector(s)[d] * vector(t)[d];
    }
    deep.insert(deep.end(), vector(s), vector(s) + dim);
  }
  deep.insert(deep.end(), dense, dense + o.num_dense);
  return logit +
         test::MlpReference(model, "mlp", o.over_arch_layer_sizes, parameters, deep, false)[0];
}

test::Ranges Layers(const GraphModel& model) {
  test::RangesFromEnd layers(model);
  layers.AddMlp("mlp");
  layers.Add(0);
  return layers.ranges();
}

test::CtrModelKind Kind(const DeepFmOptions& base) {
  return test::KindOf<DeepFmModel, DeepFmOptions>(
      "DeepFm", int64_t{base.num_sparse} * DeepFmOptions::TableColumns(base.embedding_dim), base,
      ReferenceLogit, Layers, test::RandomizeWidePart);
}

}  // namespace

namespace test {
INSTANTIATE_TEST_SUITE_P(DeepFm, CtrModelContract, testing::Values(Kind(SmallOptions())),
                         NameOfKind);
}  // namespace test

namespace {

TEST(DeepFmModelTest, OddSizesMatchTheReference) {
  DeepFmOptions options = SmallOptions();
  options.num_sparse = 1;
  options.embedding_dim = 1;
  test::CheckAgainstReference(Kind(options), {.num_dense = 1, .over_arch_layer_sizes = {1}}, 8, 4);
  options = SmallOptions();
  options.embedding_dim = 16;
  // num_dense: dense weights and bias fill more than one line
  test::CheckAgainstReference(Kind(options), {.num_dense = 17, .over_arch_layer_sizes = {5, 3, 1}},
                              1, 5);
}

TEST(DeepFmModelTest, AtFirstTheLinearPartIsZero) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GraphModel> model,
                              DeepFmModel::Create(SmallOptions()));
  EXPECT_EQ(model->FindPart("bias").offset, 4);
  EXPECT_EQ(model->FindPart("mlp").offset, 16);
  const std::span<float> parameters = model->parameters();
  EXPECT_TRUE(std::ranges::all_of(parameters.first(16), [](float p) { return p == 0; }));
  EXPECT_EQ(static_cast<int64_t>(parameters.size()),
            16 + test::FindMlp(*model, "mlp")->num_parameters());
  EXPECT_EQ(test::FindMlp(*model, "mlp")->input_size(), 3 * 5 + 4);
  EXPECT_EQ(model->name(), "deepfm");
  EXPECT_EQ(DeepFmOptions::TableColumns(5), 6);
}

TEST(DeepFmModelTest, NamesTheFlagWhenOptionsDoNotFit) {
  const auto error = [](auto change) {
    DeepFmOptions options = SmallOptions();
    change(&options);
    const absl::Status status = DeepFmModel::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status.ToString();
    return std::string(status.message());
  };
  EXPECT_THAT(error([](DeepFmOptions* o) { o->embedding_dim = 0; }), HasSubstr("--embedding_dim"));
  EXPECT_THAT(error([](DeepFmOptions* o) {
                o->num_sparse = 1 << 16;
                o->embedding_dim = 1 << 16;
              }),
              HasSubstr("--embedding_dim=65536"));
  EXPECT_THAT(error([](DeepFmOptions* o) { o->num_sparse = 0; }), HasSubstr("num_sparse"));
}

}  // namespace
}  // namespace hotrow
