#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cuda_handles.h"
#include "base/device_memory.h"
#include "base/hash.h"
#include "base/philox.h"
#include "cache/cache_policy_impl.h"
#include "cache/row_cache.h"
#include "tests/cache/cache_driver.h"
#include "tests/cache/row_cache_model.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

// The cache in device memory: the random operations and the model of the CPU's tests, and what only
// it promises: device memory everywhere, graphs, batches that thousands of warps place at once.

namespace hotrow {
namespace {

using cache::Bucket;
using cache::Geometry;
using cache::PartitionState;
using test::CacheDriver;
using test::CacheOfBuckets;
using test::DeviceArray;
using test::InsertAnswer;
using test::KeyRange;
using test::kWays;
using test::RowKeyHash;
using test::StatusIs;
using ::testing::HasSubstr;

CacheDriver DriverOf(int64_t buckets, CachePolicy policy, int64_t row_bytes = 128) {
  return CacheDriver(CacheOfBuckets(buckets, policy, row_bytes, Device::kCuda));
}

// Each row says whose it is: 16 bytes of key and table, over and over.
std::vector<std::byte> RowOf(RowKey key, int64_t row_bytes) {
  std::vector<std::byte> row(static_cast<size_t>(row_bytes));
  const uint64_t words[2] = {key.key, key.table};
  for (size_t at = 0; at < row.size(); at += sizeof(words)) {
    std::memcpy(row.data() + at, words, sizeof(words));
  }
  return row;
}

// One training step that finds room for all keys and updates their rows.
InsertAnswer TrainStep(CacheDriver& cache, std::span<const RowKey> keys) {
  InsertAnswer batch = cache.FindOrInsert(keys);
  EXPECT_EQ(batch.Count(Placement::kNoRoom), 0);
  cache.MarkFilled(batch.SlotsWith(Placement::kFilled));
  cache.Unpin(batch.slots, /*dirty=*/true);
  cache.EndStep();
  return batch;
}

// ---- The same operations and the same model as on the CPU.

class RowCacheCudaPropertyTest : public testing::TestWithParam<CachePolicy> {
  void SetUp() override { HOTROW_REQUIRE_GPU_OR_SKIP(); }
};

TEST_P(RowCacheCudaPropertyTest, OneBucket) { test::RunTiny(GetParam(), 1, Device::kCuda); }
TEST_P(RowCacheCudaPropertyTest, TwoBuckets) { test::RunTiny(GetParam(), 2, Device::kCuda); }
TEST_P(RowCacheCudaPropertyTest, FiveBuckets) { test::RunTiny(GetParam(), 5, Device::kCuda); }
TEST_P(RowCacheCudaPropertyTest, FortyBuckets) { test::RunTiny(GetParam(), 40, Device::kCuda); }

// Policies share it.
TEST_P(RowCacheCudaPropertyTest, TwoPartitions) {
  if (test::kEmulatedGpu && GetParam() != CachePolicy::kLru) GTEST_SKIP() << "emulated: of lru";
  for (const uint64_t seed : test::Seeds(test::ForGpu(2, 1))) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    const test::Shape shape = {.buckets = 4200,
                               .keys_max = 20'000,
                               .universe = 200'000,
                               .operations = test::ForGpu(12, 4),
                               .row_bytes = 16};
    test::RandomRun run(shape, GetParam(), seed, nullptr, Device::kCuda);
    run.Run();
    ASSERT_FALSE(HasFatalFailure());
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, RowCacheCudaPropertyTest, testing::ValuesIn(test::AllPolicies()),
                         test::NameOfPolicyParam);

TEST(RowCacheCudaPolicyTest, SieveEvictsWhatTheModelSays) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::RunSieve(Device::kCuda);
}

TEST(RowCacheCudaMarkTest, EveryRowThatWasDirtyIsHandedOutOnceAsItWas) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const uint64_t seed : test::Seeds(test::ForGpu(20, 3))) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    test::RunMarks(seed, Device::kCuda);
    if (HasFatalFailure()) return;
  }
}

// More marks than one launch takes and more slots than one scan looks at.
TEST(RowCacheCudaMarkTest, ManyMarksInOneCall) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  if (test::kEmulatedGpu) GTEST_SKIP() << "takes an emulated GPU minutes";
  constexpr int64_t kBuckets = 20'000;  // 640,000 slots
  CacheDriver cache = DriverOf(kBuckets, CachePolicy::kLru, 16);
  const int64_t n = 560'000;
  const std::vector<RowKey> keys = KeyRange(0, n);
  const InsertAnswer batch = TrainStep(cache, keys);
  ASSERT_EQ(cache.MarkDirtyRows(), n);

  CacheDriver::Taken taken = cache.TakeMarks(batch.slots, 50'000);
  EXPECT_EQ(taken.looked, 50'000);
  EXPECT_EQ(taken.keys, KeyRange(0, 50'000)) << "in the order of the slots";
  taken = cache.TakeMarks(batch.slots, 10);
  EXPECT_EQ(taken.looked, 50'010);

  std::unordered_set<uint64_t> seen;
  int64_t calls = 0;
  for (int64_t cursor = 0; cursor < cache.cache().num_slots(); ++calls) {
    const int64_t before = cursor;
    const CacheDriver::Taken part = cache.TakeMarked(&cursor, 200'000);
    ASSERT_LE(cursor - before, cache::kMarkedScanSlots);
    ASSERT_TRUE(std::is_sorted(part.slots.begin(), part.slots.end()));
    for (const RowKey& key : part.keys) EXPECT_TRUE(seen.insert(key.key).second);
    cache.Unpin(part.slots, /*dirty=*/false);
  }
  EXPECT_GE(calls, 3);
  EXPECT_EQ(std::ssize(seen), n - 50'010);
}

TEST(RowCacheCudaMarkTest, RowsThatWereTakenStayUntilTheyAreUnpinned) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  CacheDriver cache = DriverOf(1, CachePolicy::kLru);
  const auto ways = static_cast<uint64_t>(cache.cache().num_slots());
  TrainStep(cache, KeyRange(0, 20));
  EXPECT_EQ(cache.MarkDirtyRows(), 20);
  int64_t cursor = 0;
  const CacheDriver::Taken taken = cache.TakeMarked(&cursor, 20);
  ASSERT_EQ(taken.keys.size(), 20u);
  const InsertAnswer flood = cache.FindOrInsert(KeyRange(100, 100 + ways));
  EXPECT_EQ(flood.Count(Placement::kNoRoom), 20);
  for (const RowKey& key : KeyRange(0, 20)) EXPECT_TRUE(cache.Resident(key));
  cache.Unpin(taken.slots, /*dirty=*/false);
  const InsertAnswer more = cache.FindOrInsert(KeyRange(1000, 1020));
  EXPECT_EQ(more.Count(Placement::kFilled), 20);
  for (const uint8_t evicted : more.evicted) EXPECT_EQ(evicted, 0) << "it is clean now";
}

// ---- Single calls.

TEST(RowCacheCudaTest, EmptyBatchesAreFine) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  CacheDriver cache = DriverOf(1, CachePolicy::kLru);
  EXPECT_TRUE(cache.Find({}).empty());
  EXPECT_TRUE(cache.FindRows({}, 128).found.empty());
  EXPECT_TRUE(cache.FindOrInsert({}).slots.empty());
  cache.MarkFilled({});
  cache.Abandon({});
  cache.Unpin({}, true);
  cache.MarkDirty({});
  EXPECT_EQ(cache.TakeMarks({}, 0).looked, 0);
  EXPECT_EQ(cache.MarkDirtyRows(), 0);
  HOTROW_EXPECT_OK(
      cache.ForEachDirty([](auto, auto) { return absl::InternalError("nothing is dirty"); }));
  EXPECT_EQ(cache.Stats().used_ways, 0);
}

TEST(RowCacheCudaTest, ExtremeKeysAndEqualKeysOfTwoTablesAreDifferentRows) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  CacheDriver cache = DriverOf(3, CachePolicy::kLru);
  const uint64_t max = ~uint64_t{0};
  const std::vector<RowKey> keys = {{0, 0},   {0, 1},   {0, ~uint32_t{0}},
                                    {max, 0}, {max, 1}, {max, ~uint32_t{0}}};
  for (const RowKey& key : keys) {  // batches of one key
    const InsertAnswer batch = cache.FindOrInsert({&key, 1});
    ASSERT_EQ(batch.placement[0], Placement::kFilled);
    EXPECT_EQ(batch.evicted[0], 0);
    cache.WriteRow(batch.slots[0], RowOf(key, 128));
    cache.MarkFilled(batch.slots);
    cache.Unpin(batch.slots, false);
  }
  const CacheDriver::FoundRows found = cache.FindRows(keys, 128);
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSERT_EQ(found.found[i], 1);
    const std::vector<std::byte> want = RowOf(keys[i], 128);
    EXPECT_EQ(std::memcmp(found.out.data() + i * 128, want.data(), 128), 0);
  }
  EXPECT_EQ(cache.FindOrInsert(keys).Count(Placement::kHit), std::ssize(keys));
}

TEST(RowCacheCudaTest, AbandonEmptiesTheWaysAgain) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  CacheDriver cache = DriverOf(1, CachePolicy::kLru);
  const std::vector<Bucket> before = cache.Buckets();
  const std::vector<RowKey> keys = KeyRange(0, 50);  // 32 in the bucket, 18 in the overflow
  const InsertAnswer batch = cache.FindOrInsert(keys);
  EXPECT_EQ(batch.Count(Placement::kFilled), 50);
  EXPECT_EQ(cache.Stats().overflow_inserts, 18);
  EXPECT_EQ(cache.Partitions()[0].overflow_used, 18);
  EXPECT_EQ(cache.Partitions()[0].overflow_span, 1);
  EXPECT_EQ(cache.Counters().filling, 50u);
  cache.Abandon(batch.slots);
  EXPECT_EQ(cache.Stats().used_ways, 0);
  EXPECT_EQ(cache.Partitions()[0].overflow_used, 0);
  EXPECT_EQ(cache.Partitions()[0].overflow_span, 0);
  EXPECT_EQ(cache.Counters().filling, 0u);
  for (const RowKey& key : keys) EXPECT_FALSE(cache.Resident(key));
  const std::vector<Bucket> after = cache.Buckets();
  EXPECT_EQ(std::memcmp(after.data(), before.data(), before.size() * sizeof(Bucket)), 0);
}

TEST(RowCacheCudaTest, RowsWaitingForTheirBytesAreNotFound) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  CacheDriver cache = DriverOf(10, CachePolicy::kLru);
  const InsertAnswer batch = cache.FindOrInsert(KeyRange(0, 100));
  EXPECT_FALSE(cache.Resident({4, 0}));
  EXPECT_EQ(cache.FindRows(KeyRange(4, 5), 128).found[0], 0);
  cache.MarkFilled(std::span(batch.slots).first(50));
  for (uint64_t key = 0; key < 100; ++key) EXPECT_EQ(cache.Resident({key, 0}), key < 50);
  cache.MarkFilled(std::span(batch.slots).last(50));
  EXPECT_EQ(cache.Counters().filling, 0u);
  EXPECT_TRUE(cache.Resident({99, 0}));
}

TEST(RowCacheCudaTest, FindChangesNothing) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  CacheDriver cache = DriverOf(4100, CachePolicy::kLfu, 16);
  TrainStep(cache, KeyRange(0, 5000));
  cache.FindOrInsert(KeyRange(4000, 6000));  // some wait for their bytes
  std::vector<RowKey> keys = KeyRange(0, 7000);
  keys.resize(14'000, RowKey{17, 0});  // repeated keys are fine
  const std::vector<Bucket> before = cache.Buckets();
  const std::vector<PartitionState> partitions = cache.Partitions();
  const std::vector<std::byte*> rows = cache.Find(keys);
  cache.FindRows(keys, 16);
  const std::vector<Bucket> after = cache.Buckets();
  const std::vector<PartitionState> partitions_after = cache.Partitions();
  EXPECT_EQ(std::memcmp(after.data(), before.data(), before.size() * sizeof(Bucket)), 0);
  EXPECT_EQ(std::memcmp(partitions_after.data(), partitions.data(),
                        partitions.size() * sizeof(PartitionState)),
            0);
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(rows[i] != nullptr, keys[i].key < 5000) << i;
}

TEST(RowCacheCudaTest, ABatchLargerThanTheCacheFillsItAndReportsTheRest) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  CacheDriver cache = DriverOf(2, CachePolicy::kLru);
  const InsertAnswer batch = cache.FindOrInsert(KeyRange(0, 500));
  EXPECT_EQ(batch.Count(Placement::kFilled), 96);  // 64 ways and 32 of overflow
  EXPECT_EQ(batch.Count(Placement::kNoRoom), 404);
  EXPECT_EQ(cache.Stats().no_room, 404);
  EXPECT_EQ(cache.Stats().overflow_inserts, 32);
  EXPECT_EQ(cache.Stats().evictions, 0);
  for (size_t i = 0; i < batch.slots.size(); ++i) {
    EXPECT_EQ(batch.slots[i] >= 0, batch.placement[i] == Placement::kFilled);
  }
}

// Misses win ways of several overflow buckets at the same time; probes look at all of them.
TEST(RowCacheCudaTest, AnOverflowOfTwoBucketsFillsAndIsFound) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  constexpr int64_t kBuckets = 128;
  CacheDriver cache = DriverOf(kBuckets, CachePolicy::kLru);
  const InsertAnswer batch = cache.FindOrInsert(KeyRange(0, 8000));
  EXPECT_EQ(batch.Count(Placement::kFilled), (kBuckets + 2) * kWays);
  EXPECT_EQ(cache.Stats().overflow_inserts, 2 * kWays);
  EXPECT_EQ(cache.Partitions()[0].overflow_used, 2 * kWays);
  EXPECT_EQ(cache.Partitions()[0].overflow_span, 2);
  cache.MarkFilled(batch.SlotsWith(Placement::kFilled));
  const std::vector<std::byte*> rows = cache.Find(batch.keys);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i] != nullptr, batch.placement[i] == Placement::kFilled) << i;
  }
}

// A hit is pinned before any miss is placed, wherever it stands in the batch.
TEST(RowCacheCudaTest, HitsOfABatchAreNotEvictedByItsMisses) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (uint64_t round = 0; round < 20; ++round) {
    CacheDriver cache = DriverOf(1, CachePolicy::kLru);
    TrainStep(cache, KeyRange(0, 32));
    std::vector<RowKey> keys = KeyRange(100, 116);  // misses first
    for (uint64_t key = 0; key < 16; ++key) keys.push_back({key, 0});
    const InsertAnswer batch = cache.FindOrInsert(keys);
    EXPECT_EQ(batch.Count(Placement::kHit), 16);
    EXPECT_EQ(batch.Count(Placement::kFilled), 16);
    EXPECT_EQ(cache.Stats().overflow_inserts, 0);
  }
}

// Rows as wide as a warp's 512 bytes, narrower, wider, and not a power of two.
TEST(RowCacheCudaTest, RowsOfEveryWidthAreCopiedWhole) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const int64_t row_bytes : {16, 32, 48, 80, 256, 496, 512, 528, 1040, 4112}) {
    SCOPED_TRACE(row_bytes);
    CacheDriver cache = DriverOf(8, CachePolicy::kLru, row_bytes);
    const std::vector<RowKey> keys = KeyRange(0, 200, 3);
    const InsertAnswer batch = cache.FindOrInsert(keys);
    for (size_t i = 0; i < keys.size(); ++i) {
      cache.WriteRow(batch.slots[i], RowOf(keys[i], row_bytes));
    }
    cache.MarkFilled(batch.slots);
    cache.Unpin(batch.slots, /*dirty=*/true);
    for (const int64_t stride : {row_bytes, row_bytes + 48}) {
      const CacheDriver::FoundRows found = cache.FindRows(KeyRange(100, 300, 3), stride);
      for (size_t i = 0; i < 200; ++i) {
        ASSERT_EQ(found.found[i], i < 100 ? 1 : 0);
        std::vector<std::byte> want(static_cast<size_t>(stride), std::byte{0xee});
        const std::vector<std::byte> row = RowOf({100 + i, 3}, row_bytes);
        if (i < 100) std::copy(row.begin(), row.end(), want.begin());
        ASSERT_EQ(std::memcmp(found.out.data() + i * want.size(), want.data(), want.size()), 0)
            << i;
      }
    }
    // All of them leave, and are handed out as they were.
    std::unordered_set<RowKey, RowKeyHash> left;
    for (uint64_t next = 1000; std::ssize(left) < 200 && next < 20'000; next += 100) {
      const InsertAnswer more = cache.FindOrInsert(KeyRange(next, next + 100));
      for (size_t i = 0; i < more.keys.size(); ++i) {
        if (more.evicted[i] == 0) continue;
        const std::vector<std::byte> want = RowOf(more.evicted_keys[i], row_bytes);
        ASSERT_EQ(std::memcmp(more.evicted_rows.data() + i * want.size(), want.data(), want.size()),
                  0);
        ASSERT_TRUE(left.insert(more.evicted_keys[i]).second);
      }
      cache.MarkFilled(more.SlotsWith(Placement::kFilled));
      cache.Unpin(more.slots, false);
      cache.EndStep();
    }
    EXPECT_EQ(std::ssize(left), 200);
  }
}

TEST(RowCacheCudaTest, ForEachDirtyComesInSlotOrderAndKeepsWhatFailed) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  CacheDriver cache = DriverOf(400, CachePolicy::kLru);
  const InsertAnswer batch = TrainStep(cache, KeyRange(0, 10'000));
  std::unordered_map<uint64_t, int64_t> slot_of;
  for (size_t i = 0; i < batch.keys.size(); ++i) {
    slot_of[batch.keys[i].key] = batch.slots[i];
    if (i % 100 == 0) cache.WriteRow(batch.slots[i], RowOf(batch.keys[i], 128));
  }
  int visits = 0;
  int64_t last = -1;
  int64_t handed_out = 0;
  const absl::Status status = cache.ForEachDirty([&](auto keys, auto rows) -> absl::Status {
    if (++visits == 2) return absl::DataLossError("disk");
    for (size_t i = 0; i < keys.size(); ++i) {
      EXPECT_LT(last, slot_of.at(keys[i].key));
      last = slot_of.at(keys[i].key);
      if (keys[i].key % 100 == 0) {
        EXPECT_EQ(std::memcmp(rows[i], RowOf(keys[i], 128).data(), 128), 0);
      }
    }
    handed_out += std::ssize(keys);
    return absl::OkStatus();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("disk")));
  EXPECT_EQ(visits, 2);
  int64_t rest = 0;
  HOTROW_EXPECT_OK(cache.ForEachDirty([&](auto keys, auto) {
    rest += std::ssize(keys);
    return absl::OkStatus();
  }));
  EXPECT_GT(handed_out, 0);
  EXPECT_EQ(handed_out + rest, 10'000);
  HOTROW_EXPECT_OK(
      cache.ForEachDirty([](auto, auto) { return absl::InternalError("all are clean"); }));
}

// Two full buckets whose ways all match any of these keys by tag.
TEST(RowCacheCudaTest, TellsKeysOfOneTagApart) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  CacheDriver cache = DriverOf(2, CachePolicy::kLru);
  std::vector<RowKey> keys;
  for (uint64_t key = 0; keys.size() < 80; ++key) {
    if (cache::TagOf(HashRowKey(key, 1)) == 7) keys.push_back({key, 1});
  }
  const std::vector<RowKey> inserted(keys.begin(), keys.begin() + 60);
  TrainStep(cache, inserted);
  EXPECT_EQ(TrainStep(cache, inserted).Count(Placement::kHit), 60);
  const std::vector<std::byte*> rows = cache.Find(keys);
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(rows[i] != nullptr, i < 60) << i;
  EXPECT_EQ(std::unordered_set<std::byte*>(rows.begin(), rows.end()).size(), 61);
}

// Scores age as on the CPU: after the same steps with room for all, metadata is the same but for
// the order of ways.
TEST(RowCacheCudaTest, ScoresAndCountersAreThoseOfTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const CachePolicy policy : test::AllPolicies()) {
    CacheDriver cuda = DriverOf(4100, policy);
    CacheDriver cpu(CacheOfBuckets(4100, policy));
    RandomStream random(5, RandomPurpose::kTest);
    for (int step = 0; step < test::ForGpu(60, 5); ++step) {
      std::unordered_set<uint64_t> chosen;
      for (int i = 0; i < 9000; ++i)
        chosen.insert(std::min(random.Below(20'000), random.Below(20'000)));
      std::vector<RowKey> keys;
      for (const uint64_t key : chosen) keys.push_back({key, 1});
      TrainStep(cuda, keys);
      TrainStep(cpu, keys);
    }
    const auto scores = [](CacheDriver& cache) {
      std::unordered_map<uint64_t, int> by_key;
      for (const Bucket& bucket : cache.Buckets()) {
        for (int64_t way = 0; way < kWays; ++way) {
          if (bucket.tag[way] != 0) by_key[bucket.record[way].key().key] = bucket.score[way];
        }
      }
      return by_key;
    };
    EXPECT_EQ(scores(cuda), scores(cpu));
    const std::vector<PartitionState> a = cuda.Partitions();
    const std::vector<PartitionState> b = cpu.Partitions();
    ASSERT_EQ(a.size(), b.size());
    std::array<int64_t, 2> used = {};  // over all partitions: a GPU counts ways in any of them
    for (size_t p = 0; p < a.size(); ++p) {
      EXPECT_EQ(a[p].first_bucket, b[p].first_bucket);
      EXPECT_EQ(a[p].buckets, b[p].buckets);
      EXPECT_EQ(a[p].overflow_buckets, b[p].overflow_buckets);
      used[0] += a[p].used_ways;
      used[1] += b[p].used_ways;
      // A GPU counts what the policy ages by.
      const bool by_touches = cache::AgesByTouches(policy);
      EXPECT_EQ(a[p].placed_since_ageing, by_touches ? 0 : b[p].placed_since_ageing);
      EXPECT_EQ(a[p].touched_since_ageing, by_touches ? b[p].touched_since_ageing : 0);
    }
    EXPECT_EQ(used[0], used[1]);
  }
}

// Tens of thousands of misses compete for a cache that is full: nobody is lost or there twice, and
// what left was handed out.
// On an emulated GPU the property test of two partitions stands for it.
TEST(RowCacheCudaTest, LargeBatchesReplaceEachOtherWithoutLoss) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  if (test::kEmulatedGpu && !test::RunsSlowTests()) {
    GTEST_SKIP() << "takes an emulated GPU a minute: set HOTROW_SLOW_TESTS=1";
  }
  constexpr int64_t kBuckets = 4200;  // 134,400 ways in two partitions
  constexpr int kSteps = test::ForGpu(6, 3);
  for (const CachePolicy policy : test::AllPolicies()) {
    if (test::kEmulatedGpu && policy != CachePolicy::kLru) continue;
    CacheDriver cache = DriverOf(kBuckets, policy, 16);
    std::unordered_set<uint64_t> resident;
    uint64_t next = 0;
    int64_t evicted = 0;
    for (int step = 0; step < kSteps; ++step) {
      const std::vector<RowKey> keys = KeyRange(next, next + 60'000);
      next += 60'000;
      const InsertAnswer batch = cache.FindOrInsert(keys);
      ASSERT_EQ(batch.Count(Placement::kFilled), 60'000);
      ASSERT_EQ(std::unordered_set<int64_t>(batch.slots.begin(), batch.slots.end()).size(),
                keys.size());
      for (size_t i = 0; i < keys.size(); ++i) {
        resident.insert(keys[i].key);
        if (batch.evicted[i] == 0) continue;
        ++evicted;
        ASSERT_EQ(batch.evicted[i], kEvictedDirty);
        ASSERT_EQ(resident.erase(batch.evicted_keys[i].key), 1u)
            << "not resident, or evicted twice";
      }
      cache.MarkFilled(batch.slots);
      cache.Unpin(batch.slots, /*dirty=*/true);
      cache.EndStep();
    }
    const RowCacheStats stats = cache.Stats();
    EXPECT_EQ(stats.evictions, evicted);
    EXPECT_EQ(stats.dirty_evictions, evicted);
    EXPECT_EQ(stats.used_ways, std::ssize(resident));
    EXPECT_GT(evicted, kSteps * 60'000 - 140'000);
    const std::vector<std::byte*> rows = cache.Find(KeyRange(0, next));
    std::unordered_set<std::byte*> distinct;
    for (uint64_t key = 0; key < next; ++key) {
      ASSERT_EQ(rows[key] != nullptr, resident.contains(key)) << key;
      if (rows[key] != nullptr) distinct.insert(rows[key]);
    }
    EXPECT_EQ(distinct.size(), resident.size());
  }
}

TEST(RowCacheCudaTest, BudgetForRowsPlacesThemAllPinnedInEveryLaterStep) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const int64_t rows : {1, 2, 33, 100, 1000, test::ForGpu(20'000, 500)}) {
    for (const CachePolicy policy : test::AllPolicies()) {
      SCOPED_TRACE(rows);
      HOTROW_ASSERT_OK_AND_ASSIGN(
          auto made,
          RowCache::Create({.row_bytes = 16,
                            .budget_bytes = RowCache::BudgetForRows(rows, 16, Device::kCuda),
                            .policy = policy,
                            .device = Device::kCuda}));
      CacheDriver cache(std::move(made));
      for (uint64_t step = 0; step < test::ForGpu<uint64_t>(12, 5); ++step) {
        // Half of the keys of the step before.
        const uint64_t first = step * static_cast<uint64_t>((rows + 1) / 2);
        TrainStep(cache, KeyRange(first, first + static_cast<uint64_t>(rows)));
      }
      EXPECT_EQ(cache.Stats().no_room, 0);
    }
  }
}

// Slots and bytes beyond 2^31, where the device has the memory.
TEST(RowCacheCudaTest, SlotsBeyondFourGigabytesOfRows) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  constexpr int64_t kBudget = int64_t{6} << 30;
  size_t free = 0;
  size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  if (static_cast<int64_t>(free) < kBudget + (int64_t{1} << 30)) {
    GTEST_SKIP() << "needs 7 GiB of free device memory";
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(
      auto made,
      RowCache::Create({.row_bytes = 1024, .budget_bytes = kBudget, .device = Device::kCuda}));
  CacheDriver cache(std::move(made));
  EXPECT_LE(cache.cache().Size().used_bytes, kBudget);
  const std::vector<RowKey> keys = KeyRange(0, 20'000, 9);
  const InsertAnswer batch = cache.FindOrInsert(keys);
  std::vector<RowKey> far;
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSERT_EQ(batch.placement[i], Placement::kFilled);
    if (batch.slots[i] * 1024 < int64_t{1} << 32) continue;
    cache.WriteRow(batch.slots[i], RowOf(keys[i], 1024));
    far.push_back(keys[i]);
  }
  cache.MarkFilled(batch.slots);
  ASSERT_GT(far.size(), 1000u);
  const CacheDriver::FoundRows found = cache.FindRows(far, 1024);
  for (size_t i = 0; i < far.size(); ++i) {
    ASSERT_EQ(found.found[i], 1);
    const std::vector<std::byte> want = RowOf(far[i], 1024);
    ASSERT_EQ(std::memcmp(found.out.data() + i * 1024, want.data(), 1024), 0);
  }
}

TEST(RowCacheCudaTest, ABudgetThatTheDeviceDoesNotHaveIsNamed) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  EXPECT_THAT(RowCache::Create(
                  {.row_bytes = 512, .budget_bytes = int64_t{1} << 45, .device = Device::kCuda}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr(absl::StrCat("budget_bytes = ", int64_t{1} << 45))));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// ---- Device memory everywhere, and graphs.

// A step that lies in device memory: keys there, answers there.
struct DeviceStep {
  explicit DeviceStep(const std::vector<RowKey>& step_keys, int64_t row_bytes)
      : n(step_keys.size()),
        keys(step_keys),
        slots(n),
        placement(n),
        evicted(n),
        evicted_keys(n),
        evicted_rows(n * static_cast<size_t>(row_bytes)),
        rows(n),
        out(n * static_cast<size_t>(row_bytes)),
        found(n) {}
  std::span<const RowKey> Keys() { return {keys.data(), n}; }
  std::span<const int64_t> Slots() { return {slots.data(), n}; }
  RowCache::InsertResult Result() {
    return {.slots = {slots.data(), n},
            .placement = {placement.data(), n},
            .evicted = {evicted.data(), n},
            .evicted_keys = {evicted_keys.data(), n},
            .evicted_rows = evicted_rows.data()};
  }
  size_t n;
  DeviceArray<RowKey> keys;
  DeviceArray<int64_t> slots;
  DeviceArray<Placement> placement;
  DeviceArray<uint8_t> evicted;
  DeviceArray<RowKey> evicted_keys;
  DeviceArray<std::byte> evicted_rows;
  DeviceArray<std::byte*> rows;
  DeviceArray<std::byte> out;
  DeviceArray<uint8_t> found;
};

// Captured once and replayed: all calls that promise it, with different keys at each turn.
TEST(RowCacheCudaGraphTest, AStepIsCapturedAndReplayed) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  constexpr int64_t kRowBytes = 64;
  constexpr size_t kKeys = test::ForGpu<size_t>(3000, 700);
  const auto cache =
      CacheOfBuckets(test::ForGpu(400, 90), CachePolicy::kLru, kRowBytes, Device::kCuda);
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  const ExecContext ctx = {.device = Device::kCuda, .stream = stream.get()};
  const RowKey past_any = {1'000'000'000, 0};
  DeviceStep step(std::vector<RowKey>(kKeys, past_any), kRowBytes);

  // All keys of a replay are new, so that the captured MarkFilled of all slots is right.
  ASSERT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  HOTROW_EXPECT_OK(cache->FindOrInsert(ctx, step.Keys(), step.Result()));
  HOTROW_EXPECT_OK(cache->MarkFilled(ctx, step.Slots()));
  HOTROW_EXPECT_OK(cache->MarkDirty(ctx, step.Slots()));
  HOTROW_EXPECT_OK(cache->Find(ctx, step.Keys(), {step.rows.data(), kKeys}));
  HOTROW_EXPECT_OK(
      cache->FindRows(ctx, step.Keys(), step.out.data(), kRowBytes, {step.found.data(), kKeys}));
  HOTROW_EXPECT_OK(cache->Unpin(ctx, step.Slots(), /*dirty=*/true));
  HOTROW_EXPECT_OK(cache->EndStep(ctx));
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);

  std::unordered_set<uint64_t> resident;
  for (uint64_t turn = 0; turn < 8; ++turn) {
    const std::vector<RowKey> keys = KeyRange(turn * kKeys, (turn + 1) * kKeys);
    ASSERT_EQ(cudaMemcpyAsync(step.keys.data(), keys.data(), kKeys * sizeof(RowKey),
                              cudaMemcpyHostToDevice, stream.get()),
              cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(exec, stream.get()), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
    const std::vector<int64_t> slots = step.slots.ToHost();
    const std::vector<Placement> placement = step.placement.ToHost();
    const std::vector<uint8_t> evicted = step.evicted.ToHost();
    const std::vector<RowKey> evicted_keys = step.evicted_keys.ToHost();
    const std::vector<std::byte*> rows = step.rows.ToHost();
    const std::vector<uint8_t> found = step.found.ToHost();
    for (size_t i = 0; i < kKeys; ++i) {
      ASSERT_EQ(placement[i], Placement::kFilled);
      ASSERT_EQ(rows[i], cache->row(slots[i]));
      ASSERT_EQ(found[i], 1);
      resident.insert(keys[i].key);
      if (evicted[i] != 0) {
        ASSERT_EQ(resident.erase(evicted_keys[i].key), 1u);
      }
    }
  }
  const auto stats = cache->Stats(ctx);
  HOTROW_ASSERT_OK(stats);
  EXPECT_EQ(stats->used_ways, std::ssize(resident));
  EXPECT_GT(stats->dirty_evictions, 0);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

// ---- Races.

// Writes the row of keys[i] to slots[i], as RowOf has it; slots below 0 are left out.
__global__ void WriteRowsKernel(const RowKey* keys, const int64_t* slots, int64_t n,
                                std::byte* rows, int64_t row_bytes) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n || slots[i] < 0) return;
  auto* const words = reinterpret_cast<uint64_t*>(rows + slots[i] * row_bytes);
  for (int64_t word = 0; word < row_bytes / 8; word += 2) {
    words[word] = keys[i].key;
    words[word + 1] = keys[i].table;
  }
}

// Thousands of threads want the ways of a few buckets. Every key is inserted once, beside some that
// are there, every row is dirty when it may leave, and the host keeps book: a key is resident, was
// evicted or found no room, each exactly once, and rows are always those of their keys.
class RaceStress {
 public:
  static constexpr int64_t kRowBytes = 128;

  RaceStress(int64_t buckets, CachePolicy policy)
      : policy_(policy), driver_(CacheOfBuckets(buckets, policy, kRowBytes, Device::kCuda)) {
    owner_.resize(static_cast<size_t>(cache_.num_slots()), kNobody);
  }

  // Inserts n keys that were never there, in one launch, among a fifth of those that are.
  void Launch(int64_t n) {
    const auto first = static_cast<uint64_t>(std::ssize(fate_));
    std::vector<RowKey> keys = KeyRange(first, first + static_cast<uint64_t>(n), kTable);
    fate_.resize(fate_.size() + keys.size(), Fate::kUnknown);
    for (const uint64_t owner : owner_) {
      if (owner == kNobody || random_.Below(5) != 0) continue;
      keys.push_back({owner, kTable});
      std::swap(keys.back(), keys[random_.Below(keys.size())]);
    }
    const auto all_keys = static_cast<int64_t>(keys.size());
    DeviceStep step(keys, kRowBytes);
    const ExecContext& ctx = driver_.ctx();
    HOTROW_ASSERT_OK(cache_.FindOrInsert(ctx, step.Keys(), step.Result()));
    ASSERT_EQ(cudaStreamSynchronize(ctx.stream), cudaSuccess);
    const std::vector<int64_t> slots = step.slots.ToHost();
    const std::vector<Placement> placement = step.placement.ToHost();
    const std::vector<uint8_t> evicted = step.evicted.ToHost();
    const std::vector<RowKey> evicted_keys = step.evicted_keys.ToHost();
    const std::vector<std::byte> evicted_rows = step.evicted_rows.ToHost();
    const std::vector<Bucket> buckets = driver_.Buckets();
    std::vector<int64_t> filled;
    std::vector<int64_t> pinned;
    // Who was there before, first; then who came, since a slot has one newcomer a launch.
    for (size_t i = 0; i < keys.size(); ++i) {
      if (placement[i] == Placement::kNoRoom) {
        ASSERT_EQ(slots[i], -1);
        ASSERT_EQ(evicted[i], 0);
        fate_[keys[i].key] = Fate::kNoRoom;
        continue;
      }
      ASSERT_GE(slots[i], 0);
      ASSERT_LT(slots[i], cache_.num_slots());
      pinned.push_back(slots[i]);
      const Bucket& bucket = buckets[static_cast<size_t>(slots[i] / kWays)];
      const int64_t way = slots[i] % kWays;
      ASSERT_EQ(bucket.record[way].key(), keys[i]);
      ASSERT_EQ(bucket.tag[way], cache::TagOf(HashRowKey(keys[i])));
      if (keys[i].key < first) {
        ASSERT_EQ(placement[i], Placement::kHit);
        ASSERT_EQ(bucket.state[way], cache::kDirty | 1);
        ASSERT_EQ(evicted[i], 0);
        ASSERT_EQ(owner_[static_cast<size_t>(slots[i])], keys[i].key) << "a hit was evicted";
        continue;
      }
      ASSERT_EQ(placement[i], Placement::kFilled) << "of a key that was never there";
      ASSERT_EQ(bucket.state[way], cache::kPlaced);
      ASSERT_EQ(bucket.score[way], cache::ScoresOf(policy_).placed);
      uint64_t& owner = owner_[static_cast<size_t>(slots[i])];
      ASSERT_TRUE(owner == kNobody || owner < first) << "two keys of a launch in one slot";
      if (owner == kNobody) {
        ASSERT_EQ(evicted[i], 0);
      } else {
        ASSERT_EQ(evicted[i], kEvictedDirty);
        ASSERT_EQ(evicted_keys[i], (RowKey{owner, kTable}));
        ASSERT_EQ(fate_[owner], Fate::kResident) << "evicted twice, or never there";
        fate_[owner] = Fate::kEvicted;
        ASSERT_EQ(std::memcmp(evicted_rows.data() + i * kRowBytes,
                              RowOf(evicted_keys[i], kRowBytes).data(), kRowBytes),
                  0)
            << "the row that was handed out is not that of key " << owner;
      }
      owner = keys[i].key;
      fate_[owner] = Fate::kResident;
      filled.push_back(slots[i]);
    }
    constexpr int kThreads = 128;
    WriteRowsKernel<<<static_cast<unsigned>((all_keys + kThreads - 1) / kThreads), kThreads, 0,
                      ctx.stream>>>(step.keys.data(), step.slots.data(), all_keys, cache_.row(0),
                                    kRowBytes);
    ASSERT_EQ(cudaGetLastError(), cudaSuccess);
    DeviceArray<int64_t> filled_slots(filled);
    DeviceArray<int64_t> pinned_slots(pinned);
    HOTROW_ASSERT_OK(cache_.MarkFilled(ctx, {filled_slots.data(), filled.size()}));
    HOTROW_ASSERT_OK(cache_.Unpin(ctx, {pinned_slots.data(), pinned.size()}, /*dirty=*/true));
    HOTROW_ASSERT_OK(cache_.EndStep(ctx));
    ASSERT_EQ(cudaStreamSynchronize(ctx.stream), cudaSuccess);
    // Nothing was pinned before, so as many find room as there are places for them.
    pinned_least_ = std::min(pinned_least_, std::ssize(pinned));
  }

  // Looks for every key that was ever inserted.
  void CheckAll() {
    const ExecContext& ctx = driver_.ctx();
    const std::vector<RowKey> keys = KeyRange(0, fate_.size(), kTable);
    DeviceStep step(keys, kRowBytes);
    HOTROW_ASSERT_OK(
        cache_.FindRows(ctx, step.Keys(), step.out.data(), kRowBytes, {step.found.data(), step.n}));
    ASSERT_EQ(cudaStreamSynchronize(ctx.stream), cudaSuccess);
    const std::vector<uint8_t> found = step.found.ToHost();
    const std::vector<std::byte> out = step.out.ToHost();
    int64_t resident = 0;
    int64_t evicted = 0;
    int64_t no_room = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      ASSERT_NE(fate_[i], Fate::kUnknown) << "key " << i << " was lost";
      ASSERT_EQ(found[i] != 0, fate_[i] == Fate::kResident) << "key " << i;
      resident += fate_[i] == Fate::kResident ? 1 : 0;
      evicted += fate_[i] == Fate::kEvicted ? 1 : 0;
      no_room += fate_[i] == Fate::kNoRoom ? 1 : 0;
      if (found[i] == 0) continue;
      ASSERT_EQ(
          std::memcmp(out.data() + i * kRowBytes, RowOf(keys[i], kRowBytes).data(), kRowBytes), 0)
          << "key " << i;
    }
    EXPECT_EQ(resident + evicted + no_room, std::ssize(keys));
    const auto stats = cache_.Stats(ctx);
    HOTROW_ASSERT_OK(stats);
    EXPECT_EQ(stats->used_ways, resident);
    EXPECT_EQ(stats->evictions, evicted);
    EXPECT_EQ(stats->dirty_evictions, evicted);
    EXPECT_EQ(stats->no_room, no_room);
    EXPECT_GT(evicted, 0);
    EXPECT_GT(no_room, 0);
    EXPECT_GE(pinned_least_, stats->ways) << "a launch left places empty";
  }

 private:
  enum class Fate : uint8_t { kUnknown, kResident, kEvicted, kNoRoom };
  static constexpr uint64_t kNobody = ~uint64_t{0};
  static constexpr uint32_t kTable = 5;

  CachePolicy policy_;
  CacheDriver driver_;
  RowCache& cache_ = driver_.cache();
  std::vector<uint64_t> owner_;  // of each slot
  std::vector<Fate> fate_;       // of key 0, 1, ...
  RandomStream random_{7, RandomPurpose::kTest};
  int64_t pinned_least_ = INT64_MAX;
};

class RowCacheCudaRaceTest : public testing::TestWithParam<std::tuple<int64_t, CachePolicy>> {};

// A million keys in 200 launches, and then as many in one.
TEST_P(RowCacheCudaRaceTest, EveryKeyIsResidentEvictedOrWithoutRoomExactlyOnce) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const auto [buckets, policy] = GetParam();
  RaceStress stress(buckets, policy);
  constexpr int kLaunches = test::ForGpu(200, 6);
  const int64_t keys_of_launch = test::ForGpu<int64_t>(5000, 64 * buckets);
  for (int launch = 0; launch < kLaunches; ++launch) {
    SCOPED_TRACE(testing::Message() << "launch " << launch);
    stress.Launch(keys_of_launch);
    if (HasFatalFailure()) return;
  }
  stress.Launch(test::ForGpu<int64_t>(1'000'000, 5000));  // two rounds of a warp
  if (HasFatalFailure()) return;
  stress.CheckAll();
}

// SIEVE's evictions move the scores of other rows.
INSTANTIATE_TEST_SUITE_P(Buckets, RowCacheCudaRaceTest,
                         testing::Combine(testing::Values(1, 2, 40),
                                          testing::Values(CachePolicy::kLru, CachePolicy::kSieve)));

TEST(RowCacheCudaTest, WithoutAGpuCreateSaysSo) {
  if (test::UsableGpu().ok()) GTEST_SKIP() << "there is a GPU";
  EXPECT_THAT(RowCache::Create({.row_bytes = 16, .budget_bytes = 1 << 20, .device = Device::kCuda}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no usable GPU: ")));
}

}  // namespace
}  // namespace hotrow
