#include "models/train/step_times.h"

#include "gtest/gtest.h"

namespace hotrow {
namespace {

TEST(StepTimesTest, QuantilesAreTimesOfSteps) {
  StepTimes times;
  EXPECT_EQ(times.Quantile(0.5), 0);
  EXPECT_EQ(times.max(), 0);
  for (int64_t i = 100; i > 0; --i) times.Add(1'000'000 + i);
  EXPECT_EQ(times.Quantile(0), 1'000'001);
  EXPECT_EQ(times.Quantile(0.5), 1'000'050);
  EXPECT_EQ(times.Quantile(0.99), 1'000'099);
  EXPECT_EQ(times.Quantile(1), 1'000'100);
  EXPECT_EQ(times.max(), 1'000'100);
}

TEST(StepTimesTest, ManyStepsAreThinnedEvenly) {
  StepTimes times;
  constexpr int64_t kSteps = 300'000;
  for (int64_t i = 0; i < kSteps; ++i) times.Add(i == 7 ? 10 * kSteps : i);
  EXPECT_EQ(times.max(), 10 * kSteps);
  for (const double q : {0.01, 0.5, 0.99}) {
    EXPECT_NEAR(static_cast<double>(times.Quantile(q)), q * kSteps, 0.0002 * kSteps) << q;
  }
}

}  // namespace
}  // namespace hotrow
