#ifndef HOTROW_OPS_TRAINING_GRADIENT_NORM_IMPL_H_
#define HOTROW_OPS_TRAINING_GRADIENT_NORM_IMPL_H_

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/macros.h"
#include "base/thread_pool.h"
#include "ops/training/gradient_norm.h"

namespace hotrow::internal {

inline constexpr int64_t kNormChunk = 1 << 14;  // floats summed in one piece

// Writes both results. A NaN is longer than nothing.
HOTROW_HOST_DEVICE inline void FinishGradientNorm(double sum_of_squares, double norm_max,
                                                  double* norm, float* scale) {
  const double length = std::sqrt(sum_of_squares);
  *norm = length;
  *scale = length > norm_max ? static_cast<float>(norm_max / length) : 1.0f;
}

absl::Status GradientNormCpu(ThreadPool* pool, const GradientNormArgs& args);
absl::Status GradientNormCuda(CudaStream stream, const GradientNormArgs& args);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_TRAINING_GRADIENT_NORM_IMPL_H_
