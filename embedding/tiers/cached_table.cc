#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "base/trace.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/tiers/cached_table_impl.h"
#include "embedding/tiers/host_cached_table_impl.h"
#include "embedding/tiers/staged_table_impl.h"
#include "embedding/tiers/store_reads.h"

namespace hotrow::internal {

CachedTable::CachedTable(const TieredTableOptions& options, RowStore* store, HostStore* in_place)
    : TieredTable(options.tables[0].layout.row_bytes),
      buffers_(options.cache_bytes, row_bytes(), options.place.staged),
      initial_rows_(options),
      store_(store),
      in_place_(in_place),
      misses_(options.tables),
      pool_(options.pool) {
  for (const TieredTableSpec& spec : options.tables) tables_.push_back(spec.table);
}

absl::StatusOr<std::unique_ptr<TieredTable>> CachedTable::Create(const TieredTableOptions& options,
                                                                 RowStore* store,
                                                                 HostStore* in_place) {
  const int64_t row_bytes = options.tables[0].layout.row_bytes;
  HOTROW_CHECK(options.place.device == Device::kCpu || options.place.staged);
  const int64_t least = MinCacheBytes(1, row_bytes, options.place);
  if (options.cache_bytes < least) {
    return absl::ResourceExhaustedError(absl::StrCat("row cache: ", options.cache_bytes,
                                                     " bytes for rows of ", row_bytes,
                                                     " bytes; the least is ", least));
  }
  std::unique_ptr<CachedTable> table;
  if (options.place.staged) {
    table = std::make_unique<StagedTable>(options, store, in_place);
  } else {
    HOTROW_CHECK(options.index_bytes == 0);
    table = std::make_unique<HostCachedTable>(options, store, in_place);
  }
  HOTROW_RETURN_IF_ERROR(table->Init(options));
  return table;
}

absl::Status CachedTable::Init(const TieredTableOptions& options) {
  HOTROW_ASSIGN_OR_RETURN(
      cache_, GuardedCache::Create({.row_bytes = row_bytes(),
                                    .budget_bytes = options.cache_bytes - buffers_.bytes,
                                    .policy = options.cache_policy,
                                    .device = options.place.device},
                                   options.place.staged, buffers_.staging_rows));
  if (options.index_bytes > 0) {
    HOTROW_CHECK(in_place_ != nullptr);
    HOTROW_ASSIGN_OR_RETURN(
        index_,
        DeviceIndex::Create(cache_.get(), in_place_, options.index_bytes, buffers_.staging_rows));
  }
  HOTROW_ASSIGN_OR_RETURN(
      outflow_, RowOutflow::Create(cache_.get(), store_, in_place_, index_.get(), &initial_rows_,
                                   buffers_, row_bytes()));
  HOTROW_ASSIGN_OR_RETURN(inflow_,
                          RowInflow::Create(cache_.get(), &initial_rows_, in_place_, index_.get(),
                                            options.tables, buffers_, row_bytes()));
  HOTROW_ASSIGN_OR_RETURN(marks_, SnapshotMarks::Create(cache_.get(), buffers_, row_bytes()));
  return absl::OkStatus();
}

void CachedTable::WaitForDevice() const {
  if (cache_ != nullptr) cache_->WaitForDevice();
  if (inflow_ != nullptr) inflow_->WaitForDevice();
}

TieredTableStats CachedTable::Stats() const {
  TieredTableStats stats;
  const RowCacheStats size = cache_->Size();
  stats.cache_used_bytes = size.used_bytes + buffers_.bytes;
  stats.host_bytes = buffers_.host_bytes + size.host_bytes;
  if (index_ != nullptr) {
    stats.index = index_->Stats();
    stats.host_bytes += index_->host_bytes();
    stats.known_rows_read = inflow_->known_rows_read();
  }
  stats.rows_read = inflow_->rows_read();
  stats.rows_written = outflow_->rows_written();
  stats.cache = cache_->Stats();
  stats.cache_counts = counts_.Get();
  stats.store_counts = inflow_->counts();
  for (const uint32_t table : tables_) {
    stats.tables.push_back(
        {.table = table, .cache = misses_.Of(table), .store = inflow_->misses().Of(table)});
  }
  stats.snapshot = marks_->counts();
  const SnapshotCounts evicted = outflow_->snapshot_counts();
  stats.snapshot.rows += evicted.rows;
  stats.snapshot.held = evicted.held;
  stats.snapshot.evict_waits = evicted.evict_waits;
  stats.snapshot.evict_wait_ns = evicted.evict_wait_ns;
  return stats;
}

// --- Making rows resident

absl::StatusOr<int64_t> CachedTable::SendChunk(const ExecContext& ctx, const StepRows& step,
                                               int64_t most, int64_t* cursor,
                                               RowOutflow::Chunk* chunk) {
  const auto n = static_cast<int64_t>(step.keys.size());
  chunk->positions.clear();
  for (; *cursor < n && std::ssize(chunk->positions) < most; ++*cursor) {
    if (step.slots[*cursor] >= 0) continue;
    chunk->keys[std::ssize(chunk->positions)] = step.keys[*cursor];
    chunk->positions.push_back(*cursor);
  }
  const auto size = std::ssize(chunk->positions);
  HOTROW_RETURN_IF_ERROR(EnqueueChunk(ctx, size, chunk));
  return size;
}

absl::Status CachedTable::EndChunk(StepRows* step, const RowOutflow::Chunk& chunk, bool* no_room) {
  const auto size = std::ssize(chunk.positions);
  TierCounts probed;
  TableMissRuns missed(&misses_);
  for (int64_t i = 0; i < size; ++i) {
    const int64_t position = chunk.positions[i];
    const Placement placement = chunk.placement[i];
    // A key is counted at its first probe only: another try finds what the one before brought in.
    if (position >= step->probed) {
      probed.Add(placement == Placement::kHit, step->counts[position]);
      if (placement != Placement::kHit) {
        missed.Add(step->keys[position].table, step->counts[position]);
      }
      step->probed = position + 1;
    }
    step->slots[position] = chunk.slots[i];
    if (placement == Placement::kNoRoom) *no_room = true;
  }
  counts_.Add(probed);
  for (int64_t i = 0; i < size; ++i) {
    if (chunk.placement[i] != Placement::kFilled) continue;
    const int64_t slot = chunk.slots[i];
    if (const std::byte* const held =
            outflow_->has_held() ? outflow_->FindHeld(chunk.keys[i]) : nullptr;
        held != nullptr) {
      // It never reached the store, so it comes back as it left.
      HOTROW_RETURN_IF_ERROR(cache_->PutDirty(slot, held));
      outflow_->RemoveHeld(chunk.keys[i]);
      continue;
    }
    step->miss_keys.push_back(chunk.keys[i]);
    step->miss_rows.push_back(cache_->row(slot));
    step->miss_positions.push_back(chunk.positions[i]);
  }
  return absl::OkStatus();
}

absl::Status CachedTable::PlaceChunks(const ExecContext& ctx, int64_t n, const bool* end_early,
                                      SendFn send, EndFn end, Placing* placing) {
  for (int64_t done = 0; done < n && !*end_early;) {
    std::unique_lock<std::mutex> lock(cache_->mutex(), std::defer_lock);
    HOTROW_ASSIGN_OR_RETURN(const int64_t most,
                            outflow_->MakeRoom(ctx, n - done, &placing->order, &lock));
    RowOutflow::Chunk& chunk = outflow_->chunk(placing->turn++);
    int64_t size = 0;
    {
      TraceSpan span(ctx.trace, "probe");
      chunk.hold = outflow_->hold();
      HOTROW_ASSIGN_OR_RETURN(size, send(most, &done, &chunk));
      HOTROW_RETURN_IF_ERROR(chunk.placed.Record(cache_->stream()));
    }
    lock.unlock();
    // The rows that the chunk before evicted go to the store while this one is at work. What this
    // one evicts must be noted, also where the store fails.
    const absl::Status written = outflow_->WriteBack(ctx);
    {
      TraceSpan span(ctx.trace, "probe");
      HOTROW_RETURN_IF_ERROR(chunk.placed.Wait());
      lock.lock();
      outflow_->Take(chunk, size);
      HOTROW_RETURN_IF_ERROR(end(chunk, size));
      lock.unlock();
    }
    HOTROW_RETURN_IF_ERROR(written);
    // A single area must be empty before the next chunk.
    if (outflow_->single_chunk()) HOTROW_RETURN_IF_ERROR(outflow_->WriteBack(ctx));
  }
  return absl::OkStatus();
}

absl::StatusOr<TieredTable::Placed> CachedTable::Place(const ExecContext& ctx,
                                                       std::span<const RowKey> keys,
                                                       std::span<const int32_t> counts,
                                                       StepRows* step) {
  HOTROW_RETURN_IF_ERROR(cache_->Broken());
  HOTROW_CHECK(!step->resident);
  HOTROW_CHECK(keys.size() == counts.size());
  HOTROW_CHECK(step->miss_keys.empty());
  Placing placing = {.order = outflow_->Lock()};
  try {
    return PlaceInOrder(ctx, keys, counts, &placing, step);
  } catch (const std::exception&) {
    // With the lock: rows that a chunk has evicted may be lost, and a snapshot that waits to end
    // must not do so without them.
    Break(StatusOfException("placing the rows of a step"));
    throw;
  }
}

absl::StatusOr<TieredTable::Placed> CachedTable::PlaceInOrder(const ExecContext& ctx,
                                                              std::span<const RowKey> keys,
                                                              std::span<const int32_t> counts,
                                                              Placing* placing, StepRows* step) {
  HOTROW_RETURN_IF_ERROR(outflow_->WriteBack(ctx));
  HOTROW_RETURN_IF_ERROR(TakeKeys(ctx, keys, counts, placing, step));
  const auto n = static_cast<int64_t>(step->keys.size());
  step->slots.resize(n, -1);
  bool& no_room = placing->no_room;
  bool beside_snapshot = false;
  if (no_room) {
    const std::lock_guard<std::mutex> lock(cache_->mutex());
    beside_snapshot = marks_->pins() > 0;
  }
  for (;;) {
    if (no_room) {
      const std::lock_guard<std::mutex> lock(cache_->mutex());
      if (!LetAllGo()) break;
      no_room = false;
    }
    HOTROW_RETURN_IF_ERROR(PlaceChunks(
        ctx, n, &no_room,
        [&](int64_t most, int64_t* done, RowOutflow::Chunk* chunk) {
          return SendChunk(ctx, *step, most, done, chunk);
        },
        [&](const RowOutflow::Chunk& chunk, int64_t) {
          const absl::Status status = EndChunk(step, chunk, &no_room);
          beside_snapshot = marks_->pins() > 0;
          return status;
        },
        placing));
    if (!no_room) break;
  }
  HOTROW_RETURN_IF_ERROR(outflow_->WriteBack(ctx));
  HOTROW_RETURN_IF_ERROR(EndPlacing(step));
  if (!no_room) return Placed::kAll;
  return beside_snapshot ? Placed::kNoRoomBesideSnapshot : Placed::kNoRoom;
}

void CachedTable::FinishPlacing(const ExecContext& ctx) {
  const std::lock_guard<std::mutex> lock(cache_->mutex());
  cache_->Note(
      cache_->stream().Run(ctx, [rows = cache_->get()](const ExecContext& here) -> absl::Status {
        HOTROW_RETURN_IF_ERROR(rows->EndStep(here));
        return rows->EnqueueStats(here);
      }));
  if (index_ != nullptr) cache_->Note(index_->EnqueueStats());
}

void CachedTable::Break(const absl::Status& why) {
  const std::lock_guard<std::mutex> lock(cache_->mutex());
  cache_->Note(why);
}

void CachedTable::GiveUp(StepRows* step) {
  // Nobody else's rows are on their way: two steps are not filled at once.
  const absl::Status arrived = step->sent > step->filled || step->probe.known_sent()
                                   ? inflow_->ArriveAll(step)
                                   : absl::OkStatus();
  {
    const std::lock_guard<std::mutex> lock(cache_->mutex());
    cache_->Note(arrived);
    if (cache_->broken().ok()) Unplace(step);  // else its marks may be anything
    step->probe.Clear();
  }
  step->keys = {};
  step->counts = {};
  step->slots.clear();
  step->ForgetMisses();
  step->resident = false;
}

void CachedTable::Unplace(StepRows* step) {
  abandoned_slots_.clear();
  if (const std::span<const int64_t> known = step->probe.known_slots(); !known.empty()) {
    abandoned_slots_.resize(known.size());
    cache_->Note(cache_->stream().Copy(abandoned_slots_.data(), known.data(),
                                       static_cast<int64_t>(known.size_bytes())));
    cache_->Note(cache_->stream().Wait());
    std::erase_if(abandoned_slots_, [](int64_t slot) { return slot < 0; });
  }
  for (size_t i = step->filled; i < step->miss_positions.size(); ++i) {
    const int64_t position = step->miss_positions[i];
    abandoned_slots_.push_back(step->slots[position]);
    step->slots[position] = -1;
  }
  RowCache* const rows = cache_->get();
  cache_->Note(cache_->WithSlots(abandoned_slots_,
                                 [rows](const ExecContext& ctx, std::span<const int64_t> slots) {
                                   return rows->Abandon(ctx, slots);
                                 }));
  std::erase(step->slots, -1);
  cache_->Note(cache_->WithSlots(step->slots,
                                 [rows](const ExecContext& ctx, std::span<const int64_t> slots) {
                                   return rows->Unpin(ctx, slots, /*dirty=*/false);
                                 }));
  cache_->Note(cache_->stream().Run(ExecContext(),
                                    [rows, hits = step->probe.hit_slots()](const ExecContext& ctx) {
                                      return rows->Unpin(ctx, hits, /*dirty=*/false);
                                    }));
  // Placing it may have evicted rows.
  cache_->Note(cache_->stream().Run(
      ExecContext(), [rows](const ExecContext& ctx) { return rows->EnqueueStats(ctx); }));
}

// --- A resident step

absl::Status CachedTable::PrepareForUpdate(const ExecContext& ctx, const StepRows& step) {
  HOTROW_RETURN_IF_ERROR(marks_->KeepBeforeUpdate(ctx, step.probe.hit_slots()));
  return marks_->KeepBeforeUpdate(ctx, SlotsOf(step));
}

absl::Status CachedTable::ResolveForUpdate(StepRows* step, std::span<std::byte*> /*rows*/) {
  HOTROW_CHECK(step->resident);
  return cache_->Broken();
}

absl::Status CachedTable::Withdraw(const StepRows& /*step*/) { return cache_->Broken(); }

void CachedTable::Release(const ExecContext& ctx, StepRows* step, bool updated) {
  if (step->resident) {
    const std::lock_guard<std::mutex> lock(cache_->mutex());
    Unpin(ctx, step, updated);
  }
  step->keys = {};
  step->counts = {};
  step->trained = {};
  step->slots.clear();
  step->probed = 0;
  step->resident = false;
}

// --- All rows

absl::Status CachedTable::Read(const ExecContext& ctx, std::span<const RowKey> keys,
                               std::byte* staging, std::span<std::byte*> rows) {
  {
    const std::unique_lock<std::mutex> order = outflow_->Lock();
    outflow_->WriteBack().IgnoreError();  // what the store refuses is read where it is
    const std::lock_guard<std::mutex> lock(cache_->mutex());
    HOTROW_RETURN_IF_ERROR(cache_->broken());
    HOTROW_RETURN_IF_ERROR(ReadCached(ctx, keys, staging, rows));
  }
  return ReadMisses(ctx);
}

absl::Status CachedTable::ReadMisses(const ExecContext& ctx) {
  found_.assign(miss_keys_.size(), 0);
  HOTROW_RETURN_IF_ERROR(
      FindInStore(ctx, store_, in_place_ != nullptr, miss_keys_, miss_rows_, found_));
  size_t absent = 0;
  for (size_t i = 0; i < miss_keys_.size(); ++i) {
    if (found_[i] != 0) continue;
    miss_keys_[absent] = miss_keys_[i];
    miss_rows_[absent] = miss_rows_[i];
    ++absent;
  }
  return initial_rows_.Write(ctx, std::span(miss_keys_).first(absent),
                             std::span(miss_rows_).first(absent));
}

absl::Status CachedTable::Flush() {
  const std::unique_lock<std::mutex> order = outflow_->Lock();
  HOTROW_RETURN_IF_ERROR(cache_->Broken());
  HOTROW_RETURN_IF_ERROR(outflow_->WriteBack());
  HOTROW_RETURN_IF_ERROR(outflow_->WriteBackHeld());
  std::unique_lock<std::mutex> lock(cache_->mutex());
  LetAllGo();
  // A tight store's rows are written beside the pipeline, which may fill a step or give one up. On
  // a device the stream keeps these apart, and an index of the device takes the lock to write.
  if (cache_->staged()) lock.unlock();
  return cache_->stream().RunAndWait(ExecContext(), [this](const ExecContext& here) {
    return cache_->get()->ForEachDirty(
        here, [&](std::span<const RowKey> keys, std::span<const std::byte* const> rows) {
          return outflow_->Append(keys, rows, pool_);
        });
  });
}

absl::Status CachedTable::ForEachUnwritten(RowsFn visit) {
  const std::unique_lock<std::mutex> order = outflow_->Lock();
  {
    const std::lock_guard<std::mutex> lock(cache_->mutex());
    HOTROW_RETURN_IF_ERROR(cache_->broken());
    LetAllGo();
    HOTROW_RETURN_IF_ERROR(marks_->Begin());
  }
  // As a snapshot would take them.
  absl::StatusOr<bool> more = true;
  while (more.ok() && *more) {
    more = marks_->WritePart(
        [&](std::span<const RowKey> keys, std::span<const std::byte* const> rows) {
          return outflow_->PassOn(keys, rows, visit);
        },
        /*stay_dirty=*/true);
  }
  {
    const std::lock_guard<std::mutex> lock(cache_->mutex());
    marks_->End();
  }
  HOTROW_RETURN_IF_ERROR(more.status());
  return outflow_->ForEachUnwritten(visit);
}

absl::Status CachedTable::Erase(const ExecContext& ctx, std::span<const RowKey> keys) {
  HOTROW_RETURN_IF_ERROR(cache_->Broken());
  const std::unique_lock<std::mutex> order = outflow_->Lock();
  // What is on its way is older than this, and must not arrive after it.
  HOTROW_RETURN_IF_ERROR(outflow_->WriteBack());
  // The store may use the place of a row again as soon as it is erased.
  if (index_ != nullptr) HOTROW_RETURN_IF_ERROR(index_->Erase(keys));
  HOTROW_RETURN_IF_ERROR(store_->Erase(keys));
  const std::lock_guard<std::mutex> lock(cache_->mutex());
  outflow_->Erase(keys);
  LetAllGo();
  return OverwriteCached(ctx, keys, {});
}

absl::Status CachedTable::Write(const ExecContext& ctx, std::span<const RowKey> keys,
                                std::span<const std::byte* const> rows) {
  HOTROW_RETURN_IF_ERROR(cache_->Broken());
  const std::unique_lock<std::mutex> order = outflow_->Lock();
  // As in Erase.
  HOTROW_RETURN_IF_ERROR(outflow_->WriteBack());
  HOTROW_RETURN_IF_ERROR(index_ != nullptr ? index_->Write(keys, rows)
                                           : store_->InsertOrAssign(keys, rows));
  const std::lock_guard<std::mutex> lock(cache_->mutex());
  outflow_->Erase(keys);
  LetAllGo();
  return OverwriteCached(ctx, keys, rows);
}

absl::Status CachedTable::CopyToMissRows(const ExecContext& ctx, bool initial) {
  if (initial) return initial_rows_.Write(ctx, miss_keys_, miss_rows_);
  for (size_t i = 0; i < miss_rows_.size(); ++i) {
    std::memcpy(miss_rows_[i], miss_values_[i], static_cast<size_t>(row_bytes()));
  }
  return absl::OkStatus();
}

// --- Snapshots

absl::Status CachedTable::BeginSnapshot() {
  const auto begin = [this]() -> absl::Status {
    LetAllGo();
    HOTROW_RETURN_IF_ERROR(marks_->Begin());
    outflow_->Hold();
    return absl::OkStatus();
  };
  {
    // Without the outflow's lock, which is held while the store takes rows: rows on their way there
    // get to it before the last WriteSnapshotPart ends.
    const std::lock_guard<std::mutex> lock(cache_->mutex());
    HOTROW_RETURN_IF_ERROR(cache_->broken());
    if (!outflow_->has_held()) return begin();
  }
  // What a snapshot before this one held back belongs to this one. WriteHeld found no time for it,
  // or the store refused it.
  const std::unique_lock<std::mutex> order = outflow_->Lock();
  HOTROW_RETURN_IF_ERROR(outflow_->WriteBack());
  HOTROW_RETURN_IF_ERROR(outflow_->WriteBackHeld());
  const std::lock_guard<std::mutex> lock(cache_->mutex());
  return begin();
}

absl::StatusOr<bool> CachedTable::WriteSnapshotPart() {
  HOTROW_ASSIGN_OR_RETURN(const bool more,
                          marks_->WritePart([this](std::span<const RowKey> keys,
                                                   std::span<const std::byte* const> rows) {
                            return outflow_->Append(keys, rows);
                          }));
  if (more) return true;
  // Marked rows that were evicted, and rows that were on their way when the snapshot began.
  const std::unique_lock<std::mutex> order = outflow_->Lock();
  HOTROW_RETURN_IF_ERROR(cache_->Broken());
  HOTROW_RETURN_IF_ERROR(outflow_->WriteBack());
  return false;
}

void CachedTable::EndSnapshot() {
  const std::lock_guard<std::mutex> lock(cache_->mutex());
  marks_->End();
  outflow_->LetGo();
}

absl::Status CachedTable::WriteHeld() {
  const std::unique_lock<std::mutex> order = outflow_->Lock();
  HOTROW_RETURN_IF_ERROR(outflow_->WriteBack());
  return outflow_->WriteBackHeld();
}

}  // namespace hotrow::internal
