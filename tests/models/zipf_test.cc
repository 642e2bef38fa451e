#include "models/data/zipf.h"

#include <cmath>
#include <vector>

#include "tests/support/test_util.h"

namespace hotrow {
namespace {

uint64_t Draw(const ZipfSampler& sampler, uint64_t seed, uint64_t n) {
  return sampler.Rank(RandomBlock(seed, RandomPurpose::kTest, n, 0, 0), [&](uint32_t retry) {
    return RandomBlock(seed, RandomPurpose::kTest, n, 0, retry);
  });
}

// Counts draws in cells of consecutive ranks and compares with the exact probabilities. Cells are
// single ranks while those are expected at least 50 times, then unions of ranks.
void ExpectZipf(uint64_t size, double exponent, uint64_t seed, int64_t draws) {
  std::vector<double> mass(size);
  double total = 0;
  for (uint64_t rank = 0; rank < size; ++rank) {
    mass[rank] = std::pow(static_cast<double>(rank + 1), -exponent);
    total += mass[rank];
  }
  std::vector<int32_t> cell_of(size);
  std::vector<double> expected = {0};
  for (uint64_t rank = 0; rank < size; ++rank) {
    if (expected.back() >= 50) expected.push_back(0);
    cell_of[rank] = static_cast<int32_t>(expected.size()) - 1;
    expected.back() += mass[rank] / total * static_cast<double>(draws);
  }
  const ZipfSampler sampler(size, exponent);
  std::vector<int64_t> counts(expected.size());
  for (int64_t i = 0; i < draws; ++i) {
    const uint64_t rank = Draw(sampler, seed, static_cast<uint64_t>(i));
    ASSERT_LT(rank, size);
    ++counts[static_cast<size_t>(cell_of[rank])];
  }
  double chi_square = 0;
  for (size_t cell = 0; cell < counts.size(); ++cell) {
    const double difference = static_cast<double>(counts[cell]) - expected[cell];
    // The last cell may be expected too seldom for a chi-square; it is bounded by itself.
    if (expected[cell] < 5) {
      EXPECT_LT(counts[cell], 30);
      continue;
    }
    chi_square += difference * difference / expected[cell];
  }
  const double freedom = std::max<double>(1, static_cast<double>(counts.size()) - 1);
  EXPECT_LT(chi_square, freedom + 6 * std::sqrt(2 * freedom) + 12);
}

TEST(ZipfSamplerTest, FrequenciesMatchTheory) {
  for (const double exponent : {0.0, 0.5, 1.0, 1.05, 2.0}) {
    // 65536 has all ranks in the alias table, 65537 a tail of one, 100000 and 500000 long tails.
    for (const uint64_t size : {1, 2, 3, 1000, 65'536, 65'537, 100'000, 500'000}) {
      SCOPED_TRACE(testing::Message() << "exponent " << exponent << ", size " << size);
      ExpectZipf(size, exponent, /*seed=*/size, /*draws=*/200'000);
    }
  }
}

TEST(ZipfSamplerTest, FrequenciesMatchTheoryForOtherSeeds) {
  for (const uint64_t seed : test::Seeds(3)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    ExpectZipf(200'000, 0.8, seed, 200'000);
  }
}

// The share of the tail against its integral, where a table of all ranks would be too large.
TEST(ZipfSamplerTest, TailOfABillionRanksHasItsShare) {
  constexpr uint64_t kSize = 1'000'000'000;
  constexpr int64_t kDraws = 200'000;
  for (const double exponent : {0.5, 1.0, 1.2}) {
    const ZipfSampler sampler(kSize, exponent);
    const auto sum = [&](double begin, double end) {  // over places in (begin, end], both large
      const double t = 1 - exponent;
      return t == 0 ? std::log((end + 0.5) / (begin + 0.5))
                    : (std::pow(end + 0.5, t) - std::pow(begin + 0.5, t)) / t;
    };
    double head = 0;
    for (int place = 1; place <= 1000; ++place) head += std::pow(place, -exponent);
    const double total = head + sum(1000, kSize);
    const double limits[] = {1000, 65'536, 1e6, 3e7, kSize};
    int64_t counts[5] = {};
    for (int64_t i = 0; i < kDraws; ++i) {
      const uint64_t rank = Draw(sampler, 5, static_cast<uint64_t>(i));
      ASSERT_LT(rank, kSize);
      int cell = 0;
      while (static_cast<double>(rank) >= limits[cell]) ++cell;
      ++counts[cell];
    }
    for (int cell = 0; cell < 5; ++cell) {
      const double p = (cell == 0 ? head : sum(limits[cell - 1], limits[cell])) / total;
      EXPECT_NEAR(static_cast<double>(counts[cell]), kDraws * p,
                  6 * std::sqrt(kDraws * p * (1 - p)) + 1)
          << "exponent " << exponent << ", cell " << cell;
    }
  }
}

TEST(ZipfSamplerTest, ExtremeBitsGiveLegalRanks) {
  const auto no_retry = [](uint32_t) { return PhiloxBlock{{0, 0, 0xffffffffu, 0xffffffffu}}; };
  for (const double exponent : {0.0, 0.3, 1.0, 5.0, 32.0}) {
    for (const uint64_t size : {uint64_t{1}, uint64_t{65'537}, uint64_t{1} << 48}) {
      const ZipfSampler sampler(size, exponent);
      for (const uint32_t high : {0u, 0xffffffffu}) {
        for (const uint32_t low : {0u, 0xffffffffu}) {
          EXPECT_LT(sampler.Rank({{high, high, low, low}}, no_retry), size);
        }
      }
    }
  }
}

}  // namespace
}  // namespace hotrow
