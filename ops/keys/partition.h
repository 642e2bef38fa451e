#ifndef HOTROW_OPS_KEYS_PARTITION_H_
#define HOTROW_OPS_KEYS_PARTITION_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"

namespace hotrow {

// Dimensions: N items, P parts. On a CUDA device all pointers are memory that the device reaches.
struct PartitionArgs {
  const int32_t* part = nullptr;  // [N], each in [0, P)
  int64_t num_items = 0;          // N <= 2^31 - 1
  int64_t num_parts = 0;          // P
  int64_t* offsets = nullptr;     // [P + 1]: part p has order[offsets[p], offsets[p+1])
  int32_t* order = nullptr;       // [N]: item numbers, part by part, ascending within a part

  // PartitionWorkspaceBytes(device, N, P), 64-byte aligned. The CPU needs none; with 4 P bytes for
  // each of two or more threads, so many of them work on a large N.
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;

  absl::Status Validate(Device device = Device::kCpu) const;
};

// Workspace of Partition on that device; 0 on the CPU. num_items >= 0, num_parts >= 0.
int64_t PartitionWorkspaceBytes(Device device, int64_t num_items, int64_t num_parts);

// Stable counting sort of item numbers by part. Two uses: keys by owning rank, and lookups by
// unique row (part = the inverse of Unique), so that the lookups of one row are consecutive and in
// (feature, sample) order. The result is the same on every device.
absl::Status Partition(const ExecContext& ctx, const PartitionArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_KEYS_PARTITION_H_
