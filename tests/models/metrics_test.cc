#include "models/data/metrics.h"

#include <cmath>
#include <vector>

#include "base/philox.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

double BruteForceAuc(const std::vector<float>& scores, const std::vector<float>& labels) {
  double ordered = 0;
  double pairs = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    for (size_t j = 0; j < scores.size(); ++j) {
      if (labels[i] < 0.5f || labels[j] > 0.5f) continue;
      pairs += 1;
      ordered += scores[i] > scores[j] ? 1 : scores[i] == scores[j] ? 0.5 : 0;
    }
  }
  return pairs == 0 ? 0.5 : ordered / pairs;
}

CtrMetrics Metrics(const std::vector<float>& logits, const std::vector<float>& labels) {
  MetricsAccumulator accumulator;
  accumulator.Add(logits, labels);
  return accumulator.Compute();
}

TEST(AucTest, HandWorkedNumbers) {
  // Positives 0.8 and 0.4, negatives 0.6 and 0.2: three of four pairs are ordered.
  EXPECT_EQ(Auc(std::vector<float>{0.8f, 0.6f, 0.4f, 0.2f}, std::vector<float>{1, 0, 1, 0}), 0.75);
  EXPECT_EQ(Auc(std::vector<float>{1, 2, 3}, std::vector<float>{0, 0, 1}), 1.0);
  EXPECT_EQ(Auc(std::vector<float>{1, 2, 3}, std::vector<float>{1, 0, 0}), 0.0);
  // One tie out of two pairs: (1 + 0.5) / 2.
  EXPECT_EQ(Auc(std::vector<float>{2, 2, 1}, std::vector<float>{1, 0, 0}), 0.75);
}

TEST(AucTest, NegativeScoresAndBothZerosOrderAsNumbers) {
  EXPECT_EQ(Auc(std::vector<float>{-3, -2, -1, 1}, std::vector<float>{0, 0, 1, 1}), 1.0);
  EXPECT_EQ(Auc(std::vector<float>{-0.0f, 0.0f}, std::vector<float>{0, 1}), 0.5);
  EXPECT_EQ(Auc(std::vector<float>{0.0f, -0.0f}, std::vector<float>{0, 1}), 0.5);
  EXPECT_EQ(Auc(std::vector<float>{-1e38f, 1e-45f, 1e38f}, std::vector<float>{0, 1, 1}), 1.0);
}

TEST(AucTest, EqualScoresOneClassAndNothingGiveOneHalf) {
  EXPECT_EQ(Auc(std::vector<float>(100, 0.3f),
                [] {
                  std::vector<float> labels(100);
                  for (size_t i = 0; i < 37; ++i) labels[i] = 1;
                  return labels;
                }()),
            0.5);
  EXPECT_TRUE(std::isnan(Auc(std::vector<float>{1, 2}, std::vector<float>{1, 1})));
  EXPECT_TRUE(std::isnan(Auc(std::vector<float>{1, 2}, std::vector<float>{0, 0})));
  EXPECT_TRUE(std::isnan(Auc({}, {})));
}

TEST(AucTest, MatchesBruteForceWithManyTies) {
  for (const uint64_t seed : test::Seeds(30)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    const size_t n = 1 + random.Below(400);
    const uint64_t values = 1 + random.Below(60);
    std::vector<float> scores(n);
    std::vector<float> labels(n);
    for (size_t i = 0; i < n; ++i) {
      scores[i] = (static_cast<float>(random.Below(values)) - 20) * 0.37f;
      labels[i] = random.Uniform() < 0.3 ? 1.0f : 0.0f;
    }
    EXPECT_NEAR(Auc(scores, labels), BruteForceAuc(scores, labels), 1e-14);
  }
}

TEST(AucTest, DoesNotDependOnTheOrderOfSamples) {
  RandomStream random(4, RandomPurpose::kTest);
  std::vector<float> scores(100'000);
  std::vector<float> labels(100'000);
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] = random.Normal();
    labels[i] = random.Uniform() < 0.5 + 0.1 * scores[i] ? 1.0f : 0.0f;
  }
  const double forwards = Auc(scores, labels);
  std::reverse(scores.begin(), scores.end());
  std::reverse(labels.begin(), labels.end());
  EXPECT_EQ(Auc(scores, labels), forwards);
  EXPECT_GT(forwards, 0.55);
}

TEST(MetricsAccumulatorTest, HandWorkedNumbers) {
  // Logits +-log(3) are probabilities 3/4 and 1/4.
  const float l = std::log(3.0f);
  const CtrMetrics m = Metrics({l, l, -l, -l}, {1, 0, 0, 0});
  EXPECT_EQ(m.samples, 4);
  // -log(3/4) for three of them, -log(1/4) for one.
  const double loss = (-3 * std::log(0.75) - std::log(0.25)) / 4;
  EXPECT_NEAR(m.logloss, loss, 1e-7);
  const double entropy = -0.25 * std::log(0.25) - 0.75 * std::log(0.75);
  EXPECT_NEAR(m.ne, loss / entropy, 1e-7);
  EXPECT_NEAR(m.calibration, 2.0, 1e-7);  // predicted 2 clicks, saw 1
  EXPECT_NEAR(m.auc, 2.5 / 3, 1e-15);
}

TEST(MetricsAccumulatorTest, PredictingTheBaseRateHasUnitNe) {
  const float logit = std::log(0.25f / 0.75f);
  const CtrMetrics m = Metrics({logit, logit, logit, logit}, {0, 1, 0, 0});
  EXPECT_NEAR(m.ne, 1, 1e-6);
  EXPECT_NEAR(m.calibration, 1, 1e-6);
  EXPECT_EQ(m.auc, 0.5);
}

TEST(MetricsAccumulatorTest, SurePredictionsKeepFiniteAndExactLosses) {
  EXPECT_EQ(Metrics({1000}, {0}).logloss, 1000);
  EXPECT_EQ(Metrics({-1000}, {1}).logloss, 1000);
  EXPECT_EQ(Metrics({1000}, {1}).logloss, 0);
  EXPECT_NEAR(Metrics({40}, {1}).logloss, std::exp(-40.0), 1e-25);
  EXPECT_NEAR(Metrics({-40}, {0}).logloss, std::exp(-40.0), 1e-25);
  EXPECT_EQ(Metrics({1000, -1000}, {1, 0}).calibration, 1);
}

TEST(MetricsAccumulatorTest, OneClassAndNothing) {
  const CtrMetrics none = Metrics({}, {});
  EXPECT_EQ(none.samples, 0);
  EXPECT_TRUE(std::isnan(none.auc));
  EXPECT_EQ(none.logloss, 0);
  const CtrMetrics negatives = Metrics({0, 0}, {0, 0});
  EXPECT_TRUE(std::isnan(negatives.ne));
  EXPECT_TRUE(std::isnan(negatives.calibration));
  EXPECT_NEAR(negatives.logloss, std::log(2.0), 1e-15);
  const CtrMetrics positives = Metrics({0, 0}, {1, 1});
  EXPECT_TRUE(std::isnan(positives.ne));
  EXPECT_EQ(positives.calibration, 0.5);
  EXPECT_EQ(FormatMetric(0.75), "0.7500");
  EXPECT_EQ(FormatMetric(positives.auc), "none (one class)");
}

TEST(MetricsAccumulatorTest, BatchesAddUpAndClearForgets) {
  MetricsAccumulator parts;
  parts.Add(std::vector<float>{0.5f, -1}, std::vector<float>{1, 0});
  parts.Add({}, {});
  parts.Add(std::vector<float>{2}, std::vector<float>{0});
  const CtrMetrics whole = Metrics({0.5f, -1, 2}, {1, 0, 0});
  EXPECT_EQ(parts.Compute().samples, 3);
  EXPECT_EQ(parts.Compute().logloss, whole.logloss);
  EXPECT_EQ(parts.Compute().auc, whole.auc);
  parts.Clear();
  EXPECT_EQ(parts.Compute().samples, 0);
}

}  // namespace
}  // namespace hotrow
