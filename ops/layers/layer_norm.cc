#include "ops/layers/layer_norm.h"

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "ops/layers/layer_norm_impl.h"
#include "ops/validate.h"

namespace hotrow {
namespace {

using internal::InvalidField;
using internal::NullField;

constexpr char kNorm[] = "LayerNorm";
constexpr char kNormGrad[] = "LayerNormGrad";

absl::Status CheckSizes(const char* op, int64_t num_rows, int32_t columns) {
  if (num_rows < 0) return InvalidField(op, "num_rows", "must be >= 0", num_rows);
  if (columns < 1) return InvalidField(op, "columns", "must be >= 1", columns);
  return absl::OkStatus();
}

absl::Status CheckRows(const char* op, const char* name, const float* data, int32_t columns,
                       int64_t stride) {
  if (data == nullptr) return NullField(op, name);
  if (stride >= columns) return absl::OkStatus();
  return InvalidField(op, absl::StrCat(name, "_stride"),
                      absl::StrCat("must be >= columns = ", columns), stride);
}

absl::Status RefuseGpu(const char* op) {
  return absl::UnimplementedError(absl::StrCat(op, ": works on the CPU only"));
}

}  // namespace

absl::Status LayerNormArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckSizes(kNorm, num_rows, columns));
  if (num_rows == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(CheckRows(kNorm, "x", x, columns, x_stride));
  if (gamma == nullptr) return NullField(kNorm, "gamma");
  if (beta == nullptr) return NullField(kNorm, "beta");
  return CheckRows(kNorm, "output", output, columns, output_stride);
}

int64_t LayerNormGradWorkspaceBytes(int64_t num_rows, int32_t columns) {
  return RoundUp(
      CeilDiv(num_rows, kLayerNormBlockRows) * 2 * columns * static_cast<int64_t>(sizeof(double)),
      kBufferAlignment);
}

absl::Status LayerNormGradArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckSizes(kNormGrad, num_rows, columns));
  if (gamma_gradient == nullptr) return NullField(kNormGrad, "gamma_gradient");
  if (beta_gradient == nullptr) return NullField(kNormGrad, "beta_gradient");
  HOTROW_RETURN_IF_ERROR(internal::CheckWorkspace(kNormGrad, workspace, workspace_bytes,
                                                  LayerNormGradWorkspaceBytes(num_rows, columns)));
  if (num_rows == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(CheckRows(kNormGrad, "x", x, columns, x_stride));
  if (gamma == nullptr) return NullField(kNormGrad, "gamma");
  HOTROW_RETURN_IF_ERROR(
      CheckRows(kNormGrad, "output_gradient", output_gradient, columns, output_gradient_stride));
  return CheckRows(kNormGrad, "x_gradient", x_gradient, columns, x_gradient_stride);
}

absl::Status LayerNorm(const ExecContext& ctx, const LayerNormArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (ctx.device != Device::kCpu) return RefuseGpu(kNorm);
  return internal::LayerNormCpu(ctx.pool, args);
}

absl::Status LayerNormGrad(const ExecContext& ctx, const LayerNormGradArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (ctx.device != Device::kCpu) return RefuseGpu(kNormGrad);
  return internal::LayerNormGradCpu(ctx.pool, args);
}

}  // namespace hotrow
