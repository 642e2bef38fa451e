#include "models/zoo/wide_deep_model.h"

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/models/ctr_model_contract.h"
#include "tests/models/model_test_util.h"
#include "tests/support/status_matchers.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

WideDeepOptions SmallOptions() {
  return {.num_dense = 4, .num_sparse = 3, .embedding_dim = 5, .over_arch_layer_sizes = {7, 1}};
}

double ReferenceLogit(const GraphModel& model, const WideDeepOptions& o, const double* parameters,
                      const float* dense, const double* embeddings) {
  return test::WideReference(model, o.num_dense, o.num_sparse, o.embedding_dim, parameters, dense,
                             embeddings) +
         test::MlpReference(model, "mlp", o.over_arch_layer_sizes, parameters,
                            test::DeepInput(o.num_dense, o.num_sparse, o.embedding_dim,
                                            o.embedding_dim + 1, dense, embeddings),
                            false)[0];
}

test::Ranges Layers(const GraphModel& model) {
  test::RangesFromEnd layers(model);
  layers.AddMlp("mlp");
  layers.Add(0);
  return layers.ranges();
}

test::CtrModelKind Kind(const WideDeepOptions& base) {
  return test::KindOf<WideDeepModel, WideDeepOptions>(
      "WideDeep", int64_t{base.num_sparse} * WideDeepOptions::TableColumns(base.embedding_dim),
      base, ReferenceLogit, Layers, test::RandomizeWidePart);
}

}  // namespace

namespace test {
INSTANTIATE_TEST_SUITE_P(WideDeep, CtrModelContract, testing::Values(Kind(SmallOptions())),
                         NameOfKind);
}  // namespace test

namespace {

TEST(WideDeepModelTest, OddSizesMatchTheReference) {
  WideDeepOptions options = SmallOptions();
  options.num_sparse = 1;
  options.embedding_dim = 1;
  test::CheckAgainstReference(Kind(options), {.num_dense = 17, .over_arch_layer_sizes = {1}}, 8, 4);
}

TEST(WideDeepModelTest, NamesTheFlagWhenOptionsDoNotFit) {
  WideDeepOptions options = SmallOptions();
  options.max_batch_size = 8;
  options.num_sparse = 1 << 16;
  options.embedding_dim = 1 << 16;
  EXPECT_THAT(WideDeepModel::Create(options).status().message(), HasSubstr("--embedding_dim"));
  options.num_sparse = 1;
  options.embedding_dim = std::numeric_limits<int32_t>::max();
  EXPECT_THAT(WideDeepModel::Create(options).status().message(),
              HasSubstr("--embedding_dim must be less than 2^31 - 1"));
}

}  // namespace
}  // namespace hotrow
