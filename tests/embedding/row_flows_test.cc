// The parts of a TieredTable, each by itself.

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "embedding/tiers/cache_buffers_impl.h"
#include "embedding/tiers/guarded_cache_impl.h"
#include "embedding/tiers/row_outflow_impl.h"
#include "embedding/tiers/snapshot_marks_impl.h"
#include "embedding/tiers/tiered_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/host/host_store.h"
#include "tests/support/test_util.h"

namespace hotrow::internal {
namespace {

constexpr uint32_t kTable = 2;
constexpr int64_t kRowBytes = 32;
constexpr int64_t kCacheBytes = 1 << 20;

absl::StatusOr<std::unique_ptr<HostStore>> SmallStore(int64_t row_bytes) {
  return HostStore::Open({.tables = {{kTable, row_bytes}}, .budget_bytes = 4 << 20});
}

TieredTableOptions TableOptions() {
  TieredTableOptions options;
  options.tables = {{.table = kTable,
                     .layout = RowLayout::For(4, SparseOptimizerKind::kSgd),
                     .initializer = {.kind = InitializerKind::kConstant, .value = 0.5f},
                     .optimizer = {.kind = SparseOptimizerKind::kSgd}}};
  return options;
}

std::vector<RowKey> Keys(uint64_t first, int64_t n) {
  std::vector<RowKey> keys;
  for (int64_t i = 0; i < n; ++i) keys.push_back({first + static_cast<uint64_t>(i), kTable});
  return keys;
}

// The first byte of the row in the store; -1: there is none.
int Stored(RowStore* store, RowKey key) {
  std::vector<std::byte> row(static_cast<size_t>(store->row_bytes(kTable)));
  std::byte* const bytes = row.data();
  uint8_t found = 0;
  HOTROW_EXPECT_OK(store->Find({&key, 1}, {&bytes, 1}, {&found, 1}));
  return found == 0 ? -1 : static_cast<int>(row[0]);
}

TEST(CacheBuffersTest, TheLeastBudgetLeavesWhatItWasAskedFor) {
  for (const bool staged : {false, true}) {
    for (const int64_t row_bytes : {16, 272, 4096}) {
      for (const int64_t rows_bytes : {int64_t{1}, int64_t{1} << 16, int64_t{1} << 30}) {
        const int64_t budget = CacheBuffers::BudgetLeaving(rows_bytes, row_bytes, staged);
        EXPECT_GE(budget - CacheBuffers(budget, row_bytes, staged).bytes, rows_bytes);
      }
    }
  }
}

TEST(RowOutflowTest, RowsThatChangedSinceASnapshotBeganReachTheStoreAfterIt) {
  const CacheBuffers buffers(kCacheBytes, kRowBytes, /*staged=*/false);
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto cache,
      GuardedCache::Create({.row_bytes = kRowBytes, .budget_bytes = kCacheBytes - buffers.bytes},
                           /*staged=*/false, buffers.staging_rows));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto store, SmallStore(kRowBytes));
  const InitialRows initial_rows(TableOptions());
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto outflow, RowOutflow::Create(cache.get(), store.get(), store.get(),
                                             /*index=*/nullptr, &initial_rows, buffers, kRowBytes));
  ASSERT_TRUE(outflow->single_chunk());
  std::unique_lock<std::mutex> order = outflow->Lock();
  std::unique_lock<std::mutex> lock(cache->mutex());
  outflow->Hold();
  // A clean row, a marked one, which is the snapshot's, and one that has changed since.
  const std::vector<RowKey> keys = Keys(10, 3);
  RowOutflow::Chunk& chunk = outflow->chunk(0);
  chunk.hold = outflow->hold();
  const uint8_t left[] = {0, kEvictedMarked, kEvictedDirty};
  for (int64_t i = 0; i < 3; ++i) {
    chunk.evicted[i] = left[i];
    chunk.evicted_keys[i] = keys[static_cast<size_t>(i)];
    chunk.evicted_rows.data()[i * kRowBytes] = static_cast<std::byte>(50 + i);
  }
  outflow->Take(chunk, 3);
  EXPECT_EQ(outflow->FindHeld(keys[1]), nullptr);
  const std::byte* const held = outflow->FindHeld(keys[2]);
  ASSERT_NE(held, nullptr);
  EXPECT_EQ(static_cast<int>(*held), 52);
  lock.unlock();
  HOTROW_ASSERT_OK(outflow->WriteBack());
  EXPECT_EQ(Stored(store.get(), keys[0]), -1);
  EXPECT_EQ(Stored(store.get(), keys[1]), 51);
  EXPECT_EQ(Stored(store.get(), keys[2]), -1);

  lock.lock();
  outflow->LetGo();
  lock.unlock();
  HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t room, outflow->MakeRoom({}, 100'000, &order, &lock));
  EXPECT_TRUE(lock.owns_lock());
  EXPECT_EQ(room, buffers.staging_rows);
  EXPECT_EQ(outflow->FindHeld(keys[2]), nullptr);
  EXPECT_EQ(Stored(store.get(), keys[2]), 52);
  EXPECT_EQ(outflow->rows_written(), 2);
  EXPECT_EQ(outflow->snapshot_counts().rows, 1);
  EXPECT_EQ(outflow->snapshot_counts().held, 1);
}

TEST(RowOutflowTest, RowsOnTheirWayOutWhenASnapshotBeginsBelongToIt) {
  const CacheBuffers buffers(kCacheBytes, kRowBytes, /*staged=*/false);
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto cache,
      GuardedCache::Create({.row_bytes = kRowBytes, .budget_bytes = kCacheBytes - buffers.bytes},
                           /*staged=*/false, buffers.staging_rows));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto store, SmallStore(kRowBytes));
  const InitialRows initial_rows(TableOptions());
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto outflow, RowOutflow::Create(cache.get(), store.get(), store.get(),
                                             /*index=*/nullptr, &initial_rows, buffers, kRowBytes));
  const std::vector<RowKey> keys = Keys(10, 2);
  const std::unique_lock<std::mutex> order = outflow->Lock();
  std::unique_lock<std::mutex> lock(cache->mutex());
  // Sent without a snapshot, and while the one before was written.
  for (const bool beside_another : {false, true}) {
    const RowKey key = keys[beside_another];
    if (beside_another) outflow->Hold();
    RowOutflow::Chunk& chunk = outflow->chunk(0);
    chunk.hold = outflow->hold();
    outflow->LetGo();
    outflow->Hold();
    chunk.evicted[0] = kEvictedDirty;
    chunk.evicted_keys[0] = key;
    chunk.evicted_rows.data()[0] = std::byte{50};
    outflow->Take(chunk, 1);
    EXPECT_EQ(outflow->FindHeld(key), nullptr);
    lock.unlock();
    HOTROW_ASSERT_OK(outflow->WriteBack());
    EXPECT_EQ(Stored(store.get(), key), 50);
    lock.lock();
    outflow->LetGo();
  }
}

TEST(RowOutflowTest, RowsOfErasedKeysReachTheStoreNoMore) {
  const CacheBuffers buffers(kCacheBytes, kRowBytes, /*staged=*/false);
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto cache,
      GuardedCache::Create({.row_bytes = kRowBytes, .budget_bytes = kCacheBytes - buffers.bytes},
                           /*staged=*/false, buffers.staging_rows));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto store, SmallStore(kRowBytes));
  const TieredTableOptions options = TableOptions();
  const InitialRows initial_rows(options);
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto outflow, RowOutflow::Create(cache.get(), store.get(), store.get(),
                                             /*index=*/nullptr, &initial_rows, buffers, kRowBytes));
  const std::vector<RowKey> keys = Keys(10, 3);
  const std::unique_lock<std::mutex> order = outflow->Lock();
  std::unique_lock<std::mutex> lock(cache->mutex());
  RowOutflow::Chunk& chunk = outflow->chunk(0);
  const auto evict = [&](int64_t i, uint32_t last_step) {
    chunk.hold = outflow->hold();
    chunk.evicted[0] = kEvictedDirty;
    chunk.evicted_keys[0] = keys[static_cast<size_t>(i)];
    chunk.evicted_rows.data()[0] = std::byte{50};
    std::memcpy(chunk.evicted_rows.data() + options.tables[0].layout.step_offset, &last_step,
                sizeof(last_step));
    outflow->Take(chunk, 1);
  };
  // Held back, and not written since.
  outflow->Hold();
  evict(0, 7);
  evict(1, 7);
  outflow->LetGo();
  outflow->Erase(std::span(keys).first(1));
  EXPECT_EQ(outflow->FindHeld(keys[0]), nullptr);
  EXPECT_NE(outflow->FindHeld(keys[1]), nullptr);
  lock.unlock();
  HOTROW_ASSERT_OK(outflow->WriteBackHeld());
  EXPECT_EQ(Stored(store.get(), keys[0]), -1);
  EXPECT_EQ(Stored(store.get(), keys[1]), 50);
  // Dirty as it was, and an initial row since its key was erased; then trained again.
  for (const uint32_t last_step : {0u, 8u}) {
    lock.lock();
    evict(2, last_step);
    lock.unlock();
    HOTROW_ASSERT_OK(outflow->WriteBack());
    EXPECT_EQ(Stored(store.get(), keys[2]), last_step == 0 ? -1 : 50);
  }
  EXPECT_EQ(outflow->rows_written(), 2);
}

TEST(SnapshotMarksTest, EveryDirtyRowIsWrittenOnceWithTheBytesItHad) {
  constexpr int64_t kRows = 100;
  const CacheBuffers buffers(kCacheBytes, kRowBytes, /*staged=*/false);
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto cache,
      GuardedCache::Create({.row_bytes = kRowBytes, .budget_bytes = kCacheBytes - buffers.bytes},
                           /*staged=*/false, buffers.staging_rows));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto marks,
                              SnapshotMarks::Create(cache.get(), buffers, kRowBytes));
  const std::vector<RowKey> keys = Keys(0, kRows);
  std::vector<int64_t> slots(kRows);
  std::vector<Placement> placement(kRows);
  std::vector<uint8_t> evicted(kRows);
  std::vector<RowKey> evicted_keys(kRows);
  HostBuffer<std::byte> evicted_rows;
  HOTROW_ASSERT_OK_AND_ASSIGN(evicted_rows, HostBuffer<std::byte>::Create(kRows * kRowBytes));
  const ExecContext ctx;
  RowCache& rows = *cache->get();
  HOTROW_ASSERT_OK(
      rows.FindOrInsert(ctx, keys, {slots, placement, evicted, evicted_keys, evicted_rows.data()}));
  HOTROW_ASSERT_OK(rows.MarkFilled(ctx, slots));
  for (int64_t i = 0; i < kRows; ++i) *cache->row(slots[i]) = static_cast<std::byte>(i);
  // The last ten are clean.
  HOTROW_ASSERT_OK(rows.MarkDirty(ctx, std::span(slots).first(kRows - 10)));

  {
    const std::lock_guard<std::mutex> lock(cache->mutex());
    HOTROW_ASSERT_OK(marks->Begin());
  }
  // An update of some of them, clean ones among these.
  HOTROW_ASSERT_OK(marks->KeepBeforeUpdate(ctx, std::span(slots).last(30)));
  for (int64_t i = kRows - 30; i < kRows; ++i) *cache->row(slots[i]) = std::byte{200};
  std::map<uint64_t, int> written;
  for (bool more = true; more;) {
    HOTROW_ASSERT_OK_AND_ASSIGN(
        more, marks->WritePart(
                  [&](std::span<const RowKey> part, std::span<const std::byte* const> bytes) {
                    for (size_t i = 0; i < part.size(); ++i) {
                      EXPECT_TRUE(written.emplace(part[i].key, static_cast<int>(*bytes[i])).second);
                    }
                    return absl::OkStatus();
                  }));
  }
  ASSERT_EQ(written.size(), kRows - 10);
  for (const auto& [key, byte] : written) EXPECT_EQ(byte, static_cast<int>(key));
  const std::lock_guard<std::mutex> lock(cache->mutex());
  EXPECT_EQ(marks->pins(), 0);
  EXPECT_EQ(marks->counts().rows, kRows - 10);
  EXPECT_EQ(marks->counts().copied, 20);
  marks->End();
}

// Its bytes are none that go by the bus, and those of the host.
TEST(RowInflowTest, InitialRowsThatTheDeviceMakesDoNotPassThroughStaging) {
  for (const InitializerKind kind : {InitializerKind::kUniform, InitializerKind::kNormal}) {
    TieredTableOptions options = TableOptions();
    TieredTableSpec& spec = options.tables[0];
    spec.initializer.kind = kind;
    options.cache_bytes = kCacheBytes;
    options.place = {.staged = true};
    const int64_t row_bytes = spec.layout.row_bytes;
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto store, SmallStore(row_bytes));
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto table,
                                TieredTable::Create(options, store.get(), /*in_place=*/nullptr));
    const std::vector<RowKey> keys = Keys(10, 40);
    const std::vector<int32_t> counts(keys.size(), 1);
    StepRows step;
    HOTROW_ASSERT_OK(table->Place({}, keys, counts, &step));
    std::vector<RowKey> miss_keys;
    std::vector<std::byte*> staging;
    HOTROW_ASSERT_OK(table->NextMisses(&step, &miss_keys, &staging));
    ASSERT_EQ(miss_keys.size(), keys.size());
    constexpr int kUnwritten = 0xEE;
    for (std::byte* const row : staging) std::memset(row, kUnwritten, row_bytes);
    // The store has the row of every other key.
    std::vector<uint8_t> found;
    for (size_t i = 0; i < keys.size(); ++i) found.push_back(i % 2);
    HOTROW_ASSERT_OK(table->Fill({}, &step, found));
    const bool is_made = kind == InitializerKind::kUniform;
    EXPECT_EQ(staging[0][0] == std::byte{kUnwritten}, is_made);
    HOTROW_ASSERT_OK(table->NextMisses(&step, &miss_keys, &staging));
    step.resident = true;
    std::vector<std::byte*> rows(keys.size());
    HOTROW_ASSERT_OK(table->ResolveForRead({}, &step, rows));
    std::vector<std::byte> expected(static_cast<size_t>(row_bytes));
    for (size_t i = 0; i < keys.size(); ++i) {
      std::memset(expected.data(), kUnwritten, expected.size());
      std::byte* const to = expected.data();
      if (found[i] == 0) {
        HOTROW_ASSERT_OK(InitialRows(options).Write({}, std::span(keys).subspan(i, 1), {&to, 1}));
      }
      EXPECT_EQ(std::memcmp(rows[i], to, expected.size()), 0) << i;
    }
    table->Release({}, &step, /*updated=*/false);
    table->WaitForDevice();
  }
}

class InPlaceTableTest : public testing::Test {
 protected:
  void SetUp() override {
    const TieredTableOptions options = TableOptions();
    HOTROW_ASSERT_OK_AND_ASSIGN(store_, SmallStore(options.tables[0].layout.row_bytes));
    HOTROW_ASSERT_OK_AND_ASSIGN(table_, TieredTable::Create(options, store_.get(), store_.get()));
    EXPECT_FALSE(table_->has_cache());
  }

  // A step up to ResolveForRead.
  void Begin(const std::vector<RowKey>& keys, StepRows* step, std::vector<std::byte*>* rows) {
    const std::vector<int32_t> counts(keys.size(), 1);
    HOTROW_ASSERT_OK_AND_ASSIGN(const TieredTable::Placed placed,
                                table_->Place(ExecContext(), keys, counts, step));
    EXPECT_EQ(placed, TieredTable::Placed::kAll);
    std::vector<RowKey> misses;
    HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t n, table_->NextMisses(step, &misses, rows));
    EXPECT_EQ(n, 0);
    step->resident = true;
    rows->resize(keys.size());
    HOTROW_ASSERT_OK(table_->ResolveForRead(ExecContext(), step, *rows));
  }

  std::unique_ptr<HostStore> store_;
  std::unique_ptr<TieredTable> table_;
};

TEST_F(InPlaceTableTest, NewRowsJoinTheStoreWhenTheyAreUpdated) {
  const std::vector<RowKey> keys = Keys(0, 5);
  for (int pass = 0; pass < 2; ++pass) {
    StepRows step;
    std::vector<std::byte*> rows;
    Begin(keys, &step, &rows);
    for (std::byte* const row : rows) {
      float weight = 0;
      std::memcpy(&weight, row, sizeof(weight));
      EXPECT_EQ(weight, pass == 0 ? 0.5f : 2.0f);
    }
    EXPECT_EQ(store_->Stats().rows, pass == 0 ? 0 : 5);
    HOTROW_ASSERT_OK(table_->ResolveForUpdate(&step, rows));
    const float weight = 2;
    for (std::byte* const row : rows) std::memcpy(row, &weight, sizeof(weight));
    table_->Release(ExecContext(), &step, /*updated=*/true);
    EXPECT_EQ(store_->Stats().rows, 5);
  }
  const TieredTableStats stats = table_->Stats();
  EXPECT_EQ(stats.store_counts.unique_keys, 10);
  EXPECT_EQ(stats.store_counts.unique_hits, 5);
  EXPECT_EQ(stats.rows_written, 5);
}

TEST_F(InPlaceTableTest, AStepThatIsWithdrawnLeavesNoRows) {
  const std::vector<RowKey> keys = Keys(0, 5);
  StepRows step;
  std::vector<std::byte*> rows;
  Begin(keys, &step, &rows);
  HOTROW_ASSERT_OK(table_->ResolveForUpdate(&step, rows));
  HOTROW_ASSERT_OK(table_->Withdraw(step));
  table_->Release(ExecContext(), &step, /*updated=*/false);
  EXPECT_EQ(store_->Stats().rows, 0);
  // Nor does reading.
  std::vector<std::byte> staging(5 * static_cast<size_t>(table_->row_bytes()));
  HOTROW_ASSERT_OK(table_->Read(ExecContext(), keys, staging.data(), rows));
  EXPECT_EQ(rows[0], staging.data());
  EXPECT_EQ(store_->Stats().rows, 0);
}

}  // namespace
}  // namespace hotrow::internal
