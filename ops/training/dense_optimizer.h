#ifndef HOTROW_OPS_TRAINING_DENSE_OPTIMIZER_H_
#define HOTROW_OPS_TRAINING_DENSE_OPTIMIZER_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"

namespace hotrow {

enum class DenseOptimizerKind { kSgd, kAdagrad, kAdam };

// "sgd", "adagrad", "adam". The error lists them.
absl::StatusOr<DenseOptimizerKind> ParseDenseOptimizer(std::string_view name);
std::string_view DenseOptimizerName(DenseOptimizerKind kind);

struct DenseOptimizerConfig {
  DenseOptimizerKind kind = DenseOptimizerKind::kSgd;
  float learning_rate = 0.01f;
  float eps = 1e-8f;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float weight_decay = 0;  // L2: g += weight_decay * w
  // Decay of the running average of the parameters, in [0, 1); 0: none is kept. Step t moves it by
  //   average += (1 - d) (w - average),  d = min(average_decay, (1 + t) / (10 + t)),
  // as tf.train.ExponentialMovingAverage does with num_updates: the first steps count less.
  float average_decay = 0;

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

// How many arrays of the parameters' length the optimizer keeps: 0, 1 or 2.
int32_t DenseStateArrays(DenseOptimizerKind kind);

// One parameter tensor. State spans that the optimizer does not use are empty.
struct DenseTensor {
  std::span<float> parameters;       // [n]
  std::span<const float> gradients;  // [n]
  std::span<float> momentum1;        // [n] or empty
  std::span<float> momentum2;        // [n] or empty
  std::span<float> average;          // [n], with average_decay; otherwise empty
};

// One step over all tensors in one parallel pass (a model has dozens of small tensors; a loop over
// each alone would start as many parallel regions). step counts from 1. Elements are independent:
// results do not depend on threads.
//
// gradient_scale: one number that every gradient is multiplied by before anything else
// (ops/training/gradient_norm.h); null: 1. skip: one number; where it is not 0, nothing changes
// (ops/training/loss_scale.h); null: 0.
//
// On a CUDA device the arrays of each tensor, gradient_scale and skip are device memory; `tensors`
// itself is host memory, read before the call returns. Results equal the CPU's bit for bit.
absl::Status DenseUpdate(const ExecContext& ctx, const DenseOptimizerConfig& config,
                         std::span<const DenseTensor> tensors, float learning_rate_factor,
                         uint32_t step, const float* gradient_scale = nullptr,
                         const uint32_t* skip = nullptr);

}  // namespace hotrow

#endif  // HOTROW_OPS_TRAINING_DENSE_OPTIMIZER_H_
