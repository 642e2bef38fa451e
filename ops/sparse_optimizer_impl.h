#ifndef HOTROW_OPS_SPARSE_OPTIMIZER_IMPL_H_
#define HOTROW_OPS_SPARSE_OPTIMIZER_IMPL_H_

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/sparse_optimizer.h"

namespace hotrow::internal {

absl::Status SparseUpdateCpu(const ExecContext& ctx, const SparseUpdateArgs& args);
absl::Status SparseUpdateCuda(const SparseUpdateArgs& args, CudaStream stream);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_SPARSE_OPTIMIZER_IMPL_H_
