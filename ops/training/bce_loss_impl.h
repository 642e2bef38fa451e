#ifndef HOTROW_OPS_TRAINING_BCE_LOSS_IMPL_H_
#define HOTROW_OPS_TRAINING_BCE_LOSS_IMPL_H_

#include <cmath>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/macros.h"
#include "base/thread_pool.h"
#include "ops/training/bce_loss.h"

namespace hotrow::internal {

// What one sample adds: the loss at the logit x with label y, and the sigmoid of x.
struct BceTerm {
  double loss;
  double sigmoid;
};
HOTROW_HOST_DEVICE inline BceTerm BceTermOf(double x, double y) {
  const double e = std::exp(-std::abs(x));  // shared by both
  return {(x < 0 ? 0.0 : x) - x * y + std::log1p(e), x >= 0 ? 1 / (1 + e) : e / (1 + e)};
}

HOTROW_HOST_DEVICE inline bool BceLabelIsGood(double y) { return y >= 0 && y <= 1; }  // no NaN

// What gradients are divided by.
inline double BceMeanOver(const BceWithLogitsArgs& args) {
  return static_cast<double>(args.mean_over == 0 ? args.batch_size : args.mean_over);
}

absl::Status BceWithLogitsCpu(ThreadPool* pool, const BceWithLogitsArgs& args);
absl::Status BceWithLogitsCuda(CudaStream stream, const BceWithLogitsArgs& args);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_TRAINING_BCE_LOSS_IMPL_H_
