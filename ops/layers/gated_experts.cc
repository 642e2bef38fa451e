#include "ops/layers/gated_experts.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/layers/gated_experts_impl.h"
#include "ops/validate.h"

namespace hotrow {
namespace {

using internal::InvalidField;
using internal::NullField;

constexpr char kForward[] = "GatedExperts";
constexpr char kGrad[] = "GatedExpertsGrad";

absl::Status CheckMatrix(const char* op, const char* name, const float* data,
                         const char* stride_name, int64_t columns, int64_t stride) {
  if (data == nullptr) return NullField(op, name);
  if (stride >= columns) return absl::OkStatus();
  return InvalidField(op, stride_name, absl::StrCat("must be >= ", columns), stride);
}

absl::Status CheckInputs(const char* op, const GatedExpertsArgs& args) {
  if (args.batch_size < 0) return InvalidField(op, "batch_size", "must be >= 0", args.batch_size);
  if (args.num_experts < 1) {
    return InvalidField(op, "num_experts", "must be >= 1", args.num_experts);
  }
  if (args.dim < 1) return InvalidField(op, "dim", "must be >= 1", args.dim);
  if (args.columns() > std::numeric_limits<int32_t>::max()) {
    return InvalidField(op, "num_experts * dim", "must be <= 2^31 - 1", args.columns());
  }
  if (args.batch_size == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(
      CheckMatrix(op, "gate", args.gate, "gate_stride", args.num_experts, args.gate_stride));
  return CheckMatrix(op, "x", args.x, "x_stride", args.columns(), args.x_stride);
}

}  // namespace

absl::Status GatedExpertsArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckInputs(kForward, *this));
  if (batch_size == 0) return absl::OkStatus();
  return CheckMatrix(kForward, "output", output, "output_stride", output_columns(), output_stride);
}

absl::Status GatedExpertsGradArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckInputs(kGrad, forward));
  if (forward.batch_size == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(CheckMatrix(kGrad, "output_gradient", output_gradient,
                                     "output_gradient_stride", forward.output_columns(),
                                     output_gradient_stride));
  if (gate_gradient != nullptr) {
    HOTROW_RETURN_IF_ERROR(CheckMatrix(kGrad, "gate_gradient", gate_gradient,
                                       "gate_gradient_stride", forward.num_experts,
                                       gate_gradient_stride));
  }
  if (x_gradient == nullptr) return absl::OkStatus();
  return CheckMatrix(kGrad, "x_gradient", x_gradient, "x_gradient_stride", forward.columns(),
                     x_gradient_stride);
}

absl::Status GatedExperts(const ExecContext& ctx, const GatedExpertsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::GatedExpertsCpu(ctx.pool, args); },
      [&](auto stream) { return internal::GatedExpertsCuda(stream, args); });
}

absl::Status GatedExpertsGrad(const ExecContext& ctx, const GatedExpertsGradArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.forward.batch_size == 0) return absl::OkStatus();
  if (args.gate_gradient == nullptr && args.x_gradient == nullptr) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::GatedExpertsGradCpu(ctx.pool, args); },
      [&](auto stream) { return internal::GatedExpertsGradCuda(stream, args); });
}

}  // namespace hotrow
