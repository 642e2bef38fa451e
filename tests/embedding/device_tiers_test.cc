// Tables whose row cache lies on a device, over host memory and over a disk.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "base/status_macros.h"
#include "embedding/embedding_collection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/update/sparse_optimizer.h"
#include "tests/embedding/device_tables.h"
#include "tests/embedding/trainer.h"
#include "tests/embedding/training.h"
#include "tests/support/faulty_env.h"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#if HOTROW_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace hotrow {
namespace {

using ::hotrow::test::BatchOf;
using ::hotrow::test::kMiB;
using ::hotrow::test::Options;
using ::hotrow::test::PutStore;
using ::hotrow::test::ReferenceHashes;
using ::hotrow::test::SmallTables;
using ::hotrow::test::StatusIs;
using ::hotrow::test::Table;
using ::hotrow::test::TablesOfOneWidth;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kRows = test::kDeviceRows;
constexpr int kSteps = 14;

using Place = test::DevicePlace;
using test::DeviceTables;

class DeviceTiersTest : public test::DeviceTablesTest {};

constexpr Place kCpu = test::kOnCpu;

INSTANTIATE_TEST_SUITE_P(Devices, DeviceTiersTest, test::DevicePlaces(), test::NameOfDevicePlace);

TEST_P(DeviceTiersTest, SameBitsWhateverTheTiersAndTheDepth) {
  const std::vector<Hash128> want = ReferenceHashes(SmallTables(), kSteps, kRows);
  struct Tiers {
    StoreKind store;
    int64_t host_cache_bytes;
  };
  const bool on_gpu = GetParam().device == Device::kCuda;
  for (const Tiers& tiers :
       {Tiers{StoreKind::kMemory, 0}, Tiers{StoreKind::kSsd, 0}, Tiers{StoreKind::kSsd, kMiB}}) {
    for (const double factor : {1.0, 3.0}) {
      for (const int32_t depth : {0, 1, 3}) {
        if (test::kEmulatedGpu && on_gpu && depth != (factor > 1 ? 1 : 3)) continue;
        SCOPED_TRACE(testing::Message()
                     << StoreKindName(tiers.store) << " host cache " << tiers.host_cache_bytes
                     << " factor " << factor << " depth " << depth);
        EmbeddingCollectionOptions options = SmallTables();
        PutStore(tiers.store, test::TempDir(), &options);
        options.cache.bytes = tiers.host_cache_bytes;
        options = WithDeviceCache(options, factor);
        options.prefetch_depth = depth;
        HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, DeviceTables::Create(GetParam(), options));
        HOTROW_ASSERT_OK(tables->Train(0, kSteps));
        HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, (*tables)->Digest());
        EXPECT_EQ(digest.hash, want[kSteps]);

        HOTROW_ASSERT_OK_AND_ASSIGN(const EmbeddingStats stats, (*tables)->GlobalStats());
        EXPECT_EQ(stats.steps, kSteps);
        int64_t rows = 0;
        for (const TableDigest& table : digest.tables) rows += table.rows;
        EXPECT_EQ(stats.initialised_rows, rows);
        ASSERT_EQ(stats.tiers.size(), tiers.host_cache_bytes > 0 ? 3 : 2);
        EXPECT_EQ(stats.tiers[0].name, "device_cache");
        EXPECT_EQ(stats.tiers[0].budget_bytes, options.cache.device_bytes);
        EXPECT_EQ(stats.tiers.back().name, StoreKindName(tiers.store));
        for (const TierStats& tier : stats.tiers) EXPECT_LE(tier.used_bytes, tier.budget_bytes);
        EXPECT_GT(stats.transfer_host_bytes, 0);
        EXPECT_GT(stats.transfer_device_bytes, 0);
        const bool host_cache = tiers.host_cache_bytes > 0;
        EXPECT_EQ(stats.tiers[1].name, host_cache ? "cache" : StoreKindName(tiers.store));
        if (factor > 1) continue;
        // Rows went up and down, or the test shows nothing.
        EXPECT_GT(stats.tiers[0].dirty_writebacks, 0);
        EXPECT_GT(stats.tiers.back().rows_read, 0);
        EXPECT_GT(stats.tiers[1].unique_hits, 0);
      }
    }
  }
}

#if HOTROW_HAVE_CUDA
// Else no row of a step would be on its way before the step before has ended, with any depth.
TEST_P(DeviceTiersTest, MissesArePlacedWhileTheStepBeforeIsAtWork) {
  if (GetParam().device == Device::kCpu) return;  // there the caller's work is done when it returns
  EmbeddingCollectionOptions options = WithDeviceCache(SmallTables(), 4.0);
  options.prefetch_depth = 1;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, DeviceTables::Create(GetParam(), options));
  HOTROW_ASSERT_OK(tables->Train(0, 4));  // all memory is there
  struct Gate {
    std::promise<void> opened;
    std::atomic<bool> gave_up = false;
  } gate;
  const auto close = [&gate](CudaStream stream) {
    const auto wait = [](void* data) {
      auto* const of = static_cast<Gate*>(data);
      const std::future<void> opened = of->opened.get_future();
      of->gave_up = opened.wait_for(std::chrono::seconds(20)) == std::future_status::timeout;
    };
    ASSERT_EQ(cudaLaunchHostFunc(stream, wait, &gate), cudaSuccess);
  };
  const auto prefetch = [&](int step) { return (*tables)->Prefetch(BatchOf(step, kRows).view()); };
  HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep first, prefetch(4));
  HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep second, prefetch(5));
  HOTROW_ASSERT_OK(tables->Enqueue(std::move(first), close));
  const EmbeddingStats before = (*tables)->Stats();
  HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep third, prefetch(6));
  HOTROW_ASSERT_OK(tables->Enqueue(std::move(second), [](CudaStream) {}));
  HOTROW_ASSERT_OK(tables->Enqueue(std::move(third), [](CudaStream) {}));
  EXPECT_FALSE(gate.gave_up);
  gate.opened.set_value();
  HOTROW_ASSERT_OK(tables->Wait());
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, (*tables)->Digest());
  HOTROW_ASSERT_OK_AND_ASSIGN(const EmbeddingStats stats, (*tables)->GlobalStats());
  EXPECT_GT(stats.tiers[0].unique_keys - stats.tiers[0].unique_hits,
            before.tiers[0].unique_keys - before.tiers[0].unique_hits)
      << "no key missed";
  EXPECT_GT(digest.tables[0].rows, 0);
}
#endif

TEST_P(DeviceTiersTest, EveryOptimizerMakesTheBitsOfTheCpu) {
  const bool in_turns = test::kEmulatedGpu && GetParam().device == Device::kCuda;
  int turn = 0;
  for (const SparseOptimizerFacts& optimizer : SparseOptimizers()) {
    const SparseOptimizerKind kind = optimizer.kind;
    ++turn;
    for (const WeightsPrecision precision :
         {WeightsPrecision::kFp32, WeightsPrecision::kFp16, WeightsPrecision::kBf16}) {
      if (in_turns && turn % 3 != static_cast<int>(precision)) continue;
      SCOPED_TRACE(testing::Message()
                   << SparseOptimizerName(kind) << " " << WeightsPrecisionName(precision));
      EmbeddingCollectionOptions options =
          Options({Table("a", 20, {"f0", "f1"}, kind), Table("b", 7, {"f2"}, kind)});
      for (TableConfig& table : options.tables) {
        table.max_hotness = 3;
        table.weights_precision = precision;
      }
      // A few steps bring rows in, update them twice and evict some; more repeat that.
      constexpr int kFew = kSteps / 2;
      const std::vector<Hash128> want = ReferenceHashes(options, kFew, kRows);
      HOTROW_ASSERT_OK_AND_ASSIGN(auto tables,
                                  DeviceTables::Create(GetParam(), WithDeviceCache(options, 1.5)));
      HOTROW_ASSERT_OK(tables->Train(0, kFew));
      HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, (*tables)->Digest());
      EXPECT_EQ(digest.hash, want[kFew]);
    }
  }
}

TEST_P(DeviceTiersTest, RowsOfSixteenBitsHaveTheSameBitsBesideOthersOfTheirWidth) {
  const std::vector<Hash128> want = ReferenceHashes(TablesOfOneWidth(), kSteps, kRows);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto on_cpu, DeviceTables::Create(kCpu, TablesOfOneWidth()));
  HOTROW_ASSERT_OK(on_cpu->Train(0, kSteps));
  const test::Batch batch = BatchOf(500, 2 * kRows);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> want_values, on_cpu->Evaluate(batch));
  for (const StoreKind store : {StoreKind::kMemory, StoreKind::kSsd}) {
    for (const int64_t host_cache_bytes : {int64_t{0}, kMiB}) {
      if (store == StoreKind::kMemory && host_cache_bytes > 0) continue;
      for (const int32_t depth : {0, 3}) {
        if (test::kEmulatedGpu && GetParam().device == Device::kCuda && depth == 0) continue;
        SCOPED_TRACE(testing::Message() << StoreKindName(store) << " host cache "
                                        << host_cache_bytes << " depth " << depth);
        EmbeddingCollectionOptions options = TablesOfOneWidth();
        PutStore(store, test::TempDir(), &options);
        options.cache.bytes = host_cache_bytes;
        options = WithDeviceCache(options, 1);
        options.prefetch_depth = depth;
        HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, DeviceTables::Create(GetParam(), options));
        HOTROW_ASSERT_OK(tables->Train(0, kSteps));
        HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, (*tables)->Digest());
        EXPECT_EQ(digest.hash, want[kSteps]);
        EXPECT_EQ(digest.tables[0].row_bytes, digest.tables[1].row_bytes);
        EXPECT_EQ(digest.tables[0].row_bytes, digest.tables[2].row_bytes);
        HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> values, tables->Evaluate(batch));
        EXPECT_EQ(values, want_values);
        EXPECT_GT((*tables)->Stats().tiers.back().rows_read, 0);
      }
    }
  }
}

TEST_P(DeviceTiersTest, EvaluationSeesTheLastUpdateAndLeavesNoTrace) {
  const std::vector<Hash128> want = ReferenceHashes(SmallTables(), kSteps, kRows);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto on_cpu, DeviceTables::Create(kCpu, SmallTables()));
  EmbeddingCollectionOptions options = WithDeviceCache(SmallTables(), 1.2);
  // Staging for some samples at a time.
  options.evaluation_staging_bytes = 8 << 10;
  options.prefetch_depth = 1;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, DeviceTables::Create(GetParam(), options));
  for (int step = 0; step < kSteps; ++step) {
    HOTROW_ASSERT_OK(on_cpu->Train(step, step + 1));
    HOTROW_ASSERT_OK(tables->Train(step, step + 1));
    // Keys beyond those that are trained have their initial rows.
    const test::Batch batch = BatchOf(step + 500, 2 * kRows);
    HOTROW_ASSERT_OK_AND_ASSIGN(const EmbeddingStats before, (*tables)->GlobalStats());
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> got, tables->Evaluate(batch));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, on_cpu->Evaluate(batch));
    ASSERT_EQ(got, expected) << step;
    HOTROW_ASSERT_OK_AND_ASSIGN(const EmbeddingStats after, (*tables)->GlobalStats());
    EXPECT_EQ(after.tiers[0].evictions, before.tiers[0].evictions);
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, (*tables)->Digest());
  EXPECT_EQ(digest.hash, want[kSteps]);
}

test::Batch SingleLookups(uint64_t seed, int64_t num_features) {
  RandomStream random(seed, RandomPurpose::kTest);
  test::Batch batch = {.batch_size = 33};
  for (int64_t bag = 0; bag < num_features * batch.batch_size; ++bag) {
    const double u = random.Uniform();
    batch.values.push_back(static_cast<uint64_t>(u * u * static_cast<double>(kRows)));
    batch.offsets.push_back(bag + 1);
  }
  return batch;
}

// Whoever reads the rows themselves computes what pooled ones give.
TEST_P(DeviceTiersTest, RowsOfSingleLookupsMayBeReadWhereTheyLie) {
  EmbeddingCollectionOptions options =
      Options({Table("a", 16, {"f0", "f1"}), Table("b", 16, {"f2"})});
  options = WithDeviceCache(options, 1.5);
  // One after the other: streams that lag are of all that is made meanwhile.
  std::vector<Hash128> hashes;
  for (const bool by_rows : {false, true}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, DeviceTables::Create(GetParam(), options));
    for (int step = 0; step < 6; ++step) {
      const test::Batch batch = SingleLookups(static_cast<uint64_t>(step), 3);
      HOTROW_ASSERT_OK(by_rows ? tables->StepByRows(batch, step, 16) : tables->Step(batch, step));
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, (*tables)->Digest());
    hashes.push_back(digest.hash);
  }
  EXPECT_EQ(hashes[1], hashes[0]);
}

TEST_P(DeviceTiersTest, OtherLookupsThanSingleOnesOfFp32MustBePooled) {
  EmbeddingCollectionOptions options =
      Options({Table("a", 16, {"f0", "f1"}), Table("b", 16, {"f2"})});
  options = WithDeviceCache(options, 1.5);
  // Two lookups in one bag and none in another; weights; rows that must be converted.
  test::Batch uneven = SingleLookups(7, 3);
  uneven.offsets[5] = 6;
  test::Batch weighted = SingleLookups(7, 3);
  weighted.weights.assign(weighted.values.size(), 1);
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, DeviceTables::Create(GetParam(), options));
    for (const test::Batch& batch : {uneven, weighted}) {
      HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep step, (*tables)->Prefetch(batch.view()));
      EXPECT_FALSE(step.has_single_lookups());
      EXPECT_THAT(step.LookupRows(nullptr),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("use Lookup")));
    }
  }
  for (TableConfig& table : options.tables) table.weights_precision = WeightsPrecision::kBf16;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto halves, DeviceTables::Create(GetParam(), options));
  HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep step, (*halves)->Prefetch(SingleLookups(7, 3).view()));
  EXPECT_FALSE(step.has_single_lookups());
}

// Taken while training goes on, opened on the CPU and on the device.
TEST_P(DeviceTiersTest, SnapshotsHoldTheStepTheyWereBegunAt) {
  const std::vector<Hash128> want = ReferenceHashes(SmallTables(), kSteps, kRows);
  for (const StoreKind store : {StoreKind::kMemory, StoreKind::kSsd}) {
    SCOPED_TRACE(StoreKindName(store));
    EmbeddingCollectionOptions options = SmallTables();
    PutStore(store, test::TempDir(), &options);
    options = WithDeviceCache(options, 1.3);
    options.prefetch_depth = 2;
    {
      HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, DeviceTables::Create(GetParam(), options));
      for (int step = 0; step < kSteps; ++step) {
        HOTROW_ASSERT_OK(tables->Train(step, step + 1));
        if (step % 4 != 1 || step + 1 == kSteps) continue;
        const auto id = static_cast<SnapshotId>(step + 1);
        HOTROW_ASSERT_OK((*tables)->snapshots().Begin(id));
        HOTROW_ASSERT_OK(tables->Train(step + 1, step + 2));
        ++step;
        HOTROW_ASSERT_OK((*tables)->snapshots().Wait());
        HOTROW_ASSERT_OK((*tables)->snapshots().Commit(id));
      }
      HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, (*tables)->Digest());
      EXPECT_EQ(digest.hash, want[kSteps]);
      EXPECT_GT((*tables)->Stats().snapshot_rows, 0);
    }
    for (const bool on_device : {true, false}) {
      for (const SnapshotId id : {SnapshotId{10}, SnapshotId{6}}) {
        SCOPED_TRACE(testing::Message() << (on_device ? "device " : "cpu ") << id);
        EmbeddingCollectionOptions reopen = options;
        if (!on_device) {
          reopen.cache.device_bytes = 0;
          reopen.cache.bytes = kMiB;
        }
        reopen.start.from = {{.snapshot = id}};
        reopen.start.steps = static_cast<int64_t>(id);
        HOTROW_ASSERT_OK_AND_ASSIGN(auto tables,
                                    DeviceTables::Create(on_device ? GetParam() : kCpu, reopen));
        HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, (*tables)->Digest());
        EXPECT_EQ(digest.hash, want[id]);
        HOTROW_ASSERT_OK(tables->Train(static_cast<int>(id), kSteps));
        HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest end, (*tables)->Digest());
        EXPECT_EQ(end.hash, want[kSteps]);
      }
    }
  }
}

TEST_P(DeviceTiersTest, AStepThatDoesNotFitNamesTheBudget) {
  EmbeddingCollectionOptions options = SmallTables();
  // Without a known hotness the collection cannot tell beforehand.
  for (TableConfig& table : options.tables) table.max_hotness = 0;
  options = WithDeviceCache(options, 1);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, DeviceTables::Create(GetParam(), options));
  EXPECT_THAT(tables->Train(0, 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("device cache budget"),
                             HasSubstr("cache.device_bytes or lower the batch size"))));
  options = WithDeviceCache(SmallTables(), 1);
  options.cache.device_bytes -= 1;
  EXPECT_THAT(DeviceTables::Create(GetParam(), options),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("cache.device_bytes: the cache budget is")));
}

// Nothing, one key, all keys equal, the first and the last of all keys, bags of nothing.
TEST_P(DeviceTiersTest, OddBatchesMakeTheBitsOfTheCpu) {
  std::vector<test::Batch> batches;
  batches.push_back({.batch_size = 0, .values = {}, .offsets = {0}, .weights = {}});
  batches.push_back({.batch_size = 1, .values = {5}, .offsets = {0, 1, 1, 1}, .weights = {}});
  batches.push_back(
      {.batch_size = 2, .values = {}, .offsets = {0, 0, 0, 0, 0, 0, 0}, .weights = {}});
  batches.push_back({.batch_size = 1,
                     .values = {0, UINT64_MAX, UINT64_MAX, 0, 0, UINT64_MAX},
                     .offsets = {0, 2, 4, 6},
                     .weights = {}});
  // One row with as many lookups as a batch may have here, in fewer than 512.
  test::Batch equal = {.batch_size = 48, .values = {}, .offsets = {0}, .weights = {}};
  for (int64_t bag = 0; bag < 3 * equal.batch_size; ++bag) {
    equal.values.insert(equal.values.end(), 3, 77);
    equal.offsets.push_back(std::ssize(equal.values));
  }
  batches.push_back(equal);

  HOTROW_ASSERT_OK_AND_ASSIGN(auto on_cpu, DeviceTables::Create(kCpu, SmallTables()));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables,
                              DeviceTables::Create(GetParam(), WithDeviceCache(SmallTables(), 1)));
  for (int step = 0; step < 2 * std::ssize(batches); ++step) {
    SCOPED_TRACE(step);
    const test::Batch& batch = batches[static_cast<size_t>(step) % batches.size()];
    HOTROW_ASSERT_OK(on_cpu->Step(batch, step));
    HOTROW_ASSERT_OK(tables->Step(batch, step));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> got, tables->Evaluate(batch));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> want, on_cpu->Evaluate(batch));
    EXPECT_EQ(got, want);
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest got, (*tables)->Digest());
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest want, (*on_cpu)->Digest());
  EXPECT_EQ(got.hash, want.hash);
  // 5, both ends and 77 of the first table, both ends and 77 of the second.
  EXPECT_EQ(got.tables[0].rows + got.tables[1].rows, 7);
}

// Keys are found on the device; the host is told in the same order, of the steps that were trained,
// and counts the same.
TEST_P(DeviceTiersTest, KeysAreToldAndCountedAsOnTheCpu) {
  struct Told {
    uint32_t table;
    std::vector<RowKey> keys;
    std::vector<int32_t> lookups;
    bool operator==(const Told&) const = default;
  };
  const auto train = [](Place place, EmbeddingCollectionOptions options,
                        std::vector<Told>* told) -> absl::StatusOr<EmbeddingStats> {
    options.on_update = [told](uint32_t table, std::span<const RowKey> keys,
                               std::span<const int32_t> lookups) {
      told->push_back({table, {keys.begin(), keys.end()}, {lookups.begin(), lookups.end()}});
    };
    HOTROW_ASSIGN_OR_RETURN(auto tables, DeviceTables::Create(place, options));
    // Steps that are not trained are told of to nobody.
    for (int step = 0; step < kSteps; step += 5) {
      HOTROW_ASSIGN_OR_RETURN(EmbeddingStep cancelled,
                              (*tables)->Prefetch(BatchOf(step, kRows).view()));
      cancelled = EmbeddingStep();
      HOTROW_RETURN_IF_ERROR(tables->Train(step, std::min(step + 5, kSteps)));
    }
    HOTROW_ASSIGN_OR_RETURN(const EmbeddingStats stats, (*tables)->GlobalStats());
    EXPECT_EQ((*tables)->Digest()->hash, ReferenceHashes(SmallTables(), kSteps, kRows)[kSteps]);
    return stats;
  };
  // All rows fit, so that each misses once.
  EmbeddingCollectionOptions on_cpu = SmallTables();
  on_cpu.cache.bytes = 8 * kMiB;
  EmbeddingCollectionOptions on_device = SmallTables();
  on_device.cache.device_bytes = 8 * kMiB;
  std::vector<Told> want_told;
  std::vector<Told> told;
  HOTROW_ASSERT_OK_AND_ASSIGN(const EmbeddingStats want, train(kCpu, on_cpu, &want_told));
  HOTROW_ASSERT_OK_AND_ASSIGN(const EmbeddingStats got, train(GetParam(), on_device, &told));
  EXPECT_EQ(std::ssize(told), 2 * kSteps);
  EXPECT_TRUE(told == want_told);
  EXPECT_EQ(got.unique_keys, want.unique_keys);
  for (const size_t tier : {size_t{0}, size_t{1}}) {
    EXPECT_EQ(got.tiers[tier].unique_keys, want.tiers[tier].unique_keys);
    EXPECT_EQ(got.tiers[tier].unique_hits, want.tiers[tier].unique_hits);
    EXPECT_EQ(got.tiers[tier].lookups, want.tiers[tier].lookups);
    EXPECT_EQ(got.tiers[tier].lookup_hits, want.tiers[tier].lookup_hits);
  }
  EXPECT_GT(got.tiers[0].unique_hits, 0);
  EXPECT_GT(got.tiers[0].lookup_hits, got.tiers[0].unique_hits);
}

// However large or small the cache. In the smallest, steps may wait for room beside each other.
TEST_P(DeviceTiersTest, SameBitsInCachesOfEverySize) {
  const std::vector<Hash128> want = ReferenceHashes(SmallTables(), kSteps, kRows);
  const EmbeddingCollectionOptions roomy = WithDeviceCache(SmallTables(), 1);
  for (const double factor : {0.6, 0.8, 1.5, 30.0}) {
    for (const int32_t depth : {0, 2}) {
      if (test::kEmulatedGpu && GetParam().device == Device::kCuda && depth == 0) continue;
      SCOPED_TRACE(testing::Message() << "factor " << factor << " depth " << depth);
      EmbeddingCollectionOptions options = SmallTables();
      // So that there may be less room than for the largest step.
      for (TableConfig& table : options.tables) table.max_hotness = 0;
      options.cache.device_bytes =
          static_cast<int64_t>(static_cast<double>(roomy.cache.device_bytes) * factor);
      options.prefetch_depth = depth;
      HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, DeviceTables::Create(GetParam(), options));
      HOTROW_ASSERT_OK(tables->Train(0, kSteps));
      HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, (*tables)->Digest());
      EXPECT_EQ(digest.hash, want[kSteps]);
      HOTROW_ASSERT_OK_AND_ASSIGN(const EmbeddingStats stats, (*tables)->GlobalStats());
      if (factor < 1) {
        EXPECT_GT(stats.tiers[0].evictions, 0);
      }
    }
  }
}

TEST_P(DeviceTiersTest, StepsThatAreCancelledLeaveNoTrace) {
  const std::vector<Hash128> want = ReferenceHashes(SmallTables(), kSteps, kRows);
  EmbeddingCollectionOptions options = WithDeviceCache(SmallTables(), 4);
  options.prefetch_depth = 2;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, DeviceTables::Create(GetParam(), options));
  for (int step = 0; step < kSteps; ++step) {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto first, (*tables)->Prefetch(BatchOf(step + 70, kRows).view()));
    HOTROW_ASSERT_OK_AND_ASSIGN(auto second, (*tables)->Prefetch(BatchOf(step + 90, kRows).view()));
    first = EmbeddingStep();
    second = EmbeddingStep();
    HOTROW_ASSERT_OK(tables->Train(step, step + 1));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, (*tables)->Digest());
  EXPECT_EQ(digest.hash, want[kSteps]);
}

// A read or write of the disk fails now and then, while rows of the same step are on their way in
// or out. Steps that meet it are taken again; in the end nothing is lost or was updated twice.
TEST_P(DeviceTiersTest, StepsThatFailOverABadDiskCanBeTakenAgain) {
  constexpr uint64_t kManyRows = 2500;
  constexpr int kManySteps = 40;
  constexpr int kStepsPerFault = 5;
  const std::vector<Hash128> want = ReferenceHashes(SmallTables(), kManySteps, kManyRows);
  const int seeds = GetParam().device == Device::kCuda ? test::ForGpu(6, 2) : 6;
  int failures = 0;
  for (const uint64_t seed : test::Seeds(seeds)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    test::FaultyEnv env;
    EmbeddingCollectionOptions options = SmallTables();
    PutStore(StoreKind::kSsd, "/store", &options);
    options.env = &env;
    options = WithDeviceCache(options, 1 + static_cast<double>(seed % 2));
    options.prefetch_depth = static_cast<int32_t>(seed % 3);
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, DeviceTables::Create(GetParam(), options));
    bool failed = false;
    while ((*tables)->steps() < kManySteps) {
      // A fault may meet a write that is taken again by itself, so each few steps get a new one;
      // but not those behind a failure, so that steps with many reads end, too.
      if (!failed) {
        env.FailCall(env.calls() + static_cast<int64_t>(random.Below(40)),
                     absl::UnavailableError("injected"));
      }
      const int step = static_cast<int>((*tables)->steps());
      const absl::Status status =
          tables->Train(step, std::min(step + kStepsPerFault, kManySteps), kManyRows);
      failed = !status.ok();
      if (!failed) continue;
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("injected")));
      ++failures;
    }
    // A fault that nobody has met yet must not meet what follows.
    for (int i = 0; i < 50; ++i) env.Exists("/store").IgnoreError();
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, (*tables)->Digest());
    EXPECT_EQ(digest.hash, want[kManySteps]);
  }
  EXPECT_GT(failures, seeds);
}

TEST(DeviceTiersOptionsTest, BadOnesAreRefusedInOneLine) {
  EmbeddingCollectionOptions options = SmallTables();
  options.cache.device_bytes = -1;
  EXPECT_THAT(options.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("cache.device_bytes=-1: takes a whole number of")));
  options.cache.device_bytes = kMiB;
  options.cache.bytes = kMiB;
  EXPECT_THAT(options.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("cache.bytes"), HasSubstr("leave it 0"))));
  EmbeddingCollectionOptions over_disk = SmallTables();
  PutStore(StoreKind::kSsd, test::TempDir(), &over_disk);
  over_disk.cache.device_bytes = kMiB;
  over_disk.cache.bytes = 100;
  EXPECT_THAT(EmbeddingCollection::Create(over_disk, {}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("host cache between"), HasSubstr("the least is"))));
}

TEST(DeviceTiersOptionsTest, WithoutAGpuOneLineSaysSo) {
  if (test::UsableGpu().ok()) GTEST_SKIP() << "there is a GPU";
  EmbeddingCollectionOptions options = SmallTables();
  options.cache.device_bytes = kMiB;
  ExecContext ctx;
  ctx.device = Device::kCuda;
  EXPECT_EQ(EmbeddingCollection::Create(options, ctx).status().message(),
            test::UsableGpu().message());
}

}  // namespace
}  // namespace hotrow
