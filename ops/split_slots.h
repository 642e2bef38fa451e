#ifndef HOTROW_OPS_SPLIT_SLOTS_H_
#define HOTROW_OPS_SPLIT_SLOTS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/row_key.h"

namespace hotrow {

// What SplitSlots counts.
struct SplitSlotsTotals {
  int64_t misses = 0;
  int64_t hit_lookups = 0;  // the counts of all hits
};

// Dimensions: N keys, of which H hit and M = N - H missed. On a CUDA device all pointers are memory
// that the device reaches; what is said of misses is meant for page-locked memory of the host, to
// which only as much is written as there are misses.
struct SplitSlotsArgs {
  const RowKey* keys = nullptr;     // [N]
  const int32_t* counts = nullptr;  // [N]: lookups of each
  const int64_t* slots = nullptr;   // [N]: negative where the key missed
  int64_t num_keys = 0;             // N <= 2^31 - 1

  int64_t* hit_slots = nullptr;        // [N] room; the first H are written
  RowKey* miss_keys = nullptr;         // [N] room; the first M, as the next two
  int32_t* miss_counts = nullptr;      // [N]
  int32_t* miss_positions = nullptr;   // [N]: among the keys
  SplitSlotsTotals* totals = nullptr;  // [1]
  std::byte* workspace = nullptr;      // SplitSlotsWorkspaceBytes(N, device), 64-byte aligned
  int64_t workspace_bytes = 0;

  absl::Status Validate(Device device = Device::kCpu) const;
};

// 0 on the CPU.
int64_t SplitSlotsWorkspaceBytes(int64_t num_keys, Device device = Device::kCpu);

// Lists the slots of keys that hit and the keys that missed, both in the order of the keys, so the
// result is the same on every device. N = 0 writes `totals` only.
absl::Status SplitSlots(const ExecContext& ctx, const SplitSlotsArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_SPLIT_SLOTS_H_
