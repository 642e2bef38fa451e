#include "ops/interactions/padded_dot.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/dispatch.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "ops/interactions/dot_interaction.h"
#include "ops/interactions/padded_dot_impl.h"

namespace hotrow {
namespace {

absl::Status CheckMatrix(std::string_view name, const void* data, int64_t stride, int64_t columns) {
  if (data == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("PaddedDot: ", std::string(name), " must not be null"));
  }
  if (stride < columns) {
    return absl::InvalidArgumentError(absl::StrCat(
        "PaddedDot: ", std::string(name), "_stride must be >= ", columns, ", got ", stride));
  }
  return absl::OkStatus();
}

absl::Status ValidateInputs(const PaddedDotArgs& args) {
  if (args.batch_size < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("PaddedDot: batch_size must be >= 0, got ", args.batch_size));
  }
  if (args.num_sparse < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("PaddedDot: num_sparse must be >= 0, got ", args.num_sparse));
  }
  if (args.dim <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("PaddedDot: dim must be > 0, got ", args.dim));
  }
  if (args.batch_size == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(CheckMatrix("dense", args.dense, args.dense_stride, args.dim));
  if (args.num_sparse == 0) return absl::OkStatus();
  if (args.sparse_rows != nullptr) {
    if (args.sparse == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError("PaddedDot: sparse must be null where sparse_rows is not");
  }
  return CheckMatrix("sparse", args.sparse, args.sparse_stride,
                     int64_t{args.num_sparse} * args.dim);
}

}  // namespace

std::string_view DotPrecisionName(DotPrecision precision) {
  switch (precision) {
    case DotPrecision::kFp32:
      return "fp32";
    case DotPrecision::kTf32:
      return "tf32";
    case DotPrecision::kBf16:
      return "bf16";
    case DotPrecision::kFp16:
      return "fp16";
  }
  return "";
}

int64_t DotElementBytes(DotPrecision precision) {
  return precision == DotPrecision::kBf16 || precision == DotPrecision::kFp16 ? 2 : 4;
}

int64_t PaddedDotProducts(int32_t num_sparse, int32_t dim) {
  return DotInteractionOutputSize(num_sparse, dim);
}

int64_t PaddedDotColumns(int32_t num_sparse, int32_t dim) {
  return RoundUp(PaddedDotProducts(num_sparse, dim) + 1, internal::kDotPadding);
}

absl::Status PaddedDotArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(ValidateInputs(*this));
  if (batch_size == 0) return absl::OkStatus();
  return CheckMatrix("output", output, output_stride, PaddedDotColumns(num_sparse, dim));
}

absl::Status PaddedDotGradArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(ValidateInputs(forward));
  if (forward.batch_size == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(CheckMatrix("output_gradient", output_gradient, forward.output_stride,
                                     PaddedDotColumns(forward.num_sparse, forward.dim)));
  HOTROW_RETURN_IF_ERROR(
      CheckMatrix("dense_gradient", dense_gradient, dense_gradient_stride, forward.dim));
  if (forward.num_sparse == 0) return absl::OkStatus();
  return CheckMatrix("sparse_gradient", sparse_gradient, sparse_gradient_stride,
                     int64_t{forward.num_sparse} * forward.dim);
}

absl::Status PaddedDot(const ExecContext& ctx, const PaddedDotArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::PaddedDotCpu(ctx.pool, args); },
      [&](auto stream) { return internal::PaddedDotCuda(stream, args); });
}

absl::Status PaddedDotGrad(const ExecContext& ctx, const PaddedDotGradArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.forward.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::PaddedDotGradCpu(ctx.pool, args); },
      [&](auto stream) { return internal::PaddedDotGradCuda(stream, args); });
}

}  // namespace hotrow
