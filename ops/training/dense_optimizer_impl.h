#ifndef HOTROW_OPS_TRAINING_DENSE_OPTIMIZER_IMPL_H_
#define HOTROW_OPS_TRAINING_DENSE_OPTIMIZER_IMPL_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/macros.h"
#include "base/thread_pool.h"
#include "ops/training/dense_optimizer.h"

namespace hotrow::internal {

// One step of each optimizer for one number of type V: a float on a GPU, eight of them (Vec8) on
// the CPU, with the same bits. w is changed, g is its gradient, m1 and m2 are what the optimizer
// keeps of it, as far as kStates says. The formulas are those of torch.optim, so that a run there
// can be repeated here.
HOTROW_HOST_DEVICE inline float DenseRoot(float x) { return std::sqrt(x); }

// w -= lr g
template <typename V>
struct DenseSgd {
  static constexpr int kStates = 0;
  V weight_decay;
  V learning_rate;

  HOTROW_HOST_DEVICE void operator()(V& w, V g, V&, V&) const {
    g = g + weight_decay * w;
    w = w - learning_rate * g;
  }
};

// s += g^2;  w -= lr g / (sqrt(s) + eps)
template <typename V>
struct DenseAdagrad {
  static constexpr int kStates = 1;
  V weight_decay;
  V learning_rate;
  V eps;

  HOTROW_HOST_DEVICE void operator()(V& w, V g, V& s, V&) const {
    g = g + weight_decay * w;
    s = s + g * g;
    w = w - learning_rate * g / (DenseRoot(s) + eps);
  }
};

// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
// w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
template <typename V>
struct DenseAdam {
  static constexpr int kStates = 2;
  V weight_decay;
  V step_size;  // lr / (1 - b1^t)
  V eps;
  V beta1;
  V one_minus_beta1;
  V beta2;
  V one_minus_beta2;
  V root_correction2;  // sqrt(1 - b2^t)

  HOTROW_HOST_DEVICE void operator()(V& w, V g, V& m, V& v) const {
    g = g + weight_decay * w;
    m = beta1 * m + one_minus_beta1 * g;
    v = beta2 * v + one_minus_beta2 * (g * g);
    w = w - step_size * m / (DenseRoot(v) / root_correction2 + eps);
  }
};

// The running average of a number that a step has made w. weight: DenseAverageWeight.
template <typename V>
HOTROW_HOST_DEVICE inline V MoveAverage(V average, V w, V weight) {
  return average + weight * (w - average);
}

// 1 - d of DenseOptimizerConfig::average_decay, worked out in double.
inline float DenseAverageWeight(float decay, uint32_t step) {
  const double t = step;
  return static_cast<float>(1 - std::min<double>(decay, (1 + t) / (10 + t)));
}

// Calls body(step), where `step` is one of the above with the constants of this step; set(x) makes
// a V of a float.
template <typename Set, typename Body>
absl::Status WithDenseStep(const DenseOptimizerConfig& config, float learning_rate_factor,
                           uint32_t step, Set&& set, Body&& body) {
  using V = decltype(set(0.0f));
  const double learning_rate = static_cast<double>(config.learning_rate) * learning_rate_factor;
  const auto rounded = [&](double x) { return set(static_cast<float>(x)); };
  const V weight_decay = set(config.weight_decay);
  switch (config.kind) {
    case DenseOptimizerKind::kSgd:
      return body(
          DenseSgd<V>{.weight_decay = weight_decay, .learning_rate = rounded(learning_rate)});
    case DenseOptimizerKind::kAdagrad:
      return body(DenseAdagrad<V>{.weight_decay = weight_decay,
                                  .learning_rate = rounded(learning_rate),
                                  .eps = set(config.eps)});
    case DenseOptimizerKind::kAdam: {
      // The corrections are scalars, worked out in double: 1 - b2^t cancels in float for small t.
      const double beta1 = config.beta1;
      const double beta2 = config.beta2;
      return body(DenseAdam<V>{.weight_decay = weight_decay,
                               .step_size = rounded(learning_rate / (1 - std::pow(beta1, step))),
                               .eps = set(config.eps),
                               .beta1 = set(config.beta1),
                               .one_minus_beta1 = rounded(1 - beta1),
                               .beta2 = set(config.beta2),
                               .one_minus_beta2 = rounded(1 - beta2),
                               .root_correction2 = rounded(std::sqrt(1 - std::pow(beta2, step)))});
    }
  }
  return absl::InternalError("DenseUpdate: unknown DenseOptimizerKind");
}

absl::Status DenseUpdateCpu(ThreadPool* pool, const DenseOptimizerConfig& config,
                            std::span<const DenseTensor> tensors, float learning_rate_factor,
                            uint32_t step, float gradient_scale);
absl::Status DenseUpdateCuda(CudaStream stream, const DenseOptimizerConfig& config,
                             std::span<const DenseTensor> tensors, float learning_rate_factor,
                             uint32_t step, const float* gradient_scale, const uint32_t* skip);

// What a kernel gets of tensors: they lie end to end on a line, of which tensor i is [end of the
// one before, end).
struct DenseTensorView {
  float* parameters;
  const float* gradients;
  float* momentum1;
  float* momentum2;
  float* average;  // null: none is kept
  int64_t end;
};
// 32 of them are 1.5 KiB of a kernel's parameters.
inline constexpr int kDenseTensorsPerLaunch = 32;
struct DenseTensorViews {
  DenseTensorView v[kDenseTensorsPerLaunch] = {};
  int32_t size = 0;
};

// The views of as many of `tensors` as fit, from the first on. Returns how many of them were taken:
// empty ones are, and have no view.
inline size_t ViewTensors(std::span<const DenseTensor> tensors, DenseTensorViews* views) {
  views->size = 0;
  int64_t end = 0;
  size_t taken = 0;
  for (; taken < tensors.size(); ++taken) {
    const DenseTensor& t = tensors[taken];
    if (t.parameters.empty()) continue;
    if (views->size == kDenseTensorsPerLaunch) break;
    end += static_cast<int64_t>(t.parameters.size());
    views->v[views->size++] = {.parameters = t.parameters.data(),
                               .gradients = t.gradients.data(),
                               .momentum1 = t.momentum1.data(),
                               .momentum2 = t.momentum2.data(),
                               .average = t.average.data(),
                               .end = end};
  }
  return taken;
}

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_TRAINING_DENSE_OPTIMIZER_IMPL_H_
