#ifndef HOTROW_OPS_ROWS_GATHER_IMPL_H_
#define HOTROW_OPS_ROWS_GATHER_IMPL_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/math.h"
#include "ops/rows/gather.h"

namespace hotrow::internal {

absl::Status GatherRowsCpu(const ExecContext& ctx, const GatherRowsArgs& args);
absl::Status GatherRowsCuda(const GatherRowsArgs& args, CudaStream stream);
absl::Status ScatterRowsCpu(const ExecContext& ctx, const ScatterRowsArgs& args);
absl::Status ScatterRowsCuda(const ScatterRowsArgs& args, CudaStream stream);

// How many threads of a GPU copy a row together: a power of two up to a warp, so that each has one
// access of 16 bytes or more.
constexpr int CopyThreadsPerRow(int64_t row_bytes) {
  constexpr int64_t kAccessBytes = 16;
  constexpr int64_t kWarp = 32;
  const int64_t accesses = std::clamp(CeilDiv(row_bytes, kAccessBytes), int64_t{1}, kWarp);
  return static_cast<int>(std::bit_ceil(static_cast<uint64_t>(accesses)));
}

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_ROWS_GATHER_IMPL_H_
