#include "ops/training/gradient_norm.h"

#include "absl/strings/str_cat.h"
#include "base/dispatch.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "ops/training/gradient_norm_impl.h"

namespace hotrow {

int64_t GradientNormWorkspaceBytes(Device device, int64_t n) {
  if (device == Device::kCpu) return 0;
  return CeilDiv(n, internal::kNormChunk) * static_cast<int64_t>(sizeof(double));
}

absl::Status GradientNormArgs::Validate() const {
  if (!(norm_max > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("GradientNormArgs: norm_max must be > 0, got ", norm_max));
  }
  if (norm == nullptr || scale == nullptr) {
    return absl::InvalidArgumentError("GradientNormArgs: norm and scale must not be null");
  }
  return absl::OkStatus();
}

absl::Status GradientNorm(const ExecContext& ctx, const GradientNormArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  const int64_t need =
      GradientNormWorkspaceBytes(ctx.device, static_cast<int64_t>(args.gradients.size()));
  if (args.workspace_bytes < need) {
    return absl::InvalidArgumentError(
        absl::StrCat("GradientNormArgs: workspace_bytes must be at "
                     "least ",
                     need, ", got ", args.workspace_bytes));
  }
  return internal::Dispatch(
      ctx, [&] { return internal::GradientNormCpu(ctx.pool, args); },
      [&](auto stream) { return internal::GradientNormCuda(stream, args); });
}

}  // namespace hotrow
