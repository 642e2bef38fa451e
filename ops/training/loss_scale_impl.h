#ifndef HOTROW_OPS_TRAINING_LOSS_SCALE_IMPL_H_
#define HOTROW_OPS_TRAINING_LOSS_SCALE_IMPL_H_

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/macros.h"
#include "base/thread_pool.h"
#include "ops/training/loss_scale.h"

namespace hotrow::internal {

HOTROW_HOST_DEVICE inline bool IsFinite(float x) { return std::fabs(x) <= FLT_MAX; }

// EndLossScaleStep, by one thread.
HOTROW_HOST_DEVICE inline void MoveLossScale(LossScale* state, double* told) {
  const bool skip = state->non_finite != 0;
  if (told != nullptr) {
    told[0] = skip ? 1 : 0;
    told[1] = static_cast<double>(state->scale);
  }
  state->non_finite = 0;
  state->skip = skip ? 1 : 0;
  if (skip) {
    ++state->skipped_steps;
    state->good_steps = 0;
    if (state->scale > kLossScaleMin) state->scale /= 2;
    return;
  }
  if (++state->good_steps < kLossScaleGrowthSteps) return;
  state->good_steps = 0;
  if (state->scale < kLossScaleMax) state->scale *= 2;
}

absl::Status ScaleGradientCpu(ThreadPool* pool, const LossScaleArgs& args);
absl::Status ScaleGradientCuda(CudaStream stream, const LossScaleArgs& args);
absl::Status UnscaleGradientCpu(ThreadPool* pool, const LossScaleArgs& args);
absl::Status UnscaleGradientCuda(CudaStream stream, const LossScaleArgs& args);
absl::Status EndLossScaleStepCuda(CudaStream stream, LossScale* state, double* told);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_TRAINING_LOSS_SCALE_IMPL_H_
