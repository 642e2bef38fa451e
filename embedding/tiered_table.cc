#include "embedding/tiered_table.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "base/trace.h"

namespace hotrow {
namespace {

using internal::HeldRows;

// Rows are given ways and written back a chunk at a time: the lock is held for a chunk (under a
// millisecond), and a chunk's worth of evicted rows is staged. Few enough that staging stays a
// small part of a cache of ordinary size.
constexpr int64_t kMaxStagingRows = 4096;
constexpr int64_t kMinStagingRows = 32;
// The buffers of a snapshot: rows that WriteSnapshotPart takes at a time, copies of rows that are
// updated, and evicted rows that are held back. The last must bridge the time until the snapshot is
// captured; the others only need to feed the store.
constexpr int64_t kMaxCopyRows = 4 * kMaxStagingRows;
constexpr int64_t kMaxHeldBytes = int64_t{64} << 20;
constexpr int64_t kMinSnapshotRows = 8;
// Shares of a cache's budget, in 1/64.
constexpr int64_t kStagingShare = 4;
constexpr int64_t kPartShare = 2;
constexpr int64_t kCopyShare = 1;
constexpr int64_t kHeldShare = 2;
constexpr int64_t kShares = 64;
constexpr int64_t kAllShares = kStagingShare + kPartShare + kCopyShare + kHeldShare;
// Keys, marks and pointers beside each staged row (the scratch vectors of TieredTable and
// RowCache's 16 bytes).
constexpr int64_t kScratchBytesPerStagingRow = 96;
constexpr int64_t kScratchBytesPerPartRow = 32;
constexpr int64_t kScratchBytesPerCopyRow = 16;
// Keys that one thread asks of the store in one call.
constexpr int64_t kStoreGrain = 2048;
// Held back rows and dirty rows are written in batches of so many.
constexpr int64_t kWriteBatchRows = 4096;

int64_t StagingRowBytes(int64_t row_bytes) { return row_bytes + kScratchBytesPerStagingRow; }
int64_t PartRowBytes(int64_t row_bytes) { return row_bytes + kScratchBytesPerPartRow; }
int64_t CopyRowBytes(int64_t row_bytes) { return row_bytes + kScratchBytesPerCopyRow; }
int64_t HeldRowBytes(int64_t row_bytes) {
  return HeldRows::BytesPerRow(row_bytes) + static_cast<int64_t>(sizeof(void*));
}

int64_t ShareRows(int64_t cache_bytes, int64_t share, int64_t bytes_per_row, int64_t least,
                  int64_t most) {
  return std::clamp(cache_bytes / kShares * share / bytes_per_row, least, most);
}

// How many rows the buffers of a cache have.
struct Buffers {
  int64_t staging_rows;
  int64_t part_rows;
  int64_t copy_rows;
  int64_t held_rows;
  int64_t bytes;

  Buffers(int64_t cache_bytes, int64_t row_bytes)
      : staging_rows(ShareRows(cache_bytes, kStagingShare, StagingRowBytes(row_bytes),
                               kMinStagingRows, kMaxStagingRows)),
        part_rows(ShareRows(cache_bytes, kPartShare, PartRowBytes(row_bytes), kMinSnapshotRows,
                            kMaxStagingRows)),
        copy_rows(ShareRows(cache_bytes, kCopyShare, CopyRowBytes(row_bytes), kMinSnapshotRows,
                            kMaxCopyRows)),
        held_rows(ShareRows(cache_bytes, kHeldShare, HeldRowBytes(row_bytes), kMinSnapshotRows,
                            std::max(kMinSnapshotRows, kMaxHeldBytes / HeldRowBytes(row_bytes)))),
        bytes(staging_rows * StagingRowBytes(row_bytes) + part_rows * PartRowBytes(row_bytes) +
              copy_rows * CopyRowBytes(row_bytes) + held_rows * HeldRowBytes(row_bytes)) {}
};

// The first error of the bodies of a ParallelFor.
class FirstError {
 public:
  void Update(const absl::Status& status) {
    if (status.ok()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    status_.Update(status);
  }
  absl::Status status() const { return status_; }

 private:
  std::mutex mutex_;
  absl::Status status_;
};

}  // namespace

int64_t TieredTable::MinCacheBytes(int64_t rows, int64_t row_bytes) {
  // The buffers of a budget B take at most the greater of their shares of B and of their least
  // sizes, so at most the sum of both; this B leaves BudgetForRows(rows) for the cache.
  const int64_t least = RowCache::BudgetForRows(rows, row_bytes) + Buffers(0, row_bytes).bytes;
  return CeilDiv(least, kShares - kAllShares) * kShares;
}

absl::StatusOr<std::unique_ptr<TieredTable>> TieredTable::Create(const TieredTableOptions& options,
                                                                 RowStore* store,
                                                                 HostStore* in_place) {
  HOTROW_CHECK(!options.tables.empty());
  HOTROW_CHECK(store != nullptr);
  HOTROW_CHECK(options.cache_bytes > 0 || in_place != nullptr);
  std::unique_ptr<TieredTable> table(new TieredTable());
  table->tables_ = options.tables;
  table->seed_ = options.seed;
  const int64_t row_bytes = options.tables[0].layout.row_bytes;
  table->row_bytes_ = row_bytes;
  table->store_ = store;
  table->in_place_ = in_place;
  for (const TieredTableSpec& spec : options.tables) {
    HOTROW_CHECK(spec.layout.row_bytes == table->row_bytes_);
  }
  if (options.cache_bytes == 0) return table;
  if (options.cache_bytes < MinCacheBytes(1, row_bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cache budget ", options.cache_bytes, " bytes for rows of ", row_bytes,
                     " bytes; the least is ", MinCacheBytes(1, row_bytes)));
  }
  const Buffers buffers(options.cache_bytes, row_bytes);
  table->cache_budget_bytes_ = options.cache_bytes;
  table->buffer_bytes_ = buffers.bytes;
  HOTROW_ASSIGN_OR_RETURN(table->cache_,
                          RowCache::Create({.row_bytes = row_bytes,
                                            .budget_bytes = options.cache_bytes - buffers.bytes,
                                            .policy = options.cache_policy}));
  table->staging_rows_ = buffers.staging_rows;
  HOTROW_ASSIGN_OR_RETURN(table->staging_, HostBuffer<std::byte>::Create(
                                               buffers.staging_rows * row_bytes, HugePages::kTry));
  table->part_rows_ = buffers.part_rows;
  HOTROW_ASSIGN_OR_RETURN(table->part_,
                          HostBuffer<std::byte>::Create(buffers.part_rows * row_bytes));
  HOTROW_ASSIGN_OR_RETURN(table->copy_keys_, HostBuffer<RowKey>::Create(buffers.copy_rows));
  HOTROW_ASSIGN_OR_RETURN(table->copies_,
                          HostBuffer<std::byte>::Create(buffers.copy_rows * row_bytes));
  HOTROW_ASSIGN_OR_RETURN(table->held_, HeldRows::Create(buffers.held_rows, row_bytes));
  return table;
}

const TieredTableSpec& TieredTable::SpecOf(uint32_t table) const {
  for (const TieredTableSpec& spec : tables_) {
    if (spec.table == table) return spec;
  }
  HOTROW_CHECK(false);
}

int64_t TieredTable::cache_used_bytes() const {
  return cache_ == nullptr ? 0 : cache_stats().used_bytes + buffer_bytes_;
}

RowCacheStats TieredTable::cache_stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return cache_ == nullptr ? RowCacheStats() : cache_->Stats();
}

TierCounts TieredTable::cache_counts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return cache_counts_;
}

TierCounts TieredTable::store_counts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return store_counts_;
}

SnapshotCounts TieredTable::snapshot_counts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return snapshot_counts_;
}

absl::Status TieredTable::InitRowsOf(const ExecContext& ctx, std::span<const RowKey> keys,
                                     std::span<std::byte* const> rows) const {
  std::vector<uint64_t> raw;
  const auto n = static_cast<int64_t>(keys.size());
  for (int64_t begin = 0; begin < n;) {
    int64_t end = begin + 1;
    while (end < n && keys[end].table == keys[begin].table) ++end;
    raw.resize(end - begin);
    for (int64_t i = begin; i < end; ++i) raw[i - begin] = keys[i].key;
    const TieredTableSpec& spec = SpecOf(keys[begin].table);
    HOTROW_RETURN_IF_ERROR(InitRows(ctx, {.initializer = spec.initializer,
                                          .layout = &spec.layout,
                                          .initial_accumulator = spec.optimizer.initial_accumulator,
                                          .optimizer = spec.optimizer.kind,
                                          .seed = seed_,
                                          .table = spec.table,
                                          .num_rows = end - begin,
                                          .keys = raw.data(),
                                          .rows = rows.data() + begin}));
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status FindInStore(const ExecContext& ctx, RowStore* store, bool spread,
                         std::span<const RowKey> keys, std::span<std::byte* const> rows,
                         std::span<uint8_t> found) {
  if (keys.empty()) return absl::OkStatus();
  if (!spread) return store->Find(keys, rows, found);
  FirstError error;
  ParallelFor(
      ctx.pool, static_cast<int64_t>(keys.size()), kStoreGrain, [&](int64_t begin, int64_t end) {
        error.Update(store->Find(keys.subspan(begin, end - begin), rows.subspan(begin, end - begin),
                                 found.subspan(begin, end - begin)));
      });
  return error.status();
}

absl::Status TieredTable::AppendRows(std::span<const RowKey> keys,
                                     std::span<const std::byte* const> rows) {
  HOTROW_RETURN_IF_ERROR(store_->InsertOrAssign(keys, rows));
  rows_written_back_.fetch_add(static_cast<int64_t>(keys.size()), std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status TieredTable::WriteBackPending() {
  if (pending_keys_.empty()) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(AppendRows(pending_keys_, pending_rows_));
  pending_keys_.clear();
  pending_rows_.clear();
  return absl::OkStatus();
}

absl::Status TieredTable::WriteBackHeld() {
  std::vector<RowKey> keys;
  std::vector<const std::byte*> rows;
  for (int64_t begin = 0; begin < held_.size(); begin += kWriteBatchRows) {
    const int64_t end = std::min(held_.size(), begin + kWriteBatchRows);
    keys.clear();
    rows.clear();
    for (int64_t i = begin; i < end; ++i) {
      keys.push_back(held_.key(i));
      rows.push_back(held_.row(i));
    }
    // Some may be written and others not; all stay, so nothing is lost.
    HOTROW_RETURN_IF_ERROR(AppendRows(keys, rows));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  held_.Clear();
  return absl::OkStatus();
}

// --- Making rows resident
// ----------------------------------------------------------------------------------------

void TieredTable::PlaceChunk(const ExecContext& ctx, std::span<const RowKey> keys,
                             std::span<const int32_t> counts, int64_t most, int64_t* cursor,
                             StepRows* step, bool* no_room) {
  const auto n = static_cast<int64_t>(keys.size());
  chunk_keys_.clear();
  chunk_positions_.clear();
  for (; *cursor < n && std::ssize(chunk_keys_) < most; ++*cursor) {
    if (step->slots[*cursor] >= 0) continue;
    chunk_keys_.push_back(keys[*cursor]);
    chunk_positions_.push_back(*cursor);
  }
  const size_t size = chunk_keys_.size();
  chunk_slots_.resize(size);
  placement_.resize(size);
  evicted_.resize(size);
  evicted_keys_.resize(size);
  cache_->FindOrInsert(ctx, chunk_keys_,
                       {.slots = chunk_slots_,
                        .placement = placement_,
                        .evicted = evicted_,
                        .evicted_keys = evicted_keys_,
                        .evicted_rows = staging_.data()});
  for (size_t i = 0; i < size; ++i) {
    const int64_t position = chunk_positions_[i];
    const int64_t slot = chunk_slots_[i];
    if (evicted_[i] != 0) {
      const std::byte* const row = staging_.data() + static_cast<int64_t>(i) * row_bytes_;
      if (evicted_[i] == kEvictedDirty && holding_) {
        held_.Add(evicted_keys_[i], row);
        ++snapshot_counts_.held;
      } else {
        pending_keys_.push_back(evicted_keys_[i]);
        pending_rows_.push_back(row);
        if (evicted_[i] == kEvictedMarked) ++snapshot_counts_.rows;
      }
    }
    // A key is counted at its first probe only: another try finds what the one before brought in.
    if (position >= step->probed) {
      const bool hit = placement_[i] == Placement::kHit;
      cache_counts_.unique_keys += 1;
      cache_counts_.unique_hits += hit ? 1 : 0;
      cache_counts_.lookups += counts[position];
      cache_counts_.lookup_hits += hit ? counts[position] : 0;
      step->probed = position + 1;
    }
    step->slots[position] = slot;
    if (placement_[i] == Placement::kNoRoom) *no_room = true;
  }
  for (size_t i = 0; i < size; ++i) {
    if (placement_[i] != Placement::kFilled) continue;
    const int64_t slot = chunk_slots_[i];
    if (const std::byte* const held = held_.Find(chunk_keys_[i]); held != nullptr) {
      // It never reached the store, so it comes back as it left.
      std::memcpy(cache_->row(slot), held, static_cast<size_t>(row_bytes_));
      cache_->MarkFilled({&slot, 1});
      cache_->MarkDirty({&slot, 1});
      held_.Remove(chunk_keys_[i]);
      continue;
    }
    step->miss_keys.push_back(chunk_keys_[i]);
    step->miss_rows.push_back(cache_->row(slot));
    step->miss_positions.push_back(chunk_positions_[i]);
  }
}

absl::StatusOr<TieredTable::Placed> TieredTable::Place(const ExecContext& ctx,
                                                       std::span<const RowKey> keys,
                                                       std::span<const int32_t> counts,
                                                       StepRows* step) {
  HOTROW_CHECK(!step->resident);
  HOTROW_CHECK(keys.size() == counts.size());
  HOTROW_CHECK(step->miss_keys.empty());
  if (cache_ == nullptr) return Placed::kAll;
  const auto n = static_cast<int64_t>(keys.size());
  step->slots.resize(n, -1);
  for (int64_t cursor = 0; cursor < n;) {
    std::unique_lock<std::mutex> order(order_mutex_);
    HOTROW_RETURN_IF_ERROR(WriteBackPending());
    std::unique_lock<std::mutex> lock(mutex_);
    if (!holding_ && held_.size() > 0) {
      lock.unlock();
      HOTROW_RETURN_IF_ERROR(WriteBackHeld());
      lock.lock();
    }
    // A chunk evicts at most as many rows as it has keys.
    int64_t most = staging_rows_;
    if (holding_) {
      const int64_t free = held_.capacity() - held_.size();
      const int64_t wanted =
          std::min({n - cursor, staging_rows_, CeilDiv(held_.capacity(), kMinSnapshotRows)});
      if (free < wanted) {
        order.unlock();
        TraceSpan span(ctx.trace, "wait_for_snapshot");
        const int64_t begin = NowNanos();
        snapshot_changed_.wait(lock, [&] { return !holding_; });
        ++snapshot_counts_.evict_waits;
        snapshot_counts_.evict_wait_ns += NowNanos() - begin;
        continue;
      }
      most = std::min(most, free);
    }
    bool no_room = false;
    {
      TraceSpan span(ctx.trace, "probe");
      PlaceChunk(ctx, keys, counts, most, &cursor, step, &no_room);
    }
    const bool beside_snapshot = snapshot_pins_ > 0;
    lock.unlock();
    {
      TraceSpan span(pending_keys_.empty() ? nullptr : ctx.trace, "write_back");
      HOTROW_RETURN_IF_ERROR(WriteBackPending());
    }
    if (no_room) return beside_snapshot ? Placed::kNoRoomBesideSnapshot : Placed::kNoRoom;
  }
  return Placed::kAll;
}

absl::Status TieredTable::Fill(const ExecContext& ctx, std::span<const int32_t> counts,
                               StepRows* step, std::span<const uint8_t> found) {
  HOTROW_CHECK(found.size() == step->miss_keys.size());
  if (found.empty()) return absl::OkStatus();
  absent_keys_.clear();
  absent_rows_.clear();
  filled_slots_.clear();
  TierCounts seen;
  for (size_t i = 0; i < found.size(); ++i) {
    const int64_t position = step->miss_positions[i];
    filled_slots_.push_back(step->slots[position]);
    seen.unique_keys += 1;
    seen.lookups += counts[position];
    if (found[i] != 0) {
      seen.unique_hits += 1;
      seen.lookup_hits += counts[position];
    } else {
      absent_keys_.push_back(step->miss_keys[i]);
      absent_rows_.push_back(step->miss_rows[i]);
    }
  }
  rows_read_.fetch_add(seen.unique_hits, std::memory_order_relaxed);
  HOTROW_RETURN_IF_ERROR(InitRowsOf(ctx, absent_keys_, absent_rows_));
  step->miss_keys.clear();
  step->miss_rows.clear();
  step->miss_positions.clear();
  const std::lock_guard<std::mutex> lock(mutex_);
  cache_->MarkFilled(filled_slots_);
  store_counts_.unique_keys += seen.unique_keys;
  store_counts_.unique_hits += seen.unique_hits;
  store_counts_.lookups += seen.lookups;
  store_counts_.lookup_hits += seen.lookup_hits;
  return absl::OkStatus();
}

void TieredTable::FinishPlacing(const ExecContext& ctx) {
  if (cache_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  cache_->EndStep(ctx);
}

void TieredTable::GiveUp(StepRows* step) {
  if (cache_ != nullptr) {
    const std::lock_guard<std::mutex> lock(mutex_);
    abandoned_slots_.clear();
    for (const int64_t position : step->miss_positions) {
      abandoned_slots_.push_back(step->slots[position]);
      step->slots[position] = -1;
    }
    cache_->Abandon(abandoned_slots_);
    std::erase(step->slots, -1);
    cache_->Unpin(step->slots, /*dirty=*/false);
  }
  step->slots.clear();
  step->miss_keys.clear();
  step->miss_rows.clear();
  step->miss_positions.clear();
  step->resident = false;
}

// --- A resident step
// ---------------------------------------------------------------------------------------------

absl::Status TieredTable::ResolveForRead(const ExecContext& ctx, std::span<const RowKey> keys,
                                         std::span<const int32_t> counts, StepRows* step,
                                         std::span<std::byte*> rows) {
  HOTROW_CHECK(step->resident);
  if (cache_ != nullptr) {
    for (size_t i = 0; i < keys.size(); ++i) rows[i] = cache_->row(step->slots[i]);
    return absl::OkStatus();
  }
  FirstError error;
  ParallelFor(ctx.pool, static_cast<int64_t>(keys.size()), kStoreGrain,
              [&](int64_t begin, int64_t end) {
                error.Update(in_place_->FindInPlace(keys.subspan(begin, end - begin),
                                                    rows.subspan(begin, end - begin)));
              });
  HOTROW_RETURN_IF_ERROR(error.status());
  step->missing.clear();
  const std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (rows[i] == nullptr) step->missing.push_back(static_cast<int64_t>(i));
    if (step->probed == 0) {
      const bool hit = rows[i] != nullptr;
      store_counts_.unique_keys += 1;
      store_counts_.unique_hits += hit ? 1 : 0;
      store_counts_.lookups += counts[i];
      store_counts_.lookup_hits += hit ? counts[i] : 0;
    }
  }
  step->probed = static_cast<int64_t>(keys.size());
  // Addresses in a vector would be 16-byte aligned as well (operator new), and row_bytes is a
  // multiple of 16.
  step->staging.resize(step->missing.size() * static_cast<size_t>(row_bytes_));
  miss_keys_.clear();
  miss_rows_.clear();
  for (size_t m = 0; m < step->missing.size(); ++m) {
    std::byte* const row = step->staging.data() + m * static_cast<size_t>(row_bytes_);
    rows[step->missing[m]] = row;
    miss_keys_.push_back(keys[step->missing[m]]);
    miss_rows_.push_back(row);
  }
  return InitRowsOf(ctx, miss_keys_, miss_rows_);
}

absl::Status TieredTable::ResolveForUpdate(std::span<const RowKey> keys, StepRows* step,
                                           std::span<std::byte*> rows) {
  HOTROW_CHECK(step->resident);
  if (cache_ != nullptr || step->missing.empty()) return absl::OkStatus();
  miss_keys_.clear();
  for (const int64_t i : step->missing) miss_keys_.push_back(keys[i]);
  miss_rows_.resize(miss_keys_.size());
  found_.resize(miss_keys_.size());
  const absl::Status inserted = in_place_->InsertInPlace(miss_keys_, miss_rows_, found_);
  if (!inserted.ok()) {
    // Some may have been added before the budget ran out; they are zero and must not stay.
    HOTROW_RETURN_IF_ERROR(Withdraw(keys, *step));
    return inserted;
  }
  for (size_t m = 0; m < step->missing.size(); ++m) {
    std::memcpy(miss_rows_[m], rows[step->missing[m]], static_cast<size_t>(row_bytes_));
    rows[step->missing[m]] = miss_rows_[m];
  }
  rows_written_back_ += static_cast<int64_t>(step->missing.size());
  return absl::OkStatus();
}

absl::Status TieredTable::Withdraw(std::span<const RowKey> keys, const StepRows& step) {
  if (cache_ != nullptr) return absl::OkStatus();
  miss_keys_.clear();
  for (const int64_t i : step.missing) miss_keys_.push_back(keys[i]);
  return store_->Erase(miss_keys_);
}

void TieredTable::PrepareForUpdate(const StepRows& step) {
  if (cache_ == nullptr) return;
  std::unique_lock<std::mutex> lock(mutex_);
  for (const int64_t slot : step.slots) {
    if (!marking_) return;
    if (num_copies_ == copy_keys_.size()) {
      ++snapshot_counts_.update_waits;
      const int64_t begin = NowNanos();
      snapshot_changed_.wait(lock, [&] { return !marking_ || num_copies_ < copy_keys_.size(); });
      snapshot_counts_.update_wait_ns += NowNanos() - begin;
      if (!marking_) return;
    }
    const int64_t at = (first_copy_ + num_copies_) % copy_keys_.size();
    if (!cache_->TakeMark(slot, &copy_keys_[at])) continue;
    std::memcpy(copies_.data() + at * row_bytes_, cache_->row(slot),
                static_cast<size_t>(row_bytes_));
    ++num_copies_;
    ++snapshot_counts_.copied;
  }
}

void TieredTable::Release(StepRows* step, bool updated) {
  if (cache_ != nullptr && step->resident) {
    const std::lock_guard<std::mutex> lock(mutex_);
    cache_->Unpin(step->slots, updated);
  }
  step->slots.clear();
  step->missing.clear();
  step->probed = 0;
  step->resident = false;
}

// --- All rows
// ----------------------------------------------------------------------------------------------------

absl::Status TieredTable::Read(const ExecContext& ctx, std::span<const RowKey> keys,
                               std::byte* staging, std::span<std::byte*> rows) {
  miss_keys_.clear();
  miss_rows_.clear();
  const auto stage = [&](size_t i) {
    rows[i] = staging;
    staging += row_bytes_;
  };
  if (cache_ != nullptr) {
    const std::lock_guard<std::mutex> order(order_mutex_);
    HOTROW_RETURN_IF_ERROR(WriteBackPending());
    const std::lock_guard<std::mutex> lock(mutex_);
    cache_->Find(ctx, keys, rows);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (rows[i] != nullptr) continue;
      stage(i);
      if (const std::byte* const held = held_.Find(keys[i]); held != nullptr) {
        std::memcpy(rows[i], held, static_cast<size_t>(row_bytes_));
        continue;
      }
      miss_keys_.push_back(keys[i]);
      miss_rows_.push_back(rows[i]);
    }
  } else {
    FirstError error;
    ParallelFor(ctx.pool, static_cast<int64_t>(keys.size()), kStoreGrain,
                [&](int64_t begin, int64_t end) {
                  error.Update(in_place_->FindInPlace(keys.subspan(begin, end - begin),
                                                      rows.subspan(begin, end - begin)));
                });
    HOTROW_RETURN_IF_ERROR(error.status());
    for (size_t i = 0; i < keys.size(); ++i) {
      if (rows[i] != nullptr) continue;
      stage(i);
      miss_keys_.push_back(keys[i]);
      miss_rows_.push_back(rows[i]);
    }
  }
  found_.assign(miss_keys_.size(), 0);
  if (cache_ != nullptr) {
    HOTROW_RETURN_IF_ERROR(
        FindInStore(ctx, store_, in_place_ != nullptr, miss_keys_, miss_rows_, found_));
  }
  size_t absent = 0;
  for (size_t i = 0; i < miss_keys_.size(); ++i) {
    if (found_[i] != 0) continue;
    miss_keys_[absent] = miss_keys_[i];
    miss_rows_[absent] = miss_rows_[i];
    ++absent;
  }
  return InitRowsOf(ctx, std::span(miss_keys_).first(absent), std::span(miss_rows_).first(absent));
}

absl::Status TieredTable::Flush() {
  if (cache_ == nullptr) return absl::OkStatus();
  const std::lock_guard<std::mutex> order(order_mutex_);
  HOTROW_RETURN_IF_ERROR(WriteBackPending());
  HOTROW_RETURN_IF_ERROR(WriteBackHeld());
  return cache_->ForEachDirty(
      [&](std::span<const RowKey> keys, std::span<const std::byte* const> rows) {
        return AppendRows(keys, rows);
      });
}

// --- Snapshots
// ---------------------------------------------------------------------------------------------------

absl::Status TieredTable::BeginSnapshot() {
  HOTROW_CHECK(cache_ != nullptr);
  const std::lock_guard<std::mutex> order(order_mutex_);
  // What a snapshot before this one held back belongs to this one.
  HOTROW_RETURN_IF_ERROR(WriteBackPending());
  HOTROW_RETURN_IF_ERROR(WriteBackHeld());
  const std::lock_guard<std::mutex> lock(mutex_);
  HOTROW_CHECK(!holding_ && !marking_ && num_copies_ == 0 && snapshot_pins_ == 0);
  holding_ = true;
  marking_ = cache_->MarkDirtyRows() > 0;
  snapshot_cursor_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<bool> TieredTable::WriteSnapshotPart() {
  part_keys_.clear();
  part_pointers_.clear();
  part_slots_.clear();
  bool all = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    HOTROW_CHECK(holding_);
    // Copies first: an update may be waiting for their room.
    for (int64_t i = 0; i < std::min(num_copies_, part_rows_); ++i) {
      const int64_t at = (first_copy_ + i) % copy_keys_.size();
      part_keys_.push_back(copy_keys_[at]);
      part_pointers_.push_back(copies_.data() + at * row_bytes_);
    }
    if (part_keys_.empty() && marking_) {
      part_keys_.resize(part_rows_);
      part_slots_.resize(part_rows_);
      const int64_t n =
          cache_->TakeMarked(&snapshot_cursor_, part_keys_, part_slots_, part_.data());
      part_keys_.resize(n);
      part_slots_.resize(n);
      snapshot_pins_ = n;
      for (int64_t i = 0; i < n; ++i) part_pointers_.push_back(part_.data() + i * row_bytes_);
      if (n == 0 && snapshot_cursor_ == cache_->num_slots()) marking_ = false;
    }
    all = !marking_ && part_keys_.empty();
  }
  if (all) {
    // Marked rows that were evicted, and rows that were on their way when the snapshot began.
    const std::lock_guard<std::mutex> order(order_mutex_);
    HOTROW_RETURN_IF_ERROR(WriteBackPending());
    return false;
  }
  if (part_keys_.empty()) return true;
  const absl::Status status = AppendRows(part_keys_, part_pointers_);
  const auto n = static_cast<int64_t>(part_keys_.size());
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!part_slots_.empty()) {
    cache_->Unpin(part_slots_, /*dirty=*/!status.ok());
    snapshot_pins_ = 0;
  } else if (status.ok()) {
    first_copy_ = (first_copy_ + n) % copy_keys_.size();
    num_copies_ -= n;
  }
  snapshot_changed_.notify_all();
  if (!status.ok()) return status;
  snapshot_counts_.rows += n;
  return true;
}

void TieredTable::EndSnapshot() {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Rows of which there are copies are dirty, or held back and newer.
  if (marking_) cache_->DropMarks();
  num_copies_ = 0;
  marking_ = false;
  holding_ = false;
  snapshot_changed_.notify_all();
}

}  // namespace hotrow
