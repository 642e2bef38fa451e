#include <algorithm>

#include "ops/keys/split_slots_impl.h"

namespace hotrow::internal {

absl::Status SplitSlotsCpu(const ExecContext& /*ctx*/, const SplitSlotsArgs& args) {
  SplitSlotsTotals totals;
  if (args.rows != nullptr) std::fill_n(args.found_of_table, args.num_tables, FoundOfTable());
  for (int64_t i = 0; i < args.num_keys; ++i) {
    if (args.slots[i] >= 0) {
      args.hit_slots[i - totals.misses - totals.found] = args.slots[i];
      totals.hit_lookups += args.counts[i];
      continue;
    }
    if (args.rows != nullptr && args.rows[i] != nullptr) {
      args.found_keys[totals.found] = args.keys[i];
      args.found_positions[totals.found] = static_cast<int32_t>(i);
      args.found_rows[totals.found] = args.rows[i];
      ++totals.found;
      FoundOfTable& table = args.found_of_table[args.keys[i].table];
      ++table.keys;
      table.lookups += args.counts[i];
      continue;
    }
    args.miss_keys[totals.misses] = args.keys[i];
    args.miss_counts[totals.misses] = args.counts[i];
    args.miss_positions[totals.misses] = static_cast<int32_t>(i);
    ++totals.misses;
  }
  if (args.num_keys > 0) {
    std::fill_n(args.hit_slots + (args.num_keys - totals.misses - totals.found), totals.found, -1);
  }
  *args.totals = totals;
  return absl::OkStatus();
}

}  // namespace hotrow::internal
