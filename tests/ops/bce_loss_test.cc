#include "ops/training/bce_loss.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/ops/dense_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

struct Result {
  double loss = -1;
  std::vector<float> gradient;
};

Result RunLoss(const ExecContext& ctx, const std::vector<float>& logits,
               const std::vector<float>& labels) {
  Result r;
  r.gradient.assign(logits.size(), -9.0f);
  HOTROW_EXPECT_OK(BceWithLogits(ctx, {.logits = logits.data(),
                                       .labels = labels.data(),
                                       .batch_size = static_cast<int64_t>(logits.size()),
                                       .gradient = r.gradient.data(),
                                       .loss = &r.loss}));
  return r;
}

// -y log p - (1 - y) log(1 - p) in long double, from the definition.
long double Definition(long double x, long double y) {
  const long double log_p = -std::log1p(std::exp(-x));
  const long double log_q = -std::log1p(std::exp(x));
  return -y * log_p - (1 - y) * log_q;
}

TEST(BceLossTest, HandWorkedNumbers) {
  // x = 0: p = 1/2, so the loss is log 2 with any label; gradients (p - y) / 3.
  const Result r = RunLoss({}, {0, 0, 0}, {0, 1, 0.5});
  EXPECT_DOUBLE_EQ(r.loss, std::log(2.0));
  EXPECT_FLOAT_EQ(r.gradient[0], 0.5f / 3);
  EXPECT_FLOAT_EQ(r.gradient[1], -0.5f / 3);
  EXPECT_EQ(r.gradient[2], 0);
  // x = log 3: p = 3/4.
  const auto x = static_cast<float>(std::log(3.0));
  EXPECT_NEAR(RunLoss({}, {x}, {1}).loss, -std::log(0.75), 1e-7);
  EXPECT_NEAR(RunLoss({}, {x}, {0}).loss, -std::log(0.25), 1e-7);
  EXPECT_NEAR(RunLoss({}, {x}, {1}).gradient[0], -0.25, 1e-7);
}

TEST(BceLossTest, StaysFiniteAndExactForLargeLogits) {
  // log(1 + exp(-100)) = 3.7e-44 + ..., which a double holds; 1 - p would lose it.
  EXPECT_DOUBLE_EQ(RunLoss({}, {100}, {1}).loss, std::exp(-100.0));
  EXPECT_DOUBLE_EQ(RunLoss({}, {-100}, {0}).loss, std::exp(-100.0));
  EXPECT_DOUBLE_EQ(RunLoss({}, {100}, {0}).loss, 100);
  EXPECT_DOUBLE_EQ(RunLoss({}, {-100}, {1}).loss, 100);
  EXPECT_DOUBLE_EQ(RunLoss({}, {100}, {0.5}).loss, 50);
  EXPECT_DOUBLE_EQ(RunLoss({}, {-100}, {0.5}).loss, 50);
  EXPECT_EQ(RunLoss({}, {100}, {0}).gradient[0], 1.0f);
  EXPECT_EQ(RunLoss({}, {-100}, {1}).gradient[0], -1.0f);
  // (sigmoid(-100) - 0) is 3.7e-44: a float denormal, not zero.
  EXPECT_GT(RunLoss({}, {-100}, {0}).gradient[0], 0.0f);
  EXPECT_DOUBLE_EQ(RunLoss({}, {3e38f}, {0}).loss, static_cast<double>(3e38f));
}

TEST(BceLossTest, MatchesTheDefinitionAndItsFiniteDifferences) {
  for (const uint64_t seed : test::Seeds(5)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    for (const int64_t n : {1, 7, 255, 256, 257, 2048}) {
      const std::vector<float> x = test::RandomFloats(random, n, 4.0f);
      std::vector<float> y(x.size());
      for (float& label : y) label = static_cast<float>(random.Uniform());
      const Result r = RunLoss({}, x, y);
      long double sum = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        sum += Definition(x[i], y[i]);
        constexpr long double kStep = 1e-5L;
        const long double slope =
            (Definition(x[i] + kStep, y[i]) - Definition(x[i] - kStep, y[i])) / (2 * kStep);
        // One rounding to float (2^-24 of at most 1), and the difference quotient's kStep^2 / 6.
        EXPECT_NEAR(static_cast<double>(r.gradient[i]) * static_cast<double>(n),
                    static_cast<double>(slope), 1e-7);
      }
      EXPECT_NEAR(r.loss, static_cast<double>(sum / n), 1e-12 * r.loss);
    }
  }
}

TEST(BceLossTest, EqualBitsOnAnyPool) {
  RandomStream random(3, RandomPurpose::kTest);
  const std::vector<float> x = test::RandomFloats(random, 5000, 4.0f);
  const std::vector<float> y(x.size(), 0.25f);
  const Result alone = RunLoss({}, x, y);
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    const Result r = RunLoss(test::OnPool(&pool), x, y);
    EXPECT_EQ(r.loss, alone.loss);
    EXPECT_EQ(r.gradient, alone.gradient);
  }
}

TEST(BceLossTest, EmptyBatchHasLossZeroAndGradientIsOptional) {
  double loss = -1;
  HOTROW_EXPECT_OK(BceWithLogits({}, {.batch_size = 0, .loss = &loss}));
  EXPECT_EQ(loss, 0);
  loss = -1;
  HOTROW_EXPECT_OK(BceWithLogits({}, {.batch_size = 0, .mean_over = 7, .loss = &loss}));
  EXPECT_EQ(loss, 0);
  const float x = 1;
  const float y = 1;
  HOTROW_EXPECT_OK(BceWithLogits({}, {.logits = &x, .labels = &y, .batch_size = 1, .loss = &loss}));
  EXPECT_NEAR(loss, std::log1p(std::exp(-1.0)), 1e-15);
}

TEST(BceLossTest, GradientsOfSlicesAreThoseOfTheWholeBatchAndLossesAreTheirOwnMeans) {
  RandomStream random(5, RandomPurpose::kTest);
  constexpr int64_t kBatch = 600;
  const std::vector<float> x = test::RandomFloats(random, kBatch, 4.0f);
  std::vector<float> y(x.size());
  for (float& label : y) label = static_cast<float>(random.Uniform());
  const Result whole = RunLoss({}, x, y);
  for (const int64_t world_size : {1, 2, 3, 7}) {
    std::vector<float> gradient(x.size(), -9.0f);
    double sum = 0;
    for (int64_t rank = 0; rank < world_size; ++rank) {
      const int64_t begin = kBatch * rank / world_size;
      const int64_t end = kBatch * (rank + 1) / world_size;
      const std::vector<float> slice_x(x.begin() + begin, x.begin() + end);
      const std::vector<float> slice_y(y.begin() + begin, y.begin() + end);
      double loss = -1;
      HOTROW_ASSERT_OK(BceWithLogits({}, {.logits = slice_x.data(),
                                          .labels = slice_y.data(),
                                          .batch_size = end - begin,
                                          .gradient = gradient.data() + begin,
                                          .mean_over = kBatch,
                                          .loss = &loss}));
      EXPECT_EQ(loss, RunLoss({}, slice_x, slice_y).loss);
      sum += loss * static_cast<double>(end - begin);
    }
    EXPECT_EQ(gradient, whole.gradient);
    EXPECT_NEAR(sum / kBatch, whole.loss, 1e-12 * whole.loss);
  }
}

TEST(BceLossTest, NaNLogitIsNotHidden) {
  EXPECT_TRUE(std::isnan(RunLoss({}, {std::numeric_limits<float>::quiet_NaN(), 1}, {1, 1}).loss));
}

TEST(BceLossTest, ErrorsNameTheField) {
  const auto code = absl::StatusCode::kInvalidArgument;
  const float x[2] = {0, 0};
  double loss;
  EXPECT_THAT(BceWithLogits({}, {.batch_size = -1, .loss = &loss}),
              test::StatusIs(code, HasSubstr("batch_size")));
  EXPECT_THAT(BceWithLogits({}, {.logits = x, .labels = x, .batch_size = 1}),
              test::StatusIs(code, HasSubstr("loss must")));
  EXPECT_THAT(BceWithLogits({}, {.labels = x, .batch_size = 1, .loss = &loss}),
              test::StatusIs(code, HasSubstr("logits")));
  EXPECT_THAT(BceWithLogits({}, {.logits = x, .batch_size = 1, .loss = &loss}),
              test::StatusIs(code, HasSubstr("labels")));
  for (const int64_t bad : {-1, 1}) {
    EXPECT_THAT(
        BceWithLogits({},
                      {.logits = x, .labels = x, .batch_size = 2, .mean_over = bad, .loss = &loss}),
        test::StatusIs(code, HasSubstr("mean_over must be 0 or >= batch_size = 2")));
  }
  for (const float bad : {-0.1f, 1.5f, std::numeric_limits<float>::quiet_NaN()}) {
    const float labels[2] = {1, bad};
    EXPECT_THAT(BceWithLogits({}, {.logits = x, .labels = labels, .batch_size = 2, .loss = &loss}),
                test::StatusIs(code, HasSubstr("labels[1] must be in [0, 1]")));
  }
}

TEST(SigmoidTest, ExactAtBothEndsAndAccurateBetween) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Sigmoid(infinity), 1);
  EXPECT_EQ(Sigmoid(-infinity), 0);
  EXPECT_EQ(Sigmoid(0), 0.5);
  EXPECT_DOUBLE_EQ(Sigmoid(-700), std::exp(-700.0));
  EXPECT_DOUBLE_EQ(Sigmoid(std::log(3.0)), 0.75);
  EXPECT_DOUBLE_EQ(Sigmoid(-std::log(3.0)), 0.25);
}

TEST(BceLossTest, AGpuNeedsAWorkspaceForTheSumsOfChunks) {
  EXPECT_EQ(BceWithLogitsWorkspaceBytes(Device::kCpu, 1000), 0);
  EXPECT_EQ(BceWithLogitsWorkspaceBytes(Device::kCuda, 0), 0);
  EXPECT_EQ(BceWithLogitsWorkspaceBytes(Device::kCuda, 1), 64);
  EXPECT_EQ(BceWithLogitsWorkspaceBytes(Device::kCuda, 8 * kBceChunkSamples), 64);
  EXPECT_EQ(BceWithLogitsWorkspaceBytes(Device::kCuda, 8 * kBceChunkSamples + 1), 128);
  const std::vector<float> values = {0.5f};
  double loss = 0;
  EXPECT_THAT(
      BceWithLogits(
          {.device = Device::kCuda},
          {.logits = values.data(), .labels = values.data(), .batch_size = 1, .loss = &loss}),
      test::StatusIs(absl::StatusCode::kInvalidArgument,
                     HasSubstr("workspace_bytes must be at least 64, got 0")));
}

}  // namespace
}  // namespace hotrow
