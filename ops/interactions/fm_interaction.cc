#include "ops/interactions/fm_interaction.h"

#include "absl/strings/str_cat.h"
#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/interactions/fm_interaction_impl.h"
#include "ops/validate.h"

namespace hotrow {
namespace {

using internal::InvalidField;
using internal::NullField;

constexpr char kOp[] = "FmInteraction";

absl::Status ValidateInputs(const FmInteractionArgs& args) {
  if (args.batch_size < 0) return InvalidField(kOp, "batch_size", "must be >= 0", args.batch_size);
  if (args.num_fields <= 0) return InvalidField(kOp, "num_fields", "must be > 0", args.num_fields);
  if (args.dim <= 0) return InvalidField(kOp, "dim", "must be > 0", args.dim);
  if (args.field_stride < args.dim) {
    return InvalidField(kOp, "field_stride", absl::StrCat("must be >= dim = ", args.dim),
                        args.field_stride);
  }
  if (args.first_order_column != kNoFirstOrder &&
      (args.first_order_column < args.dim || args.first_order_column >= args.field_stride)) {
    return InvalidField(kOp, "first_order_column",
                        absl::StrCat("must be kNoFirstOrder or in [dim, field_stride) = [",
                                     args.dim, ", ", args.field_stride, ")"),
                        args.first_order_column);
  }
  if (args.batch_size == 0) return absl::OkStatus();
  if (args.fields == nullptr) return NullField(kOp, "fields");
  const int64_t columns = int64_t{args.num_fields} * args.field_stride;
  if (args.fields_stride < columns) {
    return InvalidField(kOp, "fields_stride", absl::StrCat("must be >= ", columns),
                        args.fields_stride);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FmInteractionArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(ValidateInputs(*this));
  if (output_stride < 1) return InvalidField(kOp, "output_stride", "must be >= 1", output_stride);
  if (batch_size > 0 && output == nullptr) return NullField(kOp, "output");
  return absl::OkStatus();
}

absl::Status FmInteractionGradArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(ValidateInputs(forward));
  if (output_gradient_stride < 1) {
    return InvalidField(kOp, "output_gradient_stride", "must be >= 1", output_gradient_stride);
  }
  if (forward.batch_size == 0) return absl::OkStatus();
  if (output_gradient == nullptr) return NullField(kOp, "output_gradient");
  if (fields_gradient == nullptr) return NullField(kOp, "fields_gradient");
  const int64_t columns = int64_t{forward.num_fields} * forward.field_stride;
  if (fields_gradient_stride < columns) {
    return InvalidField(kOp, "fields_gradient_stride", absl::StrCat("must be >= ", columns),
                        fields_gradient_stride);
  }
  return absl::OkStatus();
}

absl::Status FmInteraction(const ExecContext& ctx, const FmInteractionArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::FmInteractionCpu(ctx.pool, args); },
      [&](auto stream) { return internal::FmInteractionCuda(stream, args); });
}

absl::Status FmInteractionGrad(const ExecContext& ctx, const FmInteractionGradArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.forward.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::FmInteractionGradCpu(ctx.pool, args); },
      [&](auto stream) { return internal::FmInteractionGradCuda(stream, args); });
}

}  // namespace hotrow
