#include "ops/update/gradient_segment_sum.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/jagged_impl.h"
#include "ops/update/gradient_segment_sum_impl.h"
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

int64_t GradientSegmentSumWorkspaceBytes(int64_t num_lookups, Device device, int32_t dim_max) {
  if (device == Device::kCuda) return internal::HotRowSums::For(num_lookups, dim_max).bytes;
  return num_lookups * static_cast<int64_t>(sizeof(internal::GradientContribution));
}

namespace internal {

int32_t WidestDim(std::span<const JaggedFeature> features) {
  int32_t widest = 0;
  for (const JaggedFeature& feature : features) widest = std::max(widest, feature.dim);
  return widest;
}

absl::Status ValidateForCuda(const GradientSegmentSumArgs& args) {
  constexpr char kOp[] = "GradientSegmentSum";
  if (args.features.empty() || args.batch_size == 0) {
    return InvalidField(kOp, "num_rows", "must be 0 without features or samples", args.num_rows);
  }
  if (args.num_lookups < args.num_rows) {
    return InvalidField(
        kOp, "num_lookups",
        absl::StrCat("must be given on a CUDA device, at least num_rows = ", args.num_rows),
        args.num_lookups);
  }
  return CheckWorkspace(
      kOp, args.workspace, args.workspace_bytes,
      GradientSegmentSumWorkspaceBytes(args.num_lookups, Device::kCuda, WidestDim(args.features)));
}

}  // namespace internal

absl::Status GradientSegmentSum(const ExecContext& ctx, const GradientSegmentSumArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.num_rows == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::GradientSegmentSumCpu(ctx, args); },
      [&](auto stream) -> absl::Status {
        HOTROW_RETURN_IF_ERROR(internal::ValidateForCuda(args));
        return internal::GradientSegmentSumCuda(args, stream);
      });
}

}  // namespace hotrow
