#include "ops/interactions/outer_product.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/interactions/outer_product_impl.h"
#include "ops/validate.h"

namespace hotrow {
namespace {

using internal::InvalidField;
using internal::NullField;

constexpr char kOp[] = "OuterProduct";

absl::Status CheckStride(const std::string& field, int64_t min, int64_t got) {
  if (got >= min) return absl::OkStatus();
  return InvalidField(kOp, field, absl::StrCat("must be >= ", min), got);
}

absl::Status CheckFields(const OuterProductArgs& args, const std::string& name, const float* data,
                         int64_t stride, const std::string& field_stride_name,
                         int64_t field_stride) {
  if (data == nullptr) return NullField(kOp, name);
  if (args.num_fields > 1) {
    HOTROW_RETURN_IF_ERROR(CheckStride(field_stride_name, args.dim, field_stride));
  }
  return CheckStride(name + "_stride", int64_t{args.num_fields - 1} * field_stride + args.dim,
                     stride);
}

absl::Status ValidateInputs(const OuterProductArgs& args) {
  if (args.batch_size < 0) return InvalidField(kOp, "batch_size", "must be >= 0", args.batch_size);
  if (args.num_fields < 1) return InvalidField(kOp, "num_fields", "must be >= 1", args.num_fields);
  constexpr int32_t kMax = OuterProductDimMax(Device::kCpu);
  if (args.dim < 1 || args.dim > kMax) {
    return InvalidField(kOp, "dim", absl::StrCat("must lie in [1, ", kMax, "]"), args.dim);
  }
  if (args.batch_size == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(CheckFields(args, "fields", args.fields, args.fields_stride,
                                     "field_stride", args.field_stride));
  return CheckStride("output_stride", OuterProductOutputSize(args.dim), args.output_stride);
}

absl::Status CheckDim(const ExecContext& ctx, int32_t dim) {
  const int32_t max = OuterProductDimMax(ctx.device);
  if (dim <= max) return absl::OkStatus();
  return InvalidField(kOp, "dim", absl::StrCat("must be <= ", max, " on this device"), dim);
}

}  // namespace

absl::Status OuterProductArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(ValidateInputs(*this));
  return batch_size > 0 && output == nullptr ? NullField(kOp, "output") : absl::OkStatus();
}

absl::Status OuterProductGradArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(ValidateInputs(forward));
  if (forward.batch_size == 0) return absl::OkStatus();
  if (output_gradient == nullptr) return NullField(kOp, "output_gradient");
  return CheckFields(forward, "fields_gradient", fields_gradient, fields_gradient_stride,
                     "field_gradient_stride", field_gradient_stride);
}

absl::Status OuterProduct(const ExecContext& ctx, const OuterProductArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  HOTROW_RETURN_IF_ERROR(CheckDim(ctx, args.dim));
  if (args.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::OuterProductCpu(ctx.pool, args); },
      [&](auto stream) { return internal::OuterProductCuda(stream, args); });
}

absl::Status OuterProductGrad(const ExecContext& ctx, const OuterProductGradArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  HOTROW_RETURN_IF_ERROR(CheckDim(ctx, args.forward.dim));
  if (args.forward.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::OuterProductGradCpu(ctx.pool, args); },
      [&](auto stream) { return internal::OuterProductGradCuda(stream, args); });
}

}  // namespace hotrow
