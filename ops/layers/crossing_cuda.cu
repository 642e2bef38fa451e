#include "ops/launch_impl.cuh"
#include "ops/layers/crossing_impl.h"

// A warp a sample, neighbours beside each other. Bound by the memory: each number is read once and
// written once.
namespace hotrow::internal {
namespace {

// Bytes: 16 W a sample: x_0, t, x read, output written
__global__ void __launch_bounds__(kThreadsPerBlock) CrossingKernel(CrossingArgs args) {
  for (int64_t r = GridGroup(); r < args.batch_size; r += GridGroups()) {
    const float* const x0 = args.x0 + r * args.x0_stride;
    const float* const t = args.t + r * args.t_stride;
    const float* const x = args.x + r * args.x_stride;
    float* const y = args.output + r * args.output_stride;
    GroupMove<kWarpThreads>(
        GroupLane(), args.width, [&](int64_t i) { return x0[i] * t[i] + x[i]; },
        [&](int64_t i, float value) { y[i] = value; });
  }
}

// Bytes: 24 W a sample: x_0, t, gradient read, three written
__global__ void __launch_bounds__(kThreadsPerBlock) CrossingGradKernel(CrossingGradArgs args) {
  struct Factors {
    float dy, x0, t;
  };
  for (int64_t r = GridGroup(); r < args.batch_size; r += GridGroups()) {
    const float* const dy = args.output_gradient + r * args.output_gradient_stride;
    const auto row_of = [r](auto* data, int64_t stride) {
      return data == nullptr ? nullptr : data + r * stride;
    };
    float* const dx0 = row_of(args.x0_gradient, args.x0_gradient_stride);
    float* const dt = row_of(args.t_gradient, args.t_gradient_stride);
    float* const dx = row_of(args.x_gradient, args.x_gradient_stride);
    // Only what a gradient needs is read.
    const float* const x0 = dt == nullptr ? nullptr : row_of(args.x0, args.x0_stride);
    const float* const t = dx0 == nullptr ? nullptr : row_of(args.t, args.t_stride);
    GroupMove<kWarpThreads>(
        GroupLane(), args.width,
        [&](int64_t i) {
          return Factors{dy[i], x0 == nullptr ? 0.0f : x0[i], t == nullptr ? 0.0f : t[i]};
        },
        [&](int64_t i, const Factors& at) {
          if (dx0 != nullptr) dx0[i] = at.dy * at.t;
          if (dt != nullptr) dt[i] = at.dy * at.x0;
          if (dx != nullptr) dx[i] = at.dy;
        });
  }
}

}  // namespace

absl::Status CrossingCuda(CudaStream stream, const CrossingArgs& args) {
  const unsigned blocks = GridBlocks(args.batch_size, kThreadsPerBlock / kWarpThreads);
  CrossingKernel<<<blocks, kThreadsPerBlock, 0, stream>>>(args);
  return LastLaunch("Crossing");
}

absl::Status CrossingGradCuda(CudaStream stream, const CrossingGradArgs& args) {
  const unsigned blocks = GridBlocks(args.batch_size, kThreadsPerBlock / kWarpThreads);
  CrossingGradKernel<<<blocks, kThreadsPerBlock, 0, stream>>>(args);
  return LastLaunch("CrossingGrad");
}

}  // namespace hotrow::internal
