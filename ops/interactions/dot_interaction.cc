#include "ops/interactions/dot_interaction.h"

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/interactions/dot_interaction_impl.h"

namespace hotrow {
namespace {

absl::Status CheckMatrix(bool wanted, std::string_view name, const void* data, int64_t stride,
                         int64_t columns) {
  if (!wanted) return absl::OkStatus();
  if (data == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("DotInteraction: ", std::string(name), " must not be null"));
  }
  if (stride < columns) {
    return absl::InvalidArgumentError(absl::StrCat(
        "DotInteraction: ", std::string(name), "_stride must be >= ", columns, ", got ", stride));
  }
  return absl::OkStatus();
}

absl::Status ValidateInputs(const DotInteractionArgs& args) {
  if (args.batch_size < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("DotInteraction: batch_size must be >= 0, got ", args.batch_size));
  }
  if (args.num_sparse < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("DotInteraction: num_sparse must be >= 0, got ", args.num_sparse));
  }
  if (args.dim <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("DotInteraction: dim must be > 0, got ", args.dim));
  }
  const bool some = args.batch_size > 0;
  HOTROW_RETURN_IF_ERROR(CheckMatrix(some, "dense", args.dense, args.dense_stride, args.dim));
  return CheckMatrix(some && args.num_sparse > 0, "sparse", args.sparse, args.sparse_stride,
                     int64_t{args.num_sparse} * args.dim);
}

}  // namespace

int64_t DotInteractionOutputSize(int32_t num_sparse, int32_t dim, bool copies_dense) {
  const int64_t vectors = int64_t{num_sparse} + 1;
  return (copies_dense ? dim : 0) + vectors * (vectors - 1) / 2;
}

absl::Status DotInteractionArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(ValidateInputs(*this));
  return CheckMatrix(batch_size > 0, "output", output, output_stride,
                     DotInteractionOutputSize(num_sparse, dim, copies_dense));
}

absl::Status DotInteractionGradArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(ValidateInputs(forward));
  const bool some = forward.batch_size > 0;
  HOTROW_RETURN_IF_ERROR(
      CheckMatrix(some, "output_gradient", output_gradient, forward.output_stride,
                  DotInteractionOutputSize(forward.num_sparse, forward.dim, forward.copies_dense)));
  HOTROW_RETURN_IF_ERROR(
      CheckMatrix(some, "dense_gradient", dense_gradient, dense_gradient_stride, forward.dim));
  return CheckMatrix(some && forward.num_sparse > 0, "sparse_gradient", sparse_gradient,
                     sparse_gradient_stride, int64_t{forward.num_sparse} * forward.dim);
}

absl::Status DotInteraction(const ExecContext& ctx, const DotInteractionArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::DotInteractionCpu(ctx.pool, args); },
      [&](auto stream) { return internal::DotInteractionCuda(stream, args); });
}

absl::Status DotInteractionGrad(const ExecContext& ctx, const DotInteractionGradArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.forward.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::DotInteractionGradCpu(ctx.pool, args); },
      [&](auto stream) { return internal::DotInteractionGradCuda(stream, args); });
}

}  // namespace hotrow
