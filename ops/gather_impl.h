#ifndef HOTROW_OPS_GATHER_IMPL_H_
#define HOTROW_OPS_GATHER_IMPL_H_

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/gather.h"

namespace hotrow::internal {

absl::Status GatherRowsCpu(const ExecContext& ctx, const GatherRowsArgs& args);
absl::Status GatherRowsCuda(const GatherRowsArgs& args, CudaStream stream);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_GATHER_IMPL_H_
