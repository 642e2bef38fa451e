#include <algorithm>

#include "base/check.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "embedding/tiers/row_outflow_impl.h"

namespace hotrow::internal {
namespace {

// Held back rows are written in batches of so many.
constexpr int64_t kWriteBatchRows = 4096;
constexpr int64_t kSpareRows = 1024;

absl::StatusOr<RowOutflow::Chunk> CreateChunk(Device device, int64_t rows, int64_t row_bytes) {
  RowOutflow::Chunk chunk;
  HOTROW_ASSIGN_OR_RETURN(chunk.keys, SharedBuffer<RowKey>::Create(rows, {device}));
  HOTROW_ASSIGN_OR_RETURN(chunk.slots, SharedBuffer<int64_t>::Create(rows, {device}));
  HOTROW_ASSIGN_OR_RETURN(chunk.placement, SharedBuffer<Placement>::Create(rows, {device}));
  HOTROW_ASSIGN_OR_RETURN(chunk.evicted, SharedBuffer<uint8_t>::Create(rows, {device}));
  HOTROW_ASSIGN_OR_RETURN(chunk.evicted_keys, SharedBuffer<RowKey>::Create(rows, {device}));
  HOTROW_ASSIGN_OR_RETURN(chunk.evicted_rows, SharedBuffer<std::byte>::Create(
                                                  rows * row_bytes, {device, HugePages::kTry}));
  HOTROW_ASSIGN_OR_RETURN(chunk.placed, DeviceEvent::Create(device));
  return chunk;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RowOutflow>> RowOutflow::Create(
    GuardedCache* cache, RowStore* store, HostStore* in_place, DeviceIndex* index,
    const InitialRows* initial_rows, const CacheBuffers& buffers, int64_t row_bytes) {
  std::unique_ptr<RowOutflow> outflow(
      new RowOutflow(cache, store, in_place, index, initial_rows, row_bytes));
  outflow->staging_rows_ = buffers.staging_rows;
  for (int64_t i = 0; i < (cache->staged() ? kStagingAreas : 1); ++i) {
    HOTROW_ASSIGN_OR_RETURN(Chunk chunk,
                            CreateChunk(cache->device(), buffers.staging_rows, row_bytes));
    outflow->chunks_.push_back(std::move(chunk));
  }
  // All that the chunks may have, so that Take does not throw between a key and its row.
  outflow->pending_keys_.reserve(outflow->chunks_.size() *
                                 static_cast<size_t>(buffers.staging_rows));
  outflow->pending_rows_.reserve(outflow->pending_keys_.capacity());
  HOTROW_ASSIGN_OR_RETURN(outflow->held_, HeldRows::Create(buffers.held_rows, row_bytes));
  return outflow;
}

absl::Status RowOutflow::PassOn(std::span<const RowKey> keys,
                                std::span<const std::byte* const> rows,
                                TieredTable::RowsFn visit) const {
  if (!has_erased_.load(std::memory_order_relaxed)) return visit(keys, rows);
  std::vector<RowKey> changed_keys;
  std::vector<const std::byte*> changed_rows;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (initial_rows_->IsInitial(keys[i], rows[i])) continue;
    changed_keys.push_back(keys[i]);
    changed_rows.push_back(rows[i]);
  }
  return visit(changed_keys, changed_rows);
}

absl::Status RowOutflow::Append(std::span<const RowKey> keys,
                                std::span<const std::byte* const> rows, ThreadPool* pool) {
  return PassOn(
      keys, rows,
      [&](std::span<const RowKey> changed, std::span<const std::byte* const> to) -> absl::Status {
        HOTROW_RETURN_IF_ERROR(index_ != nullptr      ? index_->Write(changed, to, pool)
                               : in_place_ != nullptr ? in_place_->InsertOrAssign(changed, to, pool)
                                                      : store_->InsertOrAssign(changed, to));
        rows_written_.fetch_add(std::ssize(changed), std::memory_order_relaxed);
        return absl::OkStatus();
      });
}

absl::Status RowOutflow::WriteBack(const ExecContext& ctx) {
  if (pending_keys_.empty()) return absl::OkStatus();
  TraceSpan span(ctx.trace, "write_back");
  HOTROW_RETURN_IF_ERROR(Append(pending_keys_, pending_rows_, ctx.pool));
  pending_keys_.clear();
  pending_rows_.clear();
  return absl::OkStatus();
}

absl::Status RowOutflow::WriteBackHeld() {
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
    HOTROW_RETURN_IF_ERROR(Append(keys, rows));
  }
  const std::lock_guard<std::mutex> lock(cache_->mutex());
  held_.Clear();
  return absl::OkStatus();
}

absl::StatusOr<RowOutflow::Chunk*> RowOutflow::FreeChunk() {
  if (pending_keys_.empty()) return &chunks_[0];
  if (spare_.keys.size() == 0) {
    HOTROW_ASSIGN_OR_RETURN(
        spare_, CreateChunk(cache_->device(), std::min(staging_rows_, kSpareRows), row_bytes_));
  }
  return &spare_;
}

absl::Status RowOutflow::ForEachUnwritten(TieredTable::RowsFn visit) {
  std::vector<RowKey> keys;
  std::vector<const std::byte*> rows;
  for (int64_t i = 0; i < held_.size(); ++i) {
    keys.push_back(held_.key(i));
    rows.push_back(held_.row(i));
  }
  for (size_t i = 0; i < pending_keys_.size(); ++i) {
    if (held_.Find(pending_keys_[i]) != nullptr) continue;  // that is newer
    keys.push_back(pending_keys_[i]);
    rows.push_back(pending_rows_[i]);
  }
  return PassOn(keys, rows, visit);
}

absl::StatusOr<int64_t> RowOutflow::MakeRoom(const ExecContext& ctx, int64_t keys,
                                             std::unique_lock<std::mutex>* order,
                                             std::unique_lock<std::mutex>* lock) {
  for (;;) {
    if (pending_keys_.empty()) {  // a good moment for who waits to begin a snapshot
      order->unlock();
      order->lock();
    }
    lock->lock();
    HOTROW_RETURN_IF_ERROR(cache_->broken());
    if (!holding_ && held_.size() > 0) {
      lock->unlock();
      // What was evicted before a row was held back is older.
      HOTROW_RETURN_IF_ERROR(WriteBack(ctx));
      HOTROW_RETURN_IF_ERROR(WriteBackHeld());
      lock->lock();
    }
    // A chunk evicts at most as many rows as it has keys.
    if (!holding_) return staging_rows_;
    const int64_t free = held_.capacity() - held_.size();
    const int64_t wanted =
        std::min({keys, staging_rows_, CeilDiv(held_.capacity(), kMinSnapshotRows)});
    if (free >= wanted) return std::min(staging_rows_, free);
    lock->unlock();
    HOTROW_RETURN_IF_ERROR(WriteBack(ctx));
    order->unlock();
    lock->lock();
    TraceSpan span(ctx.trace, "wait_for_snapshot");
    const int64_t begin = NowNanos();
    let_go_.wait(*lock, [&] { return !holding_; });
    counts_.Add({.evict_waits = 1, .evict_wait_ns = NowNanos() - begin});
    lock->unlock();
    order->lock();
  }
}

void RowOutflow::Take(const Chunk& chunk, int64_t n) {
  const bool hold = holding_ && chunk.hold == holds_;
  SnapshotCounts seen;
  for (int64_t i = 0; i < n; ++i) {
    if (chunk.evicted[i] == 0) continue;
    const std::byte* const row = chunk.evicted_rows.data() + i * row_bytes_;
    if (chunk.evicted[i] == kEvictedDirty && hold) {
      held_.Add(chunk.evicted_keys[i], row);
      ++seen.held;
      continue;
    }
    pending_keys_.push_back(chunk.evicted_keys[i]);
    pending_rows_.push_back(row);
    if (chunk.evicted[i] == kEvictedMarked) ++seen.rows;
  }
  counts_.Add(seen);
}

const std::byte* RowOutflow::FindUnwritten(const RowKey& key) const {
  if (const std::byte* const held = held_.Find(key); held != nullptr) return held;
  const auto at = std::find(pending_keys_.begin(), pending_keys_.end(), key);
  return at == pending_keys_.end() ? nullptr : pending_rows_[at - pending_keys_.begin()];
}

void RowOutflow::Erase(std::span<const RowKey> keys) {
  HOTROW_CHECK(!holding_ && pending_keys_.empty());
  has_erased_.store(true, std::memory_order_relaxed);
  for (const RowKey& key : keys) {
    if (held_.Find(key) != nullptr) held_.Remove(key);
  }
}

void RowOutflow::LetGo() {
  holding_ = false;
  let_go_.notify_all();
}

}  // namespace hotrow::internal
