#include <algorithm>

#include "base/check.h"
#include "ops/partition.h"
#include "ops/partition_impl.h"

namespace hotrow::internal {

// One thread: two passes of a few cycles per item, a small share of what any user of the order does
// next with whole rows, while a parallel scatter would need a histogram of all parts per thread.
absl::Status PartitionCpu(const ExecContext& ctx, const PartitionArgs& args) {
  // How far ahead the cursor of an item's part is asked for; matters once the cursors leave L2.
  constexpr int64_t kAhead = 16;
  int64_t* const cursors = args.offsets;
  std::fill_n(cursors, args.num_parts + 1, 0);
  for (int64_t i = 0; i < args.num_items; ++i) {
    HOTROW_DCHECK(args.part[i] >= 0);
    HOTROW_DCHECK(args.part[i] < args.num_parts);
    __builtin_prefetch(cursors + args.part[std::min(i + kAhead, args.num_items - 1)], 1);
    ++cursors[args.part[i]];
  }
  int64_t sum = 0;
  for (int64_t p = 0; p < args.num_parts; ++p) {
    const int64_t count = cursors[p];
    cursors[p] = sum;
    sum += count;
  }
  for (int64_t i = 0; i < args.num_items; ++i) {
    __builtin_prefetch(cursors + args.part[std::min(i + kAhead, args.num_items - 1)], 1);
    args.order[cursors[args.part[i]]++] = static_cast<int32_t>(i);
  }
  // Each cursor stands at the end of its part now, which is where the next one begins.
  std::copy_backward(cursors, cursors + args.num_parts, cursors + args.num_parts + 1);
  cursors[0] = 0;
  return absl::OkStatus();
}

}  // namespace hotrow::internal
