#include "models/zoo/pnn_model.h"

#include <memory>
#include <string>
#include <vector>

#include "tests/models/ctr_model_contract.h"
#include "tests/models/model_test_util.h"
#include "tests/support/status_matchers.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

PnnOptions SmallOptions(PnnProducts products) {
  PnnOptions options = {
      {.num_dense = 4, .num_sparse = 3, .embedding_dim = 5, .over_arch_layer_sizes = {7, 1}}};
  options.products = products;
  return options;
}

double ReferenceLogit(const GraphModel& model, const PnnOptions& o, const double* parameters,
                      const float* dense, const double* embeddings) {
  const int32_t dim = o.embedding_dim;
  std::vector<double> x = test::DeepInput(o.num_dense, o.num_sparse, dim, dim, dense, embeddings);
  if (o.products != PnnProducts::kOuter) {
    for (int32_t s = 1; s < o.num_sparse; ++s) {
      for (int32_t t = 0; t < s; ++t) {
        double dot = 0;
        for (int32_t d = 0; d < dim; ++d) dot += embeddings[s * dim + d] * embeddings[t * dim + d];
        x.push_back(dot);
      }
    }
  }
  if (o.products != PnnProducts::kInner) {
    // The sum over all pairs of fields of the outer products of their vectors.
    for (int32_t i = 0; i < dim; ++i) {
      for (int32_t j = 0; j <= i; ++j) {
        double sum = 0;
        for (int32_t s = 0; s < o.num_sparse; ++s) {
          for (int32_t t = 0; t < o.num_sparse; ++t) {
            sum += embeddings[s * dim + i] * embeddings[t * dim + j];
          }
        }
        x.push_back(sum);
      }
    }
  }
  return test::MlpReference(model, "mlp", o.over_arch_layer_sizes, parameters, x, false)[0];
}

test::Ranges Layers(const GraphModel& model) {
  test::RangesFromEnd layers(model);
  layers.AddMlp("mlp");
  return layers.ranges();
}

test::CtrModelKind Kind(const PnnOptions& base) {
  const std::string name = base.products == PnnProducts::kInner   ? "Inner"
                           : base.products == PnnProducts::kOuter ? "Outer"
                                                                  : "Both";
  return test::KindOf<PnnModel, PnnOptions>(name, int64_t{base.num_sparse} * base.embedding_dim,
                                            base, ReferenceLogit, Layers);
}

}  // namespace

namespace test {
INSTANTIATE_TEST_SUITE_P(Pnn, CtrModelContract,
                         testing::Values(Kind(SmallOptions(PnnProducts::kInner)),
                                         Kind(SmallOptions(PnnProducts::kOuter)),
                                         Kind(SmallOptions(PnnProducts::kBoth))),
                         NameOfKind);
}  // namespace test

namespace {

TEST(PnnModelTest, OddSizesMatchTheReference) {
  PnnOptions options = SmallOptions(PnnProducts::kBoth);
  options.num_sparse = 2;
  options.embedding_dim = 1;
  test::CheckAgainstReference(Kind(options), {.num_dense = 1, .over_arch_layer_sizes = {1}}, 8, 4);
  options.num_sparse = 5;
  options.embedding_dim = 17;
  test::CheckAgainstReference(Kind(options), {.over_arch_layer_sizes = {5, 3, 1}}, 2, 5);
}

TEST(PnnModelTest, NamesTheFlagWhenThereIsNoPair) {
  PnnOptions options = SmallOptions(PnnProducts::kInner);
  options.max_batch_size = 8;
  options.num_sparse = 1;
  EXPECT_THAT(PnnModel::Create(options).status().message(), HasSubstr("--pnn_products=outer"));
  options.products = PnnProducts::kOuter;
  HOTROW_EXPECT_OK(PnnModel::Create(options));
}

}  // namespace
}  // namespace hotrow
