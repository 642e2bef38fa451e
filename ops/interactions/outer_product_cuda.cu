#include <algorithm>
#include <cstddef>

#include "base/hopper.cuh"
#include "base/macros.h"
#include "base/math.h"
#include "ops/interactions/outer_product_impl.h"
#include "ops/launch_impl.cuh"

// A sample is the work of one warp or, forward with many columns, of one block. Inputs are read
// once and outputs written once, 128 bytes by a warp at a time.
namespace hotrow::internal {
namespace {

constexpr char kName[] = "OuterProduct";

// Column d of the sum of a sample's fields, which begin at `field`.
__device__ inline float SumOfFields(const float* field, int32_t num_fields, int64_t field_stride) {
  float sum = field[0];
#pragma unroll 8
  for (int32_t f = 1; f < num_fields; ++f) sum += field[f * field_stride];
  return sum;
}

// Up to so many columns a warp makes a sample, beyond them a block.
constexpr int kWarpDimMax = 128;

// kGroup threads a sample: a warp or a block.
// Bytes: 4 (F D + D (D + 1) / 2) a sample
template <int kGroup, int kDimMax>
__global__ void __launch_bounds__(kThreadsPerBlock) OuterProductKernel(OuterProductArgs args) {
  constexpr int kGroups = kThreadsPerBlock / kGroup;
  __shared__ float sums[kGroups][kDimMax];
  const auto meet = [] {
    if constexpr (kGroup == kWarpThreads) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  };
  const int lane = static_cast<int>(threadIdx.x) % kGroup;
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  float* const sum = sums[group];
  const int places = args.dim * (args.dim + 1) / 2;
  const int64_t step = int64_t{gridDim.x} * kGroups;
  for (int64_t b = int64_t{blockIdx.x} * kGroups + group; b < args.batch_size; b += step) {
    const float* const fields = args.fields + b * args.fields_stride;
    for (int d = lane; d < args.dim; d += kGroup) {
      sum[d] = SumOfFields(fields + d, args.num_fields, args.field_stride);
    }
    meet();
    float* const output = args.output + b * args.output_stride;
    int row = 0;
    int row_begin = 0;  // the place of its first product
    for (int place = lane; place < places; place += kGroup) {
      while (place > row_begin + row) row_begin += ++row;
      output[place] = sum[row] * sum[place - row_begin];
    }
    meet();  // sum is free again
  }
}

// Backward, the triangle of gradients is walked in tiles of 32 x 32, row by row of tiles.
constexpr int kTile = kWarpThreads;
constexpr int kTileStride = kTile + 1;  // a column of it lies in 32 banks
constexpr int kTileFloats = kTile * kTileStride;

// The place of the first number of a row of the triangle.
__device__ inline unsigned TriangleRow(unsigned row) { return row * (row + 1) / 2; }

// Shared memory of a warp: a tile, the sums and their gradients.
HOTROW_HOST_DEVICE constexpr int GradWarpFloats(int32_t dim) {
  return kTileFloats + 2 * static_cast<int>(RoundUp(dim, kTile));
}

// Blocks on a processor: their warps have 32 KiB under way, and no register is spilled.
constexpr int kGradBlocks = 4;

// A warp a sample. Tile (I, J) has g_ij of the rows i of I and the columns j of J. Lane l adds what
// the tile gives to the gradient of column l of J, i rising, while it loads the rows; then what it
// gives to that of row l of I, j rising. As tiles go by row, every gradient gets its terms in the
// order of the number at their other end, which is the CPU's.
// Bytes: 4 (2 F D + D (D + 1) / 2) a sample
__global__ void __launch_bounds__(kThreadsPerBlock, kGradBlocks)
    OuterProductGradKernel(OuterProductGradArgs args) {
  const OuterProductArgs& forward = args.forward;
  const int dim = forward.dim;
  const int lane = GroupLane();
  float* const tile = reinterpret_cast<float*>(gpu::DynamicShared()) +
                      static_cast<int>(threadIdx.x) / kWarpThreads * GradWarpFloats(dim);
  float* const sum = tile + kTileFloats;
  float* const gradient = sum + RoundUp(dim, kTile);
  for (int64_t b = GridGroup(); b < forward.batch_size; b += GridGroups()) {
    const float* const fields = forward.fields + b * forward.fields_stride;
    for (int d = lane; d < dim; d += kTile) {
      sum[d] = SumOfFields(fields + d, forward.num_fields, forward.field_stride);
    }
    __syncwarp();
    const float* const dy = args.output_gradient + b * forward.output_stride;
    for (int first_row = 0; first_row < dim; first_row += kTile) {
      const int rows = min(kTile, dim - first_row);
      const bool has_row = lane < rows;
      float own = 0;  // of row first_row + lane
      for (int first_column = 0; first_column < first_row; first_column += kTile) {
        const int column = first_column + lane;
        float of_column = gradient[column];
        ThreadMove(
            rows, [&](int i) { return dy[TriangleRow(first_row + i) + column]; },
            [&](int i, float g) {
              tile[i * kTileStride + lane] = g;
              of_column += g * sum[first_row + i];
            });
        gradient[column] = of_column;
        __syncwarp();
        if (has_row) {
          for (int j = 0; j < kTile; ++j)
            own += tile[lane * kTileStride + j] * sum[first_column + j];
        }
        __syncwarp();  // the tile is free again
      }
      // The tile on the diagonal, of which the lower triangle is there.
      ThreadMove(
          rows,
          [&](int i) {
            return lane <= i ? dy[TriangleRow(first_row + i) + first_row + lane] : 0.0f;
          },
          [&](int i, float g) { tile[i * kTileStride + lane] = g; });
      __syncwarp();
      if (has_row) {
        for (int j = 0; j < rows; ++j) {
          const float g = tile[max(lane, j) * kTileStride + min(lane, j)];
          own += g * sum[first_row + j];
          if (j == lane) own += g * sum[first_row + j];
        }
        gradient[first_row + lane] = own;
      }
      __syncwarp();  // the tile is free again
    }
    float* const out = args.fields_gradient + b * args.fields_gradient_stride;
    for (int d = lane; d < dim; d += kTile) {
      const float g = gradient[d];
      for (int32_t f = 0; f < forward.num_fields; ++f) out[f * args.field_gradient_stride + d] = g;
    }
    __syncwarp();  // sum is free again
  }
}

}  // namespace

absl::Status OuterProductCuda(CudaStream stream, const OuterProductArgs& args) {
  if (args.dim <= kWarpDimMax) {
    OuterProductKernel<kWarpThreads, kWarpDimMax>
        <<<GridBlocks(args.batch_size, kThreadsPerBlock / kWarpThreads), kThreadsPerBlock, 0,
           stream>>>(args);
  } else {
    OuterProductKernel<kThreadsPerBlock, OuterProductDimMax(Device::kCuda)>
        <<<GridBlocks(args.batch_size, 1), kThreadsPerBlock, 0, stream>>>(args);
  }
  return LastLaunch(kName);
}

absl::Status OuterProductGradCuda(CudaStream stream, const OuterProductGradArgs& args) {
  constexpr int kSharedBytesMax = 48 << 10;  // what every launch may take
  const int warp_bytes = GradWarpFloats(args.forward.dim) * static_cast<int>(sizeof(float));
  static_assert(GradWarpFloats(OuterProductDimMax(Device::kCuda)) * int{sizeof(float)} <=
                kSharedBytesMax);
  const int warps = std::min(kSharedBytesMax / warp_bytes, kThreadsPerBlock / kWarpThreads);
  OuterProductGradKernel<<<GridBlocks(args.forward.batch_size, warps), warps * kWarpThreads,
                           static_cast<size_t>(warps * warp_bytes), stream>>>(args);
  return LastLaunch(kName);
}

}  // namespace hotrow::internal
