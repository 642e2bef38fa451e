#include "base/status_macros.h"
#include "ops/launch_impl.cuh"
#include "ops/training/dense_optimizer_impl.h"

namespace hotrow::internal {
namespace {

// A thread an element of the line on which the tensors lie.
// Bytes: 12 a parameter, 8 more for each state and for an average
template <typename Step>
__global__ void UpdateKernel(DenseTensorViews tensors, Step step, const float* gradient_scale,
                             const uint32_t* skip, float average_weight) {
  if (skip != nullptr && *skip != 0) return;
  const float scale = gradient_scale == nullptr ? 1.0f : *gradient_scale;
  const int64_t n = tensors.v[tensors.size - 1].end;
  for (int64_t place = GridThread(); place < n; place += GridThreads()) {
    int i = 0;
    while (tensors.v[i].end <= place) ++i;
    const DenseTensorView& t = tensors.v[i];
    const int64_t e = place - (i == 0 ? 0 : tensors.v[i - 1].end);
    float w = t.parameters[e];
    float m1 = 0;
    float m2 = 0;
    if constexpr (Step::kStates >= 1) m1 = t.momentum1[e];
    if constexpr (Step::kStates >= 2) m2 = t.momentum2[e];
    step(w, scale * t.gradients[e], m1, m2);
    if constexpr (Step::kStates >= 1) t.momentum1[e] = m1;
    if constexpr (Step::kStates >= 2) t.momentum2[e] = m2;
    t.parameters[e] = w;
    if (t.average != nullptr) t.average[e] = MoveAverage(t.average[e], w, average_weight);
  }
}

}  // namespace

absl::Status DenseUpdateCuda(CudaStream stream, const DenseOptimizerConfig& config,
                             std::span<const DenseTensor> tensors, float learning_rate_factor,
                             uint32_t step, const float* gradient_scale, const uint32_t* skip) {
  const auto update = [&](const auto& formula) -> absl::Status {
    DenseTensorViews views;
    for (std::span<const DenseTensor> left = tensors; !left.empty();) {
      left = left.subspan(ViewTensors(left, &views));
      if (views.size == 0) continue;  // nothing but empty ones
      const int64_t n = views.v[views.size - 1].end;
      UpdateKernel<<<GridBlocks(n, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(
          views, formula, gradient_scale, skip, DenseAverageWeight(config.average_decay, step));
      HOTROW_RETURN_IF_ERROR(LastLaunch("DenseUpdate"));
    }
    return absl::OkStatus();
  };
  return WithDenseStep(
      config, learning_rate_factor, step, [](float x) { return x; }, update);
}

}  // namespace hotrow::internal
