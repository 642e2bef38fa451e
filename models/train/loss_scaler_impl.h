#ifndef HOTROW_MODELS_TRAIN_LOSS_SCALER_IMPL_H_
#define HOTROW_MODELS_TRAIN_LOSS_SCALER_IMPL_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/device_memory.h"
#include "base/exec_context.h"
#include "models/saving/training_state.h"
#include "ops/training/loss_scale.h"

namespace hotrow {

// The loss scale of a run in fp16 (ops/training/loss_scale.h), in memory of the device. Nobody
// waits for it in a step: the updates read on the device whether they are left out, rows and dense
// parameters together, on all ranks.
//
// Threads: one call at a time. Errors: those of the device.
class LossScaler {
 public:
  static absl::StatusOr<std::unique_ptr<LossScaler>> Create(const ExecContext& ctx, float scale);

  // Calls of each step, in this order. told: as EndLossScaleStep.
  absl::Status ScaleLoss(const ExecContext& ctx, std::span<float> logit_gradient);
  absl::Status Unscale(const ExecContext& ctx, std::span<float> gradient);
  // Several ranks: sum(values, sums) makes the sum of what all ranks have at `values`.
  absl::Status AgreeOnRanks(
      const ExecContext& ctx,
      absl::FunctionRef<absl::Status(const float* values, std::span<float> sums)> sum);
  absl::Status EndStep(const ExecContext& ctx, double* told);
  // What the updates of the step read.
  const uint32_t* skip() const { return &state_.data()->skip; }

  // Save waits for the steps that are enqueued. Load: InvalidArgument (a scale that is none).
  absl::StatusOr<TrainingState::SavedLossScale> Save();
  absl::Status Load(const TrainingState::SavedLossScale& saved);

 private:
  explicit LossScaler(const ExecContext& ctx) : ctx_(ctx) {}

  absl::Status Upload(const LossScale& state);

  const ExecContext ctx_;
  DeviceMemory<LossScale> state_;
  DeviceMemory<float> non_finite_;  // [1], of all ranks
  SharedBuffer<LossScale> host_state_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_LOSS_SCALER_IMPL_H_
