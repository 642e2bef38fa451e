#ifndef HOTROW_OPS_UNIQUE_IMPL_H_
#define HOTROW_OPS_UNIQUE_IMPL_H_

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/unique.h"

namespace hotrow::internal {

absl::Status UniqueCpu(const ExecContext& ctx, const UniqueArgs& args);
absl::Status UniqueCuda(const UniqueArgs& args, CudaStream stream);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_UNIQUE_IMPL_H_
