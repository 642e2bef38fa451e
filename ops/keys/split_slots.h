#ifndef HOTROW_OPS_KEYS_SPLIT_SLOTS_H_
#define HOTROW_OPS_KEYS_SPLIT_SLOTS_H_

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
  int64_t found = 0;
};

// Keys of one table that missed and whose rows were found.
struct FoundOfTable {
  int64_t keys = 0;
  int64_t lookups = 0;  // the counts of these
};

// Dimensions: N keys, of which H hit, F missed and were found elsewhere, and M = N - H - F missed.
// On a CUDA device all pointers are memory that the device reaches. Keys and counts of misses are
// meant for page-locked memory of the host, to which only as much is written as there are misses,
// in whole lines; all else, for the device's own.
struct SplitSlotsArgs {
  const RowKey* keys = nullptr;     // [N]
  const int32_t* counts = nullptr;  // [N]: lookups of each
  const int64_t* slots = nullptr;   // [N]: negative where the key missed
  int64_t num_keys = 0;             // N <= 2^31 - 1

  int64_t* hit_slots = nullptr;        // [N] room; H are written, then F times -1
  RowKey* miss_keys = nullptr;         // [N] room; the first M, as the next two; 16-byte aligned
  int32_t* miss_counts = nullptr;      // [N]
  int32_t* miss_positions = nullptr;   // [N]: among the keys
  SplitSlotsTotals* totals = nullptr;  // [1]
  std::byte* workspace = nullptr;      // SplitSlotsWorkspaceBytes(...), 64-byte aligned
  int64_t workspace_bytes = 0;

  // Null: nothing is found. Otherwise where the row of a key that missed lies, null where nobody
  // knows; those of keys that hit are not read.
  std::byte* const* rows = nullptr;        // [N]
  RowKey* found_keys = nullptr;            // [N] room; the first F are written, as the next two
  int32_t* found_positions = nullptr;      // [N]: among the keys
  std::byte** found_rows = nullptr;        // [N]
  FoundOfTable* found_of_table = nullptr;  // [num_tables], by RowKey::table, which is less
  int64_t num_tables = 0;                  // > 0

  absl::Status Validate(Device device = Device::kCpu) const;
};

// 0 on the CPU.
int64_t SplitSlotsWorkspaceBytes(int64_t num_keys, Device device = Device::kCpu);

// Lists the slots of keys that hit, the keys that were found and those that missed, each in the
// order of the keys, so the result is the same on every device. N = 0 writes the counts only.
absl::Status SplitSlots(const ExecContext& ctx, const SplitSlotsArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_KEYS_SPLIT_SLOTS_H_
