#ifndef HOTROW_OPS_ROWS_POOLED_LOOKUP_IMPL_H_
#define HOTROW_OPS_ROWS_POOLED_LOOKUP_IMPL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/rows/pooled_lookup.h"

namespace hotrow::internal {

absl::Status PooledLookupCpu(const ExecContext& ctx, const PooledLookupArgs& args);

// More tiles than a large GPU runs at a time.
inline constexpr int64_t kPoolTilesWanted = 16384;
// tiles_wanted: with fewer bags than that a tile takes one of them; results do not depend on it.
absl::Status PooledLookupCuda(const PooledLookupArgs& args, CudaStream stream,
                              int64_t tiles_wanted = kPoolTilesWanted);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_ROWS_POOLED_LOOKUP_IMPL_H_
