#include "base/math.h"
#include "base/status_macros.h"
#include "ops/launch_impl.cuh"
#include "ops/training/gradient_norm_impl.h"

namespace hotrow::internal {
namespace {

constexpr int kThreads = 256;
constexpr char kName[] = "GradientNorm";

// The sum over the block's threads, for thread 0: halves are added to halves, so in one order.
__device__ double SumOfBlock(double mine, double* shared) {
  shared[threadIdx.x] = mine;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  return shared[0];
}

// A block a chunk. A thread adds each kThreads-th square of it, so that loads are coalesced.
// Bytes: 4 a parameter
__global__ void SquaresKernel(const float* gradients, int64_t n, int64_t chunks, double* sums) {
  __shared__ double shared[kThreads];
  for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const int64_t end = min((chunk + 1) * kNormChunk, n);
    double sum = 0;
    for (int64_t i = chunk * kNormChunk + threadIdx.x; i < end; i += kThreads) {
      const double x = gradients[i];
      sum += x * x;
    }
    sum = SumOfBlock(sum, shared);
    if (threadIdx.x == 0) sums[chunk] = sum;
    __syncthreads();  // shared is free again
  }
}

// One block.
// Bytes: 8 for each 16,384 parameters
__global__ void NormKernel(const double* sums, int64_t chunks, double norm_max, double* norm,
                           float* scale) {
  __shared__ double shared[kThreads];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < chunks; i += kThreads) sum += sums[i];
  sum = SumOfBlock(sum, shared);
  if (threadIdx.x == 0) FinishGradientNorm(sum, norm_max, norm, scale);
}

}  // namespace

absl::Status GradientNormCuda(CudaStream stream, const GradientNormArgs& args) {
  const auto n = static_cast<int64_t>(args.gradients.size());
  const int64_t chunks = CeilDiv(n, kNormChunk);
  auto* const sums = reinterpret_cast<double*>(args.workspace);
  if (chunks > 0) {
    SquaresKernel<<<GridBlocks(chunks, 1), kThreads, 0, stream>>>(args.gradients.data(), n, chunks,
                                                                  sums);
    HOTROW_RETURN_IF_ERROR(LastLaunch(kName));
  }
  NormKernel<<<1, kThreads, 0, stream>>>(sums, chunks, args.norm_max, args.norm, args.scale);
  return LastLaunch(kName);
}

}  // namespace hotrow::internal
