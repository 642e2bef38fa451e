#include "tools/plan/popularity.h"

#include <algorithm>
#include <cmath>
#include <list>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/philox.h"
#include "cache/cache_simulation.h"
#include "models/data/zipf.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

TEST(PopularityTest, HarmonicSumsAreThoseOfPlainAddition) {
  for (const double s : {0.0, 0.5, 1.0, 1.05, 2.0, 4.0}) {
    double sum = 0;
    for (int r = 100'000; r >= 1; --r) sum += std::pow(r, -s);
    EXPECT_NEAR(HarmonicSum(100'000, s) / sum, 1, 1e-7) << s;
  }
}

TEST(PopularityTest, AGroupedZipfLawIsNearTheExactOne) {
  for (const double s : {0.0, 0.8, 1.0, 1.2}) {
    const Popularity law = Popularity::Zipf(100'000, s);
    EXPECT_NEAR(law.rows(), 100'000, 1e-6);
    double total = 0;
    for (int r = 1; r <= 100'000; ++r) total += std::pow(r, -s);
    for (const int rows : {1, 50, 1000, 30'000, 100'000}) {
      double sum = 0;
      for (int r = 1; r <= rows; ++r) sum += std::pow(r, -s);
      // The share of lookups of the hottest rows.
      double hits = 0;
      double left = rows;
      for (const Popularity::Group& group : law.groups) {
        hits += std::clamp(left, 0.0, group.rows) * group.probability;
        left -= group.rows;
      }
      EXPECT_NEAR(hits, sum / total, 5e-4) << s << " " << rows;
    }
    double unique = 0;
    for (int r = 1; r <= 100'000; ++r) unique += 1 - std::pow(1 - std::pow(r, -s) / total, 5000);
    EXPECT_NEAR(ExpectedUnique(law, 5000) / unique, 1, 1e-3) << s;
  }
}

// Against the cache's own code: steps of lookups drawn from the law.
TEST(CacheModelTest, LruIsWithinAPointOfOurCache) {
  constexpr int64_t kRows = 100'000;
  constexpr int64_t kStepLookups = 2048;
  for (const double s : {0.8, 1.05, 1.2}) {
    const Popularity law = Popularity::Zipf(kRows, s);
    const CacheClient client = {&law, kStepLookups};
    const CacheModel model(std::span(&client, 1));
    const ZipfSampler sampler(kRows, s);
    for (const int64_t rows : {4096, 8192, 20'000}) {
      HOTROW_ASSERT_OK_AND_ASSIGN(
          const auto cache, CacheSimulation::Create({.rows = rows, .step_lookups = kStepLookups}));
      RandomStream random(3, RandomPurpose::kTest);
      const auto step = [&] {
        for (int64_t i = 0; i < kStepLookups; ++i) {
          const PhiloxBlock block = {
              {random.Next32(), random.Next32(), random.Next32(), random.Next32()}};
          cache->Add({sampler.Rank(block,
                                   [&](uint32_t) {
                                     return PhiloxBlock{{random.Next32(), random.Next32(),
                                                         random.Next32(), random.Next32()}};
                                   }),
                      0});
        }
      };
      for (int i = 0; i < 600; ++i) step();  // warm
      const CacheSimulation::Counts before = cache->counts();
      for (int i = 0; i < 200; ++i) step();
      const CacheSimulation::Counts after = cache->counts();
      const double hit_rate = static_cast<double>(after.lookup_hits - before.lookup_hits) /
                              static_cast<double>(after.lookups - before.lookups);
      const double unique_hit_rate = static_cast<double>(after.unique_hits - before.unique_hits) /
                                     static_cast<double>(after.unique_keys - before.unique_keys);
      const CacheHitRates predicted = model.Lru(static_cast<double>(rows));
      EXPECT_NEAR(predicted.lookups, hit_rate, 0.01) << s << " " << rows;
      EXPECT_NEAR(predicted.unique_keys, unique_hit_rate, 0.01) << s << " " << rows;
      EXPECT_NEAR(static_cast<double>(after.unique_keys - before.unique_keys) / 200,
                  model.unique_keys(), 0.01 * model.unique_keys());
      const CacheHitRates bound = model.Hottest(static_cast<double>(rows));
      EXPECT_GE(bound.unique_keys + 1e-3, predicted.unique_keys);
    }
  }
}

// Four ranks look up a fourth of a step each; a key counts once for each that has it in its part.
TEST(CacheModelTest, PartsOfAStepCountAKeyOnceEach) {
  constexpr int kParts = 4;
  constexpr int kPartLookups = 1000;
  constexpr int64_t kRows = 20'000;
  constexpr double kHeld = 2000;
  const Popularity law = Popularity::Zipf(kRows, 1.05);
  const CacheClient client = {.law = &law, .step_lookups = kParts * kPartLookups, .parts = kParts};
  const CacheModel model(std::span(&client, 1));
  RandomStream random(4, RandomPurpose::kTest);
  const ZipfSampler sampler(kRows, 1.05);
  double asked = 0;
  constexpr int kSteps = 50;
  for (int i = 0; i < kSteps * kParts; ++i) {
    std::set<uint64_t> part;
    for (int n = 0; n < kPartLookups; ++n) {
      const auto block = [&](uint32_t) {
        return PhiloxBlock{{random.Next32(), random.Next32(), random.Next32(), random.Next32()}};
      };
      part.insert(sampler.Rank(block(0), block));
    }
    asked += static_cast<double>(part.size());
  }
  EXPECT_NEAR(model.lookups(), asked / kSteps, 0.01 * asked / kSteps);
  // More of what is asked hits than of the distinct keys, and less than of all lookups.
  const CacheClient whole = {.law = &law, .step_lookups = kParts * kPartLookups};
  const CacheModel lookups(std::span(&whole, 1));
  EXPECT_EQ(model.Lru(kHeld).unique_keys, lookups.Lru(kHeld).unique_keys);
  EXPECT_GT(model.Lru(kHeld).lookups, model.Lru(kHeld).unique_keys + 0.01);
  EXPECT_LT(model.Lru(kHeld).lookups, lookups.Lru(kHeld).lookups - 0.01);
}

// What a second cache finds of what misses in the first, against two plain lists by steps.
TEST(CacheModelTest, WhatLeavesIsFoundBelow) {
  constexpr int64_t kRows = 20'000;
  constexpr int64_t kStepLookups = 1000;
  const Popularity law = Popularity::Zipf(kRows, 1.05);
  const CacheClient client = {&law, kStepLookups};
  const CacheModel model(std::span(&client, 1));
  const ZipfSampler sampler(kRows, 1.05);
  struct Rows {
    std::list<uint64_t> order;  // the last added in front
    std::unordered_map<uint64_t, std::list<uint64_t>::iterator> held;
    void Add(uint64_t row) {
      if (const auto at = held.find(row); at != held.end()) order.erase(at->second);
      order.push_front(row);
      held[row] = order.begin();
    }
    uint64_t TakeOldest() {
      const uint64_t row = order.back();
      held.erase(row);
      order.pop_back();
      return row;
    }
  };
  for (const auto& [above, below] : {std::pair{1500, 1500}, {3000, 3000}, {3000, 14'000}}) {
    Rows first, second;
    RandomStream random(6, RandomPurpose::kTest);
    double misses = 0;
    double found = 0;
    constexpr int kWarm = 200;
    for (int step = 0; step < 2 * kWarm; ++step) {
      std::set<uint64_t> keys;
      for (int64_t i = 0; i < kStepLookups; ++i) {
        const auto block = [&](uint32_t) {
          return PhiloxBlock{{random.Next32(), random.Next32(), random.Next32(), random.Next32()}};
        };
        keys.insert(sampler.Rank(block(0), block));
      }
      for (const uint64_t key : keys) {
        if (step < kWarm || first.held.contains(key)) continue;
        ++misses;
        found += second.held.contains(key) ? 1 : 0;
      }
      for (const uint64_t key : keys) first.Add(key);
      while (std::ssize(first.order) > above) {
        second.Add(first.TakeOldest());
        if (std::ssize(second.order) > below) second.TakeOldest();
      }
    }
    const CacheModel::Below planned = model.FoundBelow(above, below);
    const double missed = model.unique_keys() * (1 - model.Lru(above).unique_keys);
    EXPECT_NEAR(missed, misses / kWarm, 0.03 * missed);
    EXPECT_NEAR(planned.keys / missed, found / misses, 0.02) << above << " " << below;
    // A measured curve of the law says about the same.
    std::vector<CurvePoint> curve;
    const CacheClient one = {.law = &law, .step_lookups = 1};
    const CacheModel by_lookup(std::span(&one, 1));
    for (double rows = 10; rows < kRows; rows *= 1.2) {
      curve.push_back({rows, by_lookup.Lru(rows).lookups});
    }
    const Footprint footprint(curve, kRows);
    const CacheClient measured = {.step_lookups = kStepLookups, .footprint = &footprint};
    EXPECT_NEAR(CacheModel(std::span(&measured, 1)).FoundBelow(above, below).keys / missed,
                found / misses, 0.15);
  }
  EXPECT_NEAR(model.FoundBelow(3000, kRows).keys,
              model.unique_keys() * (1 - model.Lru(3000).unique_keys), 0.01 * model.unique_keys());
  EXPECT_EQ(model.FoundBelow(kRows, 1000).keys, 0);
}

// What a store below a cache gets to see, against a plain LRU list by steps.
TEST(CacheModelTest, SomeRowsNeverLeaveTheCache) {
  constexpr int64_t kRows = 50'000;
  constexpr int64_t kStepLookups = 2000;
  constexpr size_t kHeld = 10'000;
  const Popularity law = Popularity::Zipf(kRows, 1.05);
  const CacheClient client = {&law, kStepLookups};
  const CacheModel model(std::span(&client, 1));
  const ZipfSampler sampler(kRows, 1.05);
  RandomStream random(5, RandomPurpose::kTest);
  std::list<uint64_t> order;  // the last used in front
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> held;
  std::set<uint64_t> seen;
  std::set<uint64_t> left;
  int step = 0;
  for (const int steps : {5, 20, 60, 300}) {
    for (; step < steps; ++step) {
      for (int64_t i = 0; i < kStepLookups; ++i) {
        const auto block = [&](uint32_t) {
          return PhiloxBlock{{random.Next32(), random.Next32(), random.Next32(), random.Next32()}};
        };
        const uint64_t row = sampler.Rank(block(0), block);
        seen.insert(row);
        if (const auto at = held.find(row); at != held.end()) order.erase(at->second);
        order.push_front(row);
        held[row] = order.begin();
        if (held.size() > kHeld) {
          left.insert(order.back());
          held.erase(order.back());
          order.pop_back();
        }
      }
    }
    const double share = static_cast<double>(left.size()) / static_cast<double>(seen.size());
    EXPECT_NEAR(model.LeftShareOfClient(0, kHeld, steps), share, 0.02) << steps;
  }
  EXPECT_EQ(model.LeftShareOfClient(0, kRows, 300), 0);
}

TEST(CacheModelTest, AnEmptyCacheHitsNothingAndOneOfAllRowsEverything) {
  const Popularity hot = Popularity::Zipf(1000, 1.2);
  const Popularity cold = Popularity::Zipf(50'000, 0.2);
  const std::vector<CacheClient> clients = {{&hot, 500}, {&cold, 1500}};
  const CacheModel model(clients);
  EXPECT_NEAR(model.rows(), 51'000, 1e-6);
  EXPECT_EQ(model.Lru(51'000).unique_keys, 1);
  EXPECT_EQ(model.Lru(0).unique_keys, 0);
}

TEST(CacheModelTest, HitRatesGrowWithTheCache) {
  const Popularity law = Popularity::Zipf(1e9, 1.05);
  const CacheClient client = {&law, 65'536};
  const CacheModel model(std::span(&client, 1));
  double last = -1;
  for (double rows = 1; rows <= 1e9; rows *= 1.5) {
    const double now = model.Lru(rows).unique_keys;
    EXPECT_GE(now, last);
    EXPECT_LE(now, 1);
    last = now;
  }
}

// A cache that begins empty, step by step, against the mean that the model gives.
TEST(CacheModelTest, AnEmptyCacheFills) {
  constexpr int64_t kRows = 20'000;
  constexpr int64_t kStepLookups = 512;
  const Popularity law = Popularity::Zipf(kRows, 1.05);
  const CacheClient client = {&law, kStepLookups};
  const CacheModel model(std::span(&client, 1));
  const ZipfSampler sampler(kRows, 1.05);
  for (const int64_t rows : {2000, 12'000}) {
    for (const int steps : {10, 40, 400}) {
      RandomStream random(5, RandomPurpose::kTest);
      // The last step that used a row; a row is there when fewer than `rows` were used since.
      std::list<uint64_t> recent;
      std::unordered_map<uint64_t, std::list<uint64_t>::iterator> place;
      std::set<uint64_t> seen;
      int64_t hits = 0;
      int64_t unique = 0;
      for (int s = 0; s < steps; ++s) {
        std::set<uint64_t> keys;
        for (int64_t i = 0; i < kStepLookups; ++i) {
          const auto block = [&](uint32_t) {
            return PhiloxBlock{
                {random.Next32(), random.Next32(), random.Next32(), random.Next32()}};
          };
          keys.insert(sampler.Rank(block(0), block));
        }
        for (const uint64_t key : keys) {
          ++unique;
          seen.insert(key);
          if (const auto at = place.find(key); at != place.end()) {
            ++hits;
            recent.erase(at->second);
          }
          recent.push_front(key);
          place[key] = recent.begin();
        }
        while (std::ssize(recent) > rows) {
          place.erase(recent.back());
          recent.pop_back();
        }
      }
      const double rate = static_cast<double>(hits) / static_cast<double>(unique);
      EXPECT_NEAR(model.LruFromEmpty(rows, steps).unique_keys, rate, 0.01) << rows << " " << steps;
      EXPECT_NEAR(model.RowsAfter(steps), static_cast<double>(seen.size()), 0.02 * kRows);
    }
    EXPECT_NEAR(model.LruFromEmpty(rows, 1e9).unique_keys, model.Lru(rows).unique_keys, 1e-3);
  }
  EXPECT_EQ(model.LruFromEmpty(0, 10).lookups, 0);
}

}  // namespace
}  // namespace hotrow
