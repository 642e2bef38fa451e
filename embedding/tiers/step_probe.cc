#include "embedding/tiers/step_probe.h"

#include <vector>

#include "base/status_macros.h"
#include "embedding/tiers/guarded_cache_impl.h"
#include "ops/keys/key_rows.h"
#include "ops/keys/owner_parts.h"
#include "ops/keys/tell_host.h"

namespace hotrow::internal {

absl::Status StepProbe::Grow(GuardedCache* cache, int64_t num_keys, bool indexed,
                             int64_t num_tables) {
  const Device device = cache->device();
  const MemoryOfDevice memory = {device, cache->stream().get()};
  if (totals_.empty()) {
    HOTROW_ASSIGN_OR_RETURN(done_, DeviceFlag::Create(device));
    HOTROW_ASSIGN_OR_RETURN(totals_, SharedBuffer<SplitSlotsTotals>::Create(1, {device}));
  }
  if (indexed && known_of_table_.empty()) {
    HOTROW_RETURN_IF_ERROR(found_of_table_.Reserve(num_tables, memory));
    HOTROW_RETURN_IF_ERROR(known_of_table_.Reserve(num_tables, {device}));
  }
  if (miss_positions_.size() >= num_keys && (!indexed || known_rows_.size() >= num_keys)) {
    return absl::OkStatus();
  }
  // What is enqueued may still read what is given back here.
  HOTROW_RETURN_IF_ERROR(cache->stream().Wait());
  miss_positions_ = {};  // what is asked above comes last: after an error all is asked for again
  // A quarter more than is needed, so that batches of nearly equal size do not each take new
  // memory.
  const int64_t n = num_keys + num_keys / 4;
  HOTROW_RETURN_IF_ERROR(slots_.Reserve(n, memory));
  HOTROW_RETURN_IF_ERROR(placement_.Reserve(n, memory));
  HOTROW_RETURN_IF_ERROR(evicted_.Reserve(n, memory));
  HOTROW_RETURN_IF_ERROR(hit_slots_.Reserve(n, memory));
  HOTROW_RETURN_IF_ERROR(workspace_.Reserve(SplitSlotsWorkspaceBytes(n, device), memory));
  if (indexed) {
    HOTROW_RETURN_IF_ERROR(rows_.Reserve(n, memory));
    HOTROW_RETURN_IF_ERROR(known_keys_.Reserve(n, memory));
    HOTROW_RETURN_IF_ERROR(known_positions_.Reserve(n, memory));
    HOTROW_RETURN_IF_ERROR(known_rows_.Reserve(n, memory));
  }
  HOTROW_RETURN_IF_ERROR(miss_keys_.Reserve(n, {device}));
  HOTROW_RETURN_IF_ERROR(miss_counts_.Reserve(n, {device}));
  return miss_positions_.Reserve(n, memory);
}

absl::Status StepProbe::Start(const ExecContext& ctx, GuardedCache* cache,
                              std::span<const RowKey> keys, std::span<const int32_t> counts,
                              const AddressIndex* index, int64_t num_tables) {
  const auto n = std::ssize(keys);
  Clear();
  HOTROW_RETURN_IF_ERROR(Grow(cache, n, index != nullptr, num_tables));
  num_keys_ = n;
  counts_ = counts;
  SplitSlotsArgs split = {.keys = keys.data(),
                          .counts = counts.data(),
                          .slots = slots_.data(),
                          .num_keys = n,
                          .hit_slots = hit_slots_.data(),
                          .miss_keys = miss_keys_.data(),
                          .miss_counts = miss_counts_.data(),
                          .miss_positions = miss_positions_.data(),
                          .totals = totals_.data(),
                          .workspace = workspace_.data(),
                          .workspace_bytes = workspace_.size()};
  TellHostArgs done = {.flag = done_.address(), .flag_value = done_.Next()};
  if (index != nullptr) {
    split.rows = rows_.data();
    split.found_keys = known_keys_.data();
    split.found_positions = known_positions_.data();
    split.found_rows = known_rows_.data();
    split.found_of_table = found_of_table_.data();
    split.num_tables = num_tables;
    static_assert(sizeof(FoundOfTable) == 2 * sizeof(int64_t));
    done.from = reinterpret_cast<const int64_t*>(found_of_table_.data());
    done.to = reinterpret_cast<int64_t*>(known_of_table_.data());
    done.num_numbers = 2 * num_tables;
  }
  return cache->stream().Run(
      ctx,
      [cache_rows = cache->get(), index, keys, rows = rows_.first(index != nullptr ? n : 0),
       pins = RowCache::InsertResult{.slots = slots_.first(n),
                                     .placement = placement_.first(n),
                                     .evicted = evicted_.first(n)},
       split, done](const ExecContext& here) -> absl::Status {
        HOTROW_RETURN_IF_ERROR(cache_rows->PinHits(here, keys, pins));
        if (index != nullptr) {
          HOTROW_RETURN_IF_ERROR(index->Find(here, keys, pins.slots, rows));
        }
        HOTROW_RETURN_IF_ERROR(SplitSlots(here, split));
        return TellHost(here, done);
      });
}

absl::Status StepProbe::Wait(const DeviceStream& stream) {
  HOTROW_RETURN_IF_ERROR(done_.Wait(stream));
  found_ = true;
  misses_ = totals_[0].misses;
  known_ = totals_[0].found;
  hits_ = num_keys_ - misses_ - known_;
  if (known_ == 0) return absl::OkStatus();
  for (const FoundOfTable& table : known_of_table_) known_lookups_ += table.lookups;
  return absl::OkStatus();
}

void StepProbe::Clear() {
  found_ = false;
  hits_ = 0;
  misses_ = 0;
  known_ = 0;
  known_lookups_ = 0;
  known_sent_ = false;
}

absl::Status StepProbe::PlaceKnown(const ExecContext& ctx, GuardedCache* cache, int64_t begin,
                                   int64_t n, const RowCache::InsertResult& result) {
  RowCache::InsertResult placed = result;
  placed.slots = known_slots().subspan(static_cast<size_t>(begin), static_cast<size_t>(n));
  return cache->stream().Run(
      ctx,
      [rows = cache->get(),
       keys = std::span<const RowKey>(known_keys_.data() + begin, static_cast<size_t>(n)), placed,
       // Negative where there was no room, as they are.
       put = PutWordsArgs{.from = reinterpret_cast<const uint64_t*>(placed.slots.data()),
                          .positions = known_positions_.data() + begin,
                          .num_words = n,
                          .to = reinterpret_cast<uint64_t*>(slots_.data())}](
          const ExecContext& here) -> absl::Status {
        HOTROW_RETURN_IF_ERROR(rows->PlaceMisses(here, keys, placed));
        return PutWords(here, put);
      });
}

absl::Status StepProbe::TellUnplaced(const DeviceStream& stream) {
  const auto n = static_cast<size_t>(known_);
  std::vector<int64_t> slots(n);
  std::vector<RowKey> keys(n);
  std::vector<int32_t> positions(n);
  std::vector<std::byte*> rows(n);
  std::vector<int32_t> counts(static_cast<size_t>(num_keys_));
  const auto copy = [&stream](auto* to, const auto* from, size_t size) {
    return stream.Copy(to, from, static_cast<int64_t>(size * sizeof(*to)));
  };
  const auto fetch = [&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(copy(slots.data(), known_slots().data(), n));
    HOTROW_RETURN_IF_ERROR(copy(keys.data(), known_keys_.data(), n));
    HOTROW_RETURN_IF_ERROR(copy(positions.data(), known_positions_.data(), n));
    HOTROW_RETURN_IF_ERROR(copy(rows.data(), known_rows_.data(), n));
    return copy(counts.data(), counts_.data(), counts.size());
  };
  // All that was enqueued writes to these vectors.
  absl::Status status = fetch();
  status.Update(stream.Wait());
  HOTROW_RETURN_IF_ERROR(status);
  const int64_t told = misses_;
  size_t placed = 0;
  size_t unplaced = 0;
  for (size_t i = 0; i < n; ++i) {
    if (slots[i] >= 0) {
      slots[placed] = slots[i];
      rows[placed] = rows[i];
      ++placed;
      continue;
    }
    const int32_t count = counts[static_cast<size_t>(positions[i])];
    miss_keys_[misses_] = keys[i];
    miss_counts_[misses_] = count;
    ++misses_;
    positions[unplaced] = positions[i];
    ++unplaced;
    known_lookups_ -= count;
  }
  known_ = static_cast<int64_t>(placed);
  status = copy(miss_positions_.data() + told, positions.data(), unplaced);
  status.Update(copy(known_slots().data(), slots.data(), placed));
  status.Update(copy(known_rows_.data(), rows.data(), placed));
  status.Update(stream.Wait());
  return status;
}

void StepProbe::KnownFilled() {
  hits_ += known_;
  known_ = 0;
  known_sent_ = false;
}

absl::Status StepProbe::Address(const ExecContext& here, const GuardedCache& cache,
                                std::span<const int64_t> miss_slots,
                                std::span<std::byte*> rows) const {
  return AddressSlots(here, {.first = cache.row(0),
                             .row_bytes = cache.row_bytes(),
                             .slots = slots_.data(),
                             .num_rows = num_keys_,
                             .late_positions = miss_positions_.data(),
                             .late_slots = miss_slots.data(),
                             .num_late = std::ssize(miss_slots),
                             .rows = rows.data()});
}

}  // namespace hotrow::internal
