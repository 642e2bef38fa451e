// What gpu_bench works out without a GPU.

#include "bench/gpu_bench_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(GpuBenchParts, OnlyBringsTheLimitsAlongInTheOrderOfTheRun) {
  EXPECT_EQ(*PartsToRun({}), GpuBenchParts());
  EXPECT_THAT(*PartsToRun({.only = "device"}), ElementsAre("device"));
  EXPECT_THAT(*PartsToRun({.only = "unique,copy"}), ElementsAre("device", "copy", "unique"));
  EXPECT_THAT(*PartsToRun({.only = "insert,find"}),
              ElementsAre("device", "copy", "gather", "find", "insert"));
  EXPECT_THAT(*PartsToRun({.only = "staging"}),
              ElementsAre("device", "bus", "host_gather", "staging"));
  const auto wrong = PartsToRun({.only = "find,finds"});
  EXPECT_EQ(wrong.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("--only=find,finds: finds is none"));
}

TEST(GpuBenchPoints, AreTheNumbersOfTheFlagsInAscendingOrder) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const GpuBenchPoints all, PointsToMeasure({}));
  EXPECT_THAT(all.dims, ElementsAre(8, 32, 64, 128));
  EXPECT_THAT(all.loads, ElementsAre(0.5, 0.75, 0.9, 1.0));
  EXPECT_THAT(all.hits, ElementsAre(0.6, 1.0));
  EXPECT_THAT(all.shares, ElementsAre(0.8, 1.0));
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const GpuBenchPoints some,
      PointsToMeasure({.dims = "64,4,64", .loads = "1,0.5", .hits = "0", .shares = "0.1"}));
  EXPECT_THAT(some.dims, ElementsAre(4, 64));
  EXPECT_THAT(some.loads, ElementsAre(0.5, 1.0));
  EXPECT_THAT(some.hits, ElementsAre(0.0));
  EXPECT_THAT(some.shares, ElementsAre(0.1));
}

TEST(GpuBenchPoints, RefuseByNameWhatIsNoPoint) {
  for (const auto& [message, flags] : std::map<std::string, GpuBenchFlags>{
           {"--dims=48: 48 is no power of two", {.dims = "48"}},
           {"--dims=4.5: 4.5 is no power of two", {.dims = "4.5"}},
           {"--dims=256: \"256\" is no number from 4 to 128", {.dims = "256"}},
           {"--loads=0: \"0\" is no number from 0.01 to 1", {.loads = "0"}},
           {"--hits=0.5,: \"\" is no number from 0 to 1", {.hits = "0.5,"}},
           {"--shares=nan: \"nan\" is no number from 0.01 to 1", {.shares = "nan"}}}) {
    EXPECT_THAT(PointsToMeasure(flags).status(),
                test::StatusIs(absl::StatusCode::kInvalidArgument, message));
  }
}

TEST(GpuBenchSizes, AToyIsSmallWhateverTheMachineHas) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const GpuBenchSizes sizes,
                              SizesFor({.toy = true}, 100 * kGiB, 100 * kGiB));
  EXPECT_LE(sizes.table_bytes + sizes.cache_bytes + sizes.copy_bytes + sizes.bus_bytes, 2 << 20);
  EXPECT_LE(sizes.samples * kLookupTables, 1000);
  EXPECT_LT(sizes.gemm_rows.back(), 10);
}

TEST(GpuBenchSizes, TakeWhatAnH200HoldsAndNoMore) {
  const auto sizes = SizesFor({}, 120 * kGiB, 100 * kGiB);
  HOTROW_ASSERT_OK(sizes);
  EXPECT_EQ(sizes->table_bytes, 16 * kGiB);
  EXPECT_EQ(sizes->host_bytes, 8 * kGiB);
  EXPECT_EQ(sizes->batch, 1 << 20);
  EXPECT_EQ(kLookupTables * sizes->samples, 1'048'570);
  EXPECT_EQ(sizes->repeats, 51);
  const auto quick = SizesFor({.quick = true}, 120 * kGiB, 100 * kGiB);
  HOTROW_ASSERT_OK(quick);
  EXPECT_LT(quick->table_bytes, sizes->table_bytes);
  EXPECT_LT(quick->repeats, sizes->repeats);
  EXPECT_EQ(SizesFor({.repeats = 3}, 120 * kGiB, kGiB)->repeats, 3);
}

TEST(GpuBenchSizes, ShrinkToTheMemoryThatIsThere) {
  for (const int64_t bytes : {kLeastDeviceBytes, kGiB, 5 * kGiB, 24 * kGiB}) {
    const auto sizes = SizesFor({}, bytes, 3 * kGiB);
    HOTROW_ASSERT_OK(sizes);
    constexpr int64_t kWidest = 512;
    // Each part by itself: gather, copy, both directions of the bus, cache with its batch, ops.
    EXPECT_LE(sizes->table_bytes + sizes->copy_bytes + sizes->copy_bytes / 8, bytes);
    EXPECT_LE(2 * sizes->copy_bytes, bytes);
    EXPECT_LE(2 * sizes->bus_bytes, bytes);
    EXPECT_LE(sizes->table_bytes + sizes->batch * (kWidest + 10 * 16 + 64), bytes);
    EXPECT_LE(sizes->samples * kLookupTables * 4096, bytes);
    EXPECT_GT(sizes->table_bytes, 0);
    EXPECT_GE(sizes->batch, 1024);
    EXPECT_GT(sizes->samples, 0);
    EXPECT_LE(sizes->host_bytes, kGiB);
  }
  EXPECT_EQ(SizesFor({.host_bytes = 2 * kGiB}, kGiB, kGiB)->host_bytes, 2 * kGiB);
}

TEST(GpuBenchSizes, RefuseTooLittleByName) {
  const auto flag = SizesFor({.device_bytes = 1000}, 1000, kGiB);
  EXPECT_EQ(flag.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(flag.status().message()), HasSubstr("--device_bytes=1000"));
  EXPECT_THAT(std::string(SizesFor({}, 1000, kGiB).status().message()),
              HasSubstr("free device memory: 1000"));
  EXPECT_THAT(std::string(SizesFor({.host_bytes = 5}, kGiB, kGiB).status().message()),
              HasSubstr("--host_bytes=5"));
}

TEST(GpuBenchGather, ReadsMoreThanTheL2HoldsWithinTableAndOutput) {
  const int64_t l2 = 60 << 20;
  EXPECT_EQ(GatherRowsOfLaunch(32, int64_t{1} << 40, l2, int64_t{1} << 40), 8 * l2 / 32);
  EXPECT_EQ(GatherRowsOfLaunch(512, int64_t{1} << 40, 1 << 20, int64_t{1} << 40), 1 << 20);
  EXPECT_EQ(GatherRowsOfLaunch(32, 1000, l2, int64_t{1} << 40), 1000);
  EXPECT_EQ(GatherRowsOfLaunch(32, int64_t{1} << 40, l2, 3200), 100);
  EXPECT_EQ(GatherRowsOfLaunch(512, 1, l2, 16), 1);
}

TEST(GpuBenchKeys, AreDistinctAndScattered) {
  std::unordered_set<uint64_t> keys;
  uint64_t all_or = 0;
  for (uint64_t place = 0; place < 100'000; ++place) {
    keys.insert(BenchKey(place));
    all_or |= BenchKey(place);
  }
  EXPECT_EQ(keys.size(), 100'000);
  EXPECT_EQ(all_or, UINT64_MAX);
}

TEST(GpuBenchBatch, HasExactlyTheHitsSpreadEvenly) {
  for (const int64_t n : {1, 7, 1024, 1'000'000}) {
    for (const double rate : {0.0, 0.6, 1.0}) {
      const int64_t hits = Share(n, rate);
      EXPECT_EQ(HitsBefore(0, n, hits), 0);
      EXPECT_EQ(HitsBefore(n, n, hits), hits);
      for (int64_t j = 0; j < std::min<int64_t>(n, 5000); ++j) {
        const int64_t step = HitsBefore(j + 1, n, hits) - HitsBefore(j, n, hits);
        ASSERT_TRUE(step == 0 || step == 1);
        // Never a key ahead of, or behind, its share.
        ASSERT_NEAR(static_cast<double>(HitsBefore(j, n, hits)),
                    static_cast<double>(j) * static_cast<double>(hits) / static_cast<double>(n), 1);
      }
    }
  }
  EXPECT_EQ(Share(10, 0.75), 8);
  EXPECT_EQ(Share(1'000'000'007, 0.9), 900'000'006);
}

TEST(GpuBenchBytes, CountEachInputAndOutputOnce) {
  EXPECT_EQ(GatherBytes(10, 128), 10 * (4 + 128 + 128));
  // 3 lookups of 2 rows: values 24, inverse 12, keys 16, counts 8.
  EXPECT_EQ(UniqueBytes(3, 2), 24 + 12 + 16 + 8);
  EXPECT_EQ(PartitionBytes(3, 2), 12 + 12 + 24);
  // inverse, 6 offsets, 2 pointers, 2 rows of 4 floats, 5 bags of 4 floats.
  EXPECT_EQ(PooledLookupBytes(3, 2, 4, 5), 12 + 48 + 16 + 32 + 80);
  // order, 3 gradients; 2 row offsets, pointers and sums.
  EXPECT_EQ(GradientSegmentSumBytes(3, 2, 4), 12 + 48 + 16 + 16 + 32);
  EXPECT_EQ(SparseUpdateBytes(2, 4, 48), 32 + 32 + 192);
  // order, inverse, 3 gradients; 2 row offsets and pointers, rows there and back.
  EXPECT_EQ(FusedUpdateBytes(3, 2, 4, 48), 12 + 12 + 48 + 16 + 16 + 192);
}

TEST(GpuBenchFigure, MedianOfOddAndEvenNumbersOfRepeats) {
  const Times odd = TimesOf({3, 1, 2});
  EXPECT_EQ(odd.median, 2);
  EXPECT_EQ(odd.min, 1);
  EXPECT_EQ(odd.max, 3);
  EXPECT_EQ(TimesOf({4, 1, 2, 3}).median, 2.5);
  EXPECT_EQ(TimesOf({7}).median, 7);
}

TEST(GpuBenchFigure, ComparesItsRateWithTheLimit) {
  Figure figure{"find", "find dim 8", {0.002, 0.001, 0.003}, 1e6, "keys", "gather", 1e9};
  figure.more = {{"dim", 8}};
  EXPECT_DOUBLE_EQ(figure.rate(), 5e8);
  EXPECT_DOUBLE_EQ(figure.percent(), 50);
  EXPECT_THAT(FigureLine(figure), HasSubstr("0.500 G keys/s"));
  EXPECT_THAT(FigureLine(figure), HasSubstr("50.0 % of gather"));
  const nlohmann::ordered_json json = FigureJson(figure);
  EXPECT_EQ(json["part"], "find");
  EXPECT_EQ(json["dim"], 8);
  EXPECT_EQ(json["median_seconds"], 0.002);
  EXPECT_EQ(json["max_seconds"], 0.003);
  EXPECT_DOUBLE_EQ(json["per_second"], 5e8);
  EXPECT_DOUBLE_EQ(json["percent_of_limit"], 50);

  figure.limit_name.clear();
  EXPECT_FALSE(FigureJson(figure).contains("limit"));
  EXPECT_EQ(FigureLine(figure).find('%'), std::string::npos);
}

TEST(GpuBenchIds, AreZipfOverEachTableAndFollowTheSeed) {
  const std::vector<uint64_t> ids = LookupIds(3, 2000, 1000, 1.05, 1);
  ASSERT_EQ(ids.size(), 6000);
  EXPECT_EQ(ids, LookupIds(3, 2000, 1000, 1.05, 1));
  EXPECT_NE(ids, LookupIds(3, 2000, 1000, 1.05, 2));
  std::set<uint64_t> hottest;
  for (size_t t = 0; t < 3; ++t) {
    std::vector<int64_t> count(1000, 0);
    for (size_t i = 0; i < 2000; ++i) {
      ASSERT_LT(ids[t * 2000 + i], 1000);
      ++count[ids[t * 2000 + i]];
    }
    const auto top = std::max_element(count.begin(), count.end());
    // Rank 1 has 1 / (sum of i^-1.05 up to 1000), 0.158, of the lookups: 316 with a deviation
    // of 16.
    EXPECT_NEAR(static_cast<double>(*top), 316, 100);
    hottest.insert(static_cast<uint64_t>(top - count.begin()));
  }
  EXPECT_EQ(hottest.size(), 3);  // each table is scattered by itself
}

}  // namespace
}  // namespace hotrow::bench
