#include "ops/dot_interaction_impl.h"
#include "ops/launch_impl.cuh"

// Plain kernels: a block a sample, whose vectors stay in the L1 cache. They add in the order of the
// CPU's loops (dot_interaction_cpu.cc), which costs them nothing.
namespace hotrow::internal {
namespace {

// The CPU sums a product in eight lanes and then across them; here they are eight threads.
constexpr int kDotLanes = 8;

// Eight threads a product.
// Bytes: 4 (F D + output) a sample
__global__ void InteractionKernel(DotInteractionArgs args) {
  const int64_t vectors = int64_t{args.num_sparse} + 1;
  const int64_t pairs = PairPlace(vectors, 0);
  const int lane = GroupLane<kDotLanes>();
  const int group = static_cast<int>(threadIdx.x) / kDotLanes;
  const int groups = static_cast<int>(blockDim.x) / kDotLanes;
  const unsigned lanes = 0xffu << (threadIdx.x % kWarpThreads / kDotLanes * kDotLanes);
  for (int64_t sample = blockIdx.x; sample < args.batch_size; sample += gridDim.x) {
    const float* const dense = args.dense + sample * args.dense_stride;
    float* const output = args.output + sample * args.output_stride;
    for (int64_t d = threadIdx.x; d < FirstProduct(args); d += blockDim.x) output[d] = dense[d];
    PairWalk pair;
    for (int64_t place = group; place < pairs; place += groups) {
      pair.MoveTo(place);
      const float* const a = InteractionVector(args, sample, pair.i);
      const float* const b = InteractionVector(args, sample, pair.j);
      float sum = 0;
      for (int32_t first = 0; first < args.dim; first += kDotLanes) {
        // Lanes behind the end add a product of zeros, as on the CPU.
        const int64_t d = int64_t{first} + lane;
        const bool in = d < args.dim;
        sum = fmaf(in ? a[d] : 0.0f, in ? b[d] : 0.0f, sum);
      }
      sum = SumOfEight(lanes, sum);
      if (lane == 0) output[FirstProduct(args) + place] = sum;
    }
  }
}

// A thread a number: gradient_i[d] = start + sum over j, rising, of pair(i, j) x_j[d]. The pair of
// a vector with itself counts as zero.
// Bytes: 4 (2 F D + output) a sample
__global__ void InteractionGradKernel(DotInteractionGradArgs args) {
  const DotInteractionArgs& forward = args.forward;
  const int64_t vectors = int64_t{forward.num_sparse} + 1;
  const int64_t numbers = vectors * forward.dim;
  for (int64_t sample = blockIdx.x; sample < forward.batch_size; sample += gridDim.x) {
    const float* const output_gradient = args.output_gradient + sample * forward.output_stride;
    const float* const pairs = output_gradient + FirstProduct(forward);
    for (int64_t number = threadIdx.x; number < numbers; number += blockDim.x) {
      const int64_t i = number / forward.dim;
      const int64_t d = number % forward.dim;
      // Where the first outputs are the dense vector itself, its gradient starts from theirs.
      float sum = i == 0 && forward.copies_dense ? output_gradient[d] : 0.0f;
      for (int64_t j = 0; j < vectors; ++j) {
        float pair = 0;
        if (j < i) pair = pairs[PairPlace(i, j)];
        if (j > i) pair = pairs[PairPlace(j, i)];
        sum = fmaf(pair, InteractionVector(forward, sample, j)[d], sum);
      }
      float* const gradient = i == 0 ? args.dense_gradient + sample * args.dense_gradient_stride
                                     : args.sparse_gradient + sample * args.sparse_gradient_stride +
                                           (i - 1) * forward.dim;
      gradient[d] = sum;
    }
  }
}

}  // namespace

absl::Status DotInteractionCuda(CudaStream stream, const DotInteractionArgs& args) {
  InteractionKernel<<<GridBlocks(args.batch_size, 1), kThreadsPerBlock, 0, stream>>>(args);
  return LastLaunch("DotInteraction");
}

absl::Status DotInteractionGradCuda(CudaStream stream, const DotInteractionGradArgs& args) {
  InteractionGradKernel<<<GridBlocks(args.forward.batch_size, 1), kThreadsPerBlock, 0, stream>>>(
      args);
  return LastLaunch("DotInteractionGrad");
}

}  // namespace hotrow::internal
