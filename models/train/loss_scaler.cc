#include "absl/strings/str_cat.h"
#include "base/device_stream.h"
#include "base/status_macros.h"
#include "models/train/loss_scaler_impl.h"

namespace hotrow {

absl::StatusOr<std::unique_ptr<LossScaler>> LossScaler::Create(const ExecContext& ctx,
                                                               float scale) {
  std::unique_ptr<LossScaler> out(new LossScaler(ctx));
  HOTROW_ASSIGN_OR_RETURN(out->state_,
                          DeviceMemory<LossScale>::Create(1, {ctx.device, ctx.stream}));
  HOTROW_ASSIGN_OR_RETURN(out->non_finite_,
                          DeviceMemory<float>::Create(1, {ctx.device, ctx.stream}));
  HOTROW_ASSIGN_OR_RETURN(out->host_state_, SharedBuffer<LossScale>::Create(1, {ctx.device}));
  HOTROW_RETURN_IF_ERROR(out->Upload({.scale = scale}));
  return out;
}

absl::Status LossScaler::ScaleLoss(const ExecContext& ctx, std::span<float> logit_gradient) {
  return ScaleGradient(ctx, {.state = state_.data(), .gradient = logit_gradient});
}

absl::Status LossScaler::Unscale(const ExecContext& ctx, std::span<float> gradient) {
  return UnscaleGradient(ctx, {.state = state_.data(), .gradient = gradient});
}

absl::Status LossScaler::AgreeOnRanks(
    const ExecContext& ctx,
    absl::FunctionRef<absl::Status(const float* values, std::span<float> sums)> sum) {
  float* const own = &state_.data()->non_finite;
  HOTROW_RETURN_IF_ERROR(sum(own, non_finite_.span()));
  return EnqueueCopy(ctx, own, non_finite_.data(), non_finite_.bytes());
}

absl::Status LossScaler::EndStep(const ExecContext& ctx, double* told) {
  return EndLossScaleStep(ctx, state_.data(), told);
}

absl::StatusOr<TrainingState::SavedLossScale> LossScaler::Save() {
  HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx_, host_state_.data(), state_.data(), state_.bytes()));
  HOTROW_RETURN_IF_ERROR(WaitForStream(ctx_));
  const LossScale& state = *host_state_.data();
  return TrainingState::SavedLossScale{
      .scale = state.scale, .good_steps = state.good_steps, .skipped_steps = state.skipped_steps};
}

absl::Status LossScaler::Load(const TrainingState::SavedLossScale& saved) {
  if (!IsLossScale(saved.scale) || saved.good_steps < 0 ||
      saved.good_steps >= kLossScaleGrowthSteps) {
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint's loss_scale is none: scale ",
                                                   saved.scale, ", good_steps ", saved.good_steps,
                                                   "; start from another checkpoint"));
  }
  return Upload({.scale = static_cast<float>(saved.scale),
                 .good_steps = static_cast<uint32_t>(saved.good_steps),
                 .skipped_steps = saved.skipped_steps});
}

absl::Status LossScaler::Upload(const LossScale& state) {
  *host_state_.data() = state;
  HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx_, state_.data(), host_state_.data(), state_.bytes()));
  return WaitForStream(ctx_);
}

}  // namespace hotrow
