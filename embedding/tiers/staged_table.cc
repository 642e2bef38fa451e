#include "embedding/tiers/staged_table_impl.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "ops/rows/gather.h"

namespace hotrow::internal {

absl::Status StagedTable::Init(const TieredTableOptions& options) {
  HOTROW_RETURN_IF_ERROR(CachedTable::Init(options));
  HOTROW_ASSIGN_OR_RETURN(
      read_rows_, SharedBuffer<std::byte*>::Create(buffers_.staging_rows, {cache_->device()}));
  return absl::OkStatus();
}

TieredTableStats StagedTable::Stats() const {
  TieredTableStats stats = CachedTable::Stats();
  stats.host_bytes += step_host_bytes_.load(std::memory_order_relaxed);
  stats.device_bytes = step_device_bytes_.load(std::memory_order_relaxed);
  return stats;
}

// --- Making rows resident

absl::Status StagedTable::TakeKeys(const ExecContext& ctx, std::span<const RowKey> keys,
                                   std::span<const int32_t> counts, Placing* placing,
                                   StepRows* step) {
  HOTROW_RETURN_IF_ERROR(PinHits(ctx, keys, counts, step));
  return PlaceKnown(ctx, placing, step);
}

absl::Status StagedTable::PinHits(const ExecContext& ctx, std::span<const RowKey> keys,
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

void StagedTable::CountProbed(const StepProbe& probe) {
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

absl::Status StagedTable::PlaceKnown(const ExecContext& ctx, Placing* placing, StepRows* step) {
  StepProbe& probe = step->probe;
  if (probe.known() == 0) return absl::OkStatus();
  bool unplaced = false;
  const bool never = false;
  HOTROW_RETURN_IF_ERROR(PlaceChunks(
      ctx, probe.known(), &never,
      [&](int64_t most, int64_t* done, RowOutflow::Chunk* chunk) -> absl::StatusOr<int64_t> {
        const int64_t n = std::min(most, probe.known() - *done);
        HOTROW_RETURN_IF_ERROR(probe.PlaceKnown(ctx, cache_.get(), *done, n, chunk->Result(n)));
        *done += n;
        return n;
      },
      [&](const RowOutflow::Chunk& chunk, int64_t n) -> absl::Status {
        const auto placement = std::as_const(chunk.placement).span().first(static_cast<size_t>(n));
        unplaced = unplaced || std::find(placement.begin(), placement.end(), Placement::kNoRoom) !=
                                   placement.end();
        return absl::OkStatus();
      },
      placing));
  if (!unplaced) return absl::OkStatus();
  placing->no_room = true;
  const std::lock_guard<std::mutex> lock(cache_->mutex());
  HOTROW_RETURN_IF_ERROR(probe.TellUnplaced(cache_->stream()));
  step->keys = probe.miss_keys();
  step->counts = probe.miss_counts();
  return absl::OkStatus();
}

absl::Status StagedTable::EnqueueChunk(const ExecContext& ctx, int64_t size,
                                       RowOutflow::Chunk* chunk) {
  std::fill_n(chunk->slots.data(), size, -1);  // all have missed
  return cache_->stream().Run(
      ctx, [rows = cache_->get(), keys = chunk->keys.first(size), result = chunk->Result(size)](
               const ExecContext& here) { return rows->PlaceMisses(here, keys, result); });
}

absl::Status StagedTable::EndPlacing(StepRows* step) {
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

std::span<const int64_t> StagedTable::SlotsOf(const StepRows& step) const {
  return {step.shared_slots.data(), step.slots.size()};
}

// --- A resident step

absl::Status StagedTable::ResolveForRead(const ExecContext& ctx, StepRows* step,
                                         std::span<std::byte*> rows) {
  HOTROW_CHECK(step->resident);
  HOTROW_RETURN_IF_ERROR(cache_->Broken());
  return step->probe.Address(ctx, *cache_, SlotsOf(*step), rows);
}

void StagedTable::Unpin(const ExecContext& ctx, StepRows* step, bool updated) {
  // What is enqueued may still read or change the rows.
  HOTROW_CHECK(!updated || step->trained.empty());
  if (ended_events_.empty()) {
    absl::StatusOr<DeviceEvent> event = DeviceEvent::Create(cache_->device());
    cache_->Note(event.status());
    ended_events_.push_back(event.ok() ? *std::move(event) : DeviceEvent());
  }
  leaving_.push_back(
      {std::move(ended_events_.back()), step, step->probe.hit_slots(), SlotsOf(*step), updated});
  ended_events_.pop_back();
  cache_->Note(leaving_.back().ended.Record(ctx));
  step->probe.Clear();
  LetGo(nullptr);
}

bool StagedTable::LetAllGo() {
  if (leaving_.empty()) return false;
  LetGo(leaving_.back().step);
  return true;
}

void StagedTable::LetGo(const StepRows* last) {
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

// --- All rows

// A chunk at a time, through a staging area of evicted rows, or one beside those that the store
// has refused.
absl::Status StagedTable::ReadCached(const ExecContext& ctx, std::span<const RowKey> keys,
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
  miss_keys_.clear();
  miss_rows_.clear();
  return absl::OkStatus();
}

// As ReadCached, the other way.
absl::Status StagedTable::OverwriteCached(const ExecContext& ctx, std::span<const RowKey> keys,
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

}  // namespace hotrow::internal
