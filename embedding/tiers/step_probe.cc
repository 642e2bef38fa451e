#include "embedding/tiers/step_probe.h"

#include "base/status_macros.h"
#include "embedding/tiers/guarded_cache_impl.h"
#include "ops/key_rows.h"
#include "ops/tell_host.h"

namespace hotrow::internal {

absl::Status StepProbe::Grow(GuardedCache* cache, int64_t num_keys) {
  const Device device = cache->device();
  if (totals_.empty()) {
    HOTROW_ASSIGN_OR_RETURN(done_, DeviceFlag::Create(device));
    HOTROW_ASSIGN_OR_RETURN(totals_, SharedBuffer<SplitSlotsTotals>::Create(1, {device}));
  }
  if (miss_positions_.size() >= num_keys) return absl::OkStatus();
  // What is enqueued may still read what is given back here.
  HOTROW_RETURN_IF_ERROR(cache->stream().Wait());
  miss_positions_ = {};  // what is asked above comes last: after an error all is asked for anew
  // A quarter more than is needed, so that batches of nearly equal size do not each take new
  // memory.
  const int64_t n = num_keys + num_keys / 4;
  const MemoryOfDevice memory = {device, cache->stream().get()};
  HOTROW_RETURN_IF_ERROR(slots_.Reserve(n, memory));
  HOTROW_RETURN_IF_ERROR(placement_.Reserve(n, memory));
  HOTROW_RETURN_IF_ERROR(evicted_.Reserve(n, memory));
  HOTROW_RETURN_IF_ERROR(hit_slots_.Reserve(n, memory));
  HOTROW_RETURN_IF_ERROR(workspace_.Reserve(SplitSlotsWorkspaceBytes(n, device), memory));
  HOTROW_RETURN_IF_ERROR(miss_keys_.Reserve(n, {device}));
  HOTROW_RETURN_IF_ERROR(miss_counts_.Reserve(n, {device}));
  return miss_positions_.Reserve(n, {device});
}

absl::Status StepProbe::Start(const ExecContext& ctx, GuardedCache* cache,
                              std::span<const RowKey> keys, std::span<const int32_t> counts) {
  const auto n = std::ssize(keys);
  HOTROW_RETURN_IF_ERROR(Grow(cache, n));
  found_ = false;
  num_keys_ = n;
  return cache->stream().Run(
      ctx,
      [rows = cache->get(), keys,
       pins = RowCache::InsertResult{.slots = slots_.first(n),
                                     .placement = placement_.first(n),
                                     .evicted = evicted_.first(n)},
       split = SplitSlotsArgs{.keys = keys.data(),
                              .counts = counts.data(),
                              .slots = slots_.data(),
                              .num_keys = n,
                              .hit_slots = hit_slots_.data(),
                              .miss_keys = miss_keys_.data(),
                              .miss_counts = miss_counts_.data(),
                              .miss_positions = miss_positions_.data(),
                              .totals = totals_.data(),
                              .workspace = workspace_.data(),
                              .workspace_bytes = workspace_.size()},
       done = TellHostArgs{.flag = done_.address(), .flag_value = done_.Next()}](
          const ExecContext& here) -> absl::Status {
        HOTROW_RETURN_IF_ERROR(rows->PinHits(here, keys, pins));
        HOTROW_RETURN_IF_ERROR(SplitSlots(here, split));
        return TellHost(here, done);
      });
}

absl::Status StepProbe::Wait(const DeviceStream& stream) {
  HOTROW_RETURN_IF_ERROR(done_.Wait(stream));
  found_ = true;
  return absl::OkStatus();
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
