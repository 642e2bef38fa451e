#ifndef HOTROW_OPS_TRAINING_LOSS_SCALE_H_
#define HOTROW_OPS_TRAINING_LOSS_SCALE_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/exec_context.h"

namespace hotrow {

// The scale of a loss whose gradients go through fp16, and how it moves: Micikevicius et al. 2018,
// "Mixed Precision Training", section 3.2. Gradients of a scaled loss keep clear of the small end
// of fp16; where they pass its large end the step is left out and the scale halved. After
// kLossScaleGrowthSteps steps that were not left out, one after the other, it doubles (the interval
// of PyTorch's GradScaler). It is a power of two, so that it changes no bit of what fits.
//
// In memory of the device, which alone reads and writes it between two steps.
struct LossScale {
  float scale = 65536;      // in [kLossScaleMin, kLossScaleMax]
  uint32_t good_steps = 0;  // since it moved, or a step was left out
  // Not 0: a gradient of the running step is not a finite number. A float, so that ranks add theirs
  // up as they do gradients: all of them leave the same steps out, and have the same scale.
  float non_finite = 0;
  uint32_t skip = 0;          // 1: updates of the running step are left out
  int64_t skipped_steps = 0;  // of the run
};
inline constexpr uint32_t kLossScaleGrowthSteps = 2000;
inline constexpr float kLossScaleMin = 1;
inline constexpr float kLossScaleMax = 0x1p40f;
bool IsLossScale(double scale);  // a power of two between these

struct LossScaleArgs {
  LossScale* state = nullptr;  // memory of the device
  std::span<float> gradient;   // memory of the device; in place

  absl::Status Validate() const;
};

// A step calls, in this order:
//   ScaleGradient     of the logits: times the scale
//   UnscaleGradient   of all that a backward pass has made of it: divided by the scale; tells
//                     whether a number is not finite. Any number of times
//   (several ranks put the sum of all non_finite in the place of each)
//   EndLossScaleStep  sets skip for the updates that follow, and moves the scale
// CUDA: they are enqueued, allocate nothing and can be captured in a CUDA graph. Results are the
//       CPU's.
absl::Status ScaleGradient(const ExecContext& ctx, const LossScaleArgs& args);
absl::Status UnscaleGradient(const ExecContext& ctx, const LossScaleArgs& args);
// told: null, or two numbers in memory of the device: whether the step is left out (1 or 0), and
// the scale that it had.
absl::Status EndLossScaleStep(const ExecContext& ctx, LossScale* state, double* told);

}  // namespace hotrow

#endif  // HOTROW_OPS_TRAINING_LOSS_SCALE_H_
