#include "models/train/learning_rate.h"

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ScheduleFactorTest, IsOneWithoutASchedule) {
  for (const int64_t step : {1, 2, 1000, 1'000'000'000}) {
    EXPECT_EQ(ScheduleFactor({}, step), 1);
  }
}

// W = 4, S = 6, D = 4: the factors of LRPolicyScheduler, worked by hand, with 1 in between.
TEST(ScheduleFactorTest, WarmsUpHoldsAndDecays) {
  const LearningRateOptions options = {
      .lr_warmup_steps = 4, .lr_decay_start = 6, .lr_decay_steps = 4};
  HOTROW_ASSERT_OK(options.Validate());
  const std::vector<double> expected = {0.25,   0.5,  0.75,   1,      1,     1,
                                        0.5625, 0.25, 0.0625, 0.0625, 0.0625};
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_DOUBLE_EQ(ScheduleFactor(options, static_cast<int64_t>(i) + 1), expected[i])
        << "step " << i + 1;
  }
  EXPECT_DOUBLE_EQ(ScheduleFactor(options, int64_t{1} << 40), 0.0625);
}

TEST(ScheduleFactorTest, WarmUpAloneEndsAtOne) {
  const LearningRateOptions options = {.lr_warmup_steps = 10};
  HOTROW_ASSERT_OK(options.Validate());
  EXPECT_DOUBLE_EQ(ScheduleFactor(options, 1), 0.1);
  EXPECT_DOUBLE_EQ(ScheduleFactor(options, 9), 0.9);
  EXPECT_DOUBLE_EQ(ScheduleFactor(options, 10), 1);
  EXPECT_DOUBLE_EQ(ScheduleFactor(options, 11), 1);
}

// The settings of MLPerf's DLRM: at batch 2048, 8000 warm-up steps, decay over 30000 from 70000.
TEST(ScheduleFactorTest, DecayIsQuadratic) {
  const LearningRateOptions options = {
      .lr_warmup_steps = 8000, .lr_decay_start = 70000, .lr_decay_steps = 30000};
  EXPECT_DOUBLE_EQ(ScheduleFactor(options, 69999), 1);
  EXPECT_DOUBLE_EQ(ScheduleFactor(options, 70000), 1);
  EXPECT_DOUBLE_EQ(ScheduleFactor(options, 85000), 0.25);
  EXPECT_DOUBLE_EQ(ScheduleFactor(options, 99999), 1.0 / 9e8);
  EXPECT_DOUBLE_EQ(ScheduleFactor(options, 100000), 1.0 / 9e8);
}

// Observes a sequence; 'b' better, 'l' lowered the rate, 's' stop, in this order, '-' none.
std::vector<std::string> Observe(ValidationPolicy* policy, const std::vector<double>& aucs) {
  std::vector<std::string> out;
  for (const double auc : aucs) {
    const ValidationPolicy::Verdict verdict = policy->Observe(auc);
    std::string text;
    if (verdict.better) text += 'b';
    if (verdict.lowered) text += 'l';
    if (verdict.stop) text += 's';
    out.push_back(text.empty() ? "-" : text);
  }
  return out;
}
using Verdicts = std::vector<std::string>;

TEST(ValidationPolicyTest, WithoutPatienceItOnlyKnowsTheBest) {
  ValidationPolicy policy({});
  EXPECT_EQ(Observe(&policy, {0.5, 0.6, 0.6, 0.5, 0.4, 0.3, 0.61}),
            (Verdicts{"b", "b", "-", "-", "-", "-", "b"}));
  EXPECT_EQ(policy.factor(), 1);
}

TEST(ValidationPolicyTest, TheFirstValidationIsTheBestSoFar) {
  ValidationPolicy policy({.early_stop_patience = 1});
  EXPECT_EQ(Observe(&policy, {0.0}), (Verdicts{"b"}));
}

// FuxiCTR's rule.
TEST(ValidationPolicyTest, LowersAtTheFirstAndStopsAtTheSecondInARow) {
  const LearningRateOptions options = {.lr_plateau_patience = 1, .early_stop_patience = 2};
  {
    ValidationPolicy policy(options);
    EXPECT_EQ(Observe(&policy, {0.90, 0.95, 0.94, 0.96, 0.955, 0.95}),
              (Verdicts{"b", "b", "l", "b", "l", "ls"}));
    EXPECT_NEAR(policy.factor(), 1e-3, 1e-15);
  }
  {
    ValidationPolicy policy(options);
    EXPECT_EQ(Observe(&policy, {0.90, 0.89, 0.91, 0.905, 0.915}),
              (Verdicts{"b", "l", "b", "l", "b"}));
    EXPECT_NEAR(policy.factor(), 1e-2, 1e-15);
  }
}

TEST(ValidationPolicyTest, APlateauThatGoesOnLowersAgain) {
  ValidationPolicy policy({.lr_plateau_factor = 0.5, .lr_plateau_patience = 2});
  EXPECT_EQ(Observe(&policy, {0.9, 0.8, 0.8, 0.8, 0.8, 0.8}),
            (Verdicts{"b", "-", "l", "-", "l", "-"}));
  EXPECT_EQ(policy.factor(), 0.25);
}

// A lowered rate does not give the run more time, a better validation does.
TEST(ValidationPolicyTest, EarlyStopCountsFromTheBest) {
  ValidationPolicy policy({.lr_plateau_patience = 2, .early_stop_patience = 3});
  EXPECT_EQ(Observe(&policy, {0.9, 0.8, 0.85, 0.91, 0.8, 0.8, 0.8}),
            (Verdicts{"b", "-", "l", "b", "-", "l", "s"}));
}

TEST(ValidationPolicyTest, AnImprovementWithinMinDeltaIsNone) {
  ValidationPolicy policy({.early_stop_patience = 2, .validation_min_delta = 0.01});
  EXPECT_EQ(Observe(&policy, {0.90, 0.909, 0.912, 0.915, 0.921}),
            (Verdicts{"b", "-", "b", "-", "s"}));
}

TEST(ValidationPolicyTest, NotANumberIsNoImprovement) {
  ValidationPolicy policy({.early_stop_patience = 1});
  EXPECT_EQ(Observe(&policy, {0.5, std::nan("")}), (Verdicts{"b", "s"}));
}

TEST(LearningRateOptionsTest, BadOptionsAreNamed) {
  const auto error = [](const LearningRateOptions& options) {
    const absl::Status status = options.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status.ToString();
    return std::string(status.message());
  };
  HOTROW_EXPECT_OK(LearningRateOptions().Validate());
  EXPECT_THAT(error({.lr_warmup_steps = -1}), HasSubstr("--lr_warmup_steps"));
  EXPECT_THAT(error({.lr_decay_steps = -1}), HasSubstr("--lr_decay_steps"));
  EXPECT_THAT(error({.lr_warmup_steps = 10, .lr_decay_start = 9, .lr_decay_steps = 1}),
              AllOf(HasSubstr("--lr_decay_start=9"), HasSubstr("--lr_warmup_steps=10")));
  EXPECT_THAT(error({.lr_decay_start = 9}), HasSubstr("--lr_decay_steps"));
  for (const double factor : {0.0, -0.1, 1.1, std::nan("")}) {
    EXPECT_THAT(error({.lr_plateau_factor = factor}), HasSubstr("--lr_plateau_factor"));
  }
  EXPECT_THAT(error({.lr_plateau_patience = -1}), HasSubstr("--lr_plateau_patience"));
  EXPECT_THAT(error({.early_stop_patience = -1}), HasSubstr("--early_stop_patience"));
  EXPECT_THAT(error({.validation_min_delta = std::nan("")}), HasSubstr("validation_min_delta"));
}

}  // namespace
}  // namespace hotrow
