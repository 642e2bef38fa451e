#include "ops/training/loss_scale.h"

#include <cmath>

#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/training/loss_scale_impl.h"
#include "ops/validate.h"

namespace hotrow {

bool IsLossScale(double scale) {
  int exponent = 0;
  return scale >= kLossScaleMin && scale <= kLossScaleMax && std::frexp(scale, &exponent) == 0.5;
}

absl::Status LossScaleArgs::Validate() const {
  constexpr char kName[] = "LossScaleArgs";
  if (state == nullptr) return internal::NullField(kName, "state");
  if (gradient.data() == nullptr && !gradient.empty()) {
    return internal::NullField(kName, "gradient");
  }
  return absl::OkStatus();
}

absl::Status ScaleGradient(const ExecContext& ctx, const LossScaleArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.gradient.empty()) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::ScaleGradientCpu(ctx.pool, args); },
      [&](auto stream) { return internal::ScaleGradientCuda(stream, args); });
}

absl::Status UnscaleGradient(const ExecContext& ctx, const LossScaleArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.gradient.empty()) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::UnscaleGradientCpu(ctx.pool, args); },
      [&](auto stream) { return internal::UnscaleGradientCuda(stream, args); });
}

absl::Status EndLossScaleStep(const ExecContext& ctx, LossScale* state, double* told) {
  if (state == nullptr) return internal::NullField("EndLossScaleStep", "state");
  return internal::Dispatch(
      ctx,
      [&] {
        internal::MoveLossScale(state, told);
        return absl::OkStatus();
      },
      [&](auto stream) { return internal::EndLossScaleStepCuda(stream, state, told); });
}

}  // namespace hotrow
