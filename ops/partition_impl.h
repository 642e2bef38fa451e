#ifndef HOTROW_OPS_PARTITION_IMPL_H_
#define HOTROW_OPS_PARTITION_IMPL_H_

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/partition.h"

namespace hotrow::internal {

absl::Status PartitionCpu(const ExecContext& ctx, const PartitionArgs& args);
absl::Status PartitionCuda(const PartitionArgs& args, CudaStream stream);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_PARTITION_IMPL_H_
