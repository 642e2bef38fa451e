#include <algorithm>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "embedding/tiers/row_inflow_impl.h"
#include "embedding/tiers/store_reads.h"
#include "ops/keys/key_rows.h"
#include "ops/rows/gather.h"

namespace hotrow::internal {
namespace {

// Rows that the GPU reads itself are looked up so many at a time: the first ones set out soon, and
// the host is at the next while they travel. 8,192 rows of 512 bytes cross the bus in some 80
// microseconds, in which 16 threads look as many keys up.
constexpr int64_t kPieceRows = 8192;
// Fewer keys to a thread than elsewhere: a GPU is waiting for them.
constexpr int64_t kPieceGrain = 256;

}  // namespace

absl::StatusOr<RowInflow::Area> RowInflow::CreateArea(Device device, int64_t rows,
                                                      int64_t row_bytes) {
  Area area;
  HOTROW_ASSIGN_OR_RETURN(
      area.rows, SharedBuffer<std::byte>::Create(rows * row_bytes, {device, HugePages::kTry}));
  HOTROW_ASSIGN_OR_RETURN(area.from, SharedBuffer<std::byte*>::Create(rows, {device}));
  HOTROW_ASSIGN_OR_RETURN(area.to, SharedBuffer<std::byte*>::Create(rows, {device}));
  HOTROW_ASSIGN_OR_RETURN(area.made_keys, SharedBuffer<uint64_t>::Create(rows, {device}));
  HOTROW_ASSIGN_OR_RETURN(area.made_rows, SharedBuffer<std::byte*>::Create(rows, {device}));
  HOTROW_ASSIGN_OR_RETURN(area.arrived, DeviceEvent::Create(device));
  return area;
}

absl::StatusOr<std::unique_ptr<RowInflow>> RowInflow::Create(
    GuardedCache* cache, const InitialRows* initial_rows, HostStore* in_place, DeviceIndex* index,
    std::span<const TieredTableSpec> tables, const CacheBuffers& buffers, int64_t row_bytes) {
  std::unique_ptr<RowInflow> inflow(
      new RowInflow(cache, initial_rows, in_place, index, tables, row_bytes));
  if (!cache->staged()) return inflow;
  const Device device = cache->device();
  inflow->staging_rows_ = buffers.staging_rows;
  HOTROW_ASSIGN_OR_RETURN(inflow->stream_, DeviceStream::Create(device, /*is_urgent=*/true));
  for (int64_t i = 0; i < kStagingAreas; ++i) {
    HOTROW_ASSIGN_OR_RETURN(Area area, CreateArea(device, buffers.staging_rows, row_bytes));
    inflow->areas_.push_back(std::move(area));
  }
  HOTROW_ASSIGN_OR_RETURN(inflow->gathered_,
                          DeviceMemory<std::byte>::Create(buffers.staging_rows * row_bytes,
                                                          {device, inflow->stream_.get()}));
  if (index == nullptr) return inflow;
  HOTROW_ASSIGN_OR_RETURN(
      inflow->known_to_,
      DeviceMemory<std::byte*>::Create(buffers.staging_rows, {device, inflow->stream_.get()}));
  HOTROW_ASSIGN_OR_RETURN(inflow->known_arrived_, DeviceEvent::Create(device));
  return inflow;
}

absl::StatusOr<int64_t> RowInflow::NextMisses(StepRows* step, std::vector<RowKey>* keys,
                                              std::vector<std::byte*>* rows) {
  HOTROW_RETURN_IF_ERROR(cache_->Broken());
  const size_t left = step->miss_keys.size() - step->sent;
  if (left == 0) {
    HOTROW_RETURN_IF_ERROR(ArriveAll(step));
    return 0;
  }
  const auto first = static_cast<int64_t>(step->sent);
  int64_t n = static_cast<int64_t>(left);
  if (!cache_->staged()) {
    rows->insert(rows->end(), step->miss_rows.begin() + first, step->miss_rows.end());
  } else {
    Area& area = areas_[next_area_];
    HOTROW_RETURN_IF_ERROR(Arrive(step, &area));
    n = std::min(n, staging_rows_);
    for (int64_t i = 0; i < n; ++i) rows->push_back(area.rows.data() + i * row_bytes_);
  }
  keys->insert(keys->end(), step->miss_keys.begin() + first, step->miss_keys.begin() + first + n);
  return n;
}

absl::Status RowInflow::Fill(const ExecContext& ctx, StepRows* step,
                             std::span<const uint8_t> found) {
  const size_t n = found.size();
  HOTROW_CHECK(n <= step->miss_keys.size() - step->sent);
  HOTROW_RETURN_IF_ERROR(cache_->Broken());
  if (n == 0) return absl::OkStatus();
  if (!cache_->staged()) {
    absent_keys_.clear();
    absent_rows_.clear();
    for (size_t i = 0; i < n; ++i) {
      if (found[i] != 0) continue;
      absent_keys_.push_back(step->miss_keys[step->sent + i]);
      absent_rows_.push_back(step->miss_rows[step->sent + i]);
    }
    HOTROW_RETURN_IF_ERROR(initial_rows_->Write(ctx, absent_keys_, absent_rows_));
    Count(step, found);
    return End(step, n);
  }
  Area* const area = &areas_[next_area_];
  HOTROW_RETURN_IF_ERROR(PrepareArea(ctx, *step, found, area));
  HOTROW_RETURN_IF_ERROR(
      stream_.Run(ctx, [args = ScatterRowsArgs{.input = area->rows.data(),
                                               .input_stride = row_bytes_,
                                               .num_rows = static_cast<int64_t>(n),
                                               .row_bytes = row_bytes_,
                                               .rows = area->to.data()}](const ExecContext& here) {
        return ScatterRows(here, args);
      }));
  HOTROW_RETURN_IF_ERROR(EnqueueMade(ctx, *area));
  return Send(step, found, area);
}

absl::Status RowInflow::PrepareArea(const ExecContext& ctx, const StepRows& step,
                                    std::span<const uint8_t> found, Area* area) {
  const auto n = std::ssize(found);
  std::copy_n(step.miss_rows.begin() + static_cast<int64_t>(step.sent), n, area->to.data());
  absent_keys_.clear();
  absent_rows_.clear();
  made_.clear();
  int64_t made = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (found[static_cast<size_t>(i)] != 0) continue;
    const RowKey& key = step.miss_keys[step.sent + static_cast<size_t>(i)];
    if (made_.empty() || made_.back().table != key.table) {
      if (!initial_rows_->DeviceWrites(key.table)) {
        absent_keys_.push_back(key);
        absent_rows_.push_back(area->rows.data() + i * row_bytes_);
        continue;
      }
      made_.push_back({key.table, made, made});
    }
    area->made_keys[made] = key.key;
    area->made_rows[made] = area->to[i];
    area->to[i] = nullptr;
    made_.back().end = ++made;
  }
  return initial_rows_->Write(ctx, absent_keys_, absent_rows_);
}

absl::Status RowInflow::EnqueueMade(const ExecContext& ctx, const Area& area) {
  for (const Run& run : made_) {
    HOTROW_RETURN_IF_ERROR(stream_.Run(
        ctx, [initial_rows = initial_rows_, run, keys = area.made_keys.data() + run.begin,
              rows = area.made_rows.data() + run.begin](const ExecContext& here) {
          return initial_rows->Enqueue(here, run.table, keys, run.end - run.begin, rows);
        }));
  }
  return absl::OkStatus();
}

absl::Status RowInflow::EnqueueMove(const ExecContext& here, std::byte* const* from, int64_t n,
                                    std::byte* const* to) {
  HOTROW_RETURN_IF_ERROR(GatherRows(here, {.rows = from,
                                           .num_rows = n,
                                           .row_bytes = row_bytes_,
                                           .output = gathered_.data(),
                                           .output_stride = row_bytes_}));
  return ScatterRows(here, {.input = gathered_.data(),
                            .input_stride = row_bytes_,
                            .num_rows = n,
                            .row_bytes = row_bytes_,
                            .rows = to});
}

// Pieces follow each other on the stream, since they share `gathered_` and `known_to_`; the host
// waits for none of them.
absl::Status RowInflow::SendKnown(const ExecContext& ctx, StepRows* step) {
  StepProbe& probe = step->probe;
  const int64_t known = probe.known();
  if (known == 0 || probe.known_sent()) return absl::OkStatus();
  for (int64_t begin = 0; begin < known; begin += staging_rows_) {
    const int64_t n = std::min(known - begin, staging_rows_);
    HOTROW_RETURN_IF_ERROR(stream_.Run(
        ctx,
        [this, n, from = probe.known_rows().data() + begin,
         ways =
             AddressSlotsArgs{.first = cache_->row(0),
                              .row_bytes = row_bytes_,
                              .slots = probe.known_slots().data() + begin,
                              .num_rows = n,
                              .rows = known_to_.data()}](const ExecContext& here) -> absl::Status {
          HOTROW_RETURN_IF_ERROR(AddressSlots(here, ways));
          return EnqueueMove(here, from, n, ways.rows);
        }));
  }
  HOTROW_RETURN_IF_ERROR(known_arrived_.Record(stream_));
  probe.KnownSent();
  counts_.Add({.unique_keys = known,
               .unique_hits = known,
               .lookups = probe.known_lookups(),
               .lookup_hits = probe.known_lookups()});
  rows_read_.fetch_add(known, std::memory_order_relaxed);
  known_rows_read_.fetch_add(known, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status RowInflow::ArriveKnown(StepRows* step) {
  StepProbe& probe = step->probe;
  if (!probe.known_sent()) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(known_arrived_.Wait());
  const std::lock_guard<std::mutex> lock(cache_->mutex());
  HOTROW_RETURN_IF_ERROR(cache_->stream().Run(
      ExecContext(), [rows = cache_->get(), slots = probe.known_slots()](const ExecContext& here) {
        return rows->MarkFilled(here, slots);
      }));
  probe.KnownFilled();
  return absl::OkStatus();
}

// The GPU reads rows where the store keeps them, and from staging initial rows that it cannot make.
absl::Status RowInflow::FillInPlace(const ExecContext& ctx, StepRows* step) {
  HOTROW_RETURN_IF_ERROR(cache_->Broken());
  HOTROW_RETURN_IF_ERROR(SendKnown(ctx, step));
  std::vector<uint8_t> found;
  while (step->sent < step->miss_keys.size()) {
    Area& area = areas_[next_area_];
    HOTROW_RETURN_IF_ERROR(Arrive(step, &area));
    const auto n = std::min(
        {static_cast<int64_t>(step->miss_keys.size() - step->sent), staging_rows_, kPieceRows});
    const auto keys =
        std::span<const RowKey>(step->miss_keys).subspan(step->sent, static_cast<size_t>(n));
    const std::span<std::byte*> from = area.from.first(n);
    HOTROW_RETURN_IF_ERROR(FindInPlace(ctx, in_place_, keys, from, kPieceGrain));
    // The next time the device knows.
    if (index_ != nullptr) HOTROW_RETURN_IF_ERROR(index_->InsertOrAssign(keys, from));
    found.resize(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      found[static_cast<size_t>(i)] = area.from[i] != nullptr ? 1 : 0;
    }
    HOTROW_RETURN_IF_ERROR(PrepareArea(ctx, *step, found, &area));
    int64_t moved = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (area.to[i] == nullptr) continue;
      area.from[moved] = area.from[i] != nullptr ? area.from[i] : area.rows.data() + i * row_bytes_;
      area.to[moved++] = area.to[i];
    }
    if (moved > 0) {
      HOTROW_RETURN_IF_ERROR(stream_.Run(
          ctx, [this, from = from.data(), moved, to = area.to.data()](const ExecContext& here) {
            return EnqueueMove(here, from, moved, to);
          }));
    }
    HOTROW_RETURN_IF_ERROR(EnqueueMade(ctx, area));
    HOTROW_RETURN_IF_ERROR(Send(step, found, &area));
  }
  return ArriveAll(step);
}

absl::Status RowInflow::Send(StepRows* step, std::span<const uint8_t> found, Area* area) {
  HOTROW_RETURN_IF_ERROR(area->arrived.Record(stream_));
  Count(step, found);
  area->size = found.size();
  next_area_ = (next_area_ + 1) % areas_.size();
  return absl::OkStatus();
}

absl::Status RowInflow::Arrive(StepRows* step, Area* area) {
  if (area->size == 0) return absl::OkStatus();
  const size_t n = std::exchange(area->size, 0);
  HOTROW_RETURN_IF_ERROR(area->arrived.Wait());
  return End(step, n);
}

absl::Status RowInflow::ArriveAll(StepRows* step) {
  HOTROW_RETURN_IF_ERROR(ArriveKnown(step));
  for (size_t i = 0; i < areas_.size(); ++i) {
    HOTROW_RETURN_IF_ERROR(Arrive(step, &areas_[(next_area_ + i) % areas_.size()]));
  }
  return absl::OkStatus();
}

void RowInflow::Count(StepRows* step, std::span<const uint8_t> found) {
  TierCounts seen;
  TableMissRuns absent(&misses_);
  for (const uint8_t there : found) {
    const int32_t lookups = step->counts[step->miss_positions[step->sent]];
    seen.Add(there != 0, lookups);
    if (there == 0) absent.Add(step->miss_keys[step->sent].table, lookups);
    ++step->sent;
  }
  rows_read_.fetch_add(seen.unique_hits, std::memory_order_relaxed);
  counts_.Add(seen);
}

absl::Status RowInflow::End(StepRows* step, size_t n) {
  const std::lock_guard<std::mutex> lock(cache_->mutex());
  if (cache_->staged()) {
    // Nobody waits for this: whoever needs to see it enqueues on the cache's stream as well.
    HOTROW_RETURN_IF_ERROR(cache_->stream().Run(
        ExecContext(),
        [rows = cache_->get(),
         slots =
             step->shared_miss_slots.first(std::ssize(step->miss_keys)).subspan(step->filled, n)](
            const ExecContext& here) { return rows->MarkFilled(here, slots); }));
  } else {
    filled_slots_.clear();
    for (size_t i = step->filled; i < step->filled + n; ++i) {
      filled_slots_.push_back(step->slots[step->miss_positions[i]]);
    }
    HOTROW_RETURN_IF_ERROR(cache_->get()->MarkFilled(ExecContext(), filled_slots_));
  }
  step->filled += n;
  if (step->filled == step->miss_keys.size()) step->ForgetMisses();
  return absl::OkStatus();
}

}  // namespace hotrow::internal
