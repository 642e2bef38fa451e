#include "models/zoo/mmoe_model.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/models/ctr_model_contract.h"
#include "tests/models/model_test_util.h"
#include "tests/support/status_matchers.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

MmoeOptions SmallOptions() {
  MmoeOptions options = {
      {.num_dense = 4, .num_sparse = 3, .embedding_dim = 5, .over_arch_layer_sizes = {7, 1}}};
  options.num_tasks = 2;
  options.num_experts = 3;
  options.expert_layer_sizes = {6, 4};
  return options;
}

std::vector<double> ReferenceLogits(const GraphModel& model, const MmoeOptions& o,
                                    const double* parameters, const float* dense,
                                    const double* embeddings) {
  const std::vector<double> x = test::DeepInput(o.num_dense, o.num_sparse, o.embedding_dim,
                                                o.embedding_dim, dense, embeddings);
  std::vector<std::vector<double>> experts;
  for (int32_t e = 0; e < o.num_experts; ++e) {
    experts.push_back(test::MlpReference(model, absl::StrCat("expert", e), o.expert_layer_sizes,
                                         parameters, x, true));
  }
  std::vector<double> logits;
  for (int32_t task = 0; task < o.num_tasks; ++task) {
    std::vector<double> shares = {1};
    if (o.num_experts > 1) {
      shares = test::MlpReference(model, absl::StrCat("gate", task), {o.num_experts}, parameters, x,
                                  false);
    }
    double sum = 0;
    if (o.num_experts > 1) {
      for (double& share : shares) sum += share = std::exp(share);
    } else {
      sum = 1;
    }
    std::vector<double> mixture(experts[0].size());
    for (size_t e = 0; e < experts.size(); ++e) {
      for (size_t i = 0; i < mixture.size(); ++i) mixture[i] += shares[e] / sum * experts[e][i];
    }
    logits.push_back(test::MlpReference(model, absl::StrCat("tower", task), o.over_arch_layer_sizes,
                                        parameters, mixture, false)[0]);
  }
  return logits;
}

std::vector<double> BatchLogits(const GraphModel& model, const MmoeOptions& o, int64_t batch_size,
                                const double* parameters, const float* dense,
                                const double* embeddings) {
  std::vector<double> logits;
  for (int64_t b = 0; b < batch_size; ++b) {
    for (const double logit : ReferenceLogits(model, o, parameters, dense + b * o.num_dense,
                                              embeddings + b * o.num_sparse * o.embedding_dim)) {
      logits.push_back(logit);
    }
  }
  return logits;
}

// The layers of experts, then for each task gate and tower; backwards.
test::Ranges Layers(const GraphModel& model) {
  test::RangesFromEnd layers(model);
  for (int32_t task = 8; task-- > 0;) {
    layers.AddMlp(absl::StrCat("tower", task));
    layers.AddMlp(absl::StrCat("gate", task));
  }
  for (int32_t e = 8; e-- > 0;) layers.AddMlp(absl::StrCat("expert", e));
  return layers.ranges();
}

test::CtrModelKind Kind(const std::string& name, const MmoeOptions& base) {
  return test::KindOfBatch<MmoeModel, MmoeOptions>(
      name, int64_t{base.num_sparse} * base.embedding_dim, base, BatchLogits, Layers);
}

MmoeOptions SharedBottom() {
  MmoeOptions options = SmallOptions();
  options.num_experts = 1;
  options.num_tasks = 3;
  return options;
}

}  // namespace

namespace test {
INSTANTIATE_TEST_SUITE_P(Mmoe, CtrModelContract,
                         testing::Values(Kind("Mmoe", SmallOptions()),
                                         Kind("SharedBottom", SharedBottom())),
                         NameOfKind);
}  // namespace test

namespace {

TEST(MmoeModelTest, OneTaskMatchesTheReference) {
  MmoeOptions options = SmallOptions();
  options.num_tasks = 1;
  test::CheckAgainstReference(Kind("OneTask", options), {.over_arch_layer_sizes = {1}}, 7, 4);
}

// A gate that is sure takes one expert, with numbers of any size.
TEST(MmoeModelTest, LargeGatesDoNotOverflow) {
  MmoeOptions options = SmallOptions();
  options.max_batch_size = 4;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto model, MmoeModel::Create(options));
  const int64_t gate = model->FindPart("gate0").offset;
  for (int64_t i = 0; i < test::FindMlp(*model, "gate0")->num_parameters(); ++i) {
    model->parameters()[static_cast<size_t>(gate + i)] *= 1e6f;
  }
  const test::ModelBatch batch = test::RandomModelBatch(4, 4, 15, 3, 2);
  const test::ModelPass pass = test::RunPass({}, *model, batch, batch.logit_gradient);
  for (const float x : pass.logits) EXPECT_TRUE(std::isfinite(x));
  for (const float x : pass.gradients) EXPECT_TRUE(std::isfinite(x));
}

TEST(MmoeModelTest, NamesTheFlagWhenOptionsDoNotFit) {
  MmoeOptions options = SmallOptions();
  options.max_batch_size = 4;
  options.num_experts = 0;
  EXPECT_THAT(MmoeModel::Create(options).status().message(), HasSubstr("--num_experts"));
  options = SmallOptions();
  options.expert_layer_sizes = {};
  EXPECT_THAT(MmoeModel::Create(options).status().message(), HasSubstr("--expert_layer_sizes"));
}

}  // namespace
}  // namespace hotrow
