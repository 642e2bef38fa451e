#ifndef HOTROW_OPS_KEYS_SPLIT_SLOTS_IMPL_H_
#define HOTROW_OPS_KEYS_SPLIT_SLOTS_IMPL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/buffer.h"
#include "base/exec_context.h"
#include "ops/keys/scan_impl.h"
#include "ops/keys/split_slots.h"

namespace hotrow::internal {

absl::Status SplitSlotsCpu(const ExecContext& ctx, const SplitSlotsArgs& args);
absl::Status SplitSlotsCuda(const SplitSlotsArgs& args, CudaStream stream);

// Where the CUDA kernels' arrays lie in the workspace, in bytes from its start.
struct SplitSlotsCudaLayout {
  int64_t hit_lookups = 0;  // int64 [1]
  int64_t words = 0;        // uint64 [ScanWords(N)]
  int64_t bytes = 0;

  static constexpr SplitSlotsCudaLayout For(int64_t num_keys) {
    if (num_keys <= 0) return {};
    constexpr auto kWord = static_cast<int64_t>(sizeof(uint64_t));
    return {.words = kBufferAlignment, .bytes = kBufferAlignment + ScanWords(num_keys) * kWord};
  }
};

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_KEYS_SPLIT_SLOTS_IMPL_H_
