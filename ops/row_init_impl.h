#ifndef HOTROW_OPS_ROW_INIT_IMPL_H_
#define HOTROW_OPS_ROW_INIT_IMPL_H_

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/row_init.h"

namespace hotrow::internal {

absl::Status InitRowsCpu(const ExecContext& ctx, const RowInitArgs& args);
absl::Status InitRowsCuda(const RowInitArgs& args, CudaStream stream);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_ROW_INIT_IMPL_H_
