#include "embedding/tiers/tiered_table.h"

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
// A GPU is asked for a chunk in tens of microseconds; 32,768 rows of 512 bytes cross the bus in
// some 300, so that asking is cheap and a step has several chunks, which overlap.
constexpr int64_t kMaxStagingRowsGpu = 32768;
// Staged, each way.
constexpr int64_t kStagingAreas = 2;
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

void ForgetMisses(StepRows* step) {
  step->miss_keys.clear();
  step->miss_rows.clear();
  step->miss_positions.clear();
  step->sent = 0;
  step->filled = 0;
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
    // On the device there is only what GatherRows puts side by side.
    host_bytes = bytes + (2 * kStagingAreas - 1) * staging_rows * StagingRowBytes(row_bytes);
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

template <typename T>
absl::Status MakeShared(Device device, int64_t size, HugePages huge_pages,
                        SharedBuffer<T>* buffer) {
  HOTROW_ASSIGN_OR_RETURN(*buffer, SharedBuffer<T>::Create(device, size, huge_pages));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TieredTable::Chunk> TieredTable::Chunk::Create(Device device, int64_t rows,
                                                              int64_t row_bytes) {
  const auto never = HugePages::kNever;
  Chunk chunk;
  HOTROW_RETURN_IF_ERROR(MakeShared(device, rows, never, &chunk.keys));
  HOTROW_RETURN_IF_ERROR(MakeShared(device, rows, never, &chunk.slots));
  HOTROW_RETURN_IF_ERROR(MakeShared(device, rows, never, &chunk.placement));
  HOTROW_RETURN_IF_ERROR(MakeShared(device, rows, never, &chunk.evicted));
  HOTROW_RETURN_IF_ERROR(MakeShared(device, rows, never, &chunk.evicted_keys));
  HOTROW_RETURN_IF_ERROR(
      MakeShared(device, rows * row_bytes, HugePages::kTry, &chunk.evicted_rows));
  HOTROW_ASSIGN_OR_RETURN(chunk.placed, DeviceEvent::Create(device));
  return chunk;
}

absl::StatusOr<TieredTable::Inflow> TieredTable::Inflow::Create(Device device, int64_t rows,
                                                                int64_t row_bytes) {
  Inflow inflow;
  HOTROW_RETURN_IF_ERROR(MakeShared(device, rows * row_bytes, HugePages::kTry, &inflow.rows));
  HOTROW_RETURN_IF_ERROR(MakeShared(device, rows, HugePages::kNever, &inflow.from));
  HOTROW_RETURN_IF_ERROR(MakeShared(device, rows, HugePages::kNever, &inflow.to));
  HOTROW_ASSIGN_OR_RETURN(inflow.arrived, DeviceEvent::Create(device));
  return inflow;
}

int64_t TieredTable::MinCacheBytes(int64_t rows, int64_t row_bytes, CachePlace place) {
  // The buffers of a budget B take at most the greater of their shares of B and of their least
  // sizes, so at most the sum of both; this B leaves BudgetForRows(rows) for the cache.
  const int64_t least = RowCache::BudgetForRows(rows, row_bytes, place.device) +
                        Buffers(0, row_bytes, place.staged).bytes;
  return CeilDiv(least, kShares - kAllShares) * kShares;
}

int64_t TieredTable::BufferBytes(int64_t cache_bytes, int64_t row_bytes, CachePlace place) {
  return Buffers(cache_bytes, row_bytes, place.staged).bytes;
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
  for (int64_t i = 0; i < (options.place.staged ? kStagingAreas : 1); ++i) {
    HOTROW_ASSIGN_OR_RETURN(Chunk chunk, Chunk::Create(device, staging_rows, row_bytes));
    table->chunks_.push_back(std::move(chunk));
  }
  const auto shared = [device](int64_t size, auto* buffer) {
    return MakeShared(device, size, HugePages::kNever, buffer);
  };
  table->part_rows_ = buffers.part_rows;
  HOTROW_RETURN_IF_ERROR(shared(buffers.part_rows * row_bytes, &table->part_));
  HOTROW_RETURN_IF_ERROR(shared(buffers.part_rows, &table->taken_keys_));
  HOTROW_RETURN_IF_ERROR(shared(buffers.part_rows, &table->taken_slots_));
  HOTROW_RETURN_IF_ERROR(shared(buffers.copy_rows, &table->copy_keys_));
  HOTROW_RETURN_IF_ERROR(shared(buffers.copy_rows * row_bytes, &table->copies_));
  HOTROW_ASSIGN_OR_RETURN(table->held_, HeldRows::Create(buffers.held_rows, row_bytes));
  if (!options.place.staged) return table;
  table->host_bytes_ = buffers.host_bytes + table->cache_->Size().host_bytes;
  HOTROW_RETURN_IF_ERROR(shared(staging_rows, &table->read_rows_));
  HOTROW_RETURN_IF_ERROR(shared(staging_rows, &table->call_slots_));
  HOTROW_ASSIGN_OR_RETURN(table->fill_, DeviceStream::Create(device));
  for (int64_t i = 0; i < kStagingAreas; ++i) {
    HOTROW_ASSIGN_OR_RETURN(Inflow inflow, Inflow::Create(device, staging_rows, row_bytes));
    table->inflows_.push_back(std::move(inflow));
  }
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
  if (!staged_) return call(ExecContext(), slots);
  while (!slots.empty()) {
    const size_t n = std::min(slots.size(), static_cast<size_t>(staging_rows_));
    std::copy_n(slots.begin(), n, call_slots_.data());
    HOTROW_RETURN_IF_ERROR(place_.RunAndWait(ExecContext(), [&](const ExecContext& ctx) {
      return call(ctx, call_slots_.first(static_cast<int64_t>(n)));
    }));
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
  RowCacheStats stats = cache_->Size();  // a GPU that has failed says so elsewhere
  place_
      .RunAndWait(ExecContext(),
                  [&](const ExecContext& ctx) -> absl::Status {
                    HOTROW_ASSIGN_OR_RETURN(stats, cache_->Stats(ctx));
                    return absl::OkStatus();
                  })
      .IgnoreError();
  return stats;
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

absl::Status TieredTable::WriteBackPending(TraceRecorder* trace) {
  if (pending_keys_.empty()) return absl::OkStatus();
  TraceSpan span(trace, "write_back");
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

absl::Status TieredTable::SendChunk(const ExecContext& ctx, std::span<const RowKey> keys,
                                    int64_t most, int64_t* cursor, const StepRows& step,
                                    Chunk* chunk) {
  const auto n = static_cast<int64_t>(keys.size());
  chunk->positions.clear();
  for (; *cursor < n && std::ssize(chunk->positions) < most; ++*cursor) {
    if (step.slots[*cursor] >= 0) continue;
    chunk->keys[std::ssize(chunk->positions)] = keys[*cursor];
    chunk->positions.push_back(*cursor);
  }
  const auto size = std::ssize(chunk->positions);
  HOTROW_RETURN_IF_ERROR(place_.Run(
      ctx, [cache = cache_.get(), chunk_keys = chunk->keys.first(size),
            result = RowCache::InsertResult{.slots = chunk->slots.first(size),
                                            .placement = chunk->placement.first(size),
                                            .evicted = chunk->evicted.first(size),
                                            .evicted_keys = chunk->evicted_keys.first(size),
                                            .evicted_rows = chunk->evicted_rows.data()}](
               const ExecContext& here) { return cache->FindOrInsert(here, chunk_keys, result); }));
  return chunk->placed.Record(place_);
}

absl::Status TieredTable::EndChunk(std::span<const int32_t> counts, StepRows* step,
                                   const Chunk& chunk, bool* no_room) {
  const auto size = std::ssize(chunk.positions);
  for (int64_t i = 0; i < size; ++i) {
    const int64_t position = chunk.positions[i];
    const Placement placement = chunk.placement[i];
    if (chunk.evicted[i] != 0) {
      const std::byte* const row = chunk.evicted_rows.data() + i * row_bytes_;
      if (chunk.evicted[i] == kEvictedDirty && holding_) {
        held_.Add(chunk.evicted_keys[i], row);
        ++snapshot_counts_.held;
      } else {
        pending_keys_.push_back(chunk.evicted_keys[i]);
        pending_rows_.push_back(row);
        if (chunk.evicted[i] == kEvictedMarked) ++snapshot_counts_.rows;
      }
    }
    // A key is counted at its first probe only: another try finds what the one before brought in.
    if (position >= step->probed) {
      const bool hit = placement == Placement::kHit;
      cache_counts_.unique_keys += 1;
      cache_counts_.unique_hits += hit ? 1 : 0;
      cache_counts_.lookups += counts[position];
      cache_counts_.lookup_hits += hit ? counts[position] : 0;
      step->probed = position + 1;
    }
    step->slots[position] = chunk.slots[i];
    if (placement == Placement::kNoRoom) *no_room = true;
  }
  for (int64_t i = 0; i < size; ++i) {
    if (chunk.placement[i] != Placement::kFilled) continue;
    const int64_t slot = chunk.slots[i];
    if (const std::byte* const held = held_.Find(chunk.keys[i]); held != nullptr) {
      // It never reached the store, so it comes back as it left.
      HOTROW_RETURN_IF_ERROR(CopyIn(slot, held));
      held_.Remove(chunk.keys[i]);
      continue;
    }
    step->miss_keys.push_back(chunk.keys[i]);
    step->miss_rows.push_back(cache_->row(slot));
    step->miss_positions.push_back(chunk.positions[i]);
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
  const auto n = static_cast<int64_t>(keys.size());
  step->slots.resize(n, -1);
  std::unique_lock<std::mutex> order(order_mutex_);
  HOTROW_RETURN_IF_ERROR(WriteBackPending(ctx.trace));
  size_t turn = 0;
  bool no_room = false;
  bool beside_snapshot = false;
  for (int64_t cursor = 0; cursor < n && !no_room;) {
    if (pending_keys_.empty()) {  // a good moment for who waits to begin a snapshot
      order.unlock();
      order.lock();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    HOTROW_RETURN_IF_ERROR(broken_);
    if (!holding_ && held_.size() > 0) {
      lock.unlock();
      // What was evicted before a row was held back is older.
      HOTROW_RETURN_IF_ERROR(WriteBackPending(ctx.trace));
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
        lock.unlock();
        HOTROW_RETURN_IF_ERROR(WriteBackPending(ctx.trace));
        order.unlock();
        lock.lock();
        TraceSpan span(ctx.trace, "wait_for_snapshot");
        const int64_t begin = NowNanos();
        snapshot_changed_.wait(lock, [&] { return !holding_; });
        ++snapshot_counts_.evict_waits;
        snapshot_counts_.evict_wait_ns += NowNanos() - begin;
        lock.unlock();
        order.lock();
        continue;
      }
      most = std::min(most, free);
    }
    Chunk& chunk = chunks_[turn];
    turn = (turn + 1) % chunks_.size();
    {
      TraceSpan span(ctx.trace, "probe");
      HOTROW_RETURN_IF_ERROR(SendChunk(ctx, keys, most, &cursor, *step, &chunk));
    }
    lock.unlock();
    // The rows that the chunk before evicted go to the store while this one is at work. Whatever
    // the store says, what this one evicts must be noted.
    const absl::Status written = WriteBackPending(ctx.trace);
    {
      TraceSpan span(ctx.trace, "probe");
      HOTROW_RETURN_IF_ERROR(chunk.placed.Wait());
      lock.lock();
      HOTROW_RETURN_IF_ERROR(EndChunk(counts, step, chunk, &no_room));
      beside_snapshot = snapshot_pins_ > 0;
      lock.unlock();
    }
    HOTROW_RETURN_IF_ERROR(written);
    // A single area must be empty before the next chunk.
    if (chunks_.size() == 1) HOTROW_RETURN_IF_ERROR(WriteBackPending(ctx.trace));
  }
  HOTROW_RETURN_IF_ERROR(WriteBackPending(ctx.trace));
  HOTROW_RETURN_IF_ERROR(ShareSlots(step));
  if (!no_room) return Placed::kAll;
  return beside_snapshot ? Placed::kNoRoomBesideSnapshot : Placed::kNoRoom;
}

absl::Status TieredTable::ShareSlots(StepRows* step) const {
  if (!staged_) return absl::OkStatus();
  // The kernels that read the slots of this step's last use are done: they were enqueued on place_
  // before the chunks, and those were waited for. Without chunks there are no slots either.
  HOTROW_RETURN_IF_ERROR(step->shared_slots.Reserve(device_, std::ssize(step->slots)));
  std::copy(step->slots.begin(), step->slots.end(), step->shared_slots.data());
  HOTROW_RETURN_IF_ERROR(
      step->shared_miss_slots.Reserve(device_, std::ssize(step->miss_positions)));
  for (size_t i = 0; i < step->miss_positions.size(); ++i) {
    step->shared_miss_slots[static_cast<int64_t>(i)] = step->slots[step->miss_positions[i]];
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> TieredTable::NextMisses(StepRows* step, std::vector<RowKey>* keys,
                                                std::vector<std::byte*>* rows) {
  HOTROW_RETURN_IF_ERROR(Broken());
  const size_t left = step->miss_keys.size() - step->sent;
  if (left == 0) {
    HOTROW_RETURN_IF_ERROR(ArriveAll(step));
    return 0;
  }
  const auto first = static_cast<int64_t>(step->sent);
  int64_t n = static_cast<int64_t>(left);
  if (!staged_) {
    rows->insert(rows->end(), step->miss_rows.begin() + first, step->miss_rows.end());
  } else {
    Inflow& inflow = inflows_[next_inflow_];
    HOTROW_RETURN_IF_ERROR(Arrive(step, &inflow));
    n = std::min(n, staging_rows_);
    for (int64_t i = 0; i < n; ++i) rows->push_back(inflow.rows.data() + i * row_bytes_);
  }
  keys->insert(keys->end(), step->miss_keys.begin() + first, step->miss_keys.begin() + first + n);
  return n;
}

absl::Status TieredTable::Fill(const ExecContext& ctx, std::span<const int32_t> counts,
                               StepRows* step, std::span<const uint8_t> found) {
  const size_t n = found.size();
  HOTROW_CHECK(n <= step->miss_keys.size() - step->sent);
  HOTROW_RETURN_IF_ERROR(Broken());
  if (n == 0) return absl::OkStatus();
  Inflow* const inflow = staged_ ? &inflows_[next_inflow_] : nullptr;
  absent_keys_.clear();
  absent_rows_.clear();
  for (size_t i = 0; i < n; ++i) {
    if (found[i] != 0) continue;
    absent_keys_.push_back(step->miss_keys[step->sent + i]);
    absent_rows_.push_back(!staged_ ? step->miss_rows[step->sent + i]
                                    : inflow->rows.data() + static_cast<int64_t>(i) * row_bytes_);
  }
  HOTROW_RETURN_IF_ERROR(InitRowsOf(ctx, absent_keys_, absent_rows_));
  if (!staged_) {
    CountFill(counts, step, found);
    return EndFill(step, n);
  }
  const auto size = static_cast<int64_t>(n);
  std::copy_n(step->miss_rows.begin() + static_cast<int64_t>(step->sent), n, inflow->to.data());
  HOTROW_RETURN_IF_ERROR(
      fill_.Run(ctx, [args = ScatterRowsArgs{.input = inflow->rows.data(),
                                             .input_stride = row_bytes_,
                                             .num_rows = size,
                                             .row_bytes = row_bytes_,
                                             .rows = inflow->to.data()}](const ExecContext& here) {
        return ScatterRows(here, args);
      }));
  return Send(counts, step, found, inflow);
}

// The GPU reads rows where the store keeps them, and their initial rows from staging: side by side
// first, so that its reads over the bus are in flight together, and then to their ways.
absl::Status TieredTable::FillInPlace(const ExecContext& ctx, std::span<const int32_t> counts,
                                      StepRows* step) {
  HOTROW_RETURN_IF_ERROR(Broken());
  std::vector<uint8_t> found;
  while (step->sent < step->miss_keys.size()) {
    Inflow& inflow = inflows_[next_inflow_];
    HOTROW_RETURN_IF_ERROR(Arrive(step, &inflow));
    const auto n =
        std::min(static_cast<int64_t>(step->miss_keys.size() - step->sent), staging_rows_);
    const auto keys =
        std::span<const RowKey>(step->miss_keys).subspan(step->sent, static_cast<size_t>(n));
    const std::span<std::byte*> from = inflow.from.first(n);
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
      from[i] = inflow.rows.data() + i * row_bytes_;
      absent_keys_.push_back(keys[i]);
      absent_rows_.push_back(from[i]);
    }
    HOTROW_RETURN_IF_ERROR(InitRowsOf(ctx, absent_keys_, absent_rows_));
    std::copy_n(step->miss_rows.begin() + static_cast<int64_t>(step->sent), n, inflow.to.data());
    HOTROW_RETURN_IF_ERROR(fill_.Run(ctx,
                                     [gather = GatherRowsArgs{.rows = from.data(),
                                                              .num_rows = n,
                                                              .row_bytes = row_bytes_,
                                                              .output = fill_gathered_.data(),
                                                              .output_stride = row_bytes_},
                                      scatter = ScatterRowsArgs{.input = fill_gathered_.data(),
                                                                .input_stride = row_bytes_,
                                                                .num_rows = n,
                                                                .row_bytes = row_bytes_,
                                                                .rows = inflow.to.data()}](
                                         const ExecContext& here) -> absl::Status {
                                       HOTROW_RETURN_IF_ERROR(GatherRows(here, gather));
                                       return ScatterRows(here, scatter);
                                     }));
    HOTROW_RETURN_IF_ERROR(Send(counts, step, found, &inflow));
  }
  return ArriveAll(step);
}

absl::Status TieredTable::Send(std::span<const int32_t> counts, StepRows* step,
                               std::span<const uint8_t> found, Inflow* inflow) {
  HOTROW_RETURN_IF_ERROR(inflow->arrived.Record(fill_));
  CountFill(counts, step, found);
  inflow->size = found.size();
  next_inflow_ = (next_inflow_ + 1) % inflows_.size();
  return absl::OkStatus();
}

absl::Status TieredTable::Arrive(StepRows* step, Inflow* inflow) {
  if (inflow->size == 0) return absl::OkStatus();
  const size_t n = std::exchange(inflow->size, 0);
  HOTROW_RETURN_IF_ERROR(inflow->arrived.Wait());
  return EndFill(step, n);
}

absl::Status TieredTable::ArriveAll(StepRows* step) {
  for (size_t i = 0; i < inflows_.size(); ++i) {
    HOTROW_RETURN_IF_ERROR(Arrive(step, &inflows_[(next_inflow_ + i) % inflows_.size()]));
  }
  return absl::OkStatus();
}

void TieredTable::CountFill(std::span<const int32_t> counts, StepRows* step,
                            std::span<const uint8_t> found) {
  TierCounts seen;
  for (const uint8_t there : found) {
    const int64_t position = step->miss_positions[step->sent++];
    seen.unique_keys += 1;
    seen.lookups += counts[position];
    if (there == 0) continue;
    seen.unique_hits += 1;
    seen.lookup_hits += counts[position];
  }
  rows_read_.fetch_add(seen.unique_hits, std::memory_order_relaxed);
  const std::lock_guard<std::mutex> lock(mutex_);
  store_counts_.unique_keys += seen.unique_keys;
  store_counts_.unique_hits += seen.unique_hits;
  store_counts_.lookups += seen.lookups;
  store_counts_.lookup_hits += seen.lookup_hits;
}

absl::Status TieredTable::EndFill(StepRows* step, size_t n) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (staged_) {
    // Nobody waits for this: whoever needs to see it enqueues on place_ as well.
    HOTROW_RETURN_IF_ERROR(place_.Run(
        ExecContext(),
        [cache = cache_.get(),
         slots =
             step->shared_miss_slots.first(std::ssize(step->miss_keys)).subspan(step->filled, n)](
            const ExecContext& here) { return cache->MarkFilled(here, slots); }));
  } else {
    filled_slots_.clear();
    for (size_t i = step->filled; i < step->filled + n; ++i) {
      filled_slots_.push_back(step->slots[step->miss_positions[i]]);
    }
    HOTROW_RETURN_IF_ERROR(cache_->MarkFilled(ExecContext(), filled_slots_));
  }
  step->filled += n;
  if (step->filled == step->miss_keys.size()) ForgetMisses(step);
  return absl::OkStatus();
}

void TieredTable::FinishPlacing(const ExecContext& ctx) {
  if (cache_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  Note(place_.Run(
      ctx, [cache = cache_.get()](const ExecContext& here) { return cache->EndStep(here); }));
}

void TieredTable::GiveUp(StepRows* step) {
  if (cache_ != nullptr) {
    // Nobody else's rows are on their way: two steps are not filled at once.
    const absl::Status arrived = step->sent > step->filled ? ArriveAll(step) : absl::OkStatus();
    const std::lock_guard<std::mutex> lock(mutex_);
    Note(arrived);
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
  ForgetMisses(step);
  step->resident = false;
}

// --- A resident step
// ---------------------------------------------------------------------------------------------

absl::Status TieredTable::ResolveForRead(const ExecContext& ctx, std::span<const RowKey> keys,
                                         std::span<const int32_t> counts, StepRows* step,
                                         std::span<std::byte*> rows) {
  HOTROW_CHECK(step->resident);
  HOTROW_RETURN_IF_ERROR(Broken());
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
  HOTROW_RETURN_IF_ERROR(Broken());
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
  HOTROW_RETURN_IF_ERROR(Broken());
  if (cache_ != nullptr) return absl::OkStatus();
  miss_keys_.clear();
  for (const int64_t i : step.missing) miss_keys_.push_back(keys[i]);
  return store_->Erase(miss_keys_);
}

absl::Status TieredTable::PrepareForUpdate(const ExecContext& ctx, const StepRows& step) {
  if (cache_ == nullptr) return absl::OkStatus();
  std::unique_lock<std::mutex> lock(mutex_);
  HOTROW_RETURN_IF_ERROR(broken_);
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
    int64_t looked = 0;
    HOTROW_RETURN_IF_ERROR(place_.RunAndWait(ctx, [&](const ExecContext& here) -> absl::Status {
      HOTROW_ASSIGN_OR_RETURN(
          looked, cache_->TakeMarks(here, slots, keys, copies_.data() + at * row_bytes_, &taken));
      return absl::OkStatus();
    }));
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
    Note(place_.Run(ctx, [cache = cache_.get(), slots, updated](const ExecContext& here) {
      return cache->Unpin(here, slots, updated);
    }));
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

// A chunk at a time, through a staging area of evicted rows, which is empty now.
absl::Status TieredTable::ReadStaged(const ExecContext& ctx, std::span<const RowKey> keys,
                                     std::byte* staging, std::span<std::byte*> rows) {
  // What is enqueued may still read what is in `staging`.
  HOTROW_RETURN_IF_ERROR(place_.RunAfter(ctx.stream));
  Chunk& chunk = chunks_[0];
  for (size_t begin = 0; begin < keys.size();) {
    const size_t n = std::min(keys.size() - begin, static_cast<size_t>(staging_rows_));
    const auto size = static_cast<int64_t>(n);
    std::copy_n(keys.begin() + static_cast<int64_t>(begin), n, chunk.keys.data());
    HOTROW_RETURN_IF_ERROR(place_.RunAndWait(ctx, [&](const ExecContext& here) {
      return cache_->Find(here, chunk.keys.first(size), read_rows_.first(size));
    }));
    miss_keys_.clear();
    miss_rows_.clear();
    int64_t staged = 0;
    for (size_t i = 0; i < n; ++i) {
      std::byte*& row = rows[begin + i];
      row = read_rows_[static_cast<int64_t>(i)];
      if (row != nullptr) continue;
      row = staging + staged * row_bytes_;
      std::byte* const here = chunk.evicted_rows.data() + staged * row_bytes_;
      ++staged;
      if (const std::byte* const held = held_.Find(keys[begin + i]); held != nullptr) {
        std::memcpy(here, held, static_cast<size_t>(row_bytes_));
        continue;
      }
      miss_keys_.push_back(keys[begin + i]);
      miss_rows_.push_back(here);
    }
    HOTROW_RETURN_IF_ERROR(ReadMisses(ctx));
    HOTROW_RETURN_IF_ERROR(place_.Copy(staging, chunk.evicted_rows.data(), staged * row_bytes_));
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
  HOTROW_RETURN_IF_ERROR(Broken());
  const std::lock_guard<std::mutex> order(order_mutex_);
  HOTROW_RETURN_IF_ERROR(WriteBackPending());
  HOTROW_RETURN_IF_ERROR(WriteBackHeld());
  return place_.RunAndWait(ExecContext(), [this](const ExecContext& here) {
    return cache_->ForEachDirty(
        here, [&](std::span<const RowKey> keys, std::span<const std::byte* const> rows) {
          return AppendRows(keys, rows);
        });
  });
}

// --- Snapshots
// ---------------------------------------------------------------------------------------------------

absl::Status TieredTable::BeginSnapshot() {
  HOTROW_CHECK(cache_ != nullptr);
  HOTROW_RETURN_IF_ERROR(Broken());
  const std::lock_guard<std::mutex> order(order_mutex_);
  // What a snapshot before this one held back belongs to this one.
  HOTROW_RETURN_IF_ERROR(WriteBackPending());
  HOTROW_RETURN_IF_ERROR(WriteBackHeld());
  const std::lock_guard<std::mutex> lock(mutex_);
  HOTROW_CHECK(!holding_ && !marking_ && num_copies_ == 0 && snapshot_pins_ == 0);
  int64_t marked = 0;
  HOTROW_RETURN_IF_ERROR(
      place_.RunAndWait(ExecContext(), [&](const ExecContext& here) -> absl::Status {
        HOTROW_ASSIGN_OR_RETURN(marked, cache_->MarkDirtyRows(here));
        return absl::OkStatus();
      }));
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
    HOTROW_RETURN_IF_ERROR(broken_);
    // Copies first: an update may be waiting for their room.
    for (int64_t i = 0; i < std::min(num_copies_, part_rows_); ++i) {
      const int64_t at = (first_copy_ + i) % copy_keys_.size();
      part_keys_.push_back(copy_keys_[at]);
      part_pointers_.push_back(copies_.data() + at * row_bytes_);
    }
    if (part_keys_.empty() && marking_) {
      int64_t n = 0;
      HOTROW_RETURN_IF_ERROR(
          place_.RunAndWait(ExecContext(), [&](const ExecContext& here) -> absl::Status {
            HOTROW_ASSIGN_OR_RETURN(
                n, cache_->TakeMarked(here, &snapshot_cursor_, taken_keys_.first(part_rows_),
                                      taken_slots_.first(part_rows_), part_.data()));
            return absl::OkStatus();
          }));
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
    Note(
        place_.Run(ExecContext(), [cache = cache_.get(), slots = taken_slots_.first(snapshot_pins_),
                                   dirty = !status.ok()](const ExecContext& here) {
          return cache->Unpin(here, slots, dirty);
        }));
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
  if (marking_) {
    Note(place_.Run(ExecContext(), [cache = cache_.get()](const ExecContext& here) {
      return cache->DropMarks(here);
    }));
  }
  num_copies_ = 0;
  marking_ = false;
  holding_ = false;
  snapshot_changed_.notify_all();
}

}  // namespace hotrow
