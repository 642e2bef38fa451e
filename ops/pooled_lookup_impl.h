#ifndef HOTROW_OPS_POOLED_LOOKUP_IMPL_H_
#define HOTROW_OPS_POOLED_LOOKUP_IMPL_H_

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/pooled_lookup.h"

namespace hotrow::internal {

absl::Status PooledLookupCpu(const ExecContext& ctx, const PooledLookupArgs& args);
absl::Status PooledLookupCuda(const PooledLookupArgs& args, CudaStream stream);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_POOLED_LOOKUP_IMPL_H_
