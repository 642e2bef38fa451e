#include "ops/layers/crossing.h"

#include "absl/strings/str_cat.h"
#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/layers/crossing_impl.h"
#include "ops/validate.h"

namespace hotrow {
namespace {

using internal::InvalidField;
using internal::NullField;

absl::Status CheckSizes(const char* op, int64_t batch_size, int32_t width) {
  if (batch_size < 0) return InvalidField(op, "batch_size", "must be >= 0", batch_size);
  if (width < 1) return InvalidField(op, "width", "must be >= 1", width);
  return absl::OkStatus();
}

absl::Status CheckMatrix(const char* op, const char* name, const float* data, int64_t width,
                         int64_t stride) {
  if (data == nullptr) return NullField(op, name);
  if (stride >= width) return absl::OkStatus();
  return InvalidField(op, absl::StrCat(name, "_stride"), absl::StrCat("must be >= width = ", width),
                      stride);
}

}  // namespace

absl::Status CrossingArgs::Validate() const {
  constexpr char kOp[] = "Crossing";
  HOTROW_RETURN_IF_ERROR(CheckSizes(kOp, batch_size, width));
  if (batch_size == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(CheckMatrix(kOp, "x0", x0, width, x0_stride));
  HOTROW_RETURN_IF_ERROR(CheckMatrix(kOp, "t", t, width, t_stride));
  HOTROW_RETURN_IF_ERROR(CheckMatrix(kOp, "x", x, width, x_stride));
  return CheckMatrix(kOp, "output", output, width, output_stride);
}

absl::Status CrossingGradArgs::Validate() const {
  constexpr char kOp[] = "CrossingGrad";
  HOTROW_RETURN_IF_ERROR(CheckSizes(kOp, batch_size, width));
  if (batch_size == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(CheckMatrix(kOp, "x0", x0, width, x0_stride));
  HOTROW_RETURN_IF_ERROR(CheckMatrix(kOp, "t", t, width, t_stride));
  HOTROW_RETURN_IF_ERROR(
      CheckMatrix(kOp, "output_gradient", output_gradient, width, output_gradient_stride));
  const auto check_wanted = [&](const char* name, const float* data, int64_t stride) {
    return data == nullptr ? absl::OkStatus() : CheckMatrix(kOp, name, data, width, stride);
  };
  HOTROW_RETURN_IF_ERROR(check_wanted("x0_gradient", x0_gradient, x0_gradient_stride));
  HOTROW_RETURN_IF_ERROR(check_wanted("t_gradient", t_gradient, t_gradient_stride));
  return check_wanted("x_gradient", x_gradient, x_gradient_stride);
}

absl::Status Crossing(const ExecContext& ctx, const CrossingArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::CrossingCpu(ctx.pool, args); },
      [&](auto stream) { return internal::CrossingCuda(stream, args); });
}

absl::Status CrossingGrad(const ExecContext& ctx, const CrossingGradArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::CrossingGradCpu(ctx.pool, args); },
      [&](auto stream) { return internal::CrossingGradCuda(stream, args); });
}

}  // namespace hotrow
