#include <algorithm>
#include <cstdint>

#include "base/math.h"
#include "ops/interactions/cin_products_impl.h"
#include "ops/launch_impl.cuh"

// Bound by the memory: each kernel reads its inputs once and writes its outputs once, whole lines
// at a time where rows are as long.
namespace hotrow::internal {
namespace {

constexpr int kTile = kWarpThreads;
constexpr int kBlockWarps = kThreadsPerBlock / kWarpThreads;
// A warp's tile, in shared memory. A column of it lies in 32 banks.
using Tile = float[kTile][kTile + 1];

// How a warp walks over a part of a matrix of up to 32 columns: 2^log lanes take a row.
struct LanesOfRow {
  int log;
  __device__ int rows() const { return kWarpThreads >> log; }  // at a time
  __device__ int row(int lane) const { return lane >> log; }
  __device__ int column(int lane) const { return lane & ((1 << log) - 1); }
  // How many of `rows` rows a lane meets that begins in its own.
  __device__ int RowsOf(int lane, int rows_of_part) const {
    return (rows_of_part - row(lane) + rows() - 1) >> (5 - log);
  }
};
static_assert(kWarpThreads == 1 << 5);

LanesOfRow LanesFor(int32_t columns) {
  LanesOfRow lanes = {0};
  while (lanes.log < 5 && (1 << lanes.log) < columns) ++lanes.log;
  return lanes;
}

// A warp a tile of 32 x 32, which is read and written along rows.
// Bytes: 8 F D a sample
__global__ void __launch_bounds__(kThreadsPerBlock)
    TransposeKernel(TransposeFieldsArgs args, LanesOfRow reading, LanesOfRow writing) {
  __shared__ Tile tiles[kBlockWarps];
  const int lane = GroupLane();
  Tile& tile = tiles[threadIdx.x / kWarpThreads];
  const int64_t row_tiles = CeilDiv(args.rows, kTile);
  const int64_t column_tiles = CeilDiv(args.columns, kTile);
  const int64_t items = args.batch_size * row_tiles * column_tiles;
  for (int64_t item = GridGroup(); item < items; item += GridGroups()) {
    const int64_t b = item / (row_tiles * column_tiles);
    const auto in_sample = static_cast<int32_t>(item % (row_tiles * column_tiles));
    const int first_row = in_sample / static_cast<int32_t>(column_tiles) * kTile;
    const int first_column = in_sample % static_cast<int32_t>(column_tiles) * kTile;
    const int rows = min(kTile, args.rows - first_row);
    const int columns = min(kTile, args.columns - first_column);
    const float* const from =
        args.from + b * args.from_stride + first_row * args.from_row_stride + first_column;
    float* const to = args.to + b * args.to_stride + first_column * args.to_row_stride + first_row;
    {
      const int c = reading.column(lane);
      const int first = reading.row(lane);
      if (c < columns) {
        ThreadMove(
            reading.RowsOf(lane, rows),
            [&](int i) { return from[(first + i * reading.rows()) * args.from_row_stride + c]; },
            [&](int i, float value) { tile[first + i * reading.rows()][c] = value; });
      }
    }
    __syncwarp();
    {
      const int r = writing.column(lane);
      if (r < rows) {
        for (int c = writing.row(lane); c < columns; c += writing.rows()) {
          to[c * args.to_row_stride + r] = tile[r][c];
        }
      }
    }
    __syncwarp();  // the tile is free again
  }
}

// A warp a row, whose products it writes from the first to the last. The factors stay in the L1.
// Bytes: 4 D (H F + H + F) a sample
__global__ void __launch_bounds__(kThreadsPerBlock) CinProductsKernel(CinProductsArgs args) {
  const int lane = GroupLane();
  const int columns = args.x0_columns;
  const int64_t products = int64_t{args.x_columns} * columns;
  const int step_h = kWarpThreads / columns;
  const int step_f = kWarpThreads % columns;
  for (int64_t r = GridGroup(); r < args.num_rows; r += GridGroups()) {
    const float* const x = args.x + r * args.x_columns;
    const float* const x0 = args.x0 + r * columns;
    float* const to = args.products + r * products;
    int h = lane / columns;
    int f = lane % columns;
    GroupMove<kWarpThreads, 8>(
        lane, products,
        [&](int64_t) {
          const float product = x[h] * x0[f];
          h += step_h;
          f += step_f;
          if (f >= columns) {
            f -= columns;
            ++h;
          }
          return product;
        },
        [&](int64_t i, float product) { to[i] = product; });
  }
}

// A warp a row. The gradients of products go by in tiles of 32 numbers of x and 32 of x0: lane l
// adds what a tile gives to number l of x0 while it loads it, and then, across, what it gives to
// number l of x. Each is read once.
// Bytes: 4 D (H F + 2 H + 3 F) a sample
__global__ void __launch_bounds__(kThreadsPerBlock)
    CinProductsGradKernel(CinProductsGradArgs args) {
  __shared__ Tile tiles[kBlockWarps];
  __shared__ float x_parts[kBlockWarps][kTile];
  __shared__ float x0_parts[kBlockWarps][kTile];
  const int lane = GroupLane();
  const auto warp = threadIdx.x / kWarpThreads;
  Tile& tile = tiles[warp];
  float* const x_part = x_parts[warp];
  float* const x0_part = x0_parts[warp];
  const int x_columns = args.forward.x_columns;
  const int x0_columns = args.forward.x0_columns;
  for (int64_t r = GridGroup(); r < args.forward.num_rows; r += GridGroups()) {
    const float* const x = args.forward.x + r * x_columns;
    const float* const x0 = args.forward.x0 + r * x0_columns;
    const float* const dz = args.products_gradient + r * x_columns * x0_columns;
    float* const dx = args.x_gradient + r * x_columns;
    float* const dx0 = args.x0_gradient + r * x0_columns;
    for (int first_f = 0; first_f < x0_columns; first_f += kTile) {
      const int f = first_f + lane;
      const int fs = min(kTile, x0_columns - first_f);
      const bool has_f = lane < fs;
      x0_part[lane] = has_f ? x0[f] : 0.0f;
      float of_f = has_f && args.add_to_x0_gradient ? dx0[f] : 0.0f;
      for (int first_h = 0; first_h < x_columns; first_h += kTile) {
        const int h = first_h + lane;
        const int hs = min(kTile, x_columns - first_h);
        x_part[lane] = lane < hs ? x[h] : 0.0f;
        __syncwarp();
        if (has_f) {
          ThreadMove(
              hs, [&](int i) { return dz[(first_h + i) * x0_columns + f]; },
              [&](int i, float g) {
                tile[i][lane] = g;
                of_f += g * x_part[i];
              });
        }
        __syncwarp();
        if (lane < hs) {
          float of_h = first_f == 0 ? 0.0f : dx[h];  // which this lane has written
          for (int j = 0; j < fs; ++j) of_h += tile[lane][j] * x0_part[j];
          dx[h] = of_h;
        }
      }
      if (has_f) dx0[f] = of_f;
      __syncwarp();  // tile and x0_part are free again
    }
  }
}

// The same where x is x0, of n numbers: number f gets the terms of row f and of column f of the
// gradients [n, n]. Those of the row come in the midst of those of the column, so they are summed
// first, by a lane for each row of a tile. Up to 32 numbers are one tile; more are read twice, the
// second time out of the caches mostly.
// Bytes: 4 D (F F + 3 F) a sample
__global__ void __launch_bounds__(kThreadsPerBlock) CinSquaresGradKernel(CinProductsGradArgs args) {
  __shared__ Tile tiles[kBlockWarps];
  __shared__ float x_parts[kBlockWarps][kTile];
  const int lane = GroupLane();
  const auto warp = threadIdx.x / kWarpThreads;
  Tile& tile = tiles[warp];
  float* const x_part = x_parts[warp];
  const int n = args.forward.x0_columns;
  const bool is_one_tile = n <= kTile;
  for (int64_t r = GridGroup(); r < args.forward.num_rows; r += GridGroups()) {
    const float* const x = args.forward.x0 + r * n;
    const float* const dz = args.products_gradient + r * n * n;
    float* const dx = args.x0_gradient + r * n;
    for (int first = 0; first < n; first += kTile) {
      const int f = first + lane;
      const int fs = min(kTile, n - first);
      const bool has_f = lane < fs;
      float of_row = 0;
      for (int first_j = 0; first_j < n; first_j += kTile) {
        const int j = first_j + lane;
        const int js = min(kTile, n - first_j);
        if (lane < js) {
          x_part[lane] = x[j];
          ThreadMove(
              fs, [&](int i) { return dz[(first + i) * n + j]; },
              [&](int i, float g) { tile[i][lane] = g; });
        }
        __syncwarp();
        if (has_f) {
          for (int k = 0; k < js; ++k) of_row += tile[lane][k] * x_part[k];
        }
        if (!is_one_tile) __syncwarp();  // the tile is free again
      }
      if (has_f) {
        float sum = args.add_to_x0_gradient ? dx[f] : 0.0f;
        ThreadMove(
            n, [&](int h) { return is_one_tile ? tile[h][lane] : dz[h * n + f]; },
            [&](int h, float g) {
              sum += g * x[h];
              if (h == f) sum += of_row;
            });
        dx[f] = sum;
      }
      __syncwarp();  // the tile is free again
    }
  }
}

// A thread a column of a sample.
// Bytes: 4 H (D + 1) a sample
__global__ void __launch_bounds__(kThreadsPerBlock) CinSumKernel(CinSumArgs args) {
  const int64_t n = args.batch_size * args.columns;
  for (int64_t i = GridThread(); i < n; i += GridThreads()) {
    const int64_t b = i / args.columns;
    const int64_t h = i % args.columns;
    const float* const values = args.values + b * args.rows * args.columns + h;
    float sum = 0;
#pragma unroll 8
    for (int64_t d = 0; d < args.rows; ++d) sum += values[d * args.columns];
    args.output[b * args.output_stride + h] = sum;
  }
}

// Bytes: 4 H (2 D + 1) a sample
__global__ void __launch_bounds__(kThreadsPerBlock) CinSumGradKernel(CinSumGradArgs args) {
  const int64_t n = args.batch_size * args.columns;
  for (int64_t i = GridThread(); i < n; i += GridThreads()) {
    const int64_t b = i / args.columns;
    const int64_t h = i % args.columns;
    const float g = args.output_gradient[b * args.output_gradient_stride + h];
    float* const to = args.values_gradient + b * args.rows * args.columns + h;
    ThreadMove(
        args.rows, [&](int d) { return args.add ? to[int64_t{d} * args.columns] + g : g; },
        [&](int d, float value) { to[int64_t{d} * args.columns] = value; });
  }
}

}  // namespace

absl::Status TransposeFieldsCuda(CudaStream stream, const TransposeFieldsArgs& args) {
  const int64_t tiles = CeilDiv(args.rows, kTile) * CeilDiv(args.columns, kTile);
  TransposeKernel<<<GridBlocks(args.batch_size * tiles, kBlockWarps), kThreadsPerBlock, 0,
                    stream>>>(args, LanesFor(args.columns), LanesFor(args.rows));
  return LastLaunch("TransposeFields");
}

absl::Status CinProductsCuda(CudaStream stream, const CinProductsArgs& args) {
  CinProductsKernel<<<GridBlocks(args.num_rows, kBlockWarps), kThreadsPerBlock, 0, stream>>>(args);
  return LastLaunch("CinProducts");
}

absl::Status CinProductsGradCuda(CudaStream stream, const CinProductsGradArgs& args) {
  const auto kernel = args.x_gradient == nullptr ? CinSquaresGradKernel : CinProductsGradKernel;
  kernel<<<GridBlocks(args.forward.num_rows, kBlockWarps), kThreadsPerBlock, 0, stream>>>(args);
  return LastLaunch("CinProductsGrad");
}

absl::Status CinSumCuda(CudaStream stream, const CinSumArgs& args) {
  CinSumKernel<<<GridBlocks(args.batch_size * args.columns, kThreadsPerBlock), kThreadsPerBlock, 0,
                 stream>>>(args);
  return LastLaunch("CinSum");
}

absl::Status CinSumGradCuda(CudaStream stream, const CinSumGradArgs& args) {
  CinSumGradKernel<<<GridBlocks(args.batch_size * args.columns, kThreadsPerBlock), kThreadsPerBlock,
                     0, stream>>>(args);
  return LastLaunch("CinSumGrad");
}

}  // namespace hotrow::internal
