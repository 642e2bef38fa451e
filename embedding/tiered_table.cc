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
#include "ops/gather.h"

namespace hotrow {
namespace {

using internal::HeldRows;

// Rows are given ways and written back a chunk at a time: the lock is held for a chunk (under a
// millisecond), and a chunk's worth of evicted rows is staged. Few enough that staging stays a
// small part of a cache of ordinary size.
constexpr int64_t kMaxStagingRows = 4096;
constexpr int64_t kMinStagingRows = 32;
// A GPU takes in a chunk in tens of microseconds, as long as it takes to ask it to.
constexpr int64_t kMaxStagingRowsGpu = 65536;
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
  int64_t bytes;       // of the budget
  int64_t host_bytes;  // beside it, staged

  Buffers(int64_t cache_bytes, int64_t row_bytes, bool staged)
      : staging_rows(ShareRows(cache_bytes, kStagingShare, StagingRowBytes(row_bytes),
                               kMinStagingRows, staged ? kMaxStagingRowsGpu : kMaxStagingRows)),
        part_rows(ShareRows(cache_bytes, kPartShare, PartRowBytes(row_bytes), kMinSnapshotRows,
                            kMaxStagingRows)),
        copy_rows(ShareRows(cache_bytes, kCopyShare, CopyRowBytes(row_bytes), kMinSnapshotRows,
                            kMaxCopyRows)),
        held_rows(ShareRows(cache_bytes, kHeldShare, HeldRowBytes(row_bytes), kMinSnapshotRows,
                            std::max(kMinSnapshotRows, kMaxHeldBytes / HeldRowBytes(row_bytes)))),
        bytes(staging_rows * StagingRowBytes(row_bytes) + part_rows * PartRowBytes(row_bytes) +
              copy_rows * CopyRowBytes(row_bytes) + held_rows * HeldRowBytes(row_bytes)),
        host_bytes(0) {
    if (!staged) return;
    // On the device there is only what GatherRows puts side by side; rows on their way in have
    // staging of their own.
    host_bytes = bytes + staging_rows * StagingRowBytes(row_bytes);
    bytes = staging_rows * row_bytes;
  }
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

int64_t TieredTable::MinCacheBytes(int64_t rows, int64_t row_bytes, CachePlace place) {
  // The buffers of a budget B take at most the greater of their shares of B and of their least
  // sizes, so at most the sum of both; this B leaves BudgetForRows(rows) for the cache.
  const int64_t least = RowCache::BudgetForRows(rows, row_bytes, place.device) +
                        Buffers(0, row_bytes, place.staged).bytes;
  return CeilDiv(least, kShares - kAllShares) * kShares;
}

absl::StatusOr<std::unique_ptr<TieredTable>> TieredTable::Create(const TieredTableOptions& options,
                                                                 RowStore* store,
                                                                 HostStore* in_place) {
  HOTROW_CHECK(!options.tables.empty());
  HOTROW_CHECK(store != nullptr);
  HOTROW_CHECK(options.cache_bytes > 0 || (in_place != nullptr && !options.place.staged));
  std::unique_ptr<TieredTable> table(new TieredTable());
  table->tables_ = options.tables;
  table->seed_ = options.seed;
  const int64_t row_bytes = options.tables[0].layout.row_bytes;
  table->row_bytes_ = row_bytes;
  table->device_ = options.place.device;
  table->staged_ = options.place.staged;
  table->store_ = store;
  table->in_place_ = in_place;
  for (const TieredTableSpec& spec : options.tables) {
    HOTROW_CHECK(spec.layout.row_bytes == table->row_bytes_);
  }
  if (options.cache_bytes == 0) return table;
  const Device device = options.place.device;
  HOTROW_CHECK(device == Device::kCpu || options.place.staged);
  if (options.cache_bytes < MinCacheBytes(1, row_bytes, options.place)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options.place.staged ? "device " : "", "cache budget ", options.cache_bytes,
                     " bytes for rows of ", row_bytes, " bytes; the least is ",
                     MinCacheBytes(1, row_bytes, options.place)));
  }
  const Buffers buffers(options.cache_bytes, row_bytes, options.place.staged);
  table->cache_budget_bytes_ = options.cache_bytes;
  table->buffer_bytes_ = buffers.bytes;
  HOTROW_ASSIGN_OR_RETURN(table->place_, DeviceStream::Create(device));
  HOTROW_ASSIGN_OR_RETURN(table->cache_,
                          RowCache::Create({.row_bytes = row_bytes,
                                            .budget_bytes = options.cache_bytes - buffers.bytes,
                                            .policy = options.cache_policy,
                                            .device = device}));
  const int64_t staging_rows = buffers.staging_rows;
  table->staging_rows_ = staging_rows;
  const auto shared = [device](int64_t size, auto* buffer, HugePages huge = HugePages::kNever) {
    auto made = std::remove_pointer_t<decltype(buffer)>::Create(device, size, huge);
    if (!made.ok()) return made.status();
    *buffer = *std::move(made);
    return absl::OkStatus();
  };
  HOTROW_RETURN_IF_ERROR(shared(staging_rows * row_bytes, &table->staging_, HugePages::kTry));
  HOTROW_RETURN_IF_ERROR(shared(staging_rows, &table->chunk_keys_));
  HOTROW_RETURN_IF_ERROR(shared(staging_rows, &table->chunk_slots_));
  HOTROW_RETURN_IF_ERROR(shared(staging_rows, &table->placement_));
  HOTROW_RETURN_IF_ERROR(shared(staging_rows, &table->evicted_));
  HOTROW_RETURN_IF_ERROR(shared(staging_rows, &table->evicted_keys_));
  table->part_rows_ = buffers.part_rows;
  HOTROW_RETURN_IF_ERROR(shared(buffers.part_rows * row_bytes, &table->part_));
  HOTROW_RETURN_IF_ERROR(shared(buffers.part_rows, &table->taken_keys_));
  HOTROW_RETURN_IF_ERROR(shared(buffers.part_rows, &table->taken_slots_));
  HOTROW_RETURN_IF_ERROR(shared(buffers.copy_rows, &table->copy_keys_));
  HOTROW_RETURN_IF_ERROR(shared(buffers.copy_rows * row_bytes, &table->copies_));
  HOTROW_ASSIGN_OR_RETURN(table->held_, HeldRows::Create(buffers.held_rows, row_bytes));
  if (!options.place.staged) return table;
  table->host_bytes_ = buffers.host_bytes + table->cache_->Size().host_bytes;
  HOTROW_RETURN_IF_ERROR(shared(staging_rows, &table->chunk_rows_));
  HOTROW_RETURN_IF_ERROR(shared(staging_rows, &table->call_slots_));
  HOTROW_ASSIGN_OR_RETURN(table->fill_, DeviceStream::Create(device));
  HOTROW_RETURN_IF_ERROR(shared(staging_rows * row_bytes, &table->fill_staging_, HugePages::kTry));
  HOTROW_RETURN_IF_ERROR(shared(staging_rows, &table->fill_from_));
  HOTROW_RETURN_IF_ERROR(shared(staging_rows, &table->fill_to_));
  HOTROW_ASSIGN_OR_RETURN(
      table->fill_gathered_,
      DeviceMemory<std::byte>::Create(device, staging_rows * row_bytes, table->fill_.get()));
  return table;
}

void TieredTable::WaitForDevice() const {
  // What fails here has failed before, and was or will be said by a call with a status.
  place_.Wait().IgnoreError();
  fill_.Wait().IgnoreError();
}

absl::Status TieredTable::WithSlots(
    std::span<const int64_t> slots,
    absl::FunctionRef<absl::Status(const ExecContext& ctx, std::span<const int64_t> slots)> call) {
  const ExecContext ctx = place_.On(ExecContext());
  if (!staged_) return call(ctx, slots);
  while (!slots.empty()) {
    const size_t n = std::min(slots.size(), static_cast<size_t>(staging_rows_));
    std::copy_n(slots.begin(), n, call_slots_.data());
    HOTROW_RETURN_IF_ERROR(call(ctx, call_slots_.first(static_cast<int64_t>(n))));
    HOTROW_RETURN_IF_ERROR(place_.Wait());
    slots = slots.subspan(n);
  }
  return absl::OkStatus();
}

absl::Status TieredTable::CopyIn(int64_t slot, const std::byte* row) {
  HOTROW_RETURN_IF_ERROR(place_.Copy(cache_->row(slot), row, row_bytes_));
  return WithSlots({&slot, 1}, [&](const ExecContext& ctx, std::span<const int64_t> slots) {
    HOTROW_RETURN_IF_ERROR(cache_->MarkFilled(ctx, slots));
    return cache_->MarkDirty(ctx, slots);
  });
}

const TieredTableSpec& TieredTable::SpecOf(uint32_t table) const {
  for (const TieredTableSpec& spec : tables_) {
    if (spec.table == table) return spec;
  }
  HOTROW_CHECK(false);
}

int64_t TieredTable::cache_used_bytes() const {
  return cache_ == nullptr ? 0 : cache_->Size().used_bytes + buffer_bytes_;
}

RowCacheStats TieredTable::cache_stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (cache_ == nullptr) return RowCacheStats();
  const absl::StatusOr<RowCacheStats> stats = cache_->Stats(place_.On(ExecContext()));
  return stats.ok() ? *stats : cache_->Size();  // a GPU that has failed says so elsewhere
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
    HOTROW_RETURN_IF_ERROR(
        InitRows(ctx.OnHost(), {.initializer = spec.initializer,
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

absl::Status TieredTable::PlaceChunk(const ExecContext& ctx, std::span<const RowKey> keys,
                                     std::span<const int32_t> counts, int64_t most, int64_t* cursor,
                                     StepRows* step, bool* no_room) {
  const auto n = static_cast<int64_t>(keys.size());
  chunk_positions_.clear();
  for (; *cursor < n && std::ssize(chunk_positions_) < most; ++*cursor) {
    if (step->slots[*cursor] >= 0) continue;
    chunk_keys_[std::ssize(chunk_positions_)] = keys[*cursor];
    chunk_positions_.push_back(*cursor);
  }
  const auto size = std::ssize(chunk_positions_);
  HOTROW_RETURN_IF_ERROR(cache_->FindOrInsert(CacheContext(ctx), chunk_keys_.first(size),
                                              {.slots = chunk_slots_.first(size),
                                               .placement = placement_.first(size),
                                               .evicted = evicted_.first(size),
                                               .evicted_keys = evicted_keys_.first(size),
                                               .evicted_rows = staging_.data()}));
  HOTROW_RETURN_IF_ERROR(place_.Wait());
  for (int64_t i = 0; i < size; ++i) {
    const int64_t position = chunk_positions_[i];
    const int64_t slot = chunk_slots_[i];
    if (evicted_[i] != 0) {
      const std::byte* const row = staging_.data() + i * row_bytes_;
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
  for (int64_t i = 0; i < size; ++i) {
    if (placement_[i] != Placement::kFilled) continue;
    const int64_t slot = chunk_slots_[i];
    if (const std::byte* const held = held_.Find(chunk_keys_[i]); held != nullptr) {
      // It never reached the store, so it comes back as it left.
      HOTROW_RETURN_IF_ERROR(CopyIn(slot, held));
      held_.Remove(chunk_keys_[i]);
      continue;
    }
    step->miss_keys.push_back(chunk_keys_[i]);
    step->miss_rows.push_back(cache_->row(slot));
    step->miss_positions.push_back(chunk_positions_[i]);
  }
  return absl::OkStatus();
}

absl::StatusOr<TieredTable::Placed> TieredTable::Place(const ExecContext& ctx,
                                                       std::span<const RowKey> keys,
                                                       std::span<const int32_t> counts,
                                                       StepRows* step) {
  HOTROW_CHECK(!step->resident);
  HOTROW_CHECK(keys.size() == counts.size());
  HOTROW_CHECK(step->miss_keys.empty());
  if (cache_ == nullptr) return Placed::kAll;
  step->filled = 0;
  const auto n = static_cast<int64_t>(keys.size());
  step->slots.resize(n, -1);
  for (int64_t cursor = 0; cursor < n;) {
    std::unique_lock<std::mutex> order(order_mutex_);
    HOTROW_RETURN_IF_ERROR(WriteBackPending());
    std::unique_lock<std::mutex> lock(mutex_);
    HOTROW_RETURN_IF_ERROR(broken_);
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
      HOTROW_RETURN_IF_ERROR(PlaceChunk(ctx, keys, counts, most, &cursor, step, &no_room));
    }
    const bool beside_snapshot = snapshot_pins_ > 0;
    lock.unlock();
    {
      TraceSpan span(pending_keys_.empty() ? nullptr : ctx.trace, "write_back");
      HOTROW_RETURN_IF_ERROR(WriteBackPending());
    }
    if (no_room) return beside_snapshot ? Placed::kNoRoomBesideSnapshot : Placed::kNoRoom;
  }
  if (staged_) {
    // The kernels that read the slots of this step's last use are done: chunks were waited for.
    HOTROW_RETURN_IF_ERROR(step->shared_slots.Reserve(device_, n));
    std::copy(step->slots.begin(), step->slots.end(), step->shared_slots.data());
  }
  return Placed::kAll;
}

int64_t TieredTable::NextMisses(StepRows* step, std::vector<RowKey>* keys,
                                std::vector<std::byte*>* rows) {
  const size_t left = step->miss_keys.size() - step->filled;
  const size_t n = !staged_ ? left : std::min(left, static_cast<size_t>(staging_rows_));
  for (size_t i = 0; i < n; ++i) {
    keys->push_back(step->miss_keys[step->filled + i]);
    rows->push_back(!staged_ ? step->miss_rows[step->filled + i]
                             : fill_staging_.data() + static_cast<int64_t>(i) * row_bytes_);
  }
  return static_cast<int64_t>(n);
}

absl::Status TieredTable::Fill(const ExecContext& ctx, std::span<const int32_t> counts,
                               StepRows* step, std::span<const uint8_t> found) {
  const size_t n = found.size();
  HOTROW_CHECK(n <= step->miss_keys.size() - step->filled);
  if (n == 0) return absl::OkStatus();
  absent_keys_.clear();
  absent_rows_.clear();
  for (size_t i = 0; i < n; ++i) {
    if (found[i] != 0) continue;
    absent_keys_.push_back(step->miss_keys[step->filled + i]);
    absent_rows_.push_back(!staged_ ? step->miss_rows[step->filled + i]
                                    : fill_staging_.data() + static_cast<int64_t>(i) * row_bytes_);
  }
  HOTROW_RETURN_IF_ERROR(InitRowsOf(ctx, absent_keys_, absent_rows_));
  if (staged_) {
    std::copy_n(step->miss_rows.begin() + static_cast<int64_t>(step->filled), n, fill_to_.data());
    HOTROW_RETURN_IF_ERROR(ScatterRows(fill_.On(ctx), {.input = fill_staging_.data(),
                                                       .input_stride = row_bytes_,
                                                       .num_rows = static_cast<int64_t>(n),
                                                       .row_bytes = row_bytes_,
                                                       .rows = fill_to_.data()}));
    HOTROW_RETURN_IF_ERROR(fill_.Wait());
  }
  return EndFill(counts, step, n, found);
}

// The GPU reads rows where the store keeps them, and their initial rows from staging: side by side
// first, so that its reads over the bus are in flight together, and then to their ways.
absl::Status TieredTable::FillInPlace(const ExecContext& ctx, std::span<const int32_t> counts,
                                      StepRows* step) {
  std::vector<uint8_t> found;
  while (step->filled < step->miss_keys.size()) {
    const auto n =
        std::min(static_cast<int64_t>(step->miss_keys.size() - step->filled), staging_rows_);
    const auto keys =
        std::span<const RowKey>(step->miss_keys).subspan(step->filled, static_cast<size_t>(n));
    const std::span<std::byte*> from = fill_from_.first(n);
    FirstError error;
    ParallelFor(ctx.pool, n, kStoreGrain, [&](int64_t begin, int64_t end) {
      error.Update(in_place_->FindInPlace(keys.subspan(begin, end - begin),
                                          from.subspan(begin, end - begin)));
    });
    HOTROW_RETURN_IF_ERROR(error.status());
    absent_keys_.clear();
    absent_rows_.clear();
    found.assign(static_cast<size_t>(n), 1);
    for (int64_t i = 0; i < n; ++i) {
      if (from[i] != nullptr) continue;
      found[i] = 0;
      from[i] = fill_staging_.data() + i * row_bytes_;
      absent_keys_.push_back(keys[i]);
      absent_rows_.push_back(from[i]);
    }
    HOTROW_RETURN_IF_ERROR(InitRowsOf(ctx, absent_keys_, absent_rows_));
    std::copy_n(step->miss_rows.begin() + static_cast<int64_t>(step->filled), n, fill_to_.data());
    HOTROW_RETURN_IF_ERROR(GatherRows(fill_.On(ctx), {.rows = from.data(),
                                                      .num_rows = n,
                                                      .row_bytes = row_bytes_,
                                                      .output = fill_gathered_.data(),
                                                      .output_stride = row_bytes_}));
    HOTROW_RETURN_IF_ERROR(ScatterRows(fill_.On(ctx), {.input = fill_gathered_.data(),
                                                       .input_stride = row_bytes_,
                                                       .num_rows = n,
                                                       .row_bytes = row_bytes_,
                                                       .rows = fill_to_.data()}));
    HOTROW_RETURN_IF_ERROR(fill_.Wait());
    HOTROW_RETURN_IF_ERROR(EndFill(counts, step, static_cast<size_t>(n), found));
  }
  return absl::OkStatus();
}

absl::Status TieredTable::EndFill(std::span<const int32_t> counts, StepRows* step, size_t n,
                                  std::span<const uint8_t> found) {
  filled_slots_.clear();
  TierCounts seen;
  for (size_t i = 0; i < n; ++i) {
    const int64_t position = step->miss_positions[step->filled + i];
    filled_slots_.push_back(step->slots[position]);
    seen.unique_keys += 1;
    seen.lookups += counts[position];
    if (found[i] == 0) continue;
    seen.unique_hits += 1;
    seen.lookup_hits += counts[position];
  }
  rows_read_.fetch_add(seen.unique_hits, std::memory_order_relaxed);
  const std::lock_guard<std::mutex> lock(mutex_);
  HOTROW_RETURN_IF_ERROR(
      WithSlots(filled_slots_, [&](const ExecContext& ctx, std::span<const int64_t> slots) {
        return cache_->MarkFilled(ctx, slots);
      }));
  step->filled += n;
  if (step->filled == step->miss_keys.size()) {
    step->miss_keys.clear();
    step->miss_rows.clear();
    step->miss_positions.clear();
    step->filled = 0;
  }
  store_counts_.unique_keys += seen.unique_keys;
  store_counts_.unique_hits += seen.unique_hits;
  store_counts_.lookups += seen.lookups;
  store_counts_.lookup_hits += seen.lookup_hits;
  return absl::OkStatus();
}

void TieredTable::FinishPlacing(const ExecContext& ctx) {
  if (cache_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  Note(cache_->EndStep(CacheContext(ctx)));
}

void TieredTable::GiveUp(StepRows* step) {
  if (cache_ != nullptr) {
    const std::lock_guard<std::mutex> lock(mutex_);
    abandoned_slots_.clear();
    for (size_t i = step->filled; i < step->miss_positions.size(); ++i) {
      const int64_t position = step->miss_positions[i];
      abandoned_slots_.push_back(step->slots[position]);
      step->slots[position] = -1;
    }
    Note(WithSlots(abandoned_slots_, [&](const ExecContext& ctx, std::span<const int64_t> slots) {
      return cache_->Abandon(ctx, slots);
    }));
    std::erase(step->slots, -1);
    Note(WithSlots(step->slots, [&](const ExecContext& ctx, std::span<const int64_t> slots) {
      return cache_->Unpin(ctx, slots, /*dirty=*/false);
    }));
  }
  step->slots.clear();
  step->miss_keys.clear();
  step->miss_rows.clear();
  step->miss_positions.clear();
  step->filled = 0;
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

absl::Status TieredTable::PrepareForUpdate(const ExecContext& ctx, const StepRows& step) {
  if (cache_ == nullptr) return absl::OkStatus();
  std::unique_lock<std::mutex> lock(mutex_);
  std::span<const int64_t> slots = step.slots;
  if (staged_) slots = {step.shared_slots.data(), step.slots.size()};
  while (!slots.empty()) {
    if (!marking_) break;
    if (num_copies_ == copy_keys_.size()) {
      ++snapshot_counts_.update_waits;
      const int64_t begin = NowNanos();
      snapshot_changed_.wait(lock, [&] { return !marking_ || num_copies_ < copy_keys_.size(); });
      snapshot_counts_.update_wait_ns += NowNanos() - begin;
      if (!marking_) break;
    }
    // As many as fit before the ring's end.
    const int64_t at = (first_copy_ + num_copies_) % copy_keys_.size();
    const int64_t room = std::min(copy_keys_.size() - num_copies_, copy_keys_.size() - at);
    const std::span<RowKey> keys = {copy_keys_.data() + at, static_cast<size_t>(room)};
    int64_t taken = 0;
    HOTROW_ASSIGN_OR_RETURN(const int64_t looked,
                            cache_->TakeMarks(CacheContext(ctx), slots, keys,
                                              copies_.data() + at * row_bytes_, &taken));
    slots = slots.subspan(static_cast<size_t>(looked));
    num_copies_ += taken;
    snapshot_counts_.copied += taken;
  }
  return absl::OkStatus();
}

void TieredTable::Release(const ExecContext& ctx, StepRows* step, bool updated) {
  if (cache_ != nullptr && step->resident) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::span<const int64_t> slots = step->slots;
    if (staged_) {
      // What is enqueued may still read or change the rows.
      Note(place_.RunAfter(ctx.stream));
      slots = step->shared_slots.first(std::ssize(step->slots));
    }
    Note(cache_->Unpin(CacheContext(ctx), slots, updated));
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
    HOTROW_RETURN_IF_ERROR(broken_);
    if (staged_) return ReadStaged(ctx, keys, staging, rows);
    HOTROW_RETURN_IF_ERROR(cache_->Find(ctx, keys, rows));
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
  return ReadMisses(ctx);
}

// A chunk at a time, through the staging area of evicted rows, which is empty now.
absl::Status TieredTable::ReadStaged(const ExecContext& ctx, std::span<const RowKey> keys,
                                     std::byte* staging, std::span<std::byte*> rows) {
  // What is enqueued may still read what is in `staging`.
  HOTROW_RETURN_IF_ERROR(place_.RunAfter(ctx.stream));
  for (size_t begin = 0; begin < keys.size();) {
    const size_t n = std::min(keys.size() - begin, static_cast<size_t>(staging_rows_));
    const auto size = static_cast<int64_t>(n);
    std::copy_n(keys.begin() + static_cast<int64_t>(begin), n, chunk_keys_.data());
    HOTROW_RETURN_IF_ERROR(
        cache_->Find(CacheContext(ctx), chunk_keys_.first(size), chunk_rows_.first(size)));
    HOTROW_RETURN_IF_ERROR(place_.Wait());
    miss_keys_.clear();
    miss_rows_.clear();
    int64_t staged = 0;
    for (size_t i = 0; i < n; ++i) {
      std::byte*& row = rows[begin + i];
      row = chunk_rows_[static_cast<int64_t>(i)];
      if (row != nullptr) continue;
      row = staging + staged * row_bytes_;
      std::byte* const here = staging_.data() + staged * row_bytes_;
      ++staged;
      if (const std::byte* const held = held_.Find(keys[begin + i]); held != nullptr) {
        std::memcpy(here, held, static_cast<size_t>(row_bytes_));
        continue;
      }
      miss_keys_.push_back(keys[begin + i]);
      miss_rows_.push_back(here);
    }
    HOTROW_RETURN_IF_ERROR(ReadMisses(ctx));
    HOTROW_RETURN_IF_ERROR(place_.Copy(staging, staging_.data(), staged * row_bytes_));
    HOTROW_RETURN_IF_ERROR(place_.Wait());
    staging += staged * row_bytes_;
    begin += n;
  }
  return absl::OkStatus();
}

// The rows of miss_keys_ from the store, or their initial rows, to miss_rows_.
absl::Status TieredTable::ReadMisses(const ExecContext& ctx) {
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
      place_.On(ExecContext()),
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
  HOTROW_ASSIGN_OR_RETURN(const int64_t marked, cache_->MarkDirtyRows(place_.On(ExecContext())));
  holding_ = true;
  marking_ = marked > 0;
  snapshot_cursor_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<bool> TieredTable::WriteSnapshotPart() {
  part_keys_.clear();
  part_pointers_.clear();
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
      HOTROW_ASSIGN_OR_RETURN(const int64_t n,
                              cache_->TakeMarked(place_.On(ExecContext()), &snapshot_cursor_,
                                                 taken_keys_.first(part_rows_),
                                                 taken_slots_.first(part_rows_), part_.data()));
      part_keys_.assign(taken_keys_.data(), taken_keys_.data() + n);
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
  if (snapshot_pins_ > 0) {
    Note(cache_->Unpin(place_.On(ExecContext()), taken_slots_.first(snapshot_pins_),
                       /*dirty=*/!status.ok()));
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
  if (marking_) Note(cache_->DropMarks(place_.On(ExecContext())));
  num_copies_ = 0;
  marking_ = false;
  holding_ = false;
  snapshot_changed_.notify_all();
}

}  // namespace hotrow
