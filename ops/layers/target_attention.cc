#include "ops/layers/target_attention.h"

#include "absl/strings/str_cat.h"
#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/layers/target_attention_impl.h"
#include "ops/validate.h"

namespace hotrow {
namespace {

using internal::InvalidField;
using internal::NullField;

constexpr char kPairs[] = "TargetPairs";
constexpr char kSum[] = "WeightedRowSum";
constexpr char kWeightGrad[] = "RowWeightGrad";
constexpr char kSumGrad[] = "RowSumGrad";
constexpr char kGrad[] = "TargetAttentionGrad";

absl::Status CheckOwnRows(const char* op, const JaggedRows& rows) {
  HOTROW_RETURN_IF_ERROR(rows.Validate(op));
  return rows.shared ? InvalidField(op, "shared", "must be false in a gradient", 1)
                     : absl::OkStatus();
}

// Checks a vector for each sample.
absl::Status CheckVectors(const char* op, const char* name, const JaggedRows& rows,
                          const float* data, int64_t stride) {
  if (rows.batch_size == 0) return absl::OkStatus();
  if (data == nullptr) return NullField(op, name);
  if (stride >= rows.dim) return absl::OkStatus();
  return InvalidField(op, absl::StrCat(name, "_stride"),
                      absl::StrCat("must be >= dim = ", rows.dim), stride);
}

}  // namespace

absl::Status JaggedRows::Validate(const char* op) const {
  if (batch_size < 0) return InvalidField(op, "batch_size", "must be >= 0", batch_size);
  if (dim < 1) return InvalidField(op, "dim", "must be >= 1", dim);
  if (batch_size > 0 && offsets == nullptr) return NullField(op, "offsets");
  return absl::OkStatus();
}

absl::Status TargetPairsArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(rows.Validate(kPairs));
  return CheckVectors(kPairs, "target", rows, target, target_stride);
}

absl::Status WeightedRowSumArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(rows.Validate(kSum));
  return CheckVectors(kSum, "output", rows, output, output_stride);
}

absl::Status RowWeightGradArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckOwnRows(kWeightGrad, rows));
  return CheckVectors(kWeightGrad, "output_gradient", rows, output_gradient,
                      output_gradient_stride);
}

absl::Status RowSumGradArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckOwnRows(kSumGrad, rows));
  return CheckVectors(kSumGrad, "output_gradient", rows, output_gradient, output_gradient_stride);
}

absl::Status TargetAttentionGradArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckOwnRows(kGrad, rows));
  HOTROW_RETURN_IF_ERROR(CheckVectors(kGrad, "target", rows, target, target_stride));
  HOTROW_RETURN_IF_ERROR(
      CheckVectors(kGrad, "output_gradient", rows, output_gradient, output_gradient_stride));
  if (target_gradient == nullptr) return absl::OkStatus();
  return CheckVectors(kGrad, "target_gradient", rows, target_gradient, target_gradient_stride);
}

absl::Status TargetPairs(const ExecContext& ctx, const TargetPairsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.rows.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::TargetPairsCpu(ctx.pool, args); },
      [&](auto stream) { return internal::TargetPairsCuda(stream, args); });
}

absl::Status WeightedRowSum(const ExecContext& ctx, const WeightedRowSumArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.rows.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::WeightedRowSumCpu(ctx.pool, args); },
      [&](auto stream) { return internal::WeightedRowSumCuda(stream, args); });
}

absl::Status RowWeightGrad(const ExecContext& ctx, const RowWeightGradArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.rows.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::RowWeightGradCpu(ctx.pool, args); },
      [&](auto stream) { return internal::RowWeightGradCuda(stream, args); });
}

absl::Status RowSumGrad(const ExecContext& ctx, const RowSumGradArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.rows.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::RowSumGradCpu(ctx.pool, args); },
      [&](auto stream) { return internal::RowSumGradCuda(stream, args); });
}

absl::Status TargetAttentionGrad(const ExecContext& ctx, const TargetAttentionGradArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.rows.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::TargetAttentionGradCpu(ctx.pool, args); },
      [&](auto stream) { return internal::TargetAttentionGradCuda(stream, args); });
}

}  // namespace hotrow
