#ifndef HOTROW_OPS_GRADIENT_SEGMENT_SUM_IMPL_H_
#define HOTROW_OPS_GRADIENT_SEGMENT_SUM_IMPL_H_

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/gradient_segment_sum.h"

namespace hotrow::internal {

absl::Status GradientSegmentSumCpu(const ExecContext& ctx, const GradientSegmentSumArgs& args);
absl::Status GradientSegmentSumCuda(const GradientSegmentSumArgs& args, CudaStream stream);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_GRADIENT_SEGMENT_SUM_IMPL_H_
