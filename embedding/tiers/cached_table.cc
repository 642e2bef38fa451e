#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/tiers/cached_table_impl.h"
#include "embedding/tiers/store_reads.h"
#include "ops/rows/gather.h"

namespace hotrow::internal {

CachedTable::CachedTable(const TieredTableOptions& options, const CacheBuffers& buffers,
                         RowStore* store, HostStore* in_place)
    : TieredTable(options.tables[0].layout.row_bytes),
      buffers_(buffers),
      pool_(options.pool),
      initial_rows_(options),
      store_(store),
      in_place_(in_place),
      misses_(options.tables) {
  for (const TieredTableSpec& spec : options.tables) tables_.push_back(spec.table);
}

absl::StatusOr<std::unique_ptr<TieredTable>> CachedTable::Create(const TieredTableOptions& options,
                                                                 RowStore* store,
                                                                 HostStore* in_place) {
  const int64_t row_bytes = options.tables[0].layout.row_bytes;
  const bool staged = options.place.staged;
  const Device device = options.place.device;
  HOTROW_CHECK(device == Device::kCpu || staged);
  const int64_t least = MinCacheBytes(1, row_bytes, options.place);
  if (options.cache_bytes < least) {
    return absl::ResourceExhaustedError(absl::StrCat(CacheBudgetName(options.place), ": ",
                                                     options.cache_bytes, " bytes for rows of ",
                                                     row_bytes, " bytes; the least is ", least));
  }
  const CacheBuffers buffers(options.cache_bytes, row_bytes, staged);
  std::unique_ptr<CachedTable> table(new CachedTable(options, buffers, store, in_place));
  HOTROW_ASSIGN_OR_RETURN(table->cache_,
                          GuardedCache::Create({.row_bytes = row_bytes,
                                                .budget_bytes = options.cache_bytes - buffers.bytes,
                                                .policy = options.cache_policy,
                                                .device = device},
                                               staged, buffers.staging_rows));
  GuardedCache* const cache = table->cache_.get();
  if (options.index_bytes > 0) {
    HOTROW_CHECK(staged && in_place != nullptr);
    HOTROW_ASSIGN_OR_RETURN(table->index_, DeviceIndex::Create(cache, in_place, options.index_bytes,
                                                               buffers.staging_rows));
  }
  DeviceIndex* const index = table->index_.get();
  HOTROW_ASSIGN_OR_RETURN(
      table->outflow_,
      RowOutflow::Create(cache, store, in_place, index, &table->initial_rows_, buffers, row_bytes));
  HOTROW_ASSIGN_OR_RETURN(table->inflow_,
                          RowInflow::Create(cache, &table->initial_rows_, in_place, index,
                                            options.tables, buffers, row_bytes));
  HOTROW_ASSIGN_OR_RETURN(table->marks_, SnapshotMarks::Create(cache, buffers, row_bytes));
  if (staged) {
    HOTROW_ASSIGN_OR_RETURN(table->read_rows_,
                            SharedBuffer<std::byte*>::Create(buffers.staging_rows, {device}));
  }
  return table;
}

void CachedTable::WaitForDevice() const {
  if (cache_ != nullptr) cache_->WaitForDevice();
  if (inflow_ != nullptr) inflow_->WaitForDevice();
}

TieredTableStats CachedTable::Stats() const {
  TieredTableStats stats;
  const RowCacheStats size = cache_->Size();
  stats.cache_used_bytes = size.used_bytes + buffers_.bytes;
  if (cache_->staged()) stats.host_bytes = buffers_.host_bytes + size.host_bytes;
  if (index_ != nullptr) {
    stats.index = index_->Stats();
    stats.host_bytes += index_->host_bytes();
    stats.known_rows_read = inflow_->known_rows_read();
  }
  stats.rows_read = inflow_->rows_read();
  stats.rows_written = outflow_->rows_written();
  stats.cache = cache_->Stats();
  stats.host_bytes += step_host_bytes_.load(std::memory_order_relaxed);
  stats.device_bytes = step_device_bytes_.load(std::memory_order_relaxed);
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
  const bool staged = cache_->staged();
  if (staged) std::fill_n(chunk->slots.data(), size, -1);  // all have missed
  HOTROW_RETURN_IF_ERROR(cache_->stream().Run(
      ctx, [rows = cache_->get(), staged, chunk_keys = chunk->keys.first(size),
            result = RowCache::InsertResult{.slots = chunk->slots.first(size),
                                            .placement = chunk->placement.first(size),
                                            .evicted = chunk->evicted.first(size),
                                            .evicted_keys = chunk->evicted_keys.first(size),
                                            .evicted_rows = chunk->evicted_rows.data()}](
               const ExecContext& here) {
        return staged ? rows->PlaceMisses(here, chunk_keys, result)
                      : rows->FindOrInsert(here, chunk_keys, result);
      }));
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

absl::Status CachedTable::PinHits(const ExecContext& ctx, std::span<const RowKey> keys,
                                  std::span<const int32_t> counts, StepRows* step) {
  StepProbe& probe = step->probe;
  if (probe.found()) return absl::OkStatus();
  TraceSpan span(ctx.trace, "probe");
  {
    const std::lock_guard<std::mutex> lock(cache_->mutex());
    LetGo(step);  // the slots of its last use are in the arrays that are written now
    const AddressIndex* index = nullptr;
    // A row that is held back is newer than the store's: then the host looks at each miss.
    if (index_ != nullptr && !outflow_->has_held()) {
      HOTROW_ASSIGN_OR_RETURN(index, index_->ForSearch());
    }
    step_host_bytes_ -= probe.host_bytes();
    step_device_bytes_ -= probe.device_bytes();
    const absl::Status started =
        probe.Start(ctx, cache_.get(), keys, counts, index, misses_.num_tables());
    step_host_bytes_ += probe.host_bytes();
    step_device_bytes_ += probe.device_bytes();
    HOTROW_RETURN_IF_ERROR(started);
  }
  HOTROW_RETURN_IF_ERROR(probe.Wait(cache_->stream()));
  step->keys = probe.miss_keys();
  step->counts = probe.miss_counts();
  const auto n = std::ssize(keys);
  if (step->probed == n) return absl::OkStatus();
  CountProbed(probe);
  step->probed = n;  // the misses too
  return absl::OkStatus();
}

void CachedTable::CountProbed(const StepProbe& probe) {
  TierCounts seen = {.unique_keys = probe.hits(),
                     .unique_hits = probe.hits(),
                     .lookups = probe.hit_lookups(),
                     .lookup_hits = probe.hit_lookups()};
  TableMissRuns missed(&misses_);
  for (size_t i = 0; i < probe.miss_keys().size(); ++i) {
    seen.Add(/*hit=*/false, probe.miss_counts()[i]);
    missed.Add(probe.miss_keys()[i].table, probe.miss_counts()[i]);
  }
  seen.Add(TierCounts{.unique_keys = probe.known(), .lookups = probe.known_lookups()});
  for (const uint32_t table : tables_) {
    if (probe.known() == 0) break;
    const FoundOfTable known = probe.known_of_table(table);
    misses_.Add(table, MissCounts{.unique_keys = known.keys, .lookups = known.lookups});
  }
  counts_.Add(seen);
}

template <typename Send, typename End>
absl::Status CachedTable::PlaceChunks(const ExecContext& ctx, std::unique_lock<std::mutex>* order,
                                      int64_t n, size_t* turn, const bool* end_early,
                                      const Send& send, const End& end) {
  for (int64_t done = 0; done < n && !*end_early;) {
    std::unique_lock<std::mutex> lock(cache_->mutex(), std::defer_lock);
    HOTROW_ASSIGN_OR_RETURN(const int64_t most, outflow_->MakeRoom(ctx, n - done, order, &lock));
    RowOutflow::Chunk& chunk = outflow_->chunk((*turn)++);
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

absl::Status CachedTable::PlaceKnown(const ExecContext& ctx, std::unique_lock<std::mutex>* order,
                                     size_t* turn, StepRows* step, bool* no_room) {
  StepProbe& probe = step->probe;
  if (probe.known() == 0) return absl::OkStatus();
  bool unplaced = false;
  const bool never = false;
  HOTROW_RETURN_IF_ERROR(PlaceChunks(
      ctx, order, probe.known(), turn, &never,
      [&](int64_t most, int64_t* done, RowOutflow::Chunk* chunk) -> absl::StatusOr<int64_t> {
        const int64_t n = std::min(most, probe.known() - *done);
        HOTROW_RETURN_IF_ERROR(probe.PlaceKnown(ctx, cache_.get(), *done, n,
                                                {.placement = chunk->placement.first(n),
                                                 .evicted = chunk->evicted.first(n),
                                                 .evicted_keys = chunk->evicted_keys.first(n),
                                                 .evicted_rows = chunk->evicted_rows.data()}));
        *done += n;
        return n;
      },
      [&](const RowOutflow::Chunk& chunk, int64_t n) -> absl::Status {
        const auto placement = std::as_const(chunk.placement).span().first(static_cast<size_t>(n));
        unplaced = unplaced || std::find(placement.begin(), placement.end(), Placement::kNoRoom) !=
                                   placement.end();
        return absl::OkStatus();
      }));
  if (!unplaced) return absl::OkStatus();
  *no_room = true;
  const std::lock_guard<std::mutex> lock(cache_->mutex());
  HOTROW_RETURN_IF_ERROR(probe.TellUnplaced(cache_->stream()));
  step->keys = probe.miss_keys();
  step->counts = probe.miss_counts();
  return absl::OkStatus();
}

absl::StatusOr<TieredTable::Placed> CachedTable::Place(const ExecContext& ctx,
                                                       std::span<const RowKey> keys,
                                                       std::span<const int32_t> counts,
                                                       StepRows* step) {
  HOTROW_CHECK(!step->resident);
  HOTROW_CHECK(keys.size() == counts.size());
  HOTROW_CHECK(step->miss_keys.empty());
  HOTROW_RETURN_IF_ERROR(cache_->Broken());
  std::unique_lock<std::mutex> order = outflow_->Lock();
  HOTROW_RETURN_IF_ERROR(outflow_->WriteBack(ctx));
  if (cache_->staged()) {
    HOTROW_RETURN_IF_ERROR(PinHits(ctx, keys, counts, step));
  } else {
    step->keys = keys;
    step->counts = counts;
  }
  size_t turn = 0;
  bool no_room = false;
  if (cache_->staged()) HOTROW_RETURN_IF_ERROR(PlaceKnown(ctx, &order, &turn, step, &no_room));
  const auto n = static_cast<int64_t>(step->keys.size());
  step->slots.resize(n, -1);
  bool beside_snapshot = false;
  if (no_room) {
    const std::lock_guard<std::mutex> lock(cache_->mutex());
    beside_snapshot = marks_->pins() > 0;
  }
  for (bool last = false; !last;) {
    if (no_room && cache_->staged()) {
      // Ways of steps that are over, but for the work that is enqueued.
      const std::lock_guard<std::mutex> lock(cache_->mutex());
      no_room = leaving_.empty();
      LetAllGo();
    }
    HOTROW_RETURN_IF_ERROR(PlaceChunks(
        ctx, &order, n, &turn, &no_room,
        [&](int64_t most, int64_t* done, RowOutflow::Chunk* chunk) {
          return SendChunk(ctx, *step, most, done, chunk);
        },
        [&](const RowOutflow::Chunk& chunk, int64_t) {
          const absl::Status status = EndChunk(step, chunk, &no_room);
          beside_snapshot = marks_->pins() > 0;
          return status;
        }));
    const std::lock_guard<std::mutex> lock(cache_->mutex());
    last = !no_room || leaving_.empty();
  }
  HOTROW_RETURN_IF_ERROR(outflow_->WriteBack(ctx));
  HOTROW_RETURN_IF_ERROR(ShareSlots(step));
  if (!no_room) return Placed::kAll;
  return beside_snapshot ? Placed::kNoRoomBesideSnapshot : Placed::kNoRoom;
}

absl::Status CachedTable::ShareSlots(StepRows* step) {
  if (!cache_->staged()) return absl::OkStatus();
  // The kernels that read the slots of this step's last use are done: they were enqueued on the
  // cache's stream before the search for its hits, and that was waited for.
  const auto reserve = [&](int64_t n, SharedBuffer<int64_t>* slots) -> absl::Status {
    if (slots->size() >= n) return absl::OkStatus();
    step_host_bytes_ -= slots->bytes();
    const absl::Status status = slots->Reserve(n + n / 4, {cache_->device()});
    step_host_bytes_ += slots->bytes();
    return status;
  };
  HOTROW_RETURN_IF_ERROR(reserve(std::ssize(step->slots), &step->shared_slots));
  std::copy(step->slots.begin(), step->slots.end(), step->shared_slots.data());
  HOTROW_RETURN_IF_ERROR(reserve(std::ssize(step->miss_positions), &step->shared_miss_slots));
  for (size_t i = 0; i < step->miss_positions.size(); ++i) {
    step->shared_miss_slots[static_cast<int64_t>(i)] = step->slots[step->miss_positions[i]];
  }
  return absl::OkStatus();
}

std::span<const int64_t> CachedTable::SlotsOf(const StepRows& step) const {
  if (!cache_->staged()) return step.slots;
  return {step.shared_slots.data(), step.slots.size()};
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

void CachedTable::GiveUp(StepRows* step) {
  // Nobody else's rows are on their way: two steps are not filled at once.
  const absl::Status arrived = step->sent > step->filled || step->probe.known_sent()
                                   ? inflow_->ArriveAll(step)
                                   : absl::OkStatus();
  {
    const std::lock_guard<std::mutex> lock(cache_->mutex());
    cache_->Note(arrived);
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
    if (cache_->staged()) UnpinHits(ExecContext(), step, /*dirty=*/false);
    // Placing it may have evicted rows.
    cache_->Note(cache_->stream().Run(
        ExecContext(), [rows](const ExecContext& ctx) { return rows->EnqueueStats(ctx); }));
  }
  step->keys = {};
  step->counts = {};
  step->slots.clear();
  step->ForgetMisses();
  step->resident = false;
}

// --- A resident step

void CachedTable::LetGo(const StepRows* last) {
  const bool waits = std::any_of(leaving_.begin(), leaving_.end(),
                                 [last](const Leaving& of) { return of.step == last; });
  for (bool passed = !waits; !leaving_.empty(); leaving_.pop_front()) {
    Leaving& first = leaving_.front();
    if (!first.ended.IsDone()) {
      if (passed) return;
      cache_->Note(cache_->stream().RunAfter(first.ended));
    }
    passed = passed || first.step == last;
    for (const std::span<const int64_t> slots : {first.hits, first.misses}) {
      cache_->Note(cache_->stream().Run(
          ExecContext(), [rows = cache_->get(), slots, dirty = first.dirty](
                             const ExecContext& here) { return rows->Unpin(here, slots, dirty); }));
    }
    ended_events_.push_back(std::move(first.ended));
  }
}

void CachedTable::UnpinHits(const ExecContext& ctx, StepRows* step, bool dirty) {
  cache_->Note(cache_->stream().Run(
      ctx, [rows = cache_->get(), slots = step->probe.hit_slots(), dirty](const ExecContext& here) {
        return rows->Unpin(here, slots, dirty);
      }));
  step->probe.Clear();
}

absl::Status CachedTable::ResolveForRead(const ExecContext& ctx, StepRows* step,
                                         std::span<std::byte*> rows) {
  HOTROW_CHECK(step->resident);
  HOTROW_RETURN_IF_ERROR(cache_->Broken());
  if (cache_->staged()) return step->probe.Address(ctx, *cache_, SlotsOf(*step), rows);
  for (size_t i = 0; i < step->keys.size(); ++i) rows[i] = cache_->row(step->slots[i]);
  return absl::OkStatus();
}

absl::Status CachedTable::PrepareForUpdate(const ExecContext& ctx, const StepRows& step) {
  if (cache_->staged()) {
    HOTROW_RETURN_IF_ERROR(marks_->KeepBeforeUpdate(ctx, step.probe.hit_slots()));
  }
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
    const auto unpin = [&](std::span<const int64_t> slots, bool dirty) {
      cache_->Note(
          cache_->stream().Run(ctx, [rows = cache_->get(), slots, dirty](const ExecContext& here) {
            return rows->Unpin(here, slots, dirty);
          }));
    };
    if (cache_->staged()) {
      // What is enqueued may still read or change the rows.
      HOTROW_CHECK(!updated || step->trained.empty());
      if (ended_events_.empty()) {
        absl::StatusOr<DeviceEvent> event = DeviceEvent::Create(cache_->device());
        cache_->Note(event.status());
        ended_events_.push_back(event.ok() ? *std::move(event) : DeviceEvent());
      }
      leaving_.push_back({std::move(ended_events_.back()), step, step->probe.hit_slots(),
                          SlotsOf(*step), updated});
      ended_events_.pop_back();
      cache_->Note(leaving_.back().ended.Record(ctx));
      step->probe.Clear();
      LetGo(nullptr);
    } else if (!updated || step->trained.empty()) {
      unpin(SlotsOf(*step), updated);
    } else {
      clean_slots_.clear();
      dirty_slots_.clear();
      for (size_t i = 0; i < step->slots.size(); ++i) {
        (step->trained[i] != 0 ? dirty_slots_ : clean_slots_).push_back(step->slots[i]);
      }
      unpin(clean_slots_, /*dirty=*/false);
      unpin(dirty_slots_, /*dirty=*/true);
    }
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
    if (cache_->staged()) return ReadStaged(ctx, keys, staging, rows);
    miss_keys_.clear();
    miss_rows_.clear();
    HOTROW_RETURN_IF_ERROR(cache_->get()->Find(ctx, keys, rows));
    for (size_t i = 0; i < keys.size(); ++i) {
      if (rows[i] != nullptr) continue;
      rows[i] = staging;
      staging += row_bytes();
      if (const std::byte* const row = outflow_->FindUnwritten(keys[i]); row != nullptr) {
        std::memcpy(rows[i], row, static_cast<size_t>(row_bytes()));
        continue;
      }
      miss_keys_.push_back(keys[i]);
      miss_rows_.push_back(rows[i]);
    }
  }
  return ReadMisses(ctx);
}

// A chunk at a time, through a staging area of evicted rows, or one beside those that the store
// has refused.
absl::Status CachedTable::ReadStaged(const ExecContext& ctx, std::span<const RowKey> keys,
                                     std::byte* staging, std::span<std::byte*> rows) {
  DeviceStream& stream = cache_->stream();
  // What is enqueued may still read what is in `staging`.
  HOTROW_RETURN_IF_ERROR(stream.RunAfter(ctx.stream));
  HOTROW_ASSIGN_OR_RETURN(RowOutflow::Chunk* const free, outflow_->FreeChunk());
  RowOutflow::Chunk& chunk = *free;
  for (size_t begin = 0; begin < keys.size();) {
    const size_t n = std::min(keys.size() - begin, static_cast<size_t>(chunk.keys.size()));
    const auto size = static_cast<int64_t>(n);
    std::copy_n(keys.begin() + static_cast<int64_t>(begin), n, chunk.keys.data());
    HOTROW_RETURN_IF_ERROR(stream.RunAndWait(ctx, [&](const ExecContext& here) {
      return cache_->get()->Find(here, chunk.keys.first(size), read_rows_.first(size));
    }));
    miss_keys_.clear();
    miss_rows_.clear();
    int64_t staged = 0;
    for (size_t i = 0; i < n; ++i) {
      std::byte*& row = rows[begin + i];
      row = read_rows_[static_cast<int64_t>(i)];
      if (row != nullptr) continue;
      row = staging + staged * row_bytes();
      std::byte* const here = chunk.evicted_rows.data() + staged * row_bytes();
      ++staged;
      const std::byte* const kept = outflow_->FindUnwritten(keys[begin + i]);
      if (kept != nullptr) {
        std::memcpy(here, kept, static_cast<size_t>(row_bytes()));
        continue;
      }
      miss_keys_.push_back(keys[begin + i]);
      miss_rows_.push_back(here);
    }
    HOTROW_RETURN_IF_ERROR(ReadMisses(ctx));
    HOTROW_RETURN_IF_ERROR(stream.Copy(staging, chunk.evicted_rows.data(), staged * row_bytes()));
    HOTROW_RETURN_IF_ERROR(stream.Wait());
    staging += staged * row_bytes();
    begin += n;
  }
  return absl::OkStatus();
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
  HOTROW_RETURN_IF_ERROR(cache_->Broken());
  const std::unique_lock<std::mutex> order = outflow_->Lock();
  HOTROW_RETURN_IF_ERROR(outflow_->WriteBack());
  HOTROW_RETURN_IF_ERROR(outflow_->WriteBackHeld());
  {
    const std::lock_guard<std::mutex> lock(cache_->mutex());
    LetAllGo();
  }
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
        [&](std::span<const RowKey> keys, std::span<const std::byte* const> rows) -> absl::Status {
          try {  // marks that have begun must end
            return outflow_->PassOn(keys, rows, visit);
          } catch (const std::bad_alloc&) {
            return absl::ResourceExhaustedError("no memory for what reads the rows");
          }
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
  return cache_->staged() ? OverwriteStaged(ctx, keys, {}) : OverwriteRows(ctx, keys, {});
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
  return cache_->staged() ? OverwriteStaged(ctx, keys, rows) : OverwriteRows(ctx, keys, rows);
}

absl::Status CachedTable::CopyToMissRows(const ExecContext& ctx, bool initial) {
  if (initial) return initial_rows_.Write(ctx, miss_keys_, miss_rows_);
  for (size_t i = 0; i < miss_rows_.size(); ++i) {
    std::memcpy(miss_rows_[i], miss_values_[i], static_cast<size_t>(row_bytes()));
  }
  return absl::OkStatus();
}

absl::Status CachedTable::OverwriteRows(const ExecContext& ctx, std::span<const RowKey> keys,
                                        std::span<const std::byte* const> rows) {
  std::vector<std::byte*> resident(keys.size());
  HOTROW_RETURN_IF_ERROR(cache_->get()->Find(ctx, keys, resident));
  miss_keys_.clear();
  miss_rows_.clear();
  miss_values_.clear();
  for (size_t i = 0; i < keys.size(); ++i) {
    if (resident[i] == nullptr) continue;
    miss_keys_.push_back(keys[i]);
    miss_rows_.push_back(resident[i]);
    if (!rows.empty()) miss_values_.push_back(rows[i]);
  }
  return CopyToMissRows(ctx, rows.empty());
}

// As ReadStaged, the other way.
absl::Status CachedTable::OverwriteStaged(const ExecContext& ctx, std::span<const RowKey> keys,
                                          std::span<const std::byte* const> rows) {
  DeviceStream& stream = cache_->stream();
  HOTROW_RETURN_IF_ERROR(stream.RunAfter(ctx.stream));
  RowOutflow::Chunk& chunk = outflow_->chunk(0);
  while (!keys.empty()) {
    const size_t n = std::min(keys.size(), static_cast<size_t>(buffers_.staging_rows));
    const auto size = static_cast<int64_t>(n);
    std::copy_n(keys.begin(), n, chunk.keys.data());
    HOTROW_RETURN_IF_ERROR(stream.RunAndWait(ctx, [&](const ExecContext& here) {
      return cache_->get()->Find(here, chunk.keys.first(size), read_rows_.first(size));
    }));
    miss_keys_.clear();
    miss_rows_.clear();
    miss_values_.clear();
    int64_t resident = 0;
    for (int64_t i = 0; i < size; ++i) {
      if (read_rows_[i] == nullptr) continue;
      read_rows_[resident] = read_rows_[i];
      miss_keys_.push_back(keys[static_cast<size_t>(i)]);
      miss_rows_.push_back(chunk.evicted_rows.data() + resident * row_bytes());
      if (!rows.empty()) miss_values_.push_back(rows[static_cast<size_t>(i)]);
      ++resident;
    }
    HOTROW_RETURN_IF_ERROR(CopyToMissRows(ctx, rows.empty()));
    HOTROW_RETURN_IF_ERROR(stream.RunAndWait(ctx, [&](const ExecContext& here) {
      return ScatterRows(here, {.input = chunk.evicted_rows.data(),
                                .input_stride = row_bytes(),
                                .num_rows = resident,
                                .row_bytes = row_bytes(),
                                .rows = read_rows_.data()});
    }));
    keys = keys.subspan(n);
    if (!rows.empty()) rows = rows.subspan(n);
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
