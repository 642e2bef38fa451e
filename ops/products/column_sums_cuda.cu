#include <cstddef>

#include "base/cuda_status.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "ops/launch_impl.cuh"
#include "ops/products/column_sums_impl.h"

namespace hotrow::internal {
namespace {

// A block takes kSumColumns columns: thread (i, g) the chunks g, g + kSumGroups ...
// Bytes: 4 a column for each 32 samples
__global__ void SumChunksKernel(SumChunksArgs args) {
  __shared__ float partial[kSumGroups][kSumColumns];
  const int column = static_cast<int>(threadIdx.x) % kSumColumns;
  const int group = static_cast<int>(threadIdx.x) / kSumColumns;
  if (blockIdx.x == 0 && threadIdx.x < args.num_zeros) args.zeros[threadIdx.x] = 0;
  const int64_t tiles = CeilDiv(args.padded_columns, kSumColumns);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t i = tile * kSumColumns + column;
    float sum = 0;
    if (i < args.columns) {
      for (int64_t chunk = group; chunk < args.chunks; chunk += kSumGroups) {
        sum += args.sums.row(chunk)[i];
      }
    }
    partial[group][column] = sum;
    __syncthreads();
    if (group == 0 && i < args.padded_columns) {
      for (int g = 1; g < kSumGroups; ++g) sum += partial[g][column];
      args.result[i] = sum;
    }
    __syncthreads();  // partial is free again
  }
}
static_assert(kFloatsPerLine <= kSumColumns * kSumGroups);

}  // namespace

absl::Status SumChunksCuda(CudaStream stream, const SumChunksArgs& args) {
  SumChunksKernel<<<GridBlocks(args.padded_columns, kSumColumns), kSumColumns * kSumGroups, 0,
                    stream>>>(args);
  return LastLaunch("SumChunks");
}

absl::Status ZeroFloatsCuda(CudaStream stream, float* numbers, int64_t count) {
  if (count == 0) return absl::OkStatus();
  HOTROW_CUDA_RETURN_IF_ERROR(
      cudaMemsetAsync(numbers, 0, static_cast<size_t>(count) * sizeof(float), stream));
  return absl::OkStatus();
}

}  // namespace hotrow::internal
