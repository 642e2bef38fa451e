#include "ops/gradient_segment_sum.h"

#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/gradient_segment_sum_impl.h"
#include "ops/jagged_impl.h"
#include "ops/no_cuda.h"
#include "ops/validate.h"

namespace hotrow {

absl::Status GradientSegmentSumArgs::Validate() const {
  constexpr char kOp[] = "GradientSegmentSum";
  HOTROW_RETURN_IF_ERROR(internal::ValidateJagged(kOp, features, batch_size, offsets));
  if (num_rows < 0) return internal::InvalidField(kOp, "num_rows", "must be >= 0", num_rows);
  if (num_rows == 0) return absl::OkStatus();
  if (offsets == nullptr) return internal::NullField(kOp, "offsets");
  if (row_offsets == nullptr) return internal::NullField(kOp, "row_offsets");
  if (lookup_order == nullptr) return internal::NullField(kOp, "lookup_order");
  if (gradients == nullptr) return internal::NullField(kOp, "gradients");
  // Every row has a lookup, so this many bytes at least; the exact need follows from N.
  return internal::CheckWorkspace(kOp, workspace, workspace_bytes,
                                  GradientSegmentSumWorkspaceBytes(num_rows));
}

absl::Status GradientSegmentSum(const ExecContext& ctx, const GradientSegmentSumArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.num_rows == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::GradientSegmentSumCpu(ctx, args); },
      [&](auto) { return internal::NoCudaKernel("GradientSegmentSum"); });
}

}  // namespace hotrow
