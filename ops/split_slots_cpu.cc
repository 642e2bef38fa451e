#include "ops/split_slots_impl.h"

namespace hotrow::internal {

absl::Status SplitSlotsCpu(const ExecContext& /*ctx*/, const SplitSlotsArgs& args) {
  SplitSlotsTotals totals;
  for (int64_t i = 0; i < args.num_keys; ++i) {
    if (args.slots[i] >= 0) {
      args.hit_slots[i - totals.misses] = args.slots[i];
      totals.hit_lookups += args.counts[i];
      continue;
    }
    args.miss_keys[totals.misses] = args.keys[i];
    args.miss_counts[totals.misses] = args.counts[i];
    args.miss_positions[totals.misses] = static_cast<int32_t>(i);
    ++totals.misses;
  }
  *args.totals = totals;
  return absl::OkStatus();
}

}  // namespace hotrow::internal
