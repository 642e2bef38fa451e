#include <cstdint>

#include "ops/launch_impl.cuh"
#include "ops/training/loss_scale_impl.h"

namespace hotrow::internal {
namespace {

constexpr char kName[] = "LossScale";

// Calls body(number) for all numbers, four in a thread where they lie on 16 bytes.
template <typename Body>
__device__ void ForEachNumber(float* data, int64_t n, Body&& body) {
  int64_t done = 0;
  if (reinterpret_cast<uintptr_t>(data) % sizeof(float4) == 0) {
    auto* const quads = reinterpret_cast<float4*>(data);
    for (int64_t i = GridThread(); i < n / 4; i += GridThreads()) {
      float4 x = quads[i];
      body(x.x);
      body(x.y);
      body(x.z);
      body(x.w);
      quads[i] = x;
    }
    done = n / 4 * 4;
  }
  for (int64_t i = done + GridThread(); i < n; i += GridThreads()) body(data[i]);
}

// Bytes: 8 a sample
__global__ void ScaleKernel(const LossScale* state, float* data, int64_t n) {
  const float scale = state->scale;
  ForEachNumber(data, n, [scale](float& x) { x *= scale; });
}

// Bytes: 8 a gradient
__global__ void UnscaleKernel(LossScale* state, float* data, int64_t n) {
  const float inverse = 1 / state->scale;
  bool finite = true;
  ForEachNumber(data, n, [inverse, &finite](float& x) {
    finite = finite && IsFinite(x);
    x *= inverse;
  });
  if (!finite) state->non_finite = 1;  // whoever writes it writes the same
}

// Bytes: a few a step
__global__ void EndStepKernel(LossScale* state, double* told) {
  if (GridThread() == 0) MoveLossScale(state, told);
}

unsigned BlocksFor(std::span<const float> gradient) {
  return GridBlocks(std::ssize(gradient), 4 * kThreadsPerBlock);
}

}  // namespace

absl::Status ScaleGradientCuda(CudaStream stream, const LossScaleArgs& args) {
  ScaleKernel<<<BlocksFor(args.gradient), kThreadsPerBlock, 0, stream>>>(
      args.state, args.gradient.data(), std::ssize(args.gradient));
  return LastLaunch(kName);
}

absl::Status UnscaleGradientCuda(CudaStream stream, const LossScaleArgs& args) {
  UnscaleKernel<<<BlocksFor(args.gradient), kThreadsPerBlock, 0, stream>>>(
      args.state, args.gradient.data(), std::ssize(args.gradient));
  return LastLaunch(kName);
}

absl::Status EndLossScaleStepCuda(CudaStream stream, LossScale* state, double* told) {
  EndStepKernel<<<1, kWarpThreads, 0, stream>>>(state, told);
  return LastLaunch(kName);
}

}  // namespace hotrow::internal
