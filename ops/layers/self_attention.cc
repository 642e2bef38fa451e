#include "ops/layers/self_attention.h"

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "ops/layers/self_attention_impl.h"
#include "ops/validate.h"

namespace hotrow {
namespace {

using internal::InvalidField;
using internal::NullField;

constexpr char kAppend[] = "AppendTarget";
constexpr char kAppendGrad[] = "AppendTargetGrad";
constexpr char kLast[] = "LastRow";
constexpr char kLastGrad[] = "LastRowGrad";
constexpr char kAttention[] = "SelfAttention";
constexpr char kAttentionGrad[] = "SelfAttentionGrad";

absl::Status CheckOnCpu(const char* op, const ExecContext& ctx) {
  if (ctx.device == Device::kCpu) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(op, ": works on the CPU only"));
}

absl::Status CheckUnshared(const char* op, const JaggedRows& rows) {
  HOTROW_RETURN_IF_ERROR(rows.Validate(op));
  return rows.shared ? InvalidField(op, "shared", "must be false here", 1) : absl::OkStatus();
}

absl::Status CheckStride(const char* op, const char* name, int64_t columns, int64_t stride) {
  if (stride >= columns) return absl::OkStatus();
  return InvalidField(op, absl::StrCat(name, "_stride"),
                      absl::StrCat("must be >= the columns, ", columns), stride);
}

absl::Status CheckRows(const char* op, const char* name, const float* data, int64_t columns,
                       int64_t stride) {
  return data == nullptr ? NullField(op, name) : CheckStride(op, name, columns, stride);
}

absl::Status CheckPositions(const char* op, int64_t num_positions) {
  if (num_positions >= 1) return absl::OkStatus();
  return InvalidField(op, "num_positions", "must be >= 1", num_positions);
}

// Arrays of N rows may be null where there are none, which only the data can tell.
absl::Status CheckAttention(const char* op, const SelfAttentionArgs& args) {
  if (args.batch_size < 0) return InvalidField(op, "batch_size", "must be >= 0", args.batch_size);
  if (args.num_heads < 1) return InvalidField(op, "num_heads", "must be >= 1", args.num_heads);
  if (args.head_dim < 1) return InvalidField(op, "head_dim", "must be >= 1", args.head_dim);
  if (!(args.length_bound > 0)) {
    return InvalidField(op, "length_bound", "must be > 0", args.length_bound);
  }
  if (args.position_bias != nullptr) {
    HOTROW_RETURN_IF_ERROR(CheckPositions(op, args.num_positions));
  }
  if (args.batch_size == 0) return absl::OkStatus();
  if (args.offsets == nullptr) return NullField(op, "offsets");
  const int64_t columns = int64_t{args.num_heads} * args.head_dim;
  HOTROW_RETURN_IF_ERROR(CheckStride(op, "row", columns, args.row_stride));
  return CheckStride(op, "output", columns, args.output_stride);
}

}  // namespace

absl::Status AppendTargetArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(rows.Validate(kAppend));
  HOTROW_RETURN_IF_ERROR(CheckPositions(kAppend, num_positions));
  if (rows.batch_size == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(CheckRows(kAppend, "target", target, rows.dim, target_stride));
  HOTROW_RETURN_IF_ERROR(CheckRows(kAppend, "position", positions, rows.dim, position_stride));
  return CheckRows(kAppend, "output", output, rows.dim, output_stride);
}

absl::Status AppendTargetGradArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckUnshared(kAppendGrad, rows));
  HOTROW_RETURN_IF_ERROR(CheckPositions(kAppendGrad, num_positions));
  HOTROW_RETURN_IF_ERROR(CheckRows(kAppendGrad, "position_gradient", position_gradient, rows.dim,
                                   position_gradient_stride));
  if (rows.batch_size == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(
      CheckRows(kAppendGrad, "output_gradient", output_gradient, rows.dim, output_gradient_stride));
  if (target_gradient == nullptr) return absl::OkStatus();
  return CheckStride(kAppendGrad, "target_gradient", rows.dim, target_gradient_stride);
}

absl::Status LastRowArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckUnshared(kLast, rows));
  if (rows.batch_size == 0) return absl::OkStatus();
  return CheckRows(kLast, "output", output, rows.dim, output_stride);
}

absl::Status LastRowGradArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckUnshared(kLastGrad, rows));
  if (rows.batch_size == 0) return absl::OkStatus();
  return CheckRows(kLastGrad, "output_gradient", output_gradient, rows.dim, output_gradient_stride);
}

absl::Status SelfAttentionArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckAttention(kAttention, *this));
  if (kind == AttentionKind::kSoftmax || normalizers == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(kAttention, ": normalizers are of kSoftmax and must be null"));
}

int64_t SelfAttentionGradWorkspaceBytes(int64_t batch_size, int64_t num_positions) {
  if (num_positions == 0) return 0;
  return RoundUp(CeilDiv(batch_size, internal::kSelfAttentionChunkSamples) *
                     (2 * num_positions - 1) * static_cast<int64_t>(sizeof(double)),
                 kBufferAlignment);
}

absl::Status SelfAttentionGradArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckAttention(kAttentionGrad, forward));
  if (forward.position_bias != nullptr && position_bias_gradient == nullptr) {
    return NullField(kAttentionGrad, "position_bias_gradient");
  }
  const int64_t num_positions = forward.position_bias == nullptr ? 0 : forward.num_positions;
  HOTROW_RETURN_IF_ERROR(
      internal::CheckWorkspace(kAttentionGrad, workspace, workspace_bytes,
                               SelfAttentionGradWorkspaceBytes(forward.batch_size, num_positions)));
  if (forward.batch_size == 0) return absl::OkStatus();
  const int64_t columns = int64_t{forward.num_heads} * forward.head_dim;
  HOTROW_RETURN_IF_ERROR(
      CheckStride(kAttentionGrad, "output_gradient", columns, output_gradient_stride));
  return CheckStride(kAttentionGrad, "gradient", columns, gradient_stride);
}

absl::Status AppendTarget(const ExecContext& ctx, const AppendTargetArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  HOTROW_RETURN_IF_ERROR(CheckOnCpu(kAppend, ctx));
  return internal::AppendTargetCpu(ctx.pool, args);
}

absl::Status AppendTargetGrad(const ExecContext& ctx, const AppendTargetGradArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  HOTROW_RETURN_IF_ERROR(CheckOnCpu(kAppendGrad, ctx));
  return internal::AppendTargetGradCpu(ctx.pool, args);
}

absl::Status LastRow(const ExecContext& ctx, const LastRowArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  HOTROW_RETURN_IF_ERROR(CheckOnCpu(kLast, ctx));
  return internal::LastRowCpu(ctx.pool, args);
}

absl::Status LastRowGrad(const ExecContext& ctx, const LastRowGradArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  HOTROW_RETURN_IF_ERROR(CheckOnCpu(kLastGrad, ctx));
  return internal::LastRowGradCpu(ctx.pool, args);
}

absl::Status SelfAttention(const ExecContext& ctx, const SelfAttentionArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  HOTROW_RETURN_IF_ERROR(CheckOnCpu(kAttention, ctx));
  return internal::SelfAttentionCpu(ctx.pool, args);
}

absl::Status SelfAttentionGrad(const ExecContext& ctx, const SelfAttentionGradArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  HOTROW_RETURN_IF_ERROR(CheckOnCpu(kAttentionGrad, ctx));
  return internal::SelfAttentionGradCpu(ctx.pool, args);
}

}  // namespace hotrow
