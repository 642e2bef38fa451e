#ifndef HOTROW_OPS_LAYERS_BATCH_NORM_IMPL_H_
#define HOTROW_OPS_LAYERS_BATCH_NORM_IMPL_H_

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/macros.h"
#include "base/thread_pool.h"
#include "ops/layers/batch_norm.h"

namespace hotrow::internal {

// What both devices make of the numbers of one column, in one wording for equal bits.

HOTROW_HOST_DEVICE inline float InverseDeviation(double variance) {
  return static_cast<float>(1 / std::sqrt(variance + kBatchNormEpsilon));
}

// Makes the moments of column i, and what follows from them, of its sums.
HOTROW_HOST_DEVICE inline void ColumnMoments(const BatchNormMomentsArgs& args, int64_t i) {
  const int64_t columns = args.columns;
  const double n = args.samples > 1 ? static_cast<double>(args.samples) : 1.0;
  // Squares of floats are exact in double, so what cancels is far below the variance unless that is
  // 10^-14 of the squared mean. A NaN stays one.
  const double mean = args.sums[i] / n;
  const double variance = args.sums[columns + i] / n - mean * mean;
  args.moments[i] = mean;
  args.moments[columns + i] = variance < 0 ? 0 : variance;
  args.scale.mean[i] = static_cast<float>(mean);
  args.scale.inverse_deviation[i] = InverseDeviation(args.moments[columns + i]);
}

HOTROW_HOST_DEVICE inline void EndStepOfColumn(const BatchNormEndStepArgs& args, int64_t i) {
  const auto n = static_cast<double>(args.samples);
  const double unbiased = args.samples > 1 ? n / (n - 1) : 1;
  const double momentum = args.momentum;
  args.mean[i] = static_cast<float>((1 - momentum) * args.mean[i] + momentum * args.moments[i]);
  args.variance[i] = static_cast<float>((1 - momentum) * args.variance[i] +
                                        momentum * unbiased * args.moments[args.columns + i]);
}

// What normalizing needs of one column.
struct NormColumn {
  float mean, inverse_deviation, gamma, beta;

  HOTROW_HOST_DEVICE float Normalized(float x) const { return (x - mean) * inverse_deviation; }
  HOTROW_HOST_DEVICE float Scaled(float normalized) const { return gamma * normalized + beta; }
};
HOTROW_HOST_DEVICE inline NormColumn ColumnOf(const BatchNormArgs& args, int64_t i) {
  return {args.scale.mean[i], args.scale.inverse_deviation[i], args.gamma[i], args.beta[i]};
}

absl::Status BatchNormSumsCpu(ThreadPool* pool, const BatchNormSumsArgs& args);
absl::Status BatchNormMomentsCpu(const BatchNormMomentsArgs& args);
absl::Status BatchNormRunningCpu(const BatchNormRunningArgs& args);
absl::Status BatchNormCpu(ThreadPool* pool, const BatchNormArgs& args);
absl::Status BatchNormGradSumsCpu(ThreadPool* pool, const BatchNormGradSumsArgs& args);
absl::Status BatchNormInputGradCpu(ThreadPool* pool, const BatchNormInputGradArgs& args);
absl::Status BatchNormEndStepCpu(const BatchNormEndStepArgs& args);
absl::Status BatchNormSumsCuda(CudaStream stream, const BatchNormSumsArgs& args);
absl::Status BatchNormMomentsCuda(CudaStream stream, const BatchNormMomentsArgs& args);
absl::Status BatchNormRunningCuda(CudaStream stream, const BatchNormRunningArgs& args);
absl::Status BatchNormCuda(CudaStream stream, const BatchNormArgs& args);
absl::Status BatchNormGradSumsCuda(CudaStream stream, const BatchNormGradSumsArgs& args);
absl::Status BatchNormInputGradCuda(CudaStream stream, const BatchNormInputGradArgs& args);
absl::Status BatchNormEndStepCuda(CudaStream stream, const BatchNormEndStepArgs& args);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_LAYERS_BATCH_NORM_IMPL_H_
