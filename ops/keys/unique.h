#ifndef HOTROW_OPS_KEYS_UNIQUE_H_
#define HOTROW_OPS_KEYS_UNIQUE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/exec_context.h"

namespace hotrow {

// A run of lookups that go to one table: values[begin, end).
struct LookupSegment {
  int64_t begin = 0;
  int64_t end = 0;
  int32_t table = 0;  // position of the table, in [0, T)
};

// Dimensions: N values, S segments, T tables, U <= N unique {table, value} pairs. On a CUDA device
// all pointers are memory that the device reaches; values and workspace should be its own, since
// they are read at random. `segments` is host memory on either device, read before the call
// returns.
struct UniqueArgs {
  const uint64_t* values = nullptr;  // [N]
  int64_t num_values = 0;            // N <= 2^31 - 1 (inverse is int32)
  std::span<const LookupSegment>
      segments;                // [S], cover [0, N) in order; several may name one table
  int32_t num_tables = 0;      // T
  uint64_t* unique = nullptr;  // [N] room; the first U are written, grouped by table
  int64_t* table_offsets =
      nullptr;                 // [T + 1]: table t has unique[table_offsets[t], table_offsets[t+1])
  int32_t* inverse = nullptr;  // [N]: unique[inverse[i]] is the key of values[i]
  int32_t* counts = nullptr;   // [N] room; the first U: how many values went to each
  std::byte* workspace = nullptr;  // UniqueWorkspaceBytes(N, device), 64-byte aligned
  int64_t workspace_bytes = 0;

  absl::Status Validate(Device device = Device::kCpu) const;
};

// Workspace of Unique on that device for N >= 0 values in any segments and tables.
int64_t UniqueWorkspaceBytes(int64_t num_values, Device device = Device::kCpu);

// Finds the distinct keys of each table, in the order of their first appearance, so the result is
// the same on every device. The CPU runs tables in parallel, and parts of large ones; a GPU runs
// values. N = 0 writes
// table_offsets only. On the CPU the time is O(N log N) for any values: keys that were chosen to
// collide are sorted.
absl::Status Unique(const ExecContext& ctx, const UniqueArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_KEYS_UNIQUE_H_
