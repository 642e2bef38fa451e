#include "ops/training/loss_scale.h"

#include <limits>
#include <vector>

#include "tests/ops/dense_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(LossScaleTest, AStepWhoseGradientsAreFiniteGetsThemBack) {
  LossScale state = {.scale = 1024};
  std::vector<float> gradient = {1.5f, -3e-5f, 0, 1e-40f};
  const std::vector<float> before = gradient;
  HOTROW_ASSERT_OK(ScaleGradient({}, {.state = &state, .gradient = gradient}));
  EXPECT_EQ(gradient[0], 1536.0f);
  HOTROW_ASSERT_OK(UnscaleGradient({}, {.state = &state, .gradient = gradient}));
  EXPECT_EQ(gradient, before);
  double told[] = {-1, -1};
  HOTROW_ASSERT_OK(EndLossScaleStep({}, &state, told));
  EXPECT_EQ(told[0], 0);
  EXPECT_EQ(told[1], 1024);
  EXPECT_EQ(state.skip, 0u);
  EXPECT_EQ(state.good_steps, 1u);
}

TEST(LossScaleTest, OneNumberThatIsNotFiniteInAnyGradientLeavesTheStepOutAndHalvesTheScale) {
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    LossScale state = {.scale = 1024, .good_steps = 17};
    std::vector<float> gradient(70'000, 1.0f), another(3, 1.0f);
    gradient[40'000] = bad;
    ThreadPool pool(2);
    HOTROW_ASSERT_OK(UnscaleGradient(test::OnPool(&pool), {.state = &state, .gradient = gradient}));
    HOTROW_ASSERT_OK(UnscaleGradient({}, {.state = &state, .gradient = another}));
    double told[] = {-1, -1};
    HOTROW_ASSERT_OK(EndLossScaleStep({}, &state, told));
    EXPECT_EQ(told[0], 1);
    EXPECT_EQ(told[1], 1024);
    EXPECT_EQ(state.skip, 1u);
    EXPECT_EQ(state.scale, 512);
    EXPECT_EQ(state.good_steps, 0u);
    EXPECT_EQ(state.skipped_steps, 1);
    // The next one is judged by its own gradients.
    HOTROW_ASSERT_OK(UnscaleGradient({}, {.state = &state, .gradient = another}));
    HOTROW_ASSERT_OK(EndLossScaleStep({}, &state, nullptr));
    EXPECT_EQ(state.skip, 0u);
    EXPECT_EQ(state.skipped_steps, 1);
  }
}

TEST(LossScaleTest, TheScaleDoublesAfterGoodStepsAndKeepsItsBounds) {
  LossScale state = {.scale = 8, .good_steps = kLossScaleGrowthSteps - 2};
  HOTROW_ASSERT_OK(EndLossScaleStep({}, &state, nullptr));
  EXPECT_EQ(state.scale, 8);
  HOTROW_ASSERT_OK(EndLossScaleStep({}, &state, nullptr));
  EXPECT_EQ(state.scale, 16);
  EXPECT_EQ(state.good_steps, 0u);
  state = {.scale = kLossScaleMax, .good_steps = kLossScaleGrowthSteps - 1};
  HOTROW_ASSERT_OK(EndLossScaleStep({}, &state, nullptr));
  EXPECT_EQ(state.scale, kLossScaleMax);
  state = {.scale = kLossScaleMin, .non_finite = 1};
  HOTROW_ASSERT_OK(EndLossScaleStep({}, &state, nullptr));
  EXPECT_EQ(state.scale, kLossScaleMin);
  EXPECT_EQ(state.skip, 1u);
}

TEST(LossScaleTest, WhatIsNoScaleOrNoStateIsRefused) {
  for (const double scale : {1.0, 2.0, 65536.0, 0x1p40}) EXPECT_TRUE(IsLossScale(scale)) << scale;
  for (const double scale : {0.0, 0.5, -2.0, 3.0, 0x1p41, std::numeric_limits<double>::quiet_NaN(),
                             std::numeric_limits<double>::infinity()}) {
    EXPECT_FALSE(IsLossScale(scale)) << scale;
  }
  std::vector<float> gradient(3);
  const auto null_state =
      test::StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr("state"));
  EXPECT_THAT(ScaleGradient({}, {.gradient = gradient}), null_state);
  EXPECT_THAT(UnscaleGradient({}, {.gradient = gradient}), null_state);
  EXPECT_THAT(EndLossScaleStep({}, nullptr, nullptr), null_state);
}

}  // namespace
}  // namespace hotrow
