#include "ops/training/gradient_norm.h"

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
  double norm = -1;
  float scale = -1;
};

Result Norm(const std::vector<float>& gradients, double norm_max, const ExecContext& ctx = {}) {
  Result r;
  HOTROW_EXPECT_OK(GradientNorm(
      ctx, {.gradients = gradients, .norm_max = norm_max, .norm = &r.norm, .scale = &r.scale}));
  return r;
}

TEST(GradientNormTest, HandWorkedNumbers) {
  EXPECT_EQ(Norm({3, -4}, 2.5).norm, 5);
  EXPECT_EQ(Norm({3, -4}, 2.5).scale, 0.5f);
  EXPECT_EQ(Norm({3, -4}, 5).scale, 1.0f);  // no longer than it may be
  EXPECT_EQ(Norm({3, -4}, 6).scale, 1.0f);
  EXPECT_EQ(Norm({}, 1).norm, 0);
  EXPECT_EQ(Norm({}, 1).scale, 1.0f);
  // Squares beyond the range of a float.
  EXPECT_NEAR(Norm({3e30f, -4e30f}, 1e30).norm, 5e30, 1e24);
}

TEST(GradientNormTest, WhatIsNotFiniteIsSeenInTheNorm) {
  const Result nan = Norm({1, std::numeric_limits<float>::quiet_NaN()}, 1);
  EXPECT_TRUE(std::isnan(nan.norm));
  EXPECT_EQ(nan.scale, 1.0f);
  EXPECT_TRUE(std::isinf(Norm({1, -std::numeric_limits<float>::infinity()}, 1).norm));
}

TEST(GradientNormTest, PoolsMoveNoBit) {
  RandomStream random(3, RandomPurpose::kTest);
  for (const int64_t n : {1, 16383, 16384, 16385, 100'000}) {
    const std::vector<float> gradients = test::RandomFloats(random, n);
    const Result alone = Norm(gradients, 0.1);
    ThreadPool pool(3);
    const Result shared = Norm(gradients, 0.1, test::OnPool(&pool));
    EXPECT_EQ(shared.norm, alone.norm) << n;
    EXPECT_EQ(shared.scale, alone.scale) << n;
    long double sum = 0;
    for (const float x : gradients) sum += static_cast<long double>(x) * x;
    EXPECT_NEAR(alone.norm, static_cast<double>(std::sqrt(sum)), 1e-12 * alone.norm) << n;
  }
}

TEST(GradientNormTest, BadArgumentsAreNamed) {
  double norm = 0;
  float scale = 0;
  const auto error = [](const GradientNormArgs& args) { return GradientNorm({}, args); };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(error({.norm = &norm, .scale = &scale}),
              test::StatusIs(kInvalid, HasSubstr("norm_max must be > 0, got 0")));
  EXPECT_THAT(error({.norm_max = std::nan(""), .norm = &norm, .scale = &scale}),
              test::StatusIs(kInvalid, HasSubstr("norm_max")));
  EXPECT_THAT(error({.norm_max = 1, .scale = &scale}), test::StatusIs(kInvalid, HasSubstr("null")));
}

}  // namespace
}  // namespace hotrow
