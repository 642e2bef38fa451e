// What a TieredTable does by itself; what a collection makes of it is in the tests of that.

#include "embedding/tiers/tiered_table.h"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "embedding/tiers/cached_table_impl.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/host/host_store.h"
#include "tests/support/lagging_streams.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {

// What a GPU would say to a call that returns nothing.
class TieredTablePeer {
 public:
  static void Break(TieredTable* table, const absl::Status& status) {
    internal::GuardedCache& cache = *static_cast<internal::CachedTable*>(table)->cache_;
    const std::lock_guard<std::mutex> lock(cache.mutex());
    cache.Note(status);
  }
  // As somebody who is at work on the cache.
  static std::unique_lock<std::mutex> LockCache(TieredTable* table) {
    return std::unique_lock(static_cast<internal::CachedTable*>(table)->cache_->mutex());
  }
};

namespace {

constexpr int32_t kDim = 12;
constexpr int64_t kStagingRows = 32;  // of the smallest cache
constexpr uint32_t kTable = 3;

// Refuses to write rows when it is told to.
class RefusingStore final : public RowStore {
 public:
  explicit RefusingStore(std::unique_ptr<RowStore> store) : store_(std::move(store)) {}

  // Writes from number `first` on, `n` of them, fail.
  void Refuse(int first, int n) {
    refuse_first_ = writes_ + first;
    refuse_last_ = refuse_first_ + n;
  }
  int refusals() const { return refusals_; }
  // Called by the next write, before it writes.
  void BeforeNextWrite(std::function<void()> hook) { hook_ = std::move(hook); }

  absl::Status Find(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                    std::span<uint8_t> found) override {
    return store_->Find(keys, rows, found);
  }
  absl::Status InsertOrAssign(std::span<const RowKey> keys,
                              std::span<const std::byte* const> rows) override {
    if (hook_ != nullptr) std::exchange(hook_, nullptr)();
    const int write = writes_++;
    if (write >= refuse_first_ && write < refuse_last_) {
      ++refusals_;
      return absl::UnavailableError("refused");
    }
    return store_->InsertOrAssign(keys, rows);
  }
  absl::Status Erase(std::span<const RowKey> keys) override { return store_->Erase(keys); }
  absl::Status Iterate(
      absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) override {
    return store_->Iterate(visit);
  }
  absl::Status Flush() override { return store_->Flush(); }
  absl::Status PrepareSnapshot(SnapshotId snapshot, absl::FunctionRef<void()> captured) override {
    return store_->PrepareSnapshot(snapshot, captured);
  }
  absl::Status CommitSnapshot(SnapshotId snapshot) override {
    return store_->CommitSnapshot(snapshot);
  }
  absl::Status DropSnapshot(SnapshotId snapshot) override { return store_->DropSnapshot(snapshot); }
  absl::StatusOr<std::vector<SnapshotId>> ListSnapshots() override {
    return store_->ListSnapshots();
  }
  absl::StatusOr<SnapshotInfo> DescribeSnapshot(SnapshotId snapshot) override {
    return store_->DescribeSnapshot(snapshot);
  }
  RowStoreStats Stats() const override { return store_->Stats(); }
  std::span<const StoreTable> tables() const override { return store_->tables(); }
  int64_t row_bytes(uint32_t table) const override { return store_->row_bytes(table); }

 private:
  std::unique_ptr<RowStore> store_;
  std::function<void()> hook_;
  int writes_ = 0;
  int refuse_first_ = 0;
  int refuse_last_ = 0;
  int refusals_ = 0;
};

// A staged table over host memory, whose rows come and go through staging areas.
class StagedTable {
 public:
  // Copies arrive `lag` after they were asked for; 0: at once.
  static absl::StatusOr<std::unique_ptr<StagedTable>> Create(int64_t rows,
                                                             std::chrono::microseconds lag) {
    auto result = std::make_unique<StagedTable>();
    TieredTableOptions options;
    options.tables = {{.table = kTable,
                       .layout = RowLayout::For(kDim, SparseOptimizerKind::kSgd),
                       .initializer = {.kind = InitializerKind::kConstant, .value = 0.5f},
                       .optimizer = {.kind = SparseOptimizerKind::kSgd}}};
    const int64_t row_bytes = options.tables[0].layout.row_bytes;
    options.place = {.device = Device::kCpu, .staged = true};
    options.cache_bytes = TieredTable::MinCacheBytes(rows, row_bytes, options.place);
    HOTROW_ASSIGN_OR_RETURN(
        std::unique_ptr<HostStore> store,
        HostStore::Open({.tables = {{kTable, row_bytes}}, .budget_bytes = 4 << 20}));
    result->store_ = std::make_unique<RefusingStore>(std::move(store));
    std::optional<test::LaggingStreams> lagging;
    if (lag.count() > 0) lagging.emplace(lag);
    // As a store on a disk: rows are read and sent, not fetched by the device.
    HOTROW_ASSIGN_OR_RETURN(
        result->table_, TieredTable::Create(options, result->store_.get(), /*in_place=*/nullptr));
    return result;
  }

  TieredTable* operator->() { return table_.get(); }
  TieredTable& operator*() { return *table_; }
  RefusingStore* store() { return store_.get(); }

  // The weights of the store; none when it has no row.
  absl::StatusOr<std::vector<float>> Stored(RowKey key) {
    std::vector<float> row(static_cast<size_t>(table_->row_bytes()) / sizeof(float));
    auto* const bytes = reinterpret_cast<std::byte*>(row.data());
    uint8_t found = 0;
    HOTROW_RETURN_IF_ERROR(store_->Find({&key, 1}, {&bytes, 1}, {&found, 1}));
    row.resize(found == 0 ? 0 : kDim);
    return row;
  }

  // Reads the rows of NextMisses and sends them; where they were read to, by key.
  absl::StatusOr<std::vector<std::byte*>> FillSome(StepRows* step) {
    std::vector<RowKey> keys;
    std::vector<std::byte*> rows;
    HOTROW_ASSIGN_OR_RETURN(const int64_t n, table_->NextMisses(step, &keys, &rows));
    if (n == 0) return rows;
    std::vector<uint8_t> found(static_cast<size_t>(n));
    HOTROW_RETURN_IF_ERROR(store_->Find(keys, rows, found));
    HOTROW_RETURN_IF_ERROR(table_->Fill(ExecContext(), step, found));
    return rows;
  }

  // One step that adds `add` to the first weight of each row.
  absl::Status Step(const std::vector<RowKey>& keys, float add) {
    const std::vector<int32_t> counts(keys.size(), 1);
    StepRows step;
    const absl::StatusOr<TieredTable::Placed> placed =
        table_->Place(ExecContext(), keys, counts, &step);
    if (!placed.ok()) {
      table_->GiveUp(&step);
      table_->WaitForDevice();
      return placed.status();
    }
    if (*placed != TieredTable::Placed::kAll) return absl::InternalError("no room");
    for (;;) {
      HOTROW_ASSIGN_OR_RETURN(const std::vector<std::byte*> rows, FillSome(&step));
      if (rows.empty()) break;
    }
    table_->FinishPlacing(ExecContext());
    step.resident = true;
    std::vector<std::byte*> rows(keys.size());
    HOTROW_RETURN_IF_ERROR(table_->ResolveForRead(ExecContext(), &step, rows));
    for (std::byte* const row : rows) {
      float weight = 0;
      std::memcpy(&weight, row, sizeof(weight));
      weight += add;
      std::memcpy(row, &weight, sizeof(weight));
    }
    table_->Release(ExecContext(), &step, /*updated=*/true);
    table_->WaitForDevice();  // before `step` goes
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<RefusingStore> store_;
  std::unique_ptr<TieredTable> table_;
};

std::vector<RowKey> Keys(uint64_t first, int64_t n) {
  std::vector<RowKey> keys;
  for (int64_t i = 0; i < n; ++i) keys.push_back({first + static_cast<uint64_t>(i), kTable});
  return keys;
}

// What calls without a status have met, every call with one says from then on: what is dirty may
// have lost its mark, and a flush or a snapshot without it would be one that lacks rows.
TEST(StagedTableTest, WhatACallWithoutStatusHasMetEveryLaterCallSays) {
  using testing::HasSubstr;
  const ExecContext ctx;
  const std::vector<RowKey> keys = Keys(0, 8);
  const std::vector<int32_t> counts(keys.size(), 1);
  std::vector<std::byte*> rows(keys.size());
  const auto broken = [](const absl::Status& status) {
    EXPECT_THAT(status, test::StatusIs(absl::StatusCode::kInternal, HasSubstr("gone")));
  };
  // Broken with a step under way: before its rows are sent, when it is resident, and with none.
  for (const int at : {0, 1, 2}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(
        auto staged, StagedTable::Create(std::ssize(keys), std::chrono::microseconds(0)));
    HOTROW_ASSERT_OK(staged->Step(keys, 1));
    TieredTable& table = **staged;
    StepRows step;
    std::vector<RowKey> miss_keys;
    std::vector<std::byte*> miss_rows;
    const bool misses = at == 0;
    const std::vector<RowKey> wanted = misses ? Keys(100, 8) : keys;
    if (at < 2) {
      HOTROW_ASSERT_OK(table.Place(ctx, wanted, counts, &step));
      if (misses) {
        HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t n,
                                    table.NextMisses(&step, &miss_keys, &miss_rows));
        ASSERT_EQ(n, 8);
      } else {
        step.resident = true;
        HOTROW_ASSERT_OK(table.ResolveForRead(ctx, &step, rows));
      }
    } else {
      HOTROW_ASSERT_OK(table.BeginSnapshot());
    }
    TieredTablePeer::Break(&table, absl::InternalError("the device is gone"));
    if (at == 0) {
      broken(table.Fill(ctx, &step, std::vector<uint8_t>(8)));
      broken(table.NextMisses(&step, &miss_keys, &miss_rows).status());
      table.GiveUp(&step);
    } else if (at == 1) {
      broken(table.ResolveForRead(ctx, &step, rows));
      broken(table.PrepareForUpdate(ctx, step));
      broken(table.ResolveForUpdate(&step, rows));
      broken(table.Withdraw(step));
      table.Release(ctx, &step, /*updated=*/false);
    } else {
      broken(table.WriteSnapshotPart().status());
      table.EndSnapshot();
    }
    StepRows next;
    broken(table.Place(ctx, Keys(200, 8), counts, &next).status());
    StepRows none;
    broken(table.Place(ctx, {}, {}, &none).status());
    broken(table.FillInPlace(ctx, &next));
    broken(table.BeginSnapshot());
    broken(table.Flush());
    std::vector<std::byte> staging(8 * static_cast<size_t>(table.row_bytes()));
    broken(table.Read(ctx, keys, staging.data(), rows));
    table.WaitForDevice();
  }
}

TEST(StagedTableTest, CountsAreReadWhileTheCacheIsAtWork) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto staged, StagedTable::Create(8, std::chrono::microseconds(0)));
  HOTROW_ASSERT_OK(staged->Step(Keys(0, 8), 1));
  std::future<TieredTableStats> stats;
  std::future_status ready;
  {
    const std::unique_lock<std::mutex> lock = TieredTablePeer::LockCache(&**staged);
    stats = std::async(std::launch::async, [&] { return (*staged)->Stats(); });
    ready = stats.wait_for(std::chrono::seconds(10));
  }
  EXPECT_EQ(ready, std::future_status::ready);
  EXPECT_EQ(stats.get().cache_counts.unique_keys, 8);
}

TEST(StagedTableTest, RowsAreReadIntoOneAreaWhileThoseOfTheOtherAreOnTheirWay) {
  const std::vector<RowKey> keys = Keys(0, 4 * kStagingRows + 5);
  const std::vector<int32_t> counts(keys.size(), 1);
  HOTROW_ASSERT_OK_AND_ASSIGN(
      auto table, StagedTable::Create(std::ssize(keys), std::chrono::microseconds(300)));
  StepRows step;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TieredTable::Placed placed,
                              (*table)->Place(ExecContext(), keys, counts, &step));
  ASSERT_EQ(placed, TieredTable::Placed::kAll);
  std::vector<std::vector<std::byte*>> areas;
  for (size_t sent = kStagingRows; sent <= 4 * kStagingRows; sent += kStagingRows) {
    HOTROW_ASSERT_OK_AND_ASSIGN(areas.emplace_back(), table->FillSome(&step));
    EXPECT_EQ(step.sent, sent);
    // The one before is on its way still, as far as the host cares to know.
    EXPECT_EQ(step.filled, sent < 2 * kStagingRows ? 0 : sent - 2 * kStagingRows);
  }
  EXPECT_EQ(areas[0], areas[2]);
  EXPECT_EQ(areas[1], areas[3]);
  EXPECT_NE(areas[0], areas[1]);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::byte*> last, table->FillSome(&step));
  EXPECT_EQ(last.size(), 5);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::byte*> none, table->FillSome(&step));
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(step.miss_keys.empty());
  EXPECT_EQ(step.sent, 0);
  EXPECT_EQ(step.filled, 0);
  (*table)->GiveUp(&step);
  EXPECT_EQ((*table)->Stats().store_counts.unique_keys, std::ssize(keys));
}

// What was sent is waited for, also when the step will never be.
TEST(StagedTableTest, AStepIsGivenUpWhileItsRowsAreOnTheirWay) {
  const std::vector<RowKey> keys = Keys(0, 3 * kStagingRows);
  const std::vector<int32_t> counts(keys.size(), 1);
  HOTROW_ASSERT_OK_AND_ASSIGN(
      auto table, StagedTable::Create(std::ssize(keys), std::chrono::microseconds(2000)));
  for (const int fills : {0, 1, 2}) {
    StepRows step;
    HOTROW_ASSERT_OK(
        (*table)->Place(ExecContext(), Keys(1000 * fills, 3 * kStagingRows), counts, &step));
    for (int i = 0; i < fills; ++i) HOTROW_ASSERT_OK(table->FillSome(&step));
    EXPECT_EQ(step.filled, 0);
    (*table)->GiveUp(&step);
    (*table)->WaitForDevice();
    // Those that have their bytes stay; the others are gone.
    EXPECT_GE((*table)->Stats().cache.used_ways, fills * kStagingRows);
    if (fills == 0) {
      EXPECT_EQ((*table)->Stats().cache.used_ways, 0);
    }
  }
  // No slot is left pinned or without bytes: all rows of the cache can be had, and are right.
  for (int i = 0; i < 4; ++i) HOTROW_ASSERT_OK(table->Step(keys, 1));
  HOTROW_ASSERT_OK((*table)->Flush());
  std::vector<float> want(kDim, 0.5f);
  want[0] = 4.5f;
  for (const RowKey& key : keys) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> row, table->Stored(key));
    EXPECT_EQ(row, want);
  }
}

// Memory that is refused to a step is asked for again by the next one that uses the same StepRows,
// though it has no more keys than those before.
TEST(StagedTableTest, AStepThatIsTooLargeLeavesRoomForTheNext) {
  const std::vector<RowKey> keys = Keys(0, kStagingRows);
  const std::vector<int32_t> counts(keys.size(), 1);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto table,
                              StagedTable::Create(std::ssize(keys), std::chrono::microseconds(0)));
  StepRows step;
  HOTROW_ASSERT_OK((*table)->Place(ExecContext(), keys, counts, &step));
  (*table)->GiveUp(&step);
  constexpr size_t kTooMany = size_t{1} << 58;
  const absl::StatusOr<TieredTable::Placed> refused =
      (*table)->Place(ExecContext(), {keys.data(), kTooMany}, {counts.data(), kTooMany}, &step);
  EXPECT_FALSE(refused.ok());
  (*table)->GiveUp(&step);
  HOTROW_ASSERT_OK((*table)->Place(ExecContext(), keys, counts, &step));
  EXPECT_FALSE(step.miss_keys.empty());
  (*table)->GiveUp(&step);
  (*table)->WaitForDevice();  // before `step` goes
}

// Rows that were given a place and no bytes are read by nobody, and those of the step stay placed.
TEST(CachedTableTest, WhatIsBrokenRefusesAllCalls) {
  TieredTableOptions options;
  options.tables = {{.table = kTable,
                     .layout = RowLayout::For(kDim, SparseOptimizerKind::kSgd),
                     .optimizer = {.kind = SparseOptimizerKind::kSgd}}};
  const int64_t row_bytes = options.tables[0].layout.row_bytes;
  options.cache_bytes = TieredTable::MinCacheBytes(64, row_bytes);
  HOTROW_ASSERT_OK_AND_ASSIGN(
      auto store, HostStore::Open({.tables = {{kTable, row_bytes}}, .budget_bytes = 4 << 20}));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto table,
                              TieredTable::Create(options, store.get(), /*in_place=*/nullptr));
  const std::vector<RowKey> keys = Keys(0, 8);
  const std::vector<int32_t> counts(keys.size(), 1);
  StepRows step;
  HOTROW_ASSERT_OK(table->Place(ExecContext(), keys, counts, &step));
  table->Break(absl::ResourceExhaustedError("no memory"));
  table->GiveUp(&step);
  const auto broken = [](const absl::Status& status) {
    EXPECT_THAT(status, test::StatusIs(absl::StatusCode::kResourceExhausted,
                                       testing::HasSubstr("no memory")));
  };
  broken(table->Place(ExecContext(), keys, counts, &step).status());
  broken(table->Flush());
  std::vector<std::byte> staging(keys.size() * static_cast<size_t>(row_bytes));
  std::vector<std::byte*> rows(keys.size());
  broken(table->Read(ExecContext(), keys, staging.data(), rows));
}

// Rows that the cache gave out were not noted yet, so the snapshot that is under way has no end.
TEST(StagedTableTest, ASnapshotDoesNotEndWithoutRowsOfAStepThatThrew) {
  const int64_t n = 5 * kStagingRows;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto table, StagedTable::Create(n, std::chrono::microseconds(0)));
  for (int i = 0; i < 4; ++i) HOTROW_ASSERT_OK(table->Step(Keys(i * n, n), 1));
  HOTROW_ASSERT_OK((*table)->BeginSnapshot());
  table->store()->BeforeNextWrite([] { throw std::bad_alloc(); });
  const std::vector<RowKey> keys = Keys(4 * n, n);
  const std::vector<int32_t> counts(keys.size(), 1);
  StepRows step;
  EXPECT_THROW((*table)->Place(ExecContext(), keys, counts, &step).IgnoreError(), std::bad_alloc);
  const auto broken = [](const absl::Status& status) {
    EXPECT_THAT(status, test::StatusIs(absl::StatusCode::kResourceExhausted,
                                       testing::HasSubstr("out of memory")));
  };
  broken((*table)->WriteSnapshotPart().status());
  broken((*table)->Flush());
  (*table)->EndSnapshot();
  (*table)->GiveUp(&step);
  (*table)->WaitForDevice();  // before `step` goes
}

// A step has more keys than a chunk. Those that the cache has come last, and would be the first to
// leave if they were not all pinned before the first miss gets a way.
TEST(StagedTableTest, NoHitOfAStepLeavesForOneOfItsMisses) {
  const int64_t n = 6 * kStagingRows;
  for (const auto lag : {std::chrono::microseconds(0), std::chrono::microseconds(200)}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto table, StagedTable::Create(n, lag));
    HOTROW_ASSERT_OK(table->Step(Keys(0, n), 1));
    HOTROW_ASSERT_OK(table->Step(Keys(static_cast<uint64_t>(n) / 2, n / 2), 1));  // warmer
    const TieredTableStats before = (*table)->Stats();
    std::vector<RowKey> keys = Keys(10'000, n / 2);
    const std::vector<RowKey> old = Keys(0, n / 2);
    keys.insert(keys.end(), old.begin(), old.end());
    HOTROW_ASSERT_OK(table->Step(keys, 1));
    const TieredTableStats after = (*table)->Stats();
    EXPECT_EQ(after.cache_counts.unique_keys - before.cache_counts.unique_keys, n);
    EXPECT_EQ(after.cache_counts.unique_hits - before.cache_counts.unique_hits, n / 2);
    EXPECT_EQ(after.cache_counts.lookup_hits - before.cache_counts.lookup_hits, n / 2);
    EXPECT_EQ(after.store_counts.unique_keys - before.store_counts.unique_keys, n / 2);
    EXPECT_GT(after.cache.dirty_evictions, before.cache.dirty_evictions);
    HOTROW_ASSERT_OK((*table)->Flush());
    for (const RowKey& key : old) {
      HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> row, table->Stored(key));
      EXPECT_EQ(row[0], 2.5f);
    }
  }
}

// The caller of BeginSnapshot trains: it does not wait for a store that takes its time. What is on
// its way down then belongs to the snapshot, and so does what the cache is just giving out.
TEST(StagedTableTest, ASnapshotBeginsWhileRowsAreWritten) {
  const int64_t n = 5 * kStagingRows;
  for (const auto lag : {std::chrono::microseconds(0), std::chrono::microseconds(300)}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto table, StagedTable::Create(n, lag));
    const auto fill = [&](float add) {
      for (int i = 0; i < 4; ++i) HOTROW_ASSERT_OK(table->Step(Keys(i * n, n), add));
    };
    ASSERT_NO_FATAL_FAILURE(fill(1));
    std::future<absl::Status> begun;
    bool waited = false;
    table->store()->BeforeNextWrite([&] {
      begun = std::async(std::launch::async, [&] { return (*table)->BeginSnapshot(); });
      waited = begun.wait_for(std::chrono::seconds(10)) != std::future_status::ready;
    });
    HOTROW_ASSERT_OK(table->Step(Keys(4 * n, n), 1));
    ASSERT_TRUE(begun.valid());
    HOTROW_ASSERT_OK(begun.get());
    EXPECT_FALSE(waited);
    for (;;) {
      HOTROW_ASSERT_OK_AND_ASSIGN(const bool more, (*table)->WriteSnapshotPart());
      if (!more) break;
    }
    std::vector<float> want(kDim, 0.5f);
    want[0] += 1;
    for (const RowKey& key : Keys(0, 4 * n)) {
      HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> row, table->Stored(key));
      EXPECT_EQ(row, want) << key.key;
    }
    (*table)->EndSnapshot();
  }
}

// Rows that changed while a snapshot was written wait for its end, and not for the next beginning.
TEST(StagedTableTest, RowsThatWaitedForASnapshotAreWrittenBeforeTheNextBegins) {
  const int64_t n = 5 * kStagingRows;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto table, StagedTable::Create(n, std::chrono::microseconds(0)));
  HOTROW_ASSERT_OK((*table)->BeginSnapshot());
  for (int i = 0; (*table)->Stats().snapshot.held == 0; ++i) {
    ASSERT_LT(i, 100);
    HOTROW_ASSERT_OK(table->Step(Keys(8 * i, 8), 1));
  }
  (*table)->EndSnapshot();
  HOTROW_ASSERT_OK((*table)->WriteHeld());
  bool written = false;
  table->store()->BeforeNextWrite([&] { written = true; });
  HOTROW_ASSERT_OK((*table)->BeginSnapshot());
  EXPECT_FALSE(written);
  (*table)->EndSnapshot();
}

// Rows leave by both areas in turn, and the store has the newest bytes of each.
TEST(StagedTableTest, RowsThatLeaveAreWrittenWhileTheNextOnesLeave) {
  const int64_t n = 5 * kStagingRows;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto table, StagedTable::Create(n, std::chrono::microseconds(300)));
  constexpr int kBatches = 4;
  constexpr int kRounds = 3;
  for (int step = 0; step < kBatches * kRounds; ++step) {
    HOTROW_ASSERT_OK(table->Step(Keys(step % kBatches * n, n), 1));
  }
  EXPECT_GT((*table)->Stats().cache.dirty_evictions, (kBatches * kRounds - 3) * n);
  HOTROW_ASSERT_OK((*table)->Flush());
  std::vector<float> want(kDim, 0.5f);
  want[0] += kRounds;
  for (const RowKey& key : Keys(0, kBatches * n)) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> row, table->Stored(key));
    EXPECT_EQ(row, want);
  }
}

// They left the cache, so they wait, in whichever area, until the store takes them.
TEST(StagedTableTest, RowsThatTheStoreRefusesAreNotLost) {
  const int64_t n = 5 * kStagingRows;
  constexpr int kBatches = 3;
  constexpr int kSteps = 4 * kBatches;
  int refused_steps = 0;
  for (int refuse = 0; refuse < 12; ++refuse) {
    for (const int times : {1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << refuse << " " << times);
      HOTROW_ASSERT_OK_AND_ASSIGN(
          auto table, StagedTable::Create(n, std::chrono::microseconds(refuse % 2 == 0 ? 0 : 100)));
      for (int step = 0; step < kSteps; ++step) {
        // From the fourth step on each evicts dirty rows.
        if (step == kBatches) table->store()->Refuse(refuse, times);
        absl::Status status = table->Step(Keys(step % kBatches * n, n), 1);
        while (!status.ok()) {
          EXPECT_THAT(status, test::StatusIs(absl::StatusCode::kUnavailable,
                                             testing::HasSubstr("refused")));
          ++refused_steps;
          status = table->Step(Keys(step % kBatches * n, n), 1);
        }
      }
      EXPECT_EQ(table->store()->refusals(), times);
      HOTROW_ASSERT_OK((*table)->Flush());
      std::vector<float> want(kDim, 0.5f);
      want[0] += static_cast<float>(kSteps / kBatches);
      for (const RowKey& key : Keys(0, kBatches * n)) {
        HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> row, table->Stored(key));
        ASSERT_EQ(row, want);
      }
    }
  }
  EXPECT_GT(refused_steps, 36);
}

}  // namespace
}  // namespace hotrow
