#include "base/metrics.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/philox.h"
#include "base/thread_pool.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

TEST(CounterTest, CountsFromAllThreads) {
  Counter counter;
  ThreadPool pool(4);
  pool.ParallelFor(1000, 1, [&counter](int64_t begin, int64_t) { counter.Add(begin); });
  EXPECT_EQ(counter.value(), 999 * 1000 / 2);
  EXPECT_EQ(counter.value(), 999 * 1000 / 2);  // reading does not reset
}

TEST(HistogramTest, EmptyOneIsZero) {
  const Histogram histogram;
  EXPECT_EQ(histogram.count(), 0);
  EXPECT_EQ(histogram.Quantile(0.5), 0);
  EXPECT_EQ(histogram.Quantile(1), 0);
}

TEST(HistogramTest, SmallValuesAreExact) {
  Histogram histogram;
  for (int64_t v = 0; v < 32; ++v) histogram.Add(v);
  EXPECT_EQ(histogram.count(), 32);
  EXPECT_EQ(histogram.Quantile(0), 0);
  EXPECT_EQ(histogram.Quantile(0.5), 15);
  EXPECT_EQ(histogram.Quantile(0.75), 23);
  EXPECT_EQ(histogram.Quantile(1), 31);
}

TEST(HistogramTest, OneValueOfAnySizeIsWithinOneIn32) {
  for (int exponent = 0; exponent < 63; ++exponent) {
    for (const int64_t offset : {-1, 0, 1}) {
      const int64_t value = (int64_t{1} << exponent) + offset;
      Histogram histogram;
      histogram.Add(value);
      histogram.Add(INT64_MAX);  // so that the maximum does not cap the answer
      EXPECT_NEAR(histogram.Quantile(0.5), static_cast<double>(value),
                  static_cast<double>(value) / 32);
      EXPECT_EQ(histogram.max(), INT64_MAX);
    }
  }
}

TEST(HistogramTest, QuantilesOfRandomValuesAreWithinOneIn32) {
  for (const uint64_t seed : test::Seeds(5)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    Histogram histogram;
    std::vector<int64_t> values;
    for (int i = 0; i < 5000; ++i) {
      values.push_back(static_cast<int64_t>(random.Next64() >> (1 + random.Below(63))));
      histogram.Add(values.back());
    }
    std::sort(values.begin(), values.end());
    EXPECT_EQ(histogram.count(), 5000);
    EXPECT_EQ(histogram.Quantile(1), static_cast<double>(values.back()));
    for (const double q : {0.001, 0.01, 0.1, 0.25, 0.5, 0.9, 0.99, 0.999}) {
      const auto rank = static_cast<size_t>(std::ceil(q * 5000));
      const auto exact = static_cast<double>(values[rank - 1]);
      EXPECT_NEAR(histogram.Quantile(q), exact, exact / 32) << q;
    }
  }
}

TEST(HistogramTest, CountsFromAllThreads) {
  Histogram histogram;
  ThreadPool pool(4);
  pool.ParallelFor(4000, 10, [&histogram](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) histogram.Add(i);
  });
  EXPECT_EQ(histogram.count(), 4000);
  EXPECT_EQ(histogram.max(), 3999);
  EXPECT_NEAR(histogram.Quantile(0.5), 1999, 1999.0 / 32);
}

}  // namespace
}  // namespace hotrow
