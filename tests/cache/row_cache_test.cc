#include "cache/row_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/philox.h"
#include "cache/row_cache_impl.h"
#include "tests/support/test_util.h"

namespace hotrow {

// Sees the metadata of a cache.
struct RowCacheTestPeer {
  static const cache::Geometry& Geometry(const RowCache& cache) { return cache.impl_->geometry; }
  static std::span<const cache::Bucket> Buckets(const RowCache& cache) {
    return std::as_const(cache.impl_->buckets).span();
  }
  static std::span<const cache::PartitionState> Partitions(const RowCache& cache) {
    return std::as_const(cache.impl_->partitions).span();
  }
  static std::span<const std::byte> Slab(const RowCache& cache) {
    return std::as_const(cache.impl_->slab).span();
  }
};

namespace {

using cache::Bucket;
using cache::Geometry;
using cache::PartitionState;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kWays = Bucket::kWays;
const ExecContext kSerial;

struct RowKeyHash {
  size_t operator()(const RowKey& key) const { return HashRowKey(key).lo; }
};

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

// A cache with so many buckets (overflow not counted): exactly, if a row has 128 bytes or more. The
// rows of a bucket then fill a page, so that rounding the budget to pages leaves no room for one
// more.
std::unique_ptr<RowCache> CacheOfBuckets(int64_t buckets, CachePolicy policy,
                                         int64_t row_bytes = 128) {
  const int64_t budget = Geometry::ForBuckets(buckets).Bytes(row_bytes);
  auto cache = RowCache::Create({.row_bytes = row_bytes, .budget_bytes = budget, .policy = policy});
  HOTROW_CHECK(cache.ok());
  HOTROW_CHECK(row_bytes < 128 || (*cache)->Stats().ways == buckets * kWays);
  return *std::move(cache);
}

// The results of one FindOrInsert, and the call itself.
struct Batch {
  Batch(RowCache& cache, const ExecContext& ctx, std::span<const RowKey> batch_keys)
      : keys(batch_keys.begin(), batch_keys.end()),
        slots(keys.size(), -7),
        placement(keys.size()),
        evicted(keys.size(), 77),
        evicted_keys(keys.size()),
        evicted_rows(keys.size() * static_cast<size_t>(cache.row_bytes())) {
    cache.FindOrInsert(ctx, keys,
                       {.slots = slots,
                        .placement = placement,
                        .evicted = evicted,
                        .evicted_keys = evicted_keys,
                        .evicted_rows = evicted_rows.data()});
  }
  std::vector<int64_t> SlotsWith(Placement wanted) const {
    std::vector<int64_t> chosen;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (placement[i] == wanted) chosen.push_back(slots[i]);
    }
    return chosen;
  }
  int64_t Count(Placement wanted) const {
    return std::count(placement.begin(), placement.end(), wanted);
  }
  std::vector<RowKey> keys;
  std::vector<int64_t> slots;
  std::vector<Placement> placement;
  std::vector<uint8_t> evicted;
  std::vector<RowKey> evicted_keys;
  std::vector<std::byte> evicted_rows;
};

std::vector<RowKey> KeyRange(uint64_t begin, uint64_t end, uint32_t table = 0) {
  std::vector<RowKey> keys;
  for (uint64_t key = begin; key < end; ++key) keys.push_back({key, table});
  return keys;
}

// One training step that finds room for all keys and updates their rows. Returns the number of
// hits.
int64_t TrainStep(RowCache& cache, const ExecContext& ctx, std::span<const RowKey> keys) {
  Batch batch(cache, ctx, keys);
  EXPECT_EQ(batch.Count(Placement::kNoRoom), 0);
  cache.MarkFilled(batch.SlotsWith(Placement::kFilled));
  cache.Unpin(batch.slots, /*dirty=*/true);
  cache.EndStep(ctx);
  return batch.Count(Placement::kHit);
}

bool Resident(const RowCache& cache, RowKey key) {
  std::byte* row = nullptr;
  cache.Find(kSerial, {&key, 1}, {&row, 1});
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
    const RowCacheStats stats = cache->Stats();
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
      EXPECT_EQ(cache->Stats().used_ways, rows);
    }
  }
}

// The hard case: the cache is full of unpinned rows of earlier steps, some of them used again, so
// the free ways of an empty cache do not help to even out the pins.
TEST(RowCacheBudgetTest, BudgetForRowsPlacesThemAllPinnedInEveryLaterStep) {
  for (const int64_t rows : {33, 100, 1000, 20'000}) {
    for (const CachePolicy policy : {CachePolicy::kLru, CachePolicy::kLfu}) {
      for (const double reuse : {0.0, 0.5, 0.9}) {
        for (const uint64_t seed : test::Seeds(2)) {
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
          EXPECT_EQ(cache->Stats().no_room, 0);
          // Room to spare: the overflow is hardly used (0.4 % of the rows were there no
          // kScarceWays).
          if (rows >= 1000) {
            EXPECT_LE(cache->Stats().overflow_inserts, rows / 1000);
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
    while (cache->Stats().evictions == 0) {
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
  cache->Find(kSerial, {}, {});
  cache->FindOrInsert(kSerial, {}, {});
  cache->MarkFilled({});
  cache->Abandon({});
  cache->Unpin({}, true);
  HOTROW_EXPECT_OK(
      cache->ForEachDirty([](auto, auto) { return absl::InternalError("nothing is dirty"); }));
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
    cache->MarkFilled(batch.slots);
    cache->Unpin(batch.slots, false);
  }
  std::vector<std::byte*> rows(keys.size());
  cache->Find(kSerial, keys, rows);
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
  cache->MarkFilled(batch.slots);
  EXPECT_TRUE(Resident(*cache, keys[4]));
}

TEST(RowCacheTest, AbandonEmptiesTheWaysAgain) {
  const auto cache = CacheOfBuckets(1, CachePolicy::kLru);
  const std::string before = Snapshot(*cache);
  const std::vector<RowKey> keys = KeyRange(0, 50);  // 32 in the bucket, 18 in the overflow
  const Batch batch(*cache, kSerial, keys);
  EXPECT_EQ(batch.Count(Placement::kFilled), 50);
  EXPECT_EQ(cache->Stats().overflow_inserts, 18);
  cache->Abandon(batch.slots);
  EXPECT_EQ(cache->Stats().used_ways, 0);
  EXPECT_EQ(RowCacheTestPeer::Partitions(*cache)[0].overflow_used, 0);
  EXPECT_EQ(RowCacheTestPeer::Partitions(*cache)[0].overflow_span, 0);
  for (const RowKey& key : keys) EXPECT_FALSE(Resident(*cache, key));
  const size_t metadata = RowCacheTestPeer::Buckets(*cache).size_bytes();
  EXPECT_EQ(Snapshot(*cache).substr(0, metadata), before.substr(0, metadata));
}

TEST(RowCacheTest, FindChangesNothing) {
  ThreadPool pool(4);
  for (const CachePolicy policy : {CachePolicy::kLru, CachePolicy::kLfu}) {
    const auto cache = CacheOfBuckets(4100, policy, 16);
    TrainStep(*cache, kSerial, KeyRange(0, 5000));
    const Batch pinned(*cache, kSerial, KeyRange(4000, 6000));
    std::vector<RowKey> keys = KeyRange(0, 7000);
    keys.resize(14'000, RowKey{17, 0});  // repeated keys are fine
    std::vector<std::byte*> rows(keys.size(), reinterpret_cast<std::byte*>(8));
    const std::string before = Snapshot(*cache);
    cache->Find({.pool = &pool}, keys, rows);
    EXPECT_EQ(Snapshot(*cache), before);
    for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(rows[i] != nullptr, keys[i].key < 5000) << i;
  }
}

TEST(RowCacheTest, ABatchLargerThanTheCacheFillsItAndReportsTheRest) {
  const auto cache = CacheOfBuckets(2, CachePolicy::kLru);
  const Batch batch(*cache, kSerial, KeyRange(0, 500));
  EXPECT_EQ(batch.Count(Placement::kFilled), 96);  // 64 ways and 32 of overflow
  EXPECT_EQ(batch.Count(Placement::kNoRoom), 404);
  EXPECT_EQ(cache->Stats().no_room, 404);
  EXPECT_EQ(cache->Stats().overflow_inserts, 32);
  EXPECT_EQ(cache->Stats().evictions, 0);
  // The first come are the first served.
  for (size_t i = 0; i < batch.keys.size(); ++i) EXPECT_EQ(batch.slots[i] >= 0, i < 96);
}

TEST(RowCacheTest, UnpinnedOverflowRowsMakeRoom) {
  const auto cache = CacheOfBuckets(1, CachePolicy::kLru);
  const Batch first(*cache, kSerial, KeyRange(0, 64));
  cache->MarkFilled(first.slots);
  const Batch none(*cache, kSerial, KeyRange(100, 101));
  EXPECT_EQ(none.placement[0], Placement::kNoRoom);
  std::memset(cache->row(first.slots[40]), 0x5a, 16);
  cache->Unpin(std::span(first.slots).subspan(40, 1), /*dirty=*/true);
  const Batch one(*cache, kSerial, KeyRange(100, 101));
  EXPECT_EQ(one.placement[0], Placement::kFilled);
  EXPECT_EQ(one.slots[0], first.slots[40]);
  EXPECT_EQ(one.evicted[0], 1);
  EXPECT_EQ(one.evicted_keys[0], first.keys[40]);
  EXPECT_EQ(one.evicted_rows[3], std::byte{0x5a});
  EXPECT_EQ(cache->Stats().dirty_evictions, 1);
}

TEST(RowCacheTest, AKeyLaterInTheBatchIsNotEvictedByAnEarlierOne) {
  const auto cache = CacheOfBuckets(1, CachePolicy::kLru);
  TrainStep(*cache, kSerial, KeyRange(0, 32));
  std::vector<RowKey> keys = KeyRange(100, 116);  // misses first
  for (uint64_t key = 0; key < 16; ++key) keys.push_back({key, 0});
  const Batch batch(*cache, kSerial, keys);
  EXPECT_EQ(batch.Count(Placement::kHit), 16);
  EXPECT_EQ(batch.Count(Placement::kFilled), 16);
  EXPECT_EQ(cache->Stats().overflow_inserts, 0);
}

TEST(RowCacheTest, ForEachDirtyComesInSlotOrderAndKeepsWhatFailed) {
  const auto cache = CacheOfBuckets(400, CachePolicy::kLru);
  TrainStep(*cache, kSerial, KeyRange(0, 10'000));
  int visits = 0;
  const std::byte* last = nullptr;
  int64_t handed_out = 0;
  const absl::Status status = cache->ForEachDirty([&](auto keys, auto rows) -> absl::Status {
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
  HOTROW_EXPECT_OK(cache->ForEachDirty([&](auto keys, auto) {
    rest += std::ssize(keys);
    return absl::OkStatus();
  }));
  EXPECT_GT(handed_out, 0);
  EXPECT_EQ(handed_out + rest, 10'000);
  HOTROW_EXPECT_OK(
      cache->ForEachDirty([](auto, auto) { return absl::InternalError("all are clean"); }));
}

// ---- Marks.

// Writes the number into a filled row.
void SetRow(RowCache& cache, int64_t slot, uint64_t number) {
  std::memcpy(cache.row(slot), &number, sizeof(number));
}

// Random steps, each with marks taken by updates, by TakeMarked and by evictions: together they
// give every row that was dirty when the marks were made, once, with the bytes of that moment.
TEST(RowCacheMarkTest, EveryRowThatWasDirtyIsHandedOutOnceAsItWas) {
  for (const uint64_t seed : test::Seeds(20)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    const auto cache = CacheOfBuckets(static_cast<int64_t>(1 + random.Below(6)),
                                      random.Below(2) == 0 ? CachePolicy::kLru : CachePolicy::kLfu);
    std::unordered_map<RowKey, uint64_t, RowKeyHash> below;    // the tier below, all older rows
    std::unordered_map<RowKey, uint64_t, RowKeyHash> present;  // what each row is now
    std::unordered_map<RowKey, uint64_t, RowKeyHash> wanted;   // of the snapshot
    std::unordered_map<RowKey, uint64_t, RowKeyHash> got;
    uint64_t version = 0;
    const auto hand_out = [&](const RowKey& key, const std::byte* row) {
      uint64_t number;
      std::memcpy(&number, row, sizeof(number));
      ASSERT_TRUE(got.emplace(key, number).second) << "handed out twice";
      below[key] = number;
    };
    const auto step = [&] {
      std::vector<RowKey> keys;
      std::unordered_set<RowKey, RowKeyHash> distinct;
      for (int i = 0; i < 12; ++i) {
        const RowKey key = {random.Below(300), static_cast<uint32_t>(random.Below(2))};
        if (distinct.insert(key).second) keys.push_back(key);
      }
      Batch batch(*cache, kSerial, keys);
      for (size_t i = 0; i < keys.size(); ++i) {
        const std::byte* const row =
            batch.evicted_rows.data() + i * static_cast<size_t>(cache->row_bytes());
        if (batch.evicted[i] == kEvictedMarked) hand_out(batch.evicted_keys[i], row);
        if (batch.evicted[i] == kEvictedDirty) {
          std::memcpy(&below[batch.evicted_keys[i]], row, sizeof(uint64_t));
        }
      }
      for (size_t i = 0; i < keys.size(); ++i) {
        ASSERT_NE(batch.placement[i], Placement::kNoRoom);
        if (batch.placement[i] == Placement::kFilled)
          SetRow(*cache, batch.slots[i], below[keys[i]]);
      }
      cache->MarkFilled(batch.SlotsWith(Placement::kFilled));
      const bool update = random.Below(4) != 0;
      for (size_t i = 0; i < keys.size(); ++i) {
        uint64_t number;
        std::memcpy(&number, cache->row(batch.slots[i]), sizeof(number));
        ASSERT_EQ(number, present[keys[i]]) << "a row was lost";
        if (!update) continue;
        RowKey key;
        if (cache->TakeMark(batch.slots[i], &key)) {
          ASSERT_EQ(key, keys[i]);
          hand_out(key, cache->row(batch.slots[i]));
        }
        present[keys[i]] = ++version;
        SetRow(*cache, batch.slots[i], version);
      }
      cache->Unpin(batch.slots, update);
      cache->EndStep(kSerial);
    };
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < 10; ++i) ASSERT_NO_FATAL_FAILURE(step());
      wanted.clear();
      got.clear();
      for (const auto& [key, number] : present) {
        if (number != below[key]) wanted[key] = number;
      }
      ASSERT_EQ(cache->MarkDirtyRows(), std::ssize(wanted));
      HOTROW_ASSERT_OK(cache->ForEachDirty(
          [](auto, auto) { return absl::InternalError("a marked row is not dirty"); }));
      const bool drop = random.Below(4) == 0;
      for (int64_t cursor = 0; cursor < cache->num_slots();) {
        if (random.Below(2) == 0) {
          ASSERT_NO_FATAL_FAILURE(step());
        }
        std::vector<RowKey> keys(1 + random.Below(20));
        std::vector<int64_t> slots(keys.size());
        std::vector<std::byte> rows(keys.size() * static_cast<size_t>(cache->row_bytes()));
        const int64_t n = cache->TakeMarked(&cursor, keys, slots, rows.data());
        ASSERT_LE(n, std::ssize(keys));
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_NO_FATAL_FAILURE(hand_out(keys[i], rows.data() + i * cache->row_bytes()));
        }
        cache->Unpin({slots.data(), static_cast<size_t>(n)}, /*dirty=*/false);
        if (drop && random.Below(4) == 0) break;
      }
      if (drop) {
        // What is left is dirty again: nothing is lost, as the next rounds see.
        cache->DropMarks();
      } else {
        ASSERT_EQ(got, wanted);
      }
    }
  }
}

TEST(RowCacheMarkTest, RowsThatWereTakenStayUntilTheyAreUnpinned) {
  const auto cache = CacheOfBuckets(1, CachePolicy::kLru);
  const int64_t ways = cache->num_slots();
  TrainStep(*cache, kSerial, KeyRange(0, 20));
  EXPECT_EQ(cache->MarkDirtyRows(), 20);
  std::vector<RowKey> keys(20);
  std::vector<int64_t> slots(20);
  std::vector<std::byte> rows(20 * static_cast<size_t>(cache->row_bytes()));
  int64_t cursor = 0;
  ASSERT_EQ(cache->TakeMarked(&cursor, keys, slots, rows.data()), 20);
  Batch flood(*cache, kSerial, KeyRange(100, 100 + static_cast<uint64_t>(ways)));
  EXPECT_EQ(flood.Count(Placement::kNoRoom), 20);
  for (const RowKey& key : KeyRange(0, 20)) EXPECT_TRUE(Resident(*cache, key));
  cache->Unpin(slots, /*dirty=*/false);
  Batch more(*cache, kSerial, KeyRange(1000, 1020));
  EXPECT_EQ(more.Count(Placement::kFilled), 20);
  for (const uint8_t evicted : more.evicted) EXPECT_EQ(evicted, 0) << "it is clean now";
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
  constexpr int64_t kBatchKeys = 512;
  int64_t hits = 0;
  for (int step = 0; step < steps; ++step)
    hits += TrainStep(cache, kSerial, zipf.Next(kBatchKeys, shift));
  return static_cast<double>(hits) / static_cast<double>(steps * kBatchKeys);
}

TEST(RowCachePolicyTest, LfuBeatsLruOnSteadyZipfKeysAndFollowsAMovedHotSet) {
  constexpr int64_t kKeys = 100'000;
  constexpr int64_t kBuckets = 400;  // 12,800 rows
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

// ---- Random operations against a model of what must hold.

struct Shape {
  int64_t buckets;
  int64_t keys_max;   // of a batch
  uint64_t universe;  // how many distinct keys there are
  int operations;
  int64_t row_bytes;
};

struct ModelRow {
  uint64_t version = 0;  // what the row's bytes are made of
  int64_t slot = -1;
  int pins = 0;
  bool dirty = false;
};

// Runs one random sequence and checks every answer against what the caller may rely on: nothing
// about scores, everything about contents, pins, dirty rows and room.
class RandomRun {
 public:
  RandomRun(const Shape& shape, CachePolicy policy, uint64_t seed, ThreadPool* pool)
      : shape_(shape), ctx_{.pool = pool}, random_(seed, RandomPurpose::kTest) {
    row_bytes_ = shape.row_bytes;
    cache_ = CacheOfBuckets(shape.buckets, policy, row_bytes_);
  }

  void Run() {
    for (int i = 0; i < shape_.operations && !testing::Test::HasFatalFailure(); ++i) {
      const uint64_t dice = random_.Below(100);
      if (dice < 45) {
        Insert();
      } else if (dice < 80) {
        ReleaseOldestStep();
      } else if (dice < 90) {
        FindSome();
      } else if (dice < 92) {
        WriteBack();
      } else {
        cache_->EndStep(ctx_);
      }
    }
    CheckAll();
  }

  const RowCache& cache() const { return *cache_; }
  // Every answer the cache gave, in order.
  const std::string& transcript() const { return transcript_; }

 private:
  void FillPattern(RowKey key, uint64_t version, std::span<std::byte> row) const {
    uint64_t x = key.key * 0x9e3779b97f4a7c15ULL + key.table * 31 + version;
    for (std::byte& byte : row) {
      x = x * 6364136223846793005ULL + 1442695040888963407ULL;
      byte = static_cast<std::byte>(x >> 56);
    }
  }
  bool HasPattern(RowKey key, uint64_t version, const std::byte* row) const {
    std::vector<std::byte> want(static_cast<size_t>(row_bytes_));
    FillPattern(key, version, want);
    return std::memcmp(want.data(), row, want.size()) == 0;
  }
  std::span<std::byte> RowAt(int64_t slot) {
    return {cache_->row(slot), static_cast<size_t>(row_bytes_)};
  }

  RowKey RandomKey() {
    // Skewed, so that hits are common; the ends of the key space and two tables on purpose.
    const uint64_t r = std::min(random_.Below(shape_.universe), random_.Below(shape_.universe));
    return {r % 2 == 0 ? r / 2 : ~uint64_t{0} - r / 2, static_cast<uint32_t>(random_.Below(2))};
  }

  // The slots a key may use, in the order main bucket 1, main bucket 2, overflow.
  struct Home {
    std::vector<int64_t> buckets;
    std::vector<int64_t> overflow_buckets;
  };
  Home HomeOf(RowKey key) const {
    const RowHash hash = HashRowKey(key);
    const auto partitions = RowCacheTestPeer::Partitions(*cache_);
    const PartitionState& p = partitions[hash.partition(partitions.size())];
    const auto n = static_cast<uint64_t>(p.buckets);
    Home home;
    home.buckets = {p.first_bucket + hash.bucket1(n), p.first_bucket + hash.bucket2(n)};
    for (int64_t b = 0; b < p.overflow_buckets; ++b)
      home.overflow_buckets.push_back(p.first_bucket + p.buckets + b);
    return home;
  }
  bool AllPinned(std::span<const int64_t> buckets) const {
    for (const int64_t b : buckets) {
      for (int64_t slot = b * kWays; slot < (b + 1) * kWays; ++slot) {
        const auto at = slots_.find(slot);
        if (at == slots_.end() || rows_.at(at->second).pins == 0) return false;
      }
    }
    return true;
  }
  bool AnyFree(std::span<const int64_t> buckets) const {
    for (const int64_t b : buckets) {
      for (int64_t slot = b * kWays; slot < (b + 1) * kWays; ++slot) {
        if (!slots_.contains(slot)) return true;
      }
    }
    return false;
  }

  void Insert() {
    // A row may be pinned by 63 steps at most.
    if (steps_.size() >= 8) ReleaseOldestStep();
    std::vector<RowKey> keys;
    const uint64_t n = random_.Below(8) == 0
                           ? random_.Below(2)
                           : random_.Below(static_cast<uint64_t>(shape_.keys_max));
    std::unordered_set<RowKey, RowKeyHash> seen;
    while (keys.size() < n && seen.size() < shape_.universe) {
      const RowKey key = RandomKey();
      if (seen.insert(key).second) keys.push_back(key);
    }
    const Batch batch(*cache_, ctx_, keys);
    Record(batch);

    for (size_t i = 0; i < keys.size(); ++i) {
      const auto at = rows_.find(keys[i]);
      if (at == rows_.end()) continue;
      ASSERT_EQ(batch.placement[i], Placement::kHit);
      ASSERT_EQ(batch.slots[i], at->second.slot);
      ASSERT_EQ(batch.evicted[i], 0);
      ++at->second.pins;
    }
    // The misses, in the order in which the cache placed those of one partition.
    for (size_t i = 0; i < keys.size(); ++i) {
      if (batch.placement[i] == Placement::kHit) {
        ASSERT_TRUE(rows_.contains(keys[i]));
        continue;
      }
      ASSERT_NO_FATAL_FAILURE(CheckMiss(batch, i));
    }

    // Most steps fill their rows; some give up a part.
    std::vector<int64_t> filled;
    std::vector<int64_t> abandoned;
    std::vector<RowKey> step;
    const bool give_up = random_.Below(10) == 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (batch.placement[i] == Placement::kNoRoom) continue;
      if (batch.placement[i] == Placement::kFilled) {
        if (give_up && random_.Below(2) == 0) {
          abandoned.push_back(batch.slots[i]);
          slots_.erase(batch.slots[i]);
          rows_.erase(keys[i]);
          continue;
        }
        FillPattern(keys[i], rows_[keys[i]].version, RowAt(batch.slots[i]));
        filled.push_back(batch.slots[i]);
      }
      step.push_back(keys[i]);
    }
    cache_->MarkFilled(filled);
    cache_->Abandon(abandoned);
    steps_.push_back(std::move(step));
    ASSERT_EQ(cache_->Stats().used_ways, std::ssize(rows_));
    ASSERT_EQ(cache_->Stats().no_room, no_room_);
    ASSERT_EQ(cache_->Stats().overflow_inserts, overflow_inserts_);
    ASSERT_EQ(cache_->Stats().evictions, evictions_);
    ASSERT_EQ(cache_->Stats().dirty_evictions, dirty_evictions_);
  }

  void CheckMiss(const Batch& batch, size_t i) {
    const Home home = HomeOf(batch.keys[i]);
    if (batch.placement[i] == Placement::kNoRoom) {
      ++no_room_;
      ASSERT_EQ(batch.slots[i], -1);
      ASSERT_EQ(batch.evicted[i], 0);
      ASSERT_TRUE(AllPinned(home.buckets) && AllPinned(home.overflow_buckets));
      return;
    }
    ASSERT_EQ(batch.placement[i], Placement::kFilled);
    const int64_t slot = batch.slots[i];
    const bool in_overflow = std::ranges::count(home.overflow_buckets, slot / kWays) == 1;
    if (in_overflow) {
      ++overflow_inserts_;
      ASSERT_TRUE(AllPinned(home.buckets));
    } else {
      ASSERT_GE(std::ranges::count(home.buckets, slot / kWays), 1);
    }
    const auto old = slots_.find(slot);
    if (old == slots_.end()) {
      ASSERT_EQ(batch.evicted[i], 0);
    } else {
      ASSERT_FALSE(AnyFree(in_overflow ? home.overflow_buckets : home.buckets));
      const RowKey victim = old->second;
      const ModelRow& row = rows_.at(victim);
      ASSERT_EQ(row.pins, 0);
      ASSERT_EQ(batch.evicted[i], row.dirty ? 1 : 0);
      ++evictions_;
      if (row.dirty) {
        ++dirty_evictions_;
        ASSERT_EQ(batch.evicted_keys[i], victim);
        ASSERT_TRUE(HasPattern(victim, row.version,
                               batch.evicted_rows.data() + static_cast<int64_t>(i) * row_bytes_));
        store_[victim] = row.version;
      }
      rows_.erase(victim);
    }
    slots_[slot] = batch.keys[i];
    const auto stored = store_.find(batch.keys[i]);
    rows_[batch.keys[i]] = {
        .version = stored == store_.end() ? 0 : stored->second, .slot = slot, .pins = 1};
  }

  void ReleaseOldestStep() {
    if (steps_.empty()) return;
    const bool dirty = random_.Below(3) != 0;
    std::vector<int64_t> slots;
    for (const RowKey& key : steps_.front()) {
      ModelRow& row = rows_.at(key);
      if (dirty) {
        FillPattern(key, ++row.version, RowAt(row.slot));
        row.dirty = true;
      }
      ASSERT_GT(row.pins, 0);
      --row.pins;
      slots.push_back(row.slot);
    }
    cache_->Unpin(slots, dirty);
    steps_.pop_front();
  }

  void FindSome() {
    std::vector<RowKey> keys(random_.Below(200));
    for (RowKey& key : keys) key = RandomKey();
    std::vector<std::byte*> rows(keys.size(), reinterpret_cast<std::byte*>(8));
    cache_->Find(ctx_, keys, rows);
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto at = rows_.find(keys[i]);
      ASSERT_EQ(rows[i] != nullptr, at != rows_.end());
      if (rows[i] == nullptr) continue;
      ASSERT_EQ(rows[i], cache_->row(at->second.slot));
      ASSERT_TRUE(HasPattern(keys[i], at->second.version, rows[i]));
    }
  }

  void WriteBack() {
    int64_t handed_out = 0;
    HOTROW_ASSERT_OK(cache_->ForEachDirty([&](auto keys, auto rows) {
      for (size_t i = 0; i < keys.size(); ++i) {
        const auto at = rows_.find(keys[i]);
        EXPECT_TRUE(at != rows_.end() && at->second.dirty);
        EXPECT_TRUE(HasPattern(keys[i], at->second.version, rows[i]));
        at->second.dirty = false;
        store_[keys[i]] = at->second.version;
      }
      handed_out += std::ssize(keys);
      return absl::OkStatus();
    }));
    for (const auto& [key, row] : rows_)
      ASSERT_FALSE(row.dirty) << "a dirty row was not handed out";
    transcript_ += absl::StrCat("dirty ", handed_out, "\n");
  }

  // At the end: all resident rows have their bytes, and after all pins are gone nothing is pinned.
  void CheckAll() {
    while (!steps_.empty() && !testing::Test::HasFatalFailure()) ReleaseOldestStep();
    for (const auto& [key, row] : rows_) {
      ASSERT_TRUE(HasPattern(key, row.version, cache_->row(row.slot)));
    }
    int64_t used = 0;
    for (const Bucket& bucket : RowCacheTestPeer::Buckets(*cache_)) {
      for (int64_t way = 0; way < kWays; ++way) {
        ASSERT_EQ(bucket.state[way] & ~cache::kDirty, 0);
        used += bucket.tag[way] != 0 ? 1 : 0;
      }
    }
    ASSERT_EQ(used, std::ssize(rows_));
    WriteBack();
  }

  void Record(const Batch& batch) {
    for (size_t i = 0; i < batch.keys.size(); ++i) {
      transcript_ += absl::StrCat(batch.slots[i], " ", static_cast<int>(batch.placement[i]), " ",
                                  static_cast<int>(batch.evicted[i]), " ");
      if (batch.evicted[i] != 0) transcript_ += absl::StrCat(batch.evicted_keys[i].key, " ");
    }
    transcript_ += "\n";
  }

  Shape shape_;
  ExecContext ctx_;
  RandomStream random_;
  int64_t row_bytes_ = 0;
  std::unique_ptr<RowCache> cache_;
  std::unordered_map<RowKey, ModelRow, RowKeyHash> rows_;   // resident
  std::unordered_map<int64_t, RowKey> slots_;               // who is where
  std::unordered_map<RowKey, uint64_t, RowKeyHash> store_;  // versions below; absent means 0
  std::deque<std::vector<RowKey>> steps_;  // in flight: the keys that each has pinned
  std::string transcript_;
  int64_t no_room_ = 0;
  int64_t overflow_inserts_ = 0;
  int64_t evictions_ = 0;
  int64_t dirty_evictions_ = 0;
};

class RowCachePropertyTest : public testing::TestWithParam<CachePolicy> {};

void RunTiny(CachePolicy policy, int64_t buckets) {
  for (const uint64_t seed : test::Seeds(12)) {
    SCOPED_TRACE(testing::Message() << "buckets=" << buckets << " HOTROW_TEST_SEED=" << seed);
    const Shape shape = {.buckets = buckets,
                         .keys_max = 40 * buckets,
                         .universe = static_cast<uint64_t>(150 * buckets),
                         .operations = buckets > 10 ? 60 : 200,
                         .row_bytes = static_cast<int64_t>(128 + 16 * (seed % 4))};
    RandomRun run(shape, policy, seed, nullptr);
    run.Run();
    if (testing::Test::HasFatalFailure()) return;
    // The sequence reached what it is meant to test.
    EXPECT_GT(run.cache().Stats().evictions, 0);
    if (buckets <= 5) {
      EXPECT_GT(run.cache().Stats().overflow_inserts, 0);
    }
  }
}

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
      RandomRun run(shape, GetParam(), seed, pool);
      run.Run();
      ASSERT_FALSE(HasFatalFailure());
      EXPECT_TRUE(run.transcript() == serial.transcript());
      EXPECT_TRUE(Snapshot(run.cache()) == Snapshot(serial.cache()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, RowCachePropertyTest,
                         testing::Values(CachePolicy::kLru, CachePolicy::kLfu),
                         [](const auto& info) {
                           return info.param == CachePolicy::kLru ? "Lru" : "Lfu";
                         });

// ---- Broken preconditions.

TEST(RowCacheDeathTest, BrokenPreconditionsStopTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto cache = CacheOfBuckets(1, CachePolicy::kLru);
  const std::vector<RowKey> keys = KeyRange(0, 1);
  const Batch batch(*cache, kSerial, keys);
  EXPECT_DEATH(cache->Unpin(batch.slots, true), "kFilling");  // not filled yet
  EXPECT_DEATH(cache->Unpin(batch.slots, false), "kFilling");
  const Batch meanwhile(*cache, kSerial, keys);
  EXPECT_DEATH(cache->Abandon(batch.slots), "kFilling");  // named by another batch since
  cache->Unpin(meanwhile.slots, false);
  cache->MarkFilled(batch.slots);
  EXPECT_DEATH(cache->MarkFilled(batch.slots), "kFilling");  // twice
  EXPECT_DEATH(cache->Abandon(batch.slots), "kFilling");     // filled rows are not abandoned
  for (int pins = 1; pins < cache::kMaxPins; ++pins) Batch(*cache, kSerial, keys);
  EXPECT_DEATH(Batch(*cache, kSerial, keys), "kMaxPins");  // a 64th pin
  for (int pins = 0; pins < cache::kMaxPins; ++pins) cache->Unpin(batch.slots, false);
  EXPECT_DEATH(cache->Unpin(batch.slots, false), "kPinMask");  // more unpins than pins
  const std::vector<int64_t> outside = {-1, 64};
  EXPECT_DEATH(cache->Unpin(std::span(outside).first(1), false), "slot");
  EXPECT_DEATH(cache->Unpin(std::span(outside).last(1), false), "slot");
}

}  // namespace
}  // namespace hotrow
