#include "cache/miss_ratio_curve.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/hash.h"
#include "base/philox.h"
#include "cache/cache_simulation.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

// The plainest stack: a vector with the most recent key in front.
class NaiveStack {
 public:
  int64_t Touch(uint64_t key) {
    const auto at = std::find(keys_.begin(), keys_.end(), key);
    const int64_t distance = at == keys_.end() ? -1 : at - keys_.begin();
    if (at != keys_.end()) keys_.erase(at);
    keys_.insert(keys_.begin(), key);
    return distance;
  }
  void RemoveAbove(uint64_t limit) {
    keys_.erase(std::remove_if(keys_.begin(), keys_.end(), [&](uint64_t k) { return k > limit; }),
                keys_.end());
  }
  const std::vector<uint64_t>& keys() const { return keys_; }

 private:
  std::vector<uint64_t> keys_;
};

// Skewed towards low numbers: half of the keys lie in the first `size`^(1/2).
uint64_t SkewedKey(RandomStream& random, double size) {
  return static_cast<uint64_t>(std::pow(size, random.Uniform()));
}

TEST(LruStackTest, MatchesAMoveToFrontList) {
  for (const uint64_t seed : test::Seeds(12)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    LruStack stack;
    NaiveStack naive;
    const double size = seed % 3 == 0 ? 20 : 3000;
    for (int i = 0; i < 6000; ++i) {
      const uint64_t key = Mix64(SkewedKey(random, size));
      ASSERT_EQ(stack.Touch(key), naive.Touch(key)) << "access " << i;
      if (i % 1500 == 1499) {
        const int64_t rank =
            static_cast<int64_t>(random.Below(static_cast<uint64_t>(stack.size())));
        const uint64_t limit = stack.NthHash(rank);
        std::vector<uint64_t> sorted = naive.keys();
        std::sort(sorted.begin(), sorted.end());
        ASSERT_EQ(limit, sorted[static_cast<size_t>(rank)]);
        stack.RemoveAbove(limit);
        naive.RemoveAbove(limit);
      }
      ASSERT_EQ(stack.size(), std::ssize(naive.keys()));
    }
  }
}

TEST(LruStackTest, EveryHashIsLegal) {
  LruStack stack;
  for (const uint64_t hash : {uint64_t{0}, UINT64_MAX, uint64_t{1} << 63}) {
    EXPECT_EQ(stack.Touch(hash), -1);
    EXPECT_EQ(stack.Touch(hash), 0);
  }
  EXPECT_EQ(stack.Touch(0), 2);
  EXPECT_EQ(stack.size(), 3);
}

TEST(LruStackTest, MemoryFollowsTheKeysAndNotTheAccesses) {
  LruStack stack;
  for (int i = 0; i < 200'000; ++i) stack.Touch(Mix64(static_cast<uint64_t>(i % 1000)));
  EXPECT_LE(stack.MemoryBytes(), 1000 * 48);
}

TEST(LruCurveTest, KnowsTheHitsOfAHandWorkedStream) {
  LruCurve curve;
  EXPECT_EQ(curve.HitRate(10), 0);
  //                            a  b  c  a  a  c  b
  const std::vector<int64_t> distances = {-1, -1, -1, 2, 0, 1, 2};
  const std::vector<uint64_t> keys = {1, 2, 3, 1, 1, 3, 2};
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(curve.Add(keys[i]), distances[i]);
  EXPECT_EQ(curve.accesses(), 7);
  EXPECT_EQ(curve.distinct(), 3);
  EXPECT_EQ(curve.HitRates({3, 0, 1, 2, 100}),
            (std::vector<double>{4.0 / 7, 0, 1.0 / 7, 2.0 / 7, 4.0 / 7}));
}

TEST(LruCurveTest, EqualKeysOfTwoTablesAreTwoRows) {
  LruCurve curve;
  EXPECT_EQ(curve.Add(5, 0), -1);
  EXPECT_EQ(curve.Add(5, 1), -1);
  EXPECT_EQ(curve.Add(5, 0), 1);
}

TEST(SampledLruCurveTest, IsExactAtRateOne) {
  for (const uint64_t seed : test::Seeds(5)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    LruCurve exact(seed);
    SampledLruCurve sampled({.sample_rate = 1, .seed = seed});
    for (int i = 0; i < 20'000; ++i) {
      const uint64_t key = SkewedKey(random, 5000);
      const auto table = static_cast<uint32_t>(random.Below(3));
      exact.Add(key, table);
      sampled.Add(key, table);
    }
    EXPECT_EQ(sampled.accesses(), exact.accesses());
    EXPECT_EQ(sampled.distinct(), static_cast<double>(exact.distinct()));
    // Below 128 the histogram is exact; above, a size is known to 1 part in 128.
    for (const int64_t rows : {0, 1, 7, 100, 128}) {
      EXPECT_NEAR(sampled.HitRate(static_cast<double>(rows)), exact.HitRate(rows), 1e-12);
    }
    for (const int64_t rows : {500, 3000, 100'000}) {
      EXPECT_NEAR(sampled.HitRate(static_cast<double>(rows)), exact.HitRate(rows), 2e-3);
      EXPECT_EQ(sampled.HitRateError(static_cast<double>(rows)), 0);
    }
  }
}

// What is stated as two standard errors holds the true value about 95 times of 100, and is not so
// wide as to say nothing.
TEST(SampledLruCurveTest, ErrorsLieWithinWhatIsStated) {
  RandomStream random(7, RandomPurpose::kTest);
  std::vector<uint64_t> keys;
  LruCurve exact;
  for (int i = 0; i < 200'000; ++i) {
    keys.push_back(SkewedKey(random, 50'000));
    exact.Add(keys.back());
  }
  for (const int64_t keys_max : {0, 2000}) {
    int within = 0;
    int estimates = 0;
    double worst = 0;
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      SampledLruCurve curve({.sample_rate = 0.1, .keys_max = keys_max, .seed = seed});
      for (const uint64_t key : keys) curve.Add(key);
      for (const int64_t rows : {500, 2500, 5000, 10'000}) {
        const double error = curve.HitRate(static_cast<double>(rows)) - exact.HitRate(rows);
        const double stated = curve.HitRateError(static_cast<double>(rows));
        within += std::abs(error) <= stated;
        worst = std::max(worst, stated);
        ++estimates;
      }
    }
    EXPECT_GE(within, estimates * 90 / 100) << "keys_max " << keys_max;
    EXPECT_LE(worst, 0.1) << "keys_max " << keys_max;
  }
}

TEST(SampledLruCurveTest, AKeysMaxBoundsTheMemory) {
  SampledLruCurve curve({.sample_rate = 1, .keys_max = 1000, .seed = 3});
  for (uint64_t i = 0; i < 1'000'000; ++i) curve.Add(i);
  EXPECT_LE(curve.sampled_keys(), 1000);
  EXPECT_GE(curve.sampled_keys(), 875);
  EXPECT_NEAR(curve.distinct(), 1e6, 1e5);
  EXPECT_LE(curve.MemoryBytes(), 200'000);
  // No key came twice. What is left is the share of accesses by which the sample missed the rate.
  EXPECT_NEAR(curve.HitRate(1e6), 0, 0.05);
}

TEST(SampledLruCurveTest, TakesTheRestOfASampledTraceAsACount) {
  SampledLruCurve all({.sample_rate = 0.2, .seed = 9});
  SampledLruCurve part({.sample_rate = 0.2, .seed = 9});
  RandomStream random(11, RandomPurpose::kTest);
  const KeySampler sampler(9, 0);
  const uint64_t limit = KeySampler::LimitOfRate(0.2);
  int64_t unsampled = 0;
  for (int i = 0; i < 30'000; ++i) {
    const uint64_t key = SkewedKey(random, 4000);
    all.Add(key);
    if (sampler.IsSampled(key, limit)) {
      part.Add(key);
    } else {
      ++unsampled;
    }
  }
  EXPECT_GT(unsampled, 0);
  part.AddUnsampled(unsampled);
  for (const double rows : {50.0, 400.0, 2000.0}) EXPECT_EQ(part.HitRate(rows), all.HitRate(rows));
}

TEST(SampledLruCurveTest, BadOptionsAreNamed) {
  for (const double rate : {0.0, -1.0, 1.5, std::nan("")}) {
    EXPECT_THAT(SampledLruCurveOptions({.sample_rate = rate}).Validate(),
                test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("sample_rate")));
  }
  EXPECT_THAT(SampledLruCurveOptions({.sample_rate = 0.1, .keys_max = 255}).Validate(),
              test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("keys_max")));
}

TEST(KeySamplerTest, TakesItsShareOfTheKeysAndNestsSamples) {
  const KeySampler sampler(1, 4);
  const uint64_t tenth = KeySampler::LimitOfRate(0.1);
  const uint64_t hundredth = KeySampler::LimitOfRate(0.01);
  int64_t sampled = 0;
  for (uint64_t key = 0; key < 100'000; ++key) {
    sampled += sampler.IsSampled(key, tenth);
    EXPECT_TRUE(sampler.IsSampled(key, tenth) || !sampler.IsSampled(key, hundredth));
  }
  EXPECT_NEAR(static_cast<double>(sampled), 10'000, 400);  // four standard deviations are 380
  EXPECT_NEAR(KeySampler::RateOfLimit(tenth), 0.1, 1e-12);
  EXPECT_EQ(KeySampler::RateOfLimit(KeySampler::LimitOfRate(1)), 1);
}

TEST(CacheSimulationTest, CountsWhatASmallStreamHits) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto simulation,
                              CacheSimulation::Create({.rows = 32, .step_lookups = 4}));
  EXPECT_EQ(simulation->ways(), 32);
  for (const uint64_t key : {1, 2, 1, 3, /**/ 1, 1, 2, 9, /**/ 9}) simulation->Add({key, 0});
  simulation->EndStep();
  const CacheSimulation::Counts& counts = simulation->counts();
  EXPECT_EQ(counts.lookups, 9);
  EXPECT_EQ(counts.unique_keys, 3 + 3 + 1);
  EXPECT_EQ(counts.unique_hits, 0 + 2 + 1);
  EXPECT_EQ(counts.lookup_hits, 0 + 3 + 1);
  EXPECT_EQ(counts.no_room, 0);
}

TEST(CacheSimulationTest, PinsOfStepsInFlightTakeRoom) {
  // 31 rows a step in 32 ways and the 32 of the overflow: two steps fit beside each other, three do
  // not.
  for (const int32_t depth : {0, 1, 2}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto simulation,
                                CacheSimulation::Create({.rows = 32, .prefetch_depth = depth}));
    for (uint64_t step = 0; step < 4; ++step) {
      std::vector<RowKey> keys;
      for (uint64_t i = 0; i < 31; ++i) keys.push_back({step * 31 + i, 0});
      simulation->Step(keys, {});
    }
    EXPECT_EQ(simulation->counts().unique_keys, 4 * 31);
    EXPECT_EQ(simulation->counts().no_room > 0, depth == 2) << depth;
  }
}

TEST(CacheSimulationTest, LruIsNearTheCurve) {
  RandomStream random(5, RandomPurpose::kTest);
  LruCurve curve;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto simulation, CacheSimulation::Create({.rows = 2048}));
  for (int i = 0; i < 200'000; ++i) {
    const uint64_t key = SkewedKey(random, 20'000);
    curve.Add(key);
    simulation->Add({key, 0});
  }
  EXPECT_NEAR(simulation->counts().hit_rate(), curve.HitRate(2048), 0.02);
}

TEST(CacheSimulationTest, BadOptionsAreNamed) {
  EXPECT_THAT(CacheSimulation::Create({.rows = 0}).status(),
              test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rows")));
  EXPECT_THAT(CacheSimulation::Create({.rows = 1, .step_lookups = 0}).status(),
              test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("step_lookups")));
  EXPECT_THAT(CacheSimulation::Create({.rows = 1, .prefetch_depth = 63}).status(),
              test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("prefetch_depth")));
}

}  // namespace
}  // namespace hotrow
