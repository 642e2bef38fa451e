#include "cache/row_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/philox.h"
#include "cache/row_cache_cuda_impl.h"
#include "cache/row_cache_impl.h"
#include "tests/cache/cache_driver.h"
#include "tests/cache/row_cache_model.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {

namespace {

using cache::Bucket;
using cache::Geometry;
using cache::PartitionState;
using test::CacheDriver;
using test::CacheOfBuckets;
using test::InsertAnswer;
using test::KeyRange;
using test::kWays;
using test::RandomRun;
using test::RunTiny;
using test::Shape;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

const ExecContext kSerial;

// All bytes that a cache holds: equal before and after means nothing changed.
std::string Snapshot(const RowCache& cache) {
  const auto append = [](std::string& out, auto span) {
    out.append(reinterpret_cast<const char*>(span.data()), span.size_bytes());
  };
  std::string bytes;
  append(bytes, RowCacheTestPeer::Buckets(cache));
  append(bytes, RowCacheTestPeer::Partitions(cache));
  append(bytes, RowCacheTestPeer::Slab(cache));
  return bytes;
}

// One FindOrInsert and what it answered.
struct Batch : InsertAnswer {
  Batch(RowCache& cache, const ExecContext& ctx, std::span<const RowKey> batch_keys) {
    const size_t n = batch_keys.size();
    keys.assign(batch_keys.begin(), batch_keys.end());
    slots.resize(n, -7);
    placement.resize(n);
    evicted.resize(n, 77);
    evicted_keys.resize(n);
    evicted_rows.resize(n * static_cast<size_t>(cache.row_bytes()));
    HOTROW_EXPECT_OK(cache.FindOrInsert(ctx, keys,
                                        {.slots = slots,
                                         .placement = placement,
                                         .evicted = evicted,
                                         .evicted_keys = evicted_keys,
                                         .evicted_rows = evicted_rows.data()}));
  }
};

RowCacheStats StatsOf(const RowCache& cache) { return cache.Stats(kSerial).value(); }

// One training step that finds room for all keys and updates their rows. Returns the number of
// hits.
int64_t TrainStep(RowCache& cache, const ExecContext& ctx, std::span<const RowKey> keys) {
  Batch batch(cache, ctx, keys);
  EXPECT_EQ(batch.Count(Placement::kNoRoom), 0);
  HOTROW_EXPECT_OK(cache.MarkFilled(kSerial, batch.SlotsWith(Placement::kFilled)));
  HOTROW_EXPECT_OK(cache.Unpin(kSerial, batch.slots, /*dirty=*/true));
  HOTROW_EXPECT_OK(cache.EndStep(ctx));
  return batch.Count(Placement::kHit);
}

bool Resident(const RowCache& cache, RowKey key) {
  std::byte* row = nullptr;
  HOTROW_EXPECT_OK(cache.Find(kSerial, {&key, 1}, {&row, 1}));
  return row != nullptr;
}

// ---- Options and budget.

TEST(RowCacheOptionsTest, ErrorsNameTheFieldTheLimitAndTheValue) {
  const int64_t least = Geometry::ForBuckets(1).Bytes(48);
  HOTROW_EXPECT_OK((RowCacheOptions{.row_bytes = 48, .budget_bytes = least}.Validate()));
  EXPECT_THAT((RowCacheOptions{.row_bytes = 48, .budget_bytes = least - 1}.Validate()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("budget_bytes"), HasSubstr(absl::StrCat("[", least, ",")),
                             HasSubstr(absl::StrCat("got ", least - 1)))));
  for (const int64_t row_bytes :
       {int64_t{-16}, int64_t{0}, int64_t{8}, int64_t{24}, int64_t{1} << 40}) {
    EXPECT_THAT(
        (RowCacheOptions{.row_bytes = row_bytes, .budget_bytes = 1 << 20}.Validate()),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("row_bytes"), HasSubstr(absl::StrCat("got ", row_bytes)))));
  }
  EXPECT_THAT((RowCacheOptions{.row_bytes = 16, .budget_bytes = INT64_MAX}.Validate()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("budget_bytes")));
  EXPECT_THAT(RowCache::Create({.row_bytes = 16, .budget_bytes = -1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got -1")));
}

TEST(RowCacheBudgetTest, BudgetsAreKeptAndUsedToTheLastBucket) {
  for (const uint64_t seed : test::Seeds(300)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    const auto row_bytes = static_cast<int64_t>(16 * (1 + random.Below(64)));
    const int64_t least = Geometry::ForBuckets(1).Bytes(row_bytes);
    const int64_t budget =
        least + static_cast<int64_t>(random.Below(uint64_t{1} << (10 + random.Below(30))));
    const Geometry geometry = Geometry::ForBudget(budget, row_bytes);
    EXPECT_LE(geometry.Bytes(row_bytes), budget);
    EXPECT_GT(Geometry::ForBuckets(geometry.buckets + 1).Bytes(row_bytes), budget);

    int64_t sum = 0;
    int64_t overflow = 0;
    for (int64_t p = 0; p < geometry.partitions; ++p) {
      const int64_t n = geometry.PartitionBuckets(p);
      EXPECT_LE(std::abs(n - geometry.PartitionBuckets(0)), 1);
      if (geometry.partitions > 1) {
        EXPECT_GE(n, cache::kPartitionBucketsMin);
      }
      sum += n;
      overflow += Geometry::OverflowBuckets(n);
    }
    EXPECT_EQ(sum, geometry.buckets);
    EXPECT_EQ(overflow, geometry.TotalOverflowBuckets());
  }
}

TEST(RowCacheBudgetTest, BytesNeverShrinkWithMoreBuckets) {
  int64_t last = 0;
  for (int64_t buckets = 1; buckets < 20'000; ++buckets) {
    const int64_t bytes = Geometry::ForBuckets(buckets).Bytes(16);
    ASSERT_GE(bytes, last) << buckets;
    last = bytes;
  }
}

TEST(RowCacheBudgetTest, MetadataTakesSixteenBytesAWay) {
  for (const int64_t buckets : {1, 2, 100, 2047, 2048, 5000}) {
    const auto cache = CacheOfBuckets(buckets, CachePolicy::kLru, 128);
    const RowCacheStats stats = StatsOf(*cache);
    const int64_t all_ways = stats.ways + stats.overflow_ways;
    EXPECT_EQ(stats.ways, buckets * kWays);
    EXPECT_EQ(std::ssize(RowCacheTestPeer::Slab(*cache)), all_ways * 128);
    const auto metadata = static_cast<int64_t>(RowCacheTestPeer::Buckets(*cache).size_bytes());
    EXPECT_EQ(metadata, all_ways * 16);
    // Beside them: the partition states, and each of the three allocations rounded to pages.
    EXPECT_LE(stats.used_bytes - all_ways * (16 + 128), 3 * 4096 + 128 * (1 + buckets / 2048));
    if (buckets >= 64) {
      EXPECT_LE(stats.overflow_ways * 64, stats.ways);
    }
  }
}

TEST(RowCacheBudgetTest, BudgetForRowsPlacesThemAllPinned) {
  for (const int64_t rows : {1, 2, 31, 32, 33, 100, 256, 1000, 4096, 50'000}) {
    for (const uint64_t seed : test::Seeds(rows > 10'000 ? 3 : 20)) {
      SCOPED_TRACE(testing::Message() << "rows=" << rows << " HOTROW_TEST_SEED=" << seed);
      HOTROW_ASSERT_OK_AND_ASSIGN(
          const auto cache,
          RowCache::Create({.row_bytes = 16, .budget_bytes = RowCache::BudgetForRows(rows, 16)}));
      RandomStream random(seed, RandomPurpose::kTest);
      std::unordered_set<uint64_t> keys;
      while (std::ssize(keys) < rows) keys.insert(random.Next64());
      std::vector<RowKey> batch_keys;
      for (const uint64_t key : keys) batch_keys.push_back({key, 3});
      const Batch batch(*cache, kSerial, batch_keys);
      ASSERT_EQ(batch.Count(Placement::kFilled), rows);
      EXPECT_EQ(StatsOf(*cache).used_ways, rows);
    }
  }
}

// The hard case: the cache is full of unpinned rows of earlier steps, some of them used again, so
// the free ways of an empty cache do not help to even out the pins.
TEST(RowCacheBudgetTest, BudgetForRowsPlacesThemAllPinnedInEveryLaterStep) {
  for (const int64_t rows : {33, 100, 1000, 20'000}) {
    for (const CachePolicy policy : test::AllPolicies()) {
      for (const double reuse : {0.0, 0.5, 0.9}) {
        if (rows > 10'000 && reuse != 0.5 && policy != CachePolicy::kLru) continue;
        for (const uint64_t seed : test::Seeds(rows > 10'000 ? 1 : 2)) {
          SCOPED_TRACE(testing::Message()
                       << "rows=" << rows << " reuse=" << reuse << " HOTROW_TEST_SEED=" << seed);
          HOTROW_ASSERT_OK_AND_ASSIGN(
              const auto cache, RowCache::Create({.row_bytes = 16,
                                                  .budget_bytes = RowCache::BudgetForRows(rows, 16),
                                                  .policy = policy}));
          RandomStream random(seed, RandomPurpose::kTest);
          std::vector<RowKey> last;
          uint64_t fresh = seed << 40;
          for (int step = 0; step < (rows > 10'000 ? 12 : 60); ++step) {
            std::vector<RowKey> keys;
            for (const RowKey& key : last) {
              if (random.Uniform() < reuse) keys.push_back(key);
            }
            while (std::ssize(keys) < rows) keys.push_back({fresh++, 0});
            TrainStep(*cache, kSerial, keys);
            last = std::move(keys);
          }
          EXPECT_EQ(StatsOf(*cache).no_room, 0);
          // Room to spare: the overflow is hardly used (0.4 % of the rows were there no
          // kScarceWays).
          if (rows >= 1000) {
            EXPECT_LE(StatsOf(*cache).overflow_inserts, rows / 1000);
          }
        }
      }
    }
  }
}

TEST(RowCacheLoadTest, FirstForcedEvictionComesLate) {
  constexpr int64_t kBuckets = 8192;  // 262,144 ways in 4 partitions
  for (const uint64_t seed : test::Seeds(2)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    const auto cache = CacheOfBuckets(kBuckets, CachePolicy::kLru, 16);
    EXPECT_EQ(RowCacheTestPeer::Geometry(*cache).partitions, 4);
    int64_t inserted = 0;
    while (StatsOf(*cache).evictions == 0) {
      const int64_t n = inserted < kBuckets * kWays * 9 / 10 ? 4096 : 64;
      const uint64_t first = (seed << 40) + static_cast<uint64_t>(inserted);
      TrainStep(*cache, kSerial, KeyRange(first, first + static_cast<uint64_t>(n)));
      inserted += n;
    }
    const double load = static_cast<double>(inserted) / (kBuckets * kWays);
    EXPECT_GE(load, 0.92);
    EXPECT_LE(load, 1.0);
  }
}

// ---- Single calls.

TEST(RowCacheTest, EmptyBatchesAreFine) {
  const auto cache = CacheOfBuckets(1, CachePolicy::kLru);
  const std::string before = Snapshot(*cache);
  HOTROW_EXPECT_OK(cache->Find(kSerial, {}, {}));
  HOTROW_EXPECT_OK(cache->FindRows(kSerial, {}, nullptr, 128, {}));
  HOTROW_EXPECT_OK(cache->FindOrInsert(kSerial, {}, {}));
  HOTROW_EXPECT_OK(cache->MarkFilled(kSerial, {}));
  HOTROW_EXPECT_OK(cache->Abandon(kSerial, {}));
  HOTROW_EXPECT_OK(cache->Unpin(kSerial, {}, true));
  HOTROW_EXPECT_OK(cache->MarkDirty(kSerial, {}));
  int64_t taken = -1;
  EXPECT_EQ(cache->TakeMarks(kSerial, {}, {}, nullptr, &taken).value(), 0);
  EXPECT_EQ(taken, 0);
  HOTROW_EXPECT_OK(cache->ForEachDirty(
      kSerial, [](auto, auto) { return absl::InternalError("nothing is dirty"); }));
  EXPECT_EQ(Snapshot(*cache), before);
}

TEST(RowCacheTest, ExtremeKeysAndEqualKeysOfTwoTablesAreDifferentRows) {
  const auto cache = CacheOfBuckets(3, CachePolicy::kLru);
  const uint64_t max = ~uint64_t{0};
  const std::vector<RowKey> keys = {{0, 0},   {0, 1},   {0, ~uint32_t{0}},
                                    {max, 0}, {max, 1}, {max, ~uint32_t{0}}};
  for (size_t i = 0; i < keys.size(); ++i) {  // batches of one key
    Batch batch(*cache, kSerial, {&keys[i], 1});
    ASSERT_EQ(batch.placement[0], Placement::kFilled);
    EXPECT_EQ(batch.evicted[0], 0);
    std::memset(cache->row(batch.slots[0]), static_cast<int>(i + 1), 16);
    HOTROW_EXPECT_OK(cache->MarkFilled(kSerial, batch.slots));
    HOTROW_EXPECT_OK(cache->Unpin(kSerial, batch.slots, false));
  }
  std::vector<std::byte*> rows(keys.size());
  HOTROW_EXPECT_OK(cache->Find(kSerial, keys, rows));
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSERT_NE(rows[i], nullptr);
    EXPECT_EQ(rows[i][15], static_cast<std::byte>(i + 1));
  }
  const Batch again(*cache, kSerial, keys);
  EXPECT_EQ(again.Count(Placement::kHit), std::ssize(keys));
}

TEST(RowCacheTest, RowsWaitingForTheirBytesAreNotFoundAndNotEvicted) {
  const auto cache = CacheOfBuckets(1, CachePolicy::kLru);
  const std::vector<RowKey> keys = KeyRange(0, 10);
  const Batch batch(*cache, kSerial, keys);
  EXPECT_FALSE(Resident(*cache, keys[4]));
  HOTROW_EXPECT_OK(cache->MarkFilled(kSerial, batch.slots));
  EXPECT_TRUE(Resident(*cache, keys[4]));
}

TEST(RowCacheTest, AbandonEmptiesTheWaysAgain) {
  const auto cache = CacheOfBuckets(1, CachePolicy::kLru);
  const std::string before = Snapshot(*cache);
  const std::vector<RowKey> keys = KeyRange(0, 50);  // 32 in the bucket, 18 in the overflow
  const Batch batch(*cache, kSerial, keys);
  EXPECT_EQ(batch.Count(Placement::kFilled), 50);
  EXPECT_EQ(StatsOf(*cache).overflow_inserts, 18);
  HOTROW_EXPECT_OK(cache->Abandon(kSerial, batch.slots));
  EXPECT_EQ(StatsOf(*cache).used_ways, 0);
  EXPECT_EQ(RowCacheTestPeer::Partitions(*cache)[0].overflow_used, 0);
  EXPECT_EQ(RowCacheTestPeer::Partitions(*cache)[0].overflow_span, 0);
  for (const RowKey& key : keys) EXPECT_FALSE(Resident(*cache, key));
  const size_t metadata = RowCacheTestPeer::Buckets(*cache).size_bytes();
  EXPECT_EQ(Snapshot(*cache).substr(0, metadata), before.substr(0, metadata));
}

TEST(RowCacheTest, FindChangesNothing) {
  ThreadPool pool(4);
  for (const CachePolicy policy : test::AllPolicies()) {
    const auto cache = CacheOfBuckets(4100, policy, 16);
    TrainStep(*cache, kSerial, KeyRange(0, 5000));
    const Batch pinned(*cache, kSerial, KeyRange(4000, 6000));
    std::vector<RowKey> keys = KeyRange(0, 7000);
    keys.resize(14'000, RowKey{17, 0});  // repeated keys are fine
    std::vector<std::byte*> rows(keys.size(), reinterpret_cast<std::byte*>(8));
    const std::string before = Snapshot(*cache);
    HOTROW_EXPECT_OK(cache->Find({.pool = &pool}, keys, rows));
    EXPECT_EQ(Snapshot(*cache), before);
    std::vector<std::byte> out(keys.size() * 16);
    std::vector<uint8_t> found(keys.size(), 77);
    HOTROW_EXPECT_OK(cache->FindRows({.pool = &pool}, keys, out.data(), 16, found));
    EXPECT_EQ(Snapshot(*cache), before);
    for (size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(found[i], rows[i] != nullptr ? 1 : 0) << i;
    }
    for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(rows[i] != nullptr, keys[i].key < 5000) << i;
  }
}

TEST(RowCacheTest, FindRowsCopiesRowsAndLeavesMissesAlone) {
  // Rows of several widths, strides with a gap, and more keys than one stretch of copies.
  for (const int64_t row_bytes : {16, 48, 512, 1040}) {
    CacheDriver cache(CacheOfBuckets(100, CachePolicy::kLru, row_bytes));
    const std::vector<RowKey> present = KeyRange(0, 700);
    const InsertAnswer batch = cache.FindOrInsert(present);
    std::vector<std::byte> row(static_cast<size_t>(row_bytes));
    for (size_t i = 0; i < present.size(); ++i) {
      std::fill(row.begin(), row.end(), static_cast<std::byte>(i % 200));
      cache.WriteRow(batch.slots[i], row);
    }
    cache.MarkFilled(std::span(batch.slots).first(699));  // the last one waits for its bytes
    std::vector<RowKey> keys = KeyRange(300, 1000);
    keys.push_back({300, 0});  // keys may repeat
    const int64_t stride = row_bytes + 32;
    const CacheDriver::FoundRows found = cache.FindRows(keys, stride);
    for (size_t i = 0; i < keys.size(); ++i) {
      const bool is_there = keys[i].key < 699;
      ASSERT_EQ(found.found[i], is_there ? 1 : 0) << i;
      for (int64_t b = 0; b < stride; ++b) {
        const auto want =
            is_there && b < row_bytes ? static_cast<std::byte>(keys[i].key % 200) : std::byte{0xee};
        ASSERT_EQ(found.out[i * static_cast<size_t>(stride) + static_cast<size_t>(b)], want);
      }
    }
  }
}

TEST(RowCacheTest, ABatchLargerThanTheCacheFillsItAndReportsTheRest) {
  const auto cache = CacheOfBuckets(2, CachePolicy::kLru);
  const Batch batch(*cache, kSerial, KeyRange(0, 5000));  // more than a chunk of the sort
  EXPECT_EQ(batch.Count(Placement::kFilled), 96);         // 64 ways and 32 of overflow
  EXPECT_EQ(batch.Count(Placement::kNoRoom), 4904);
  EXPECT_EQ(StatsOf(*cache).no_room, 4904);
  EXPECT_EQ(StatsOf(*cache).overflow_inserts, 32);
  EXPECT_EQ(StatsOf(*cache).evictions, 0);
  // The first come are the first served.
  for (size_t i = 0; i < batch.keys.size(); ++i) EXPECT_EQ(batch.slots[i] >= 0, i < 96);
}

TEST(RowCacheTest, UnpinnedOverflowRowsMakeRoom) {
  const auto cache = CacheOfBuckets(1, CachePolicy::kLru);
  const Batch first(*cache, kSerial, KeyRange(0, 64));
  HOTROW_EXPECT_OK(cache->MarkFilled(kSerial, first.slots));
  const Batch none(*cache, kSerial, KeyRange(100, 101));
  EXPECT_EQ(none.placement[0], Placement::kNoRoom);
  std::memset(cache->row(first.slots[40]), 0x5a, 16);
  HOTROW_EXPECT_OK(cache->Unpin(kSerial, std::span(first.slots).subspan(40, 1), /*dirty=*/true));
  const Batch one(*cache, kSerial, KeyRange(100, 101));
  EXPECT_EQ(one.placement[0], Placement::kFilled);
  EXPECT_EQ(one.slots[0], first.slots[40]);
  EXPECT_EQ(one.evicted[0], 1);
  EXPECT_EQ(one.evicted_keys[0], first.keys[40]);
  EXPECT_EQ(one.evicted_rows[3], std::byte{0x5a});
  EXPECT_EQ(StatsOf(*cache).dirty_evictions, 1);
}

TEST(RowCacheTest, AKeyLaterInTheBatchIsNotEvictedByAnEarlierOne) {
  const auto cache = CacheOfBuckets(1, CachePolicy::kLru);
  TrainStep(*cache, kSerial, KeyRange(0, 32));
  std::vector<RowKey> keys = KeyRange(100, 116);  // misses first
  for (uint64_t key = 0; key < 16; ++key) keys.push_back({key, 0});
  const Batch batch(*cache, kSerial, keys);
  EXPECT_EQ(batch.Count(Placement::kHit), 16);
  EXPECT_EQ(batch.Count(Placement::kFilled), 16);
  EXPECT_EQ(StatsOf(*cache).overflow_inserts, 0);
}

TEST(RowCacheTest, ForEachDirtyComesInSlotOrderAndKeepsWhatFailed) {
  const auto cache = CacheOfBuckets(400, CachePolicy::kLru);
  TrainStep(*cache, kSerial, KeyRange(0, 10'000));
  int visits = 0;
  const std::byte* last = nullptr;
  int64_t handed_out = 0;
  const absl::Status status =
      cache->ForEachDirty(kSerial, [&](auto keys, auto rows) -> absl::Status {
        if (++visits == 2) return absl::DataLossError("disk");
        for (const std::byte* row : rows) {
          EXPECT_LT(last, row);
          last = row;
        }
        handed_out += std::ssize(keys);
        return absl::OkStatus();
      });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("disk")));
  EXPECT_EQ(visits, 2);
  int64_t rest = 0;
  HOTROW_EXPECT_OK(cache->ForEachDirty(kSerial, [&](auto keys, auto) {
    rest += std::ssize(keys);
    return absl::OkStatus();
  }));
  EXPECT_GT(handed_out, 0);
  EXPECT_EQ(handed_out + rest, 10'000);
  HOTROW_EXPECT_OK(cache->ForEachDirty(
      kSerial, [](auto, auto) { return absl::InternalError("all are clean"); }));
}

// ---- Marks.

TEST(RowCacheMarkTest, EveryRowThatWasDirtyIsHandedOutOnceAsItWas) {
  for (const uint64_t seed : test::Seeds(20)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    test::RunMarks(seed);
    if (HasFatalFailure()) return;
  }
}

TEST(RowCacheMarkTest, TakeMarksStopsWhenKeysAreFullAndSaysHowFarItLooked) {
  CacheDriver cache(CacheOfBuckets(2, CachePolicy::kLru));
  const InsertAnswer batch = cache.FindOrInsert(KeyRange(0, 10));
  cache.MarkFilled(batch.slots);
  for (const size_t dirty : {1, 4, 5, 9}) cache.MarkDirty(std::span(batch.slots).subspan(dirty, 1));
  ASSERT_EQ(cache.MarkDirtyRows(), 4);

  EXPECT_EQ(cache.TakeMarks(batch.slots, 0).looked, 0);
  CacheDriver::Taken taken = cache.TakeMarks(batch.slots, 3);
  EXPECT_EQ(taken.looked, 6);  // 9 is left
  EXPECT_EQ(taken.keys, (std::vector<RowKey>{{1, 0}, {4, 0}, {5, 0}}));
  taken = cache.TakeMarks(std::span(batch.slots).subspan(6), 3);
  EXPECT_EQ(taken.looked, 4);
  EXPECT_EQ(taken.keys, (std::vector<RowKey>{{9, 0}}));
  taken = cache.TakeMarks(batch.slots, 3);
  EXPECT_EQ(taken.looked, 10);
  EXPECT_TRUE(taken.keys.empty()) << "a mark is taken once";
  // They are dirty again.
  int64_t dirty = 0;
  HOTROW_EXPECT_OK(cache.ForEachDirty([&](auto keys, auto) {
    dirty += std::ssize(keys);
    return absl::OkStatus();
  }));
  EXPECT_EQ(dirty, 4);
}

TEST(RowCacheMarkTest, RowsThatWereTakenStayUntilTheyAreUnpinned) {
  const auto cache = CacheOfBuckets(1, CachePolicy::kLru);
  const int64_t ways = cache->num_slots();
  TrainStep(*cache, kSerial, KeyRange(0, 20));
  EXPECT_EQ(cache->MarkDirtyRows(kSerial).value(), 20);
  std::vector<RowKey> keys(20);
  std::vector<int64_t> slots(20);
  std::vector<std::byte> rows(20 * static_cast<size_t>(cache->row_bytes()));
  int64_t cursor = 0;
  ASSERT_EQ(cache->TakeMarked(kSerial, &cursor, keys, slots, rows.data()).value(), 20);
  Batch flood(*cache, kSerial, KeyRange(100, 100 + static_cast<uint64_t>(ways)));
  EXPECT_EQ(flood.Count(Placement::kNoRoom), 20);
  for (const RowKey& key : KeyRange(0, 20)) EXPECT_TRUE(Resident(*cache, key));
  HOTROW_EXPECT_OK(cache->Unpin(kSerial, slots, /*dirty=*/false));
  Batch more(*cache, kSerial, KeyRange(1000, 1020));
  EXPECT_EQ(more.Count(Placement::kFilled), 20);
  for (const uint8_t evicted : more.evicted) EXPECT_EQ(evicted, 0) << "it is clean now";
}

// ---- What the CUDA container works out on the host and on the device alike.

TEST(RowCacheCudaLayoutTest, PartsDoNotOverlapAndEndWithinTheBudget) {
  for (const uint64_t seed : test::Seeds(200)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    const auto row_bytes = static_cast<int64_t>(16 * (1 + random.Below(64)));
    const int64_t least = Geometry::ForBuckets(1).Bytes(row_bytes, Device::kCuda);
    const int64_t budget =
        least + static_cast<int64_t>(random.Below(uint64_t{1} << (10 + random.Below(30))));
    const Geometry geometry = Geometry::ForBudget(budget, row_bytes, Device::kCuda);
    ASSERT_GE(geometry.buckets, 1);
    EXPECT_LE(geometry.Bytes(row_bytes, Device::kCuda), budget);
    EXPECT_GT(Geometry::ForBuckets(geometry.buckets + 1).Bytes(row_bytes, Device::kCuda), budget);

    const cache::CudaLayout layout(geometry, row_bytes);
    const int64_t total = geometry.TotalBuckets();
    const std::vector<std::pair<int64_t, int64_t>> parts = {
        {layout.rows, total * kWays * row_bytes},
        {layout.buckets, total * static_cast<int64_t>(sizeof(Bucket))},
        {layout.partitions, geometry.partitions * static_cast<int64_t>(sizeof(PartitionState))},
        {layout.counters, static_cast<int64_t>(sizeof(cache::CudaCounters))}};
    int64_t end = 0;
    for (const auto& [begin, bytes] : parts) {
      EXPECT_EQ(begin % cache::kDeviceAlignment, 0);
      EXPECT_GE(begin, end);
      end = begin + bytes;
    }
    EXPECT_LE(end, layout.bytes);
    EXPECT_LT(layout.bytes - end, cache::kDeviceAlignment);

    const RowCacheStats size = RowCache::SizeForBudget(budget, row_bytes, Device::kCuda);
    EXPECT_EQ(size.ways, geometry.buckets * kWays);
    EXPECT_EQ(size.used_bytes, layout.bytes);
    EXPECT_GE(size.host_bytes, row_bytes);
    EXPECT_LE(size.host_bytes, 5 << 20);
  }
}

TEST(RowCacheCudaLayoutTest, SizesOfAnH200DoNotOverflow) {
  const int64_t budget = int64_t{130} << 30;
  const RowCacheStats size = RowCache::SizeForBudget(budget, 16, Device::kCuda);
  EXPECT_GT(size.ways, int64_t{1} << 31);
  EXPECT_LE(size.used_bytes, budget);
  EXPECT_GT(size.used_bytes, budget - 4096);
  // Rows as wide as any: a row is staged at a time.
  const cache::CudaStaging wide(int64_t{1} << 30);
  EXPECT_EQ(wide.rows, 1);
  EXPECT_GT(wide.bytes, int64_t{1} << 30);
  EXPECT_EQ(cache::CudaStaging(16).rows, cache::kDirtyBatchRows);
  EXPECT_EQ(RowCache::SizeForBudget(1000, 128, Device::kCuda).ways, 0);
  EXPECT_LE(RowCache::BudgetForRows(1000, 512, Device::kCuda), 1000 * 640);
}

// The arithmetic of PartitionMap against the walk over all partitions that Create makes, and homes
// of keys against the CPU container's probes.
TEST(RowCacheCudaLayoutTest, BucketsBelongToTheirPartitions) {
  for (const int64_t buckets : {1, 2, 63, 64, 65, 2047, 2048, 4095, 4096, 4097, 6161, 20'001}) {
    SCOPED_TRACE(buckets);
    const Geometry geometry = Geometry::ForBuckets(buckets);
    const cache::PartitionMap map(geometry);
    int64_t next = 0;
    for (int64_t p = 0; p < geometry.partitions; ++p) {
      const PartitionState partition = cache::EmptyPartition(geometry, p, next);
      ASSERT_EQ(map.FirstBucket(p), next);
      ASSERT_EQ(map.Buckets(p), partition.buckets);
      const int64_t end = next + partition.buckets + partition.overflow_buckets;
      for (; next < end; ++next) ASSERT_EQ(map.PartitionOfBucket(next), p);
    }
    EXPECT_EQ(next, geometry.TotalBuckets());

    RandomStream random(17, RandomPurpose::kTest);
    for (int i = 0; i < 200; ++i) {
      const RowKey key = {i == 0 ? 0 : i == 1 ? ~uint64_t{0} : random.Next64(), random.Next32()};
      const cache::Home home = cache::HomeOf(map, key.key, key.table);
      const int64_t first = map.FirstBucket(home.partition);
      ASSERT_GE(home.bucket1, first);
      ASSERT_LT(home.bucket1, first + map.Buckets(home.partition));
      ASSERT_GE(home.bucket2, first);
      ASSERT_LT(home.bucket2, first + map.Buckets(home.partition));
      ASSERT_EQ(home.bucket1 == home.bucket2, map.Buckets(home.partition) == 1);
      ASSERT_NE(home.tag, 0);
    }
  }
  // A key lies where its home says, in the CPU container too.
  const auto cache = CacheOfBuckets(6161, CachePolicy::kLru, 16);
  const std::vector<RowKey> keys = KeyRange(~uint64_t{0} - 500, ~uint64_t{0});
  const Batch batch(*cache, kSerial, keys);
  const cache::PartitionMap map(RowCacheTestPeer::Geometry(*cache));
  for (size_t i = 0; i < keys.size(); ++i) {
    const cache::Home home = cache::HomeOf(map, keys[i].key, keys[i].table);
    const int64_t bucket = batch.slots[i] / kWays;
    ASSERT_TRUE(bucket == home.bucket1 || bucket == home.bucket2);
  }
}

TEST(RowCacheCudaLayoutTest, RunsCoverEachKeyOnceAndGridsStayLegal) {
  for (const int64_t n : {int64_t{1}, int64_t{31}, int64_t{33}, int64_t{4096}, int64_t{8449},
                          int64_t{1'048'570}, int64_t{3} << 31, int64_t{1} << 40}) {
    for (const int64_t gpu_warps : {64, 8448}) {
      for (const int most : {32, cache::kMaxRunKeys}) {
        const cache::WarpRuns runs = cache::RunsFor(n, gpu_warps, most);
        EXPECT_GE(runs.keys_per_run, 1);
        EXPECT_LE(runs.keys_per_run, most);
        EXPECT_GE(runs.runs * runs.keys_per_run, n);
        EXPECT_LT((runs.runs - 1) * runs.keys_per_run, n);
        for (const int blocks :
             {runs.blocks, cache::BlocksFor(n), cache::ScanBlocksFor(n, gpu_warps)}) {
          EXPECT_GE(blocks, 1);
          EXPECT_LE(blocks, cache::kMaxBlocks);
        }
      }
    }
  }
  EXPECT_EQ(cache::RunsFor(4096, 8448).keys_per_run, 1) << "a small batch uses the whole GPU";
  EXPECT_EQ(cache::RunsFor(1'048'570, 8448).keys_per_run, 32);
  EXPECT_EQ(cache::RunsFor(1'048'570, 8448, cache::kMaxRunKeys).keys_per_run, 125);
  for (const auto& [chunks, lanes] :
       std::vector<std::pair<int64_t, int>>{{1, 1}, {2, 2}, {3, 4}, {31, 32}, {32, 32}, {33, 32}}) {
    EXPECT_EQ(cache::LanesPerRow(chunks), lanes);
  }
}

#if !HOTROW_HAVE_CUDA
TEST(RowCacheCudaTest, ABuildWithoutCudaSaysSo) {
  EXPECT_THAT(
      RowCache::Create({.row_bytes = 16, .budget_bytes = 1 << 20, .device = Device::kCuda}),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no usable GPU: this build")));
}
#endif

TEST(RowCacheCudaTest, BadOptionsAreNamedBeforeAGpuIsLookedFor) {
  const int64_t least = Geometry::ForBuckets(1).Bytes(48, Device::kCuda);
  EXPECT_THAT(
      RowCache::Create({.row_bytes = 48, .budget_bytes = least - 1, .device = Device::kCuda}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("budget_bytes"), HasSubstr(absl::StrCat("[", least, ",")))));
}

// ---- Policies.

TEST(RowCachePolicyTest, LruEvictsTheRowsWhoseLastStepLiesFurthestBack) {
  const auto cache = CacheOfBuckets(1, CachePolicy::kLru);
  for (uint64_t step = 0; step < 4; ++step)
    TrainStep(*cache, kSerial, KeyRange(step * 8, step * 8 + 8));
  TrainStep(*cache, kSerial, KeyRange(0, 8));      // the oldest are used again
  TrainStep(*cache, kSerial, KeyRange(100, 108));  // so those of step 1 leave
  for (uint64_t key = 0; key < 32; ++key) {
    EXPECT_EQ(Resident(*cache, {key, 0}), key < 8 || key >= 16) << key;
  }
}

TEST(RowCachePolicyTest, LfuEvictsTheRowsUsedInTheFewestSteps) {
  const auto cache = CacheOfBuckets(1, CachePolicy::kLfu);
  TrainStep(*cache, kSerial, KeyRange(0, 32));
  TrainStep(*cache, kSerial, KeyRange(0, 24));     // all but 24..31 twice
  TrainStep(*cache, kSerial, KeyRange(100, 108));  // once each
  for (uint64_t key = 0; key < 32; ++key) EXPECT_EQ(Resident(*cache, {key, 0}), key < 24) << key;
}

// Batches of distinct keys whose ranks follow Zipf's law.
class ZipfKeys {
 public:
  ZipfKeys(int64_t keys, double alpha, uint64_t seed) : random_(seed, RandomPurpose::kTest) {
    double sum = 0;
    for (int64_t k = 1; k <= keys; ++k) {
      sum += std::pow(static_cast<double>(k), -alpha);
      cumulative_.push_back(sum);
    }
  }
  // Rank r has key r + shift, so another shift moves the hot set.
  std::vector<RowKey> Next(int64_t n, uint64_t shift) {
    std::unordered_set<uint64_t> seen;
    std::vector<RowKey> keys;
    while (std::ssize(keys) < n) {
      const auto at = std::upper_bound(cumulative_.begin(), cumulative_.end(),
                                       random_.Uniform() * cumulative_.back());
      const auto rank = static_cast<uint64_t>(at - cumulative_.begin());
      if (seen.insert(rank).second) keys.push_back({rank + shift, 0});
    }
    return keys;
  }

 private:
  RandomStream random_;
  std::vector<double> cumulative_;
};

double HitRate(RowCache& cache, ZipfKeys& zipf, int steps, uint64_t shift) {
  constexpr int64_t kBatchKeys = 128;
  int64_t hits = 0;
  for (int step = 0; step < steps; ++step)
    hits += TrainStep(cache, kSerial, zipf.Next(kBatchKeys, shift));
  return static_cast<double>(hits) / static_cast<double>(steps * kBatchKeys);
}

TEST(RowCachePolicyTest, LfuBeatsLruOnSteadyZipfKeysAndFollowsAMovedHotSet) {
  if (test::kSanitizer) GTEST_SKIP() << "rates over millions of keys: of the release build";
  constexpr int64_t kKeys = 25'000;
  constexpr int64_t kBuckets = 100;  // 3,200 rows
  const auto lru = CacheOfBuckets(kBuckets, CachePolicy::kLru);
  const auto lfu = CacheOfBuckets(kBuckets, CachePolicy::kLfu);
  ZipfKeys lru_keys(kKeys, 1.05, 1);
  ZipfKeys lfu_keys(kKeys, 1.05, 1);
  HitRate(*lru, lru_keys, 1000, 0);
  HitRate(*lfu, lfu_keys, 1000, 0);
  const double lru_steady = HitRate(*lru, lru_keys, 300, 0);
  const double lfu_steady = HitRate(*lfu, lfu_keys, 300, 0);
  RecordProperty("lru", std::to_string(lru_steady));
  RecordProperty("lfu", std::to_string(lfu_steady));
  EXPECT_GT(lfu_steady, lru_steady + 0.03);
  // All hot keys become cold at once and others hot.
  const double lfu_at_once = HitRate(*lfu, lfu_keys, 10, 1'000'000);
  EXPECT_LT(lfu_at_once, lfu_steady - 0.2);
  HitRate(*lfu, lfu_keys, 2700, 1'000'000);
  EXPECT_GT(HitRate(*lfu, lfu_keys, 300, 1'000'000), lfu_steady - 0.01);
}

TEST(RowCachePolicyTest, SieveEvictsWhatTheModelSays) { test::RunSieve(Device::kCpu); }

// SIEVE as its paper has it: one queue and one hand for all rows.
class TextbookSieve {
 public:
  explicit TextbookSieve(size_t rows) : rows_(rows), hand_(queue_.end()) {}

  bool Hit(uint64_t key) {
    const auto at = where_.find(key);
    if (at != where_.end()) {
      at->second->touched = true;
      return true;
    }
    if (where_.size() == rows_) Evict();
    queue_.push_front({key, false});
    where_[key] = queue_.begin();
    return false;
  }

 private:
  struct Row {
    uint64_t key;
    bool touched;
  };
  using At = std::list<Row>::iterator;

  At Newer(At at) { return at == queue_.begin() ? queue_.end() : std::prev(at); }
  void Evict() {
    for (hand_ = hand_ == queue_.end() ? std::prev(hand_) : hand_; hand_->touched;) {
      hand_->touched = false;
      hand_ = Newer(hand_);
      if (hand_ == queue_.end()) --hand_;
    }
    const At victim = hand_;
    hand_ = Newer(hand_);
    where_.erase(victim->key);
    queue_.erase(victim);
  }

  size_t rows_;
  std::list<Row> queue_;  // newest first
  At hand_;               // the next to look at; end: the oldest
  std::unordered_map<uint64_t, At> where_;
};

// Buckets of 32 ways, with a hand each and coarse ages, hit what one queue for all rows would.
TEST(RowCachePolicyTest, SieveInBucketsHitsWhatTheTextbooksDoes) {
  constexpr int64_t kBuckets = 50;
  constexpr int kSteps = 60'000;
  const auto sieve = CacheOfBuckets(kBuckets, CachePolicy::kSieve);
  const auto lru = CacheOfBuckets(kBuckets, CachePolicy::kLru);
  TextbookSieve textbook(kBuckets * kWays);
  ZipfKeys zipf(20'000, 1.0, 3);
  int sieve_hits = 0;
  int lru_hits = 0;
  int textbook_hits = 0;
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<RowKey> key = zipf.Next(1, 0);
    sieve_hits += static_cast<int>(TrainStep(*sieve, kSerial, key));
    lru_hits += static_cast<int>(TrainStep(*lru, kSerial, key));
    textbook_hits += textbook.Hit(key[0].key) ? 1 : 0;
  }
  EXPECT_NEAR(sieve_hits, textbook_hits, 0.01 * kSteps);
  EXPECT_GT(sieve_hits, lru_hits + 0.03 * kSteps);
}

class RowCachePropertyTest : public testing::TestWithParam<CachePolicy> {};

TEST_P(RowCachePropertyTest, OneBucket) { RunTiny(GetParam(), 1); }
TEST_P(RowCachePropertyTest, TwoBuckets) { RunTiny(GetParam(), 2); }
TEST_P(RowCachePropertyTest, FiveBuckets) { RunTiny(GetParam(), 5); }
TEST_P(RowCachePropertyTest, FortyBuckets) { RunTiny(GetParam(), 40); }

// Two partitions, and batches of several sorting chunks: answers and all bytes are the same on one
// thread, on four, and without a pool.
TEST_P(RowCachePropertyTest, ResultsDoNotDependOnTheNumberOfThreads) {
  ThreadPool one(1);
  ThreadPool four(4);
  for (const uint64_t seed : test::Seeds(1)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    const Shape shape = {.buckets = 4200,
                         .keys_max = 60'000,
                         .universe = 300'000,
                         .operations = 24,
                         .row_bytes = 16};
    RandomRun serial(shape, GetParam(), seed, nullptr);
    serial.Run();
    EXPECT_GT(serial.cache().Stats().evictions, 0);
    for (ThreadPool* pool : {&one, &four}) {
      // Policies share what threads divide.
      if (pool == &one && (test::kSanitizer || GetParam() != CachePolicy::kLru)) continue;
      RandomRun run(shape, GetParam(), seed, pool);
      run.Run();
      ASSERT_FALSE(HasFatalFailure());
      EXPECT_TRUE(run.transcript() == serial.transcript());
      EXPECT_TRUE(Snapshot(run.cache().cache()) == Snapshot(serial.cache().cache()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, RowCachePropertyTest, testing::ValuesIn(test::AllPolicies()),
                         test::NameOfPolicyParam);

// ---- Broken preconditions.

TEST(RowCacheDeathTest, BrokenPreconditionsStopTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto cache = CacheOfBuckets(1, CachePolicy::kLru);
  const std::vector<RowKey> keys = KeyRange(0, 1);
  const Batch batch(*cache, kSerial, keys);
  EXPECT_DEATH(cache->Unpin(kSerial, batch.slots, true).IgnoreError(),
               "IsFilling");  // not filled yet
  EXPECT_DEATH(cache->Unpin(kSerial, batch.slots, false).IgnoreError(), "IsFilling");
  const Batch meanwhile(*cache, kSerial, keys);
  EXPECT_DEATH(cache->Abandon(kSerial, batch.slots).IgnoreError(),
               "kPlaced");  // named by another batch since
  HOTROW_EXPECT_OK(cache->Unpin(kSerial, meanwhile.slots, false));
  HOTROW_EXPECT_OK(cache->MarkFilled(kSerial, batch.slots));
  EXPECT_DEATH(cache->MarkFilled(kSerial, batch.slots).IgnoreError(), "IsFilling");  // twice
  EXPECT_DEATH(cache->Abandon(kSerial, batch.slots).IgnoreError(),
               "kPlaced");  // filled rows are not abandoned
  for (int pins = 1; pins < cache::kMaxPins; ++pins) Batch(*cache, kSerial, keys);
  EXPECT_DEATH(Batch(*cache, kSerial, keys), "kMaxPins");  // a 64th pin
  for (int pins = 0; pins < cache::kMaxPins; ++pins) {
    HOTROW_EXPECT_OK(cache->Unpin(kSerial, batch.slots, false));
  }
  EXPECT_DEATH(cache->Unpin(kSerial, batch.slots, false).IgnoreError(),
               "PinsOf");  // more unpins than pins
  const std::vector<int64_t> outside = {-1, 64};
  EXPECT_DEATH(cache->Unpin(kSerial, std::span(outside).first(1), false).IgnoreError(), "slot");
  EXPECT_DEATH(cache->Unpin(kSerial, std::span(outside).last(1), false).IgnoreError(), "slot");
}

}  // namespace
}  // namespace hotrow
