#include "models/zoo/wide_deep_model.h"

#include <algorithm>
#include <cmath>
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
  return {{.num_dense = 4, .num_sparse = 3, .embedding_dim = 5, .over_arch_layer_sizes = {7, 1}}};
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

std::vector<double> NormedReference(const GraphModel& model, const WideDeepOptions& o,
                                    int64_t batch_size, const double* parameters,
                                    const float* dense, const double* embeddings) {
  const int64_t width = int64_t{o.num_sparse} * WideDeepOptions::TableColumns(o.embedding_dim);
  std::vector<std::vector<double>> rows;
  std::vector<double> logits;
  for (int64_t b = 0; b < batch_size; ++b) {
    const float* const x = dense + b * o.num_dense;
    const double* const v = embeddings + b * width;
    rows.push_back(
        test::DeepInput(o.num_dense, o.num_sparse, o.embedding_dim, o.embedding_dim + 1, x, v));
    logits.push_back(
        test::WideReference(model, o.num_dense, o.num_sparse, o.embedding_dim, parameters, x, v));
  }
  rows = test::NormedMlpReference(model, "mlp", o.over_arch_layer_sizes, parameters, rows, false);
  for (size_t b = 0; b < rows.size(); ++b) logits[b] += rows[b][0];
  return logits;
}

test::CtrModelKind NormedKind() {
  WideDeepOptions base = SmallOptions();
  base.batch_norm = true;
  const auto layers = [](const GraphModel& model) {
    test::RangesFromEnd layers(model);
    layers.AddNormedMlp("mlp");
    layers.Add(0);
    return layers.ranges();
  };
  // Beside what starts as zeros: gamma and beta, which start alike in all columns.
  const auto randomize = [](GraphModel& model, RandomStream& random) {
    test::RandomizeWidePart(model, random);
    const int64_t gamma = model.FindPart("mlp.norm0").offset;
    for (int64_t i = gamma; i < model.untrained_parameters()[0].begin; ++i) {
      model.parameters()[static_cast<size_t>(i)] = 1 + random.Normal() / 2;
    }
  };
  return test::KindOfBatch<WideDeepModel, WideDeepOptions>(
      "WideDeepBatchNorm",
      int64_t{base.num_sparse} * WideDeepOptions::TableColumns(base.embedding_dim), base,
      NormedReference, layers, randomize);
}

}  // namespace

namespace test {
INSTANTIATE_TEST_SUITE_P(WideDeep, CtrModelContract,
                         testing::Values(Kind(SmallOptions()), NormedKind()), NameOfKind);
}  // namespace test

namespace {

TEST(WideDeepModelTest, OddSizesMatchTheReference) {
  WideDeepOptions options = SmallOptions();
  options.num_sparse = 1;
  options.embedding_dim = 1;
  test::CheckAgainstReference(Kind(options), {.num_dense = 17, .over_arch_layer_sizes = {1}}, 8, 4);
}

// PyTorch's rules: momentum 0.1, and the running variance is over N - 1.
TEST(WideDeepModelTest, EvaluationTakesTheRunningStatistics) {
  WideDeepOptions options = SmallOptions();
  options.batch_norm = true;
  options.max_batch_size = 600;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto model, WideDeepModel::Create(options));
  const int64_t width = 3 * WideDeepOptions::TableColumns(5);
  const test::ModelBatch batch = test::RandomModelBatch(600, 4, width, 7);
  const auto logits = [&](bool training) {
    std::vector<float> out(600);
    HOTROW_EXPECT_OK(model->Forward({}, batch.Input(training, 1), out));
    return out;
  };
  const auto distance = [&](const std::vector<float>& a, const std::vector<float>& b) {
    double most = 0;
    for (size_t i = 0; i < a.size(); ++i) most = std::max<double>(most, std::abs(a[i] - b[i]));
    return most;
  };
  const std::vector<float> trained = logits(true);
  EXPECT_GT(distance(logits(false), trained), 0.05);
  HOTROW_ASSERT_OK(model->EndStep({}, 600));
  // After one step a running mean is 0.1 of the batch's.
  const GraphModel::Part linear = model->FindPart("mlp.0");
  const GraphModel::Part norm = model->FindPart("mlp.norm0");
  std::vector<std::vector<double>> rows;
  const std::vector<double> parameters(model->parameters().begin(), model->parameters().end());
  const std::vector<double> embeddings(batch.embeddings.begin(), batch.embeddings.end());
  for (int64_t b = 0; b < 600; ++b) {
    rows.push_back(test::MlpReference(
        *model, "mlp.0", {7}, parameters.data(),
        test::DeepInput(4, 3, 5, 6, batch.dense.data() + b * 4, embeddings.data() + b * width),
        false));
  }
  ASSERT_NE(linear.layer, nullptr);
  for (size_t i = 0; i < 7; ++i) {
    double mean = 0;
    for (const auto& z : rows) mean += z[i] / 600;
    double variance = 0;
    for (const auto& z : rows) variance += (z[i] - mean) * (z[i] - mean) / 599;
    const auto at = static_cast<size_t>(norm.offset) + i;
    EXPECT_NEAR(parameters[at + 14], 0.1 * mean, 1e-6);
    EXPECT_NEAR(parameters[at + 21], 0.9 + 0.1 * variance, 1e-6);
  }
  // And many steps of the same batch are its own, but for N - 1.
  for (int step = 0; step < 200; ++step) {
    logits(true);
    HOTROW_ASSERT_OK(model->EndStep({}, 600));
  }
  EXPECT_LT(distance(logits(false), trained), 0.02);
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
