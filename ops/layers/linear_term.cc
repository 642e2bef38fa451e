#include "ops/layers/linear_term.h"

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/dispatch.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "ops/layers/linear_term_impl.h"
#include "ops/validate.h"

namespace hotrow {
namespace {

using internal::InvalidField;
using internal::NullField;

constexpr char kForward[] = "LinearTerm";
constexpr char kInputGrad[] = "LinearTermInputGrad";
constexpr char kWeightGrad[] = "LinearTermWeightGrad";
constexpr char kBiasGrad[] = "BiasGrad";

absl::Status CheckAtLeast(const char* op, const char* field, int64_t min, int64_t got) {
  if (got >= min) return absl::OkStatus();
  return InvalidField(op, field, absl::StrCat("must be >= ", min), got);
}

absl::Status CheckSizes(const char* op, int64_t batch_size, int64_t columns) {
  HOTROW_RETURN_IF_ERROR(CheckAtLeast(op, "batch_size", 0, batch_size));
  return CheckAtLeast(op, "columns", 1, columns);
}

absl::Status CheckArray(const char* op, const char* name, const float* data,
                        const char* stride_name, int64_t stride_min, int64_t stride) {
  if (data == nullptr) return NullField(op, name);
  return CheckAtLeast(op, stride_name, stride_min, stride);
}

}  // namespace

absl::Status LinearTermArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckSizes(kForward, batch_size, columns));
  if (batch_size == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(CheckArray(kForward, "x", x, "x_stride", columns, x_stride));
  HOTROW_RETURN_IF_ERROR(CheckArray(kForward, "output", output, "output_stride", 1, output_stride));
  return weights == nullptr ? NullField(kForward, "weights") : absl::OkStatus();
}

absl::Status LinearTermInputGradArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckSizes(kInputGrad, batch_size, columns));
  if (batch_size == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(CheckArray(kInputGrad, "output_gradient", output_gradient,
                                    "output_gradient_stride", 1, output_gradient_stride));
  HOTROW_RETURN_IF_ERROR(CheckArray(kInputGrad, "x_gradient", x_gradient, "x_gradient_stride",
                                    columns, x_gradient_stride));
  return weights == nullptr ? NullField(kInputGrad, "weights") : absl::OkStatus();
}

absl::Status LinearTermWeightGradArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckSizes(kWeightGrad, batch_size, columns));
  if (weight_gradient == nullptr) return NullField(kWeightGrad, "weight_gradient");
  if (batch_size == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(CheckArray(kWeightGrad, "x", x, "x_stride", columns, x_stride));
  return CheckArray(kWeightGrad, "output_gradient", output_gradient, "output_gradient_stride", 1,
                    output_gradient_stride);
}

absl::Status BiasGradArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckAtLeast(kBiasGrad, "batch_size", 0, batch_size));
  if (bias_gradient == nullptr) return NullField(kBiasGrad, "bias_gradient");
  if (batch_size == 0) return absl::OkStatus();
  return CheckArray(kBiasGrad, "output_gradient", output_gradient, "output_gradient_stride", 1,
                    output_gradient_stride);
}

int64_t LinearTermWorkspaceBytes(Device device, int64_t batch_size, int64_t columns) {
  if (device == Device::kCpu) return 0;
  const int64_t chunks = CeilDiv(batch_size, internal::kTermChunkRows);
  return RoundUp(chunks * columns * static_cast<int64_t>(sizeof(float)), kBufferAlignment);
}

absl::Status LinearTerm(const ExecContext& ctx, const LinearTermArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::LinearTermCpu(ctx.pool, args); },
      [&](auto stream) { return internal::LinearTermCuda(stream, args); });
}

absl::Status LinearTermInputGrad(const ExecContext& ctx, const LinearTermInputGradArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::LinearTermInputGradCpu(ctx.pool, args); },
      [&](auto stream) { return internal::LinearTermInputGradCuda(stream, args); });
}

absl::Status LinearTermWeightGrad(const ExecContext& ctx, const LinearTermWeightGradArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  HOTROW_RETURN_IF_ERROR(internal::CheckWorkspace(
      kWeightGrad, args.workspace, args.workspace_bytes,
      LinearTermWorkspaceBytes(ctx.device, args.batch_size, args.columns)));
  return internal::Dispatch(
      ctx, [&] { return internal::LinearTermWeightGradCpu(ctx.pool, args); },
      [&](auto stream) { return internal::LinearTermWeightGradCuda(stream, args); });
}

absl::Status BiasGrad(const ExecContext& ctx, const BiasGradArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  HOTROW_RETURN_IF_ERROR(
      internal::CheckWorkspace(kBiasGrad, args.workspace, args.workspace_bytes,
                               LinearTermWorkspaceBytes(ctx.device, args.batch_size, 1)));
  return internal::Dispatch(
      ctx, [&] { return internal::BiasGradCpu(args); },
      [&](auto stream) { return internal::BiasGradCuda(stream, args); });
}

}  // namespace hotrow
