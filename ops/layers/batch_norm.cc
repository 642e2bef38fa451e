#include "ops/layers/batch_norm.h"

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/dispatch.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "ops/layers/batch_norm_impl.h"
#include "ops/validate.h"

namespace hotrow {
namespace {

using internal::InvalidField;
using internal::NullField;

constexpr char kSums[] = "BatchNormSums";
constexpr char kMoments[] = "BatchNormMoments";
constexpr char kRunning[] = "BatchNormRunning";
constexpr char kForward[] = "BatchNorm";
constexpr char kGradSums[] = "BatchNormGradSums";
constexpr char kInputGrad[] = "BatchNormInputGrad";
constexpr char kEndStep[] = "BatchNormEndStep";

absl::Status CheckSizes(const char* op, int64_t batch_size, int32_t columns) {
  if (batch_size < 0) return InvalidField(op, "batch_size", "must be >= 0", batch_size);
  if (columns < 1) return InvalidField(op, "columns", "must be >= 1", columns);
  return absl::OkStatus();
}

absl::Status CheckMatrix(const char* op, const char* name, const float* data, int32_t columns,
                         int64_t stride) {
  if (data == nullptr) return NullField(op, name);
  if (stride >= columns) return absl::OkStatus();
  return InvalidField(op, absl::StrCat(name, "_stride"),
                      absl::StrCat("must be >= columns = ", columns), stride);
}

absl::Status CheckArray(const char* op, const char* name, const void* data) {
  return data == nullptr ? NullField(op, name) : absl::OkStatus();
}

absl::Status CheckSamples(const char* op, int64_t samples) {
  if (samples >= 0) return absl::OkStatus();
  return InvalidField(op, "samples", "must be >= 0", samples);
}

absl::Status CheckScale(const char* op, const BatchNormScale& scale) {
  HOTROW_RETURN_IF_ERROR(CheckArray(op, "scale.mean", scale.mean));
  return CheckArray(op, "scale.inverse_deviation", scale.inverse_deviation);
}

absl::Status CheckForward(const char* op, const BatchNormArgs& args) {
  HOTROW_RETURN_IF_ERROR(CheckSizes(op, args.batch_size, args.columns));
  if (args.batch_size == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(CheckMatrix(op, "x", args.x, args.columns, args.x_stride));
  HOTROW_RETURN_IF_ERROR(CheckScale(op, args.scale));
  HOTROW_RETURN_IF_ERROR(CheckArray(op, "gamma", args.gamma));
  return CheckArray(op, "beta", args.beta);
}

}  // namespace

absl::Status BatchNormSumsArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckSizes(kSums, batch_size, columns));
  HOTROW_RETURN_IF_ERROR(CheckArray(kSums, "sums", sums));
  HOTROW_RETURN_IF_ERROR(internal::CheckWorkspace(kSums, workspace, workspace_bytes,
                                                  BatchNormWorkspaceBytes(batch_size, columns)));
  return batch_size == 0 ? absl::OkStatus() : CheckMatrix(kSums, "x", x, columns, x_stride);
}

absl::Status BatchNormMomentsArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckSizes(kMoments, 0, columns));
  HOTROW_RETURN_IF_ERROR(CheckSamples(kMoments, samples));
  HOTROW_RETURN_IF_ERROR(CheckArray(kMoments, "sums", sums));
  HOTROW_RETURN_IF_ERROR(CheckArray(kMoments, "moments", moments));
  return CheckScale(kMoments, scale);
}

absl::Status BatchNormRunningArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckSizes(kRunning, 0, columns));
  HOTROW_RETURN_IF_ERROR(CheckArray(kRunning, "mean", mean));
  HOTROW_RETURN_IF_ERROR(CheckArray(kRunning, "variance", variance));
  return CheckScale(kRunning, scale);
}

absl::Status BatchNormArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckForward(kForward, *this));
  if (batch_size == 0) return absl::OkStatus();
  return CheckMatrix(kForward, "output", output, columns, output_stride);
}

absl::Status BatchNormGradSumsArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckForward(kGradSums, forward));
  HOTROW_RETURN_IF_ERROR(CheckArray(kGradSums, "sums", sums));
  HOTROW_RETURN_IF_ERROR(CheckArray(kGradSums, "gradients", gradients));
  HOTROW_RETURN_IF_ERROR(
      internal::CheckWorkspace(kGradSums, workspace, workspace_bytes,
                               BatchNormWorkspaceBytes(forward.batch_size, forward.columns)));
  if (forward.batch_size == 0) return absl::OkStatus();
  return CheckMatrix(kGradSums, "output_gradient", output_gradient, forward.columns,
                     output_gradient_stride);
}

absl::Status BatchNormInputGradArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckForward(kInputGrad, forward));
  HOTROW_RETURN_IF_ERROR(CheckSamples(kInputGrad, samples));
  if (forward.batch_size == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(CheckArray(kInputGrad, "sums", sums));
  HOTROW_RETURN_IF_ERROR(CheckMatrix(kInputGrad, "output_gradient", output_gradient,
                                     forward.columns, output_gradient_stride));
  return CheckMatrix(kInputGrad, "x_gradient", x_gradient, forward.columns, x_gradient_stride);
}

absl::Status BatchNormEndStepArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckSizes(kEndStep, 0, columns));
  HOTROW_RETURN_IF_ERROR(CheckSamples(kEndStep, samples));
  if (!(momentum >= 0 && momentum <= 1)) {
    return InvalidField(kEndStep, "momentum", "must be in [0, 1]", momentum);
  }
  HOTROW_RETURN_IF_ERROR(CheckArray(kEndStep, "moments", moments));
  HOTROW_RETURN_IF_ERROR(CheckArray(kEndStep, "mean", mean));
  return CheckArray(kEndStep, "variance", variance);
}

int64_t BatchNormWorkspaceBytes(int64_t batch_size, int64_t columns) {
  const int64_t blocks = CeilDiv(batch_size, kBatchNormBlockRows);
  return RoundUp(blocks * 2 * columns * static_cast<int64_t>(sizeof(double)), kBufferAlignment);
}

absl::Status BatchNormSums(const ExecContext& ctx, const BatchNormSumsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  return internal::Dispatch(
      ctx, [&] { return internal::BatchNormSumsCpu(ctx.pool, args); },
      [&](auto stream) { return internal::BatchNormSumsCuda(stream, args); });
}

absl::Status BatchNormMoments(const ExecContext& ctx, const BatchNormMomentsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  return internal::Dispatch(
      ctx, [&] { return internal::BatchNormMomentsCpu(args); },
      [&](auto stream) { return internal::BatchNormMomentsCuda(stream, args); });
}

absl::Status BatchNormRunning(const ExecContext& ctx, const BatchNormRunningArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  return internal::Dispatch(
      ctx, [&] { return internal::BatchNormRunningCpu(args); },
      [&](auto stream) { return internal::BatchNormRunningCuda(stream, args); });
}

absl::Status BatchNorm(const ExecContext& ctx, const BatchNormArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::BatchNormCpu(ctx.pool, args); },
      [&](auto stream) { return internal::BatchNormCuda(stream, args); });
}

absl::Status BatchNormGradSums(const ExecContext& ctx, const BatchNormGradSumsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  return internal::Dispatch(
      ctx, [&] { return internal::BatchNormGradSumsCpu(ctx.pool, args); },
      [&](auto stream) { return internal::BatchNormGradSumsCuda(stream, args); });
}

absl::Status BatchNormInputGrad(const ExecContext& ctx, const BatchNormInputGradArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.forward.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::BatchNormInputGradCpu(ctx.pool, args); },
      [&](auto stream) { return internal::BatchNormInputGradCuda(stream, args); });
}

absl::Status BatchNormEndStep(const ExecContext& ctx, const BatchNormEndStepArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.samples == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::BatchNormEndStepCpu(args); },
      [&](auto stream) { return internal::BatchNormEndStepCuda(stream, args); });
}

}  // namespace hotrow
