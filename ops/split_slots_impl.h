#ifndef HOTROW_OPS_SPLIT_SLOTS_IMPL_H_
#define HOTROW_OPS_SPLIT_SLOTS_IMPL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/buffer.h"
#include "base/exec_context.h"
#include "base/math.h"
#include "ops/scan_impl.h"
#include "ops/split_slots.h"

namespace hotrow::internal {

absl::Status SplitSlotsCpu(const ExecContext& ctx, const SplitSlotsArgs& args);
absl::Status SplitSlotsCuda(const SplitSlotsArgs& args, CudaStream stream);

// Where the CUDA kernels' arrays lie in the workspace, in bytes from its start.
struct SplitSlotsCudaLayout {
  int64_t hit_lookups = 0;  // int64 [1]
  int64_t ranks = 0;        // int32 [N + 1]: how many misses lie before each key
  int64_t found_ranks = 0;  // int32 [N + 1], with `finds`: how many that were found
  int64_t scan = 0;         // int32 [ScanScratchInts(N + 1)]
  int64_t bytes = 0;

  static constexpr SplitSlotsCudaLayout For(int64_t num_keys, bool finds) {
    if (num_keys <= 0) return {};
    SplitSlotsCudaLayout layout;
    const auto take = [&layout](int64_t bytes) {
      const int64_t begin = layout.bytes;
      layout.bytes += RoundUp(bytes, kBufferAlignment);
      return begin;
    };
    constexpr auto kInt = static_cast<int64_t>(sizeof(int32_t));
    layout.hit_lookups = take(static_cast<int64_t>(sizeof(int64_t)));
    layout.ranks = take((num_keys + 1) * kInt);
    if (finds) layout.found_ranks = take((num_keys + 1) * kInt);
    layout.scan = take(ScanScratchInts(num_keys + 1) * kInt);
    return layout;
  }
};

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_SPLIT_SLOTS_IMPL_H_
