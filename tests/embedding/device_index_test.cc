// A memory store whose index lies on a device as well: the device finds and reads rows by itself.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/device_stream.h"
#include "base/status_macros.h"
#include "cache/address_index.h"
#include "embedding/embedding_collection.h"
#include "embedding/tiers/device_index_impl.h"
#include "embedding/tiers/guarded_cache_impl.h"
#include "embedding/tiers/tiered_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/rows/row_layout.h"
#include "store/host/host_store.h"
#include "tests/embedding/device_tables.h"
#include "tests/embedding/trainer.h"
#include "tests/embedding/training.h"
#include "tests/support/gpu_test.h"
#include "tests/support/lagging_streams.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::hotrow::test::BatchOf;
using ::hotrow::test::DeviceTables;
using ::hotrow::test::kMiB;
using ::hotrow::test::PutStore;
using ::hotrow::test::ReferenceHashes;
using ::hotrow::test::SmallTables;
using ::hotrow::test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kRows = test::kDeviceRows;
constexpr int kSteps = 14;
constexpr int64_t kAllRows = kMiB;  // room for all of them
// Room for some: of SmallTables, whose rows have two widths.
int64_t SomeRows() { return 2 * AddressIndex::MinBudgetBytes(Device::kCpu); }
// Whether a GPU is asked to show what costs an emulated one a minute and is shown in host memory.
bool IsSlow(const test::DevicePlace& place) {
  return test::kEmulatedGpu && place.device == Device::kCuda;
}

class DeviceIndexTest : public test::DeviceTablesTest {
 protected:
  // Over memory, with snapshots in `dir`, the smallest device cache times `factor`.
  EmbeddingCollectionOptions Indexed(int64_t index_bytes, double factor, int32_t depth,
                                     const std::string& dir = "") {
    EmbeddingCollectionOptions options = SmallTables();
    if (!dir.empty()) PutStore(StoreKind::kMemory, dir, &options);
    options = WithDeviceCache(options, factor);
    options.cache.device_index_bytes = index_bytes;
    options.prefetch_depth = depth;
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceIndexTest, test::DevicePlaces(), test::NameOfDevicePlace);

TEST_P(DeviceIndexTest, SameBitsAndCountsHoweverManyRowsItKnows) {
  const std::vector<Hash128> want = ReferenceHashes(SmallTables(), kSteps, kRows);
  for (const int64_t index_bytes : {int64_t{0}, SomeRows(), kAllRows}) {
    for (const double factor : {1.0, 3.0}) {
      for (const int32_t depth : {0, 1, 3}) {
        if (IsSlow(GetParam()) && (index_bytes == 0 || factor > 1 || depth != 1)) continue;
        SCOPED_TRACE(testing::Message()
                     << "index " << index_bytes << " factor " << factor << " depth " << depth);
        HOTROW_ASSERT_OK_AND_ASSIGN(
            auto tables, DeviceTables::Create(GetParam(), Indexed(index_bytes, factor, depth)));
        HOTROW_ASSERT_OK(tables->Train(0, kSteps));
        HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, (*tables)->Digest());
        EXPECT_EQ(digest.hash, want[kSteps]);
        HOTROW_ASSERT_OK_AND_ASSIGN(const EmbeddingStats stats, (*tables)->GlobalStats());
        ASSERT_EQ(stats.tiers.size(), 2);
        const TierStats& cache = stats.tiers[0];
        const TierStats& store = stats.tiers[1];
        // Whoever finds a row, it is counted once in each tier, and each row was new once.
        EXPECT_EQ(cache.unique_keys, stats.unique_keys);
        EXPECT_EQ(store.unique_keys, cache.unique_keys - cache.unique_hits);
        EXPECT_EQ(store.lookups, cache.lookups - cache.lookup_hits);
        EXPECT_EQ(store.rows_read, store.unique_hits);
        int64_t missed = 0;
        int64_t missed_lookups = 0;
        for (size_t t = 0; t < stats.tables.size(); ++t) {
          EXPECT_EQ(stats.tables[t].store_unique_misses, digest.tables[t].rows);
          missed += stats.tables[t].cache_unique_misses;
          missed_lookups += stats.tables[t].cache_misses;
        }
        EXPECT_EQ(missed, store.unique_keys);
        EXPECT_EQ(missed_lookups, store.lookups);

        EXPECT_LE(stats.device_index_bytes, index_bytes);
        if (index_bytes == 0) {
          EXPECT_EQ(stats.device_index_rows_read, 0);
          EXPECT_EQ(stats.device_index_keys, 0);
          continue;
        }
        EXPECT_GT(stats.device_index_bytes, 0);
        if (index_bytes == kAllRows) {
          // All that reach the store are known there.
          EXPECT_EQ(stats.device_index_left_out, 0);
          EXPECT_EQ(stats.device_index_rows_read, store.rows_read);
          EXPECT_GE(stats.device_index_keys, store.rows_read > 0 ? 1 : 0);
        } else if (factor == 1) {
          EXPECT_GT(stats.device_index_left_out, 0);
          EXPECT_GT(stats.device_index_rows_read, 0);
          EXPECT_LT(stats.device_index_rows_read, store.rows_read);
        }
        if (factor == 1) {
          EXPECT_GT(store.rows_read, 0);
        }
      }
    }
  }
}

// In the smallest caches steps wait for room, those of the device's rows as well.
TEST_P(DeviceIndexTest, SameBitsInCachesTooSmallForALargeStep) {
  const std::vector<Hash128> want = ReferenceHashes(SmallTables(), kSteps, kRows);
  for (const int64_t index_bytes : {SomeRows(), kAllRows}) {
    for (const double factor : {0.6, 0.8}) {
      for (const int32_t depth : {0, 2}) {
        if (IsSlow(GetParam()) && (depth == 0 || factor > 0.6 || index_bytes < kAllRows)) continue;
        SCOPED_TRACE(testing::Message()
                     << "index " << index_bytes << " factor " << factor << " depth " << depth);
        EmbeddingCollectionOptions options = Indexed(index_bytes, factor, depth);
        for (TableConfig& table : options.tables) table.max_hotness = 0;
        HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, DeviceTables::Create(GetParam(), options));
        HOTROW_ASSERT_OK(tables->Train(0, kSteps));
        HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, (*tables)->Digest());
        EXPECT_EQ(digest.hash, want[kSteps]);
        EXPECT_GT((*tables)->Stats().device_index_rows_read, 0);
      }
    }
  }
}

TEST_P(DeviceIndexTest, StepsThatAreCancelledLeaveNoTrace) {
  const std::vector<Hash128> want = ReferenceHashes(SmallTables(), kSteps, kRows);
  for (const int64_t index_bytes : {SomeRows(), kAllRows}) {
    if (IsSlow(GetParam()) && index_bytes < kAllRows) continue;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables,
                                DeviceTables::Create(GetParam(), Indexed(index_bytes, 3.2, 2)));
    for (int step = 0; step < kSteps; ++step) {
      HOTROW_ASSERT_OK_AND_ASSIGN(auto first,
                                  (*tables)->Prefetch(BatchOf(step + 70, kRows).view()));
      HOTROW_ASSERT_OK_AND_ASSIGN(auto second,
                                  (*tables)->Prefetch(BatchOf(step + 90, kRows).view()));
      first = EmbeddingStep();
      second = EmbeddingStep();
      HOTROW_ASSERT_OK(tables->Train(step, step + 1));
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, (*tables)->Digest());
    EXPECT_EQ(digest.hash, want[kSteps]);
  }
}

// While a snapshot is written, rows are held back that are newer than the store's. A collection
// that is opened knows nothing of the rows that are there; it learns as they are asked for.
TEST_P(DeviceIndexTest, SnapshotsAndWhatIsOpenedFromThem) {
  const std::vector<Hash128> want = ReferenceHashes(SmallTables(), kSteps, kRows);
  for (const int64_t index_bytes : {SomeRows(), kAllRows}) {
    if (IsSlow(GetParam()) && index_bytes < kAllRows) continue;
    SCOPED_TRACE(index_bytes);
    const EmbeddingCollectionOptions options = Indexed(index_bytes, 1, 1, test::TempDir());
    {
      HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, DeviceTables::Create(GetParam(), options));
      int step = 0;
      for (const int until : {3, 6, 9}) {
        HOTROW_ASSERT_OK(tables->Train(step, until));
        step = until;
        const auto id = static_cast<SnapshotId>(step);
        HOTROW_ASSERT_OK((*tables)->snapshots().Begin(id));
        HOTROW_ASSERT_OK(tables->Train(step, step + 1));
        ++step;
        HOTROW_ASSERT_OK((*tables)->snapshots().Wait());
        HOTROW_ASSERT_OK((*tables)->snapshots().Commit(id));
      }
      HOTROW_ASSERT_OK(tables->Train(step, kSteps));
      HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, (*tables)->Digest());
      EXPECT_EQ(digest.hash, want[kSteps]);
      EXPECT_GT((*tables)->Stats().device_index_rows_read, 0);
    }
    EmbeddingCollectionOptions reopen = options;
    // So early that rows have left the cache and are asked for again before the end.
    reopen.start.from = {{.snapshot = 3}};
    reopen.start.steps = 3;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, DeviceTables::Create(GetParam(), reopen));
    HOTROW_ASSERT_OK(tables->Train(3, 4));
    EXPECT_EQ((*tables)->Stats().device_index_rows_read, 0);
    HOTROW_ASSERT_OK(tables->Train(4, kSteps));
    EXPECT_GT((*tables)->Stats().device_index_rows_read, 0);
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest end, (*tables)->Digest());
    EXPECT_EQ(end.hash, want[kSteps]);
  }
}

// Erased rows give their places to others at once.
TEST_P(DeviceIndexTest, RowsThatAreErasedBetweenStepsBeginAnew) {
  const auto train = [](DeviceTables& tables) -> absl::Status {
    for (int step = 0; step < kSteps; ++step) {
      HOTROW_RETURN_IF_ERROR(tables.Train(step, step + 1));
      if (step % 2 == 0) continue;
      std::vector<uint64_t> keys;
      for (uint64_t key = static_cast<uint64_t>(step) % 3; key < kRows; key += 3) {
        keys.push_back(key);
      }
      HOTROW_RETURN_IF_ERROR(tables->Erase("wide", keys));
      keys.resize(keys.size() / 2);
      HOTROW_RETURN_IF_ERROR(tables->Erase("narrow", keys));
      // Fills places that are free now.
      HOTROW_RETURN_IF_ERROR(tables.Step(BatchOf(step + 300, 2 * kRows), step + 300));
    }
    return absl::OkStatus();
  };
  HOTROW_ASSERT_OK_AND_ASSIGN(auto on_cpu, DeviceTables::Create(test::kOnCpu, SmallTables()));
  HOTROW_ASSERT_OK(train(*on_cpu));
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest want, (*on_cpu)->Digest());
  for (const int64_t index_bytes : {SomeRows(), kAllRows}) {
    if (IsSlow(GetParam()) && index_bytes < kAllRows) continue;
    SCOPED_TRACE(index_bytes);
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables,
                                DeviceTables::Create(GetParam(), Indexed(index_bytes, 1, 1)));
    HOTROW_ASSERT_OK(train(*tables));
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, (*tables)->Digest());
    EXPECT_EQ(digest.hash, want.hash);
    EXPECT_GT((*tables)->Stats().device_index_rows_read, 0);
  }
}

TEST(DeviceIndexOptionsTest, BadOnesAreRefusedInOneLine) {
  EmbeddingCollectionOptions options = SmallTables();
  options.cache.device_index_bytes = -1;
  EXPECT_THAT(options.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("cache.device_index_bytes=-1: takes a whole number of")));
  options.cache.device_index_bytes = kMiB;
  EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument,
                                           AllOf(HasSubstr("cache.device_index_bytes is 1048576"),
                                                 HasSubstr("cache.device_bytes, which is 0"))));
  options.cache.device_bytes = kMiB;
  HOTROW_EXPECT_OK(options.Validate());
  PutStore(StoreKind::kSsd, test::TempDir(), &options);
  EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("over a memory store, not ssd")));
  EmbeddingCollectionOptions small = SmallTables();
  small.cache.device_bytes = kMiB;
  small.cache.device_index_bytes = SomeRows() - 1;
  EXPECT_THAT(EmbeddingCollection::Create(small, {}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("cache.device_index_bytes"), HasSubstr("2 widths"),
                             HasSubstr("the least is"))));
}

// --- A single table over a store that the test sees

constexpr uint32_t kTable = 3;
constexpr int32_t kDim = 8;
constexpr float kInitial = 0.5f;

class IndexedTable {
 public:
  static absl::StatusOr<std::unique_ptr<IndexedTable>> Create(int64_t rows, int64_t store_bytes,
                                                              std::chrono::microseconds lag) {
    auto result = std::make_unique<IndexedTable>();
    TieredTableOptions options;
    options.tables = {{.table = kTable,
                       .layout = RowLayout::For(kDim, SparseOptimizerKind::kSgd),
                       .initializer = {.kind = InitializerKind::kConstant, .value = kInitial},
                       .optimizer = {.kind = SparseOptimizerKind::kSgd}}};
    result->layout_ = options.tables[0].layout;
    options.place = {.device = Device::kCpu, .staged = true};
    options.cache_bytes =
        TieredTable::MinCacheBytes(rows, result->layout_.row_bytes, options.place);
    options.index_bytes = 64 << 10;
    HOTROW_ASSIGN_OR_RETURN(result->store_,
                            HostStore::Open({.tables = {{kTable, result->layout_.row_bytes}},
                                             .budget_bytes = store_bytes}));
    std::optional<test::LaggingStreams> lagging;
    if (lag.count() > 0) lagging.emplace(lag);
    HOTROW_ASSIGN_OR_RETURN(
        result->table_, TieredTable::Create(options, result->store_.get(), result->store_.get()));
    return result;
  }
  ~IndexedTable() {
    if (table_ != nullptr) table_->WaitForDevice();
  }

  TieredTable* operator->() { return table_.get(); }
  HostStore& store() { return *store_; }

  // One step that adds `add` to the first weight of each row, and says what they were before; 0:
  // the rows stay as they are.
  absl::StatusOr<std::vector<float>> Step(const std::vector<RowKey>& keys, float add) {
    const std::vector<int32_t> counts(keys.size(), 1);
    const absl::StatusOr<TieredTable::Placed> placed =
        table_->Place(ExecContext(), keys, counts, &step_);
    if (!placed.ok() || *placed != TieredTable::Placed::kAll) {
      table_->GiveUp(&step_);
      table_->WaitForDevice();
      return placed.ok() ? absl::InternalError("no room") : placed.status();
    }
    HOTROW_RETURN_IF_ERROR(table_->FillInPlace(ExecContext(), &step_));
    table_->FinishPlacing(ExecContext());
    step_.resident = true;
    std::vector<std::byte*> rows(keys.size());
    HOTROW_RETURN_IF_ERROR(table_->ResolveForRead(ExecContext(), &step_, rows));
    std::vector<float> before;
    for (std::byte* const row : rows) {
      float weight = 0;
      std::memcpy(&weight, row, sizeof(weight));
      before.push_back(weight);
      if (add == 0) continue;
      weight += add;
      std::memcpy(row, &weight, sizeof(weight));
      const uint32_t last_step = ++updates_;
      std::memcpy(row + layout_.step_offset, &last_step, sizeof(last_step));
    }
    table_->Release(ExecContext(), &step_, /*updated=*/add != 0);
    table_->WaitForDevice();
    return before;
  }

  uint32_t updates() const { return updates_; }
  int64_t step_offset() const { return layout_.step_offset; }

 private:
  RowLayout layout_;
  std::unique_ptr<HostStore> store_;
  std::unique_ptr<TieredTable> table_;
  StepRows step_;
  uint32_t updates_ = 0;
};

std::vector<RowKey> Keys(uint64_t first, int64_t n) {
  std::vector<RowKey> keys;
  for (int64_t i = 0; i < n; ++i) keys.push_back({first + static_cast<uint64_t>(i), kTable});
  return keys;
}

constexpr auto kAtOnce = std::chrono::microseconds(0);
constexpr auto kLate = std::chrono::microseconds(200);

// More keys than travel at a time: the host does not write over those that the device has not read.
TEST(IndexedTableTest, KeysOnTheirWayToTheDeviceAreNotOverwritten) {
  const test::LaggingStreams lagging(kLate);
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto cache,
      internal::GuardedCache::Create({.row_bytes = 48, .budget_bytes = 256 << 10}, /*staged=*/true,
                                     /*staging_rows=*/8));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto store,
                              HostStore::Open({.tables = {{kTable, 48}}, .budget_bytes = kMiB}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto index,
                              internal::DeviceIndex::Create(cache.get(), store.get(), 64 << 10,
                                                            /*batch_keys=*/8));
  const int64_t n = 100;
  const std::vector<RowKey> keys = Keys(0, n);
  std::vector<std::byte> memory(static_cast<size_t>(48 * n));
  std::vector<std::byte*> rows;
  for (int64_t i = 0; i < n; ++i) rows.push_back(memory.data() + 48 * i);
  const auto find = [&](std::vector<std::byte*>* found) -> absl::Status {
    const std::lock_guard<std::mutex> lock(cache->mutex());
    HOTROW_ASSIGN_OR_RETURN(const AddressIndex* const search, index->ForSearch());
    found->assign(keys.size(), nullptr);
    HOTROW_RETURN_IF_ERROR(cache->stream().Run(ExecContext(), [&](const ExecContext& here) {
      return search->Find(here, keys, {}, *found);
    }));
    return cache->stream().Wait();
  };
  std::vector<std::byte*> found;
  for (int round = 0; round < 2; ++round) {
    HOTROW_ASSERT_OK(index->InsertOrAssign(keys, rows));
    HOTROW_ASSERT_OK(find(&found));
    EXPECT_EQ(found, rows);
    HOTROW_ASSERT_OK(index->Erase(std::span(keys).first(60)));
    HOTROW_ASSERT_OK(find(&found));
    for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], i < 60 ? nullptr : rows[i]) << i;
  }
}

// The place of an erased row goes to another key; who asks for the first one gets its initial row.
TEST(IndexedTableTest, AnErasedKeyIsNotFoundWhereAnotherLiesNow) {
  const int64_t n = 160;
  for (const auto lag : {kAtOnce, kLate}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto table, IndexedTable::Create(n, 4 * kMiB, lag));
    const std::vector<RowKey> old = Keys(0, n);
    HOTROW_ASSERT_OK(table->Step(old, 1));
    HOTROW_ASSERT_OK((*table)->Flush());
    HOTROW_ASSERT_OK(table->Step(Keys(1000, n), 1));  // the old ones leave
    HOTROW_ASSERT_OK(table->Step(Keys(2000, n), 1));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> known, table->Step(old, 1));
    EXPECT_EQ(known, std::vector<float>(n, kInitial + 1));
    const TieredTableStats before = (*table)->Stats();
    EXPECT_GT(before.known_rows_read, 0);
    HOTROW_ASSERT_OK(table->Step(Keys(1000, n), 1));
    HOTROW_ASSERT_OK(table->Step(Keys(2000, n), 1));
    HOTROW_ASSERT_OK((*table)->Flush());
    std::vector<std::byte*> was(n);
    HOTROW_ASSERT_OK(table->store().FindInPlace(old, was));

    HOTROW_ASSERT_OK((*table)->Erase(ExecContext(), old));
    HOTROW_ASSERT_OK(table->Step(Keys(5000, n), 7));
    HOTROW_ASSERT_OK((*table)->Flush());
    std::vector<std::byte*> is(n);
    HOTROW_ASSERT_OK(table->store().FindInPlace(Keys(5000, n), is));
    EXPECT_THAT(is, testing::UnorderedElementsAreArray(was)) << "or the test shows nothing";
    HOTROW_ASSERT_OK(table->Step(Keys(1000, n), 1));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> anew, table->Step(old, 1));
    EXPECT_EQ(anew, std::vector<float>(n, kInitial));
  }
}

// Rows that leave while a snapshot is written are held back: the store, where the index knows them,
// has older ones.
TEST(IndexedTableTest, RowsThatAreHeldForASnapshotAreNotReadFromTheStore) {
  const int64_t n = 64;
  for (const auto lag : {kAtOnce, kLate}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto table, IndexedTable::Create(3 * n, 4 * kMiB, lag));
    const std::vector<RowKey> few = Keys(0, 4);  // more of them would wait for the snapshot's end
    // So many others that what was there leaves.
    const auto fill = [&](float add) -> absl::Status {
      for (uint64_t first = 1000; first < 13'000; first += 1000) {
        HOTROW_RETURN_IF_ERROR(table->Step(Keys(first, n), add).status());
      }
      return absl::OkStatus();
    };
    HOTROW_ASSERT_OK(table->Step(few, 1));
    HOTROW_ASSERT_OK(fill(1));
    HOTROW_ASSERT_OK(table->Step(few, 1));  // the index knows them
    HOTROW_ASSERT_OK(fill(0));
    HOTROW_ASSERT_OK((*table)->Flush());
    HOTROW_ASSERT_OK((*table)->BeginSnapshot());
    absl::Status filled = table->Step(few, 1).status();
    if (filled.ok()) filled = fill(0);
    const int64_t held_rows = (*table)->Stats().snapshot.held;
    absl::StatusOr<std::vector<float>> held = absl::UnknownError("did not come so far");
    if (filled.ok()) held = table->Step(few, 1);
    absl::StatusOr<bool> more = true;
    while (more.ok() && *more) more = (*table)->WriteSnapshotPart();
    (*table)->EndSnapshot();
    HOTROW_ASSERT_OK(filled);
    HOTROW_ASSERT_OK(more);
    HOTROW_ASSERT_OK((*table)->WriteHeld());
    EXPECT_EQ(held_rows, 4) << "or the test shows nothing";
    HOTROW_ASSERT_OK(held);
    EXPECT_EQ(*held, std::vector<float>(4, kInitial + 3));
    HOTROW_ASSERT_OK(fill(0));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> after, table->Step(few, 1));
    EXPECT_EQ(after, std::vector<float>(4, kInitial + 4));
  }
}

// Nobody is told which rows go by age.
TEST(IndexedTableTest, RowsThatTheStoreDropsByAgeAreForgotten) {
  const int64_t n = 96;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto table, IndexedTable::Create(n, 4 * kMiB, kAtOnce));
  const std::vector<RowKey> old = Keys(0, n);
  HOTROW_ASSERT_OK(table->Step(old, 1));
  HOTROW_ASSERT_OK(table->Step(Keys(1000, n), 1));
  HOTROW_ASSERT_OK(table->Step(Keys(2000, n), 1));
  HOTROW_ASSERT_OK(table->Step(old, 1));  // the index knows them
  EXPECT_GT((*table)->Stats().known_rows_read, 0);
  HOTROW_ASSERT_OK(table->Step(Keys(1000, n), 1));
  HOTROW_ASSERT_OK(table->Step(Keys(2000, n), 1));
  HOTROW_ASSERT_OK((*table)->Flush());
  // None of the three is resident any more.
  HOTROW_ASSERT_OK(table->Step(Keys(3000, n), 1));
  HOTROW_ASSERT_OK(table->Step(Keys(4000, n), 1));
  const RowAgeLine line = {.table = kTable,
                           .lines = {.age = table->updates() + 1},
                           .fields = {.step_offset = table->step_offset()}};
  table->store().SetAgeLines({&line, 1});
  HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t dropped, table->store().DropAged(1 << 20));
  EXPECT_GT(dropped, 3 * n);
  table->store().SetAgeLines({});
  HOTROW_ASSERT_OK(table->Step(Keys(5000, n), 7));
  HOTROW_ASSERT_OK(table->Step(Keys(6000, n), 7));  // now in the old ones' places
  HOTROW_ASSERT_OK(table->Step(Keys(7000, n), 7));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> anew, table->Step(old, 1));
  EXPECT_EQ(anew, std::vector<float>(n, kInitial));
}

// A store that is full refuses rows that the device has evicted for rows that it knows. The step is
// given up, and nothing is lost; with room again, all goes on.
TEST(IndexedTableTest, RowsThatAFullStoreRefusesAreNotLost) {
  const int64_t n = 160;
  for (const auto lag : {kAtOnce, kLate}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto table, IndexedTable::Create(n, 128 << 10, lag));
    std::map<uint64_t, float> want;
    const auto step = [&](const std::vector<RowKey>& keys) -> absl::Status {
      HOTROW_ASSIGN_OR_RETURN(const std::vector<float> before, table->Step(keys, 1));
      for (size_t i = 0; i < keys.size(); ++i) {
        float& weight = want.try_emplace(keys[i].key, kInitial).first->second;
        EXPECT_EQ(before[i], weight) << keys[i].key;
        weight += 1;
      }
      return absl::OkStatus();
    };
    uint64_t first = 0;
    absl::Status refused;
    while (refused.ok()) {
      ASSERT_LT(first, 100'000);
      // Half of them new, the others old enough to be in the store.
      std::vector<RowKey> keys = Keys(first, n / 2);
      const std::vector<RowKey> old = Keys(first > 4000 ? first - 4000 : 90'000, n / 2);
      keys.insert(keys.end(), old.begin(), old.end());
      refused = step(keys);
      first += 1000;
    }
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("host store")));
    EXPECT_GT((*table)->Stats().known_rows_read, 0);
    EXPECT_FALSE(step(Keys(0, n / 2)).ok()) << "it is full still";
    // Behind the table's back, which writes what waits before it erases: nobody asks for these.
    HOTROW_ASSERT_OK(table->store().Erase(Keys(1000, n / 2)));
    const std::map<uint64_t, float> all = want;
    for (const auto& [key, weight] : all) {
      if (key >= 1000 && key < 2000) continue;
      HOTROW_ASSERT_OK(step(Keys(key, 1)));
    }
  }
}

}  // namespace
}  // namespace hotrow
