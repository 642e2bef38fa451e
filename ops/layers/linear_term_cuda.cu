#include "base/math.h"
#include "base/status_macros.h"
#include "ops/launch_impl.cuh"
#include "ops/layers/linear_term_impl.h"

namespace hotrow::internal {
namespace {

// A thread a sample, so in the CPU's order. The rows of a warp lie together: what one load reads
// beyond its own column the next ones find in the cache.
// Bytes: 4 (W + 1) a sample
__global__ void __launch_bounds__(kThreadsPerBlock) LinearTermKernel(LinearTermArgs args) {
  for (int64_t b = GridThread(); b < args.batch_size; b += GridThreads()) {
    const float* const row = args.x + b * args.x_stride;
    float sum = 0;
#pragma unroll 8
    for (int64_t i = 0; i < args.columns; ++i) sum += row[i] * args.weights[i];
    args.output[b * args.output_stride] = sum;
  }
}

// A warp a sample.
// Bytes: 4 (W + 1) a sample
__global__ void __launch_bounds__(kThreadsPerBlock)
    LinearTermInputGradKernel(LinearTermInputGradArgs args) {
  for (int64_t b = GridGroup(); b < args.batch_size; b += GridGroups()) {
    const float g = args.output_gradient[b * args.output_gradient_stride];
    float* const row = args.x_gradient + b * args.x_gradient_stride;
    for (int64_t i = GroupLane(); i < args.columns; i += kWarpThreads) {
      row[i] = g * args.weights[i];
    }
  }
}

// sums [chunks, C]: a thread a chunk and a column, neighbours in a row read neighbours. kOnes: x is
// a column of ones.
// Bytes: 4 (W + 1) a sample
template <bool kOnes>
__global__ void __launch_bounds__(kThreadsPerBlock)
    TermChunkKernel(LinearTermWeightGradArgs args, int64_t chunks, float* sums) {
  for (int64_t item = GridThread(); item < chunks * args.columns; item += GridThreads()) {
    const int64_t begin = item / args.columns * kTermChunkRows;
    const int64_t end = min(begin + kTermChunkRows, args.batch_size);
    const int64_t i = item % args.columns;
    float sum = 0;
#pragma unroll 8
    for (int64_t b = begin; b < end; ++b) {
      const float g = args.output_gradient[b * args.output_gradient_stride];
      sum += kOnes ? g : g * args.x[b * args.x_stride + i];
    }
    sums[item] = sum;
  }
}

// A warp a column.
// Bytes: 4 a column for each 32 samples
__global__ void __launch_bounds__(kThreadsPerBlock)
    TermSumKernel(const float* sums, int64_t chunks, int64_t columns, float* gradient) {
  for (int64_t i = GridGroup(); i < columns; i += GridGroups()) {
    float sum = 0;
    for (int64_t chunk = GroupLane(); chunk < chunks; chunk += kWarpThreads) {
      sum += sums[chunk * columns + i];
    }
    sum = WarpSum(sum);
    if (GroupLane() == 0) gradient[i] = sum;
  }
}

template <bool kOnes>
absl::Status SumOverSamples(CudaStream stream, const LinearTermWeightGradArgs& args) {
  constexpr char kName[] = "LinearTermWeightGrad";
  const int64_t chunks = CeilDiv(args.batch_size, kTermChunkRows);
  auto* const sums = reinterpret_cast<float*>(args.workspace);
  if (chunks > 0) {
    TermChunkKernel<kOnes>
        <<<GridBlocks(chunks * args.columns, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(
            args, chunks, sums);
    HOTROW_RETURN_IF_ERROR(LastLaunch(kName));
  }
  TermSumKernel<<<GridBlocks(args.columns, kThreadsPerBlock / kWarpThreads), kThreadsPerBlock, 0,
                  stream>>>(sums, chunks, args.columns, args.weight_gradient);
  return LastLaunch(kName);
}

}  // namespace

absl::Status LinearTermCuda(CudaStream stream, const LinearTermArgs& args) {
  LinearTermKernel<<<GridBlocks(args.batch_size, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(
      args);
  return LastLaunch("LinearTerm");
}

absl::Status LinearTermInputGradCuda(CudaStream stream, const LinearTermInputGradArgs& args) {
  LinearTermInputGradKernel<<<GridBlocks(args.batch_size, kThreadsPerBlock / kWarpThreads),
                              kThreadsPerBlock, 0, stream>>>(args);
  return LastLaunch("LinearTermInputGrad");
}

absl::Status LinearTermWeightGradCuda(CudaStream stream, const LinearTermWeightGradArgs& args) {
  return SumOverSamples</*kOnes=*/false>(stream, args);
}

absl::Status BiasGradCuda(CudaStream stream, const BiasGradArgs& args) {
  return SumOverSamples</*kOnes=*/true>(stream,
                                        {.batch_size = args.batch_size,
                                         .columns = 1,
                                         .output_gradient = args.output_gradient,
                                         .output_gradient_stride = args.output_gradient_stride,
                                         .weight_gradient = args.bias_gradient,
                                         .workspace = args.workspace,
                                         .workspace_bytes = args.workspace_bytes});
}

}  // namespace hotrow::internal
