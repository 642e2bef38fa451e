#ifndef HOTROW_OPS_PARTITION_H_
#define HOTROW_OPS_PARTITION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"

namespace hotrow {

// Dimensions: N items, P parts.
struct PartitionArgs {
  const int32_t* part = nullptr;  // [N], each in [0, P)
  int64_t num_items = 0;          // N <= 2^31 - 1
  int64_t num_parts = 0;          // P
  int64_t* offsets = nullptr;     // [P + 1]: part p has order[offsets[p], offsets[p+1])
  int32_t* order = nullptr;       // [N]: item numbers, part by part, ascending within a part

  absl::Status Validate() const;
};

// Stable counting sort of item numbers by part. Two uses: keys by owning rank, and lookups by
// unique row (part = the inverse of Unique), which puts the lookups of one row side by side in
// (feature, sample) order.
absl::Status Partition(const ExecContext& ctx, const PartitionArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_PARTITION_H_
