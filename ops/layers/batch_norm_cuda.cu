#include <algorithm>

#include "base/math.h"
#include "base/status_macros.h"
#include "ops/launch_impl.cuh"
#include "ops/layers/batch_norm_impl.h"

// A block takes tiles of 32 columns and kBatchNormBlockRows rows: a thread one column, whose
// numbers it keeps in registers, and every eighth row, so that a warp reads 128 bytes of a row at a
// time. Bound by the memory: forward reads x twice and writes the output; backward reads x and the
// gradient twice and writes the gradient of x. ReLU's mask is worked out again, which costs less
// than to keep it.
namespace hotrow::internal {
namespace {

constexpr int kWarps = kThreadsPerBlock / kWarpThreads;
// Rows that a thread holds before it uses the first.
constexpr int kInFlight = 8;

// body(tile number, column, first row of this thread, end of rows) for each tile of this block, in
// all threads at once; the column may lie behind the last one.
template <typename Body>
__device__ void ForTiles(int64_t rows, int64_t columns, const Body& body) {
  const int64_t column_tiles = CeilDiv(columns, kWarpThreads);
  const int64_t tiles = CeilDiv(rows, kBatchNormBlockRows) * column_tiles;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t block = tile / column_tiles;
    const int64_t begin = block * kBatchNormBlockRows;
    body(block, tile % column_tiles * kWarpThreads + GroupLane(), begin + warp,
         min(begin + kBatchNormBlockRows, rows));
  }
}
unsigned TileBlocks(int64_t rows, int64_t columns) {
  return GridBlocks(CeilDiv(rows, kBatchNormBlockRows) * CeilDiv(columns, kWarpThreads), 1);
}

// use(row, load(row)) for the rows of a thread, in order.
template <typename Load, typename Use>
__device__ void ForRows(int64_t row, int64_t end, const Load& load, const Use& use) {
  for (; row < end; row += kInFlight * kWarps) {
    decltype(load(row)) values[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (row + k * kWarps < end) values[k] = load(row + k * kWarps);
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (row + k * kWarps < end) use(row + k * kWarps, values[k]);
    }
  }
}

// Adds up what the warps of a block have of each column, in their order, and calls
// store(column, first sum, second sum) for it. All threads of the block call it.
template <typename Store>
__device__ void SumWarps(int64_t i, double first, double second, const Store& store) {
  __shared__ double sums[2][kWarps][kWarpThreads];
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int lane = GroupLane();
  sums[0][warp][lane] = first;
  sums[1][warp][lane] = second;
  __syncthreads();
  if (warp == 0) {
    for (int w = 1; w < kWarps; ++w) {
      first += sums[0][w][lane];
      second += sums[1][w][lane];
    }
    store(i, first, second);
  }
  __syncthreads();  // sums are free again
}

// Bytes: 4 a number: x
__global__ void __launch_bounds__(kThreadsPerBlock) BatchNormSumsKernel(BatchNormSumsArgs args) {
  const int64_t columns = args.columns;
  auto* const block_sums = reinterpret_cast<double*>(args.workspace);
  ForTiles(args.batch_size, columns, [&](int64_t block, int64_t i, int64_t row, int64_t end) {
    double sum = 0;
    double squares = 0;
    if (i < columns) {
      ForRows(
          row, end, [&](int64_t r) { return args.x[r * args.x_stride + i]; },
          [&](int64_t, float x) {
            const double value = x;
            sum += value;
            squares += value * value;
          });
    }
    SumWarps(i, sum, squares, [&](int64_t column, double first, double second) {
      if (column >= columns) return;
      block_sums[2 * block * columns + column] = first;
      block_sums[(2 * block + 1) * columns + column] = second;
    });
  });
}

// Bytes: 8 a number: x, gradient
__global__ void __launch_bounds__(kThreadsPerBlock)
    BatchNormGradSumsKernel(BatchNormGradSumsArgs args) {
  struct Values {
    float x, dy;
  };
  const BatchNormArgs& forward = args.forward;
  const int64_t columns = forward.columns;
  auto* const block_sums = reinterpret_cast<double*>(args.workspace);
  ForTiles(forward.batch_size, columns, [&](int64_t block, int64_t i, int64_t row, int64_t end) {
    double of_gamma = 0;
    double of_beta = 0;
    if (i < columns) {
      const NormColumn column = ColumnOf(forward, i);
      ForRows(
          row, end,
          [&](int64_t r) {
            return Values{forward.x[r * forward.x_stride + i],
                          args.output_gradient[r * args.output_gradient_stride + i]};
          },
          [&](int64_t, const Values& at) {
            const float normalized = column.Normalized(at.x);
            const float g = forward.relu && column.Scaled(normalized) <= 0 ? 0.0f : at.dy;
            of_gamma += static_cast<double>(g) * normalized;
            of_beta += g;
          });
    }
    SumWarps(i, of_gamma, of_beta, [&](int64_t column, double first, double second) {
      if (column >= columns) return;
      block_sums[2 * block * columns + column] = first;
      block_sums[(2 * block + 1) * columns + column] = second;
    });
  });
}

// The sums of the blocks: a block of threads 32 columns, warp w the blocks w, w + 8 ... in order.
// gradients: null, or where the sums go as floats, too.
// Bytes: 16 a column for each 256 samples
__global__ void __launch_bounds__(kThreadsPerBlock)
    BatchNormSumBlocksKernel(const double* block_sums, int64_t blocks, int64_t columns,
                             double* sums, float* gradients) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  for (int64_t tile = blockIdx.x; tile * kWarpThreads < columns; tile += gridDim.x) {
    const int64_t i = tile * kWarpThreads + GroupLane();
    double first = 0;
    double second = 0;
    if (i < columns) {
#pragma unroll 8
      for (int64_t block = warp; block < blocks; block += kWarps) {
        first += block_sums[2 * block * columns + i];
        second += block_sums[(2 * block + 1) * columns + i];
      }
    }
    SumWarps(i, first, second, [&](int64_t column, double a, double b) {
      if (column >= columns) return;
      sums[column] = a;
      sums[columns + column] = b;
      if (gradients == nullptr) return;
      gradients[column] = static_cast<float>(a);
      gradients[columns + column] = static_cast<float>(b);
    });
  }
}

// Bytes: 48 a column
__global__ void __launch_bounds__(kThreadsPerBlock)
    BatchNormMomentsKernel(BatchNormMomentsArgs args) {
  for (int64_t i = GridThread(); i < args.columns; i += GridThreads()) ColumnMoments(args, i);
}

// Bytes: 16 a column
__global__ void __launch_bounds__(kThreadsPerBlock)
    BatchNormRunningKernel(BatchNormRunningArgs args) {
  for (int64_t i = GridThread(); i < args.columns; i += GridThreads()) {
    args.scale.mean[i] = args.mean[i];
    args.scale.inverse_deviation[i] = InverseDeviation(args.variance[i]);
  }
}

// Bytes: 32 a column
__global__ void __launch_bounds__(kThreadsPerBlock)
    BatchNormEndStepKernel(BatchNormEndStepArgs args) {
  for (int64_t i = GridThread(); i < args.columns; i += GridThreads()) EndStepOfColumn(args, i);
}

// Bytes: 8 a number: x read, output written
__global__ void __launch_bounds__(kThreadsPerBlock) BatchNormKernel(BatchNormArgs args) {
  ForTiles(args.batch_size, args.columns, [&](int64_t, int64_t i, int64_t row, int64_t end) {
    if (i >= args.columns) return;
    const NormColumn column = ColumnOf(args, i);
    ForRows(
        row, end, [&](int64_t r) { return args.x[r * args.x_stride + i]; },
        [&](int64_t r, float x) {
          const float z = column.Scaled(column.Normalized(x));
          args.output[r * args.output_stride + i] = args.relu && z < 0 ? 0.0f : z;
        });
  });
}

// Bytes: 12 a number: x, gradient read, gradient of x written
__global__ void __launch_bounds__(kThreadsPerBlock)
    BatchNormInputGradKernel(BatchNormInputGradArgs args, double n) {
  struct Values {
    float x, dy;
  };
  const BatchNormArgs& forward = args.forward;
  const int64_t columns = forward.columns;
  ForTiles(forward.batch_size, columns, [&](int64_t, int64_t i, int64_t row, int64_t end) {
    if (i >= columns) return;
    const NormColumn column = ColumnOf(forward, i);
    const auto mean_of_products = static_cast<float>(args.sums[i] / n);
    const auto mean_of_gradients = static_cast<float>(args.sums[columns + i] / n);
    ForRows(
        row, end,
        [&](int64_t r) {
          return Values{forward.x[r * forward.x_stride + i],
                        args.output_gradient[r * args.output_gradient_stride + i]};
        },
        [&](int64_t r, const Values& at) {
          const float normalized = column.Normalized(at.x);
          const float g = forward.relu && column.Scaled(normalized) <= 0 ? 0.0f : at.dy;
          args.x_gradient[r * args.x_gradient_stride + i] =
              column.gamma * column.inverse_deviation *
              (g - mean_of_gradients - normalized * mean_of_products);
        });
  });
}

absl::Status SumBlocks(CudaStream stream, const char* op, int64_t batch_size, int64_t columns,
                       const std::byte* workspace, double* sums, float* gradients) {
  BatchNormSumBlocksKernel<<<GridBlocks(columns, kWarpThreads), kThreadsPerBlock, 0, stream>>>(
      reinterpret_cast<const double*>(workspace), CeilDiv(batch_size, kBatchNormBlockRows), columns,
      sums, gradients);
  return LastLaunch(op);
}

}  // namespace

absl::Status BatchNormSumsCuda(CudaStream stream, const BatchNormSumsArgs& args) {
  constexpr char kName[] = "BatchNormSums";
  if (args.batch_size > 0) {
    BatchNormSumsKernel<<<TileBlocks(args.batch_size, args.columns), kThreadsPerBlock, 0, stream>>>(
        args);
    HOTROW_RETURN_IF_ERROR(LastLaunch(kName));
  }
  return SumBlocks(stream, kName, args.batch_size, args.columns, args.workspace, args.sums,
                   nullptr);
}

absl::Status BatchNormMomentsCuda(CudaStream stream, const BatchNormMomentsArgs& args) {
  BatchNormMomentsKernel<<<GridBlocks(args.columns, kThreadsPerBlock), kThreadsPerBlock, 0,
                           stream>>>(args);
  return LastLaunch("BatchNormMoments");
}

absl::Status BatchNormRunningCuda(CudaStream stream, const BatchNormRunningArgs& args) {
  BatchNormRunningKernel<<<GridBlocks(args.columns, kThreadsPerBlock), kThreadsPerBlock, 0,
                           stream>>>(args);
  return LastLaunch("BatchNormRunning");
}

absl::Status BatchNormCuda(CudaStream stream, const BatchNormArgs& args) {
  BatchNormKernel<<<TileBlocks(args.batch_size, args.columns), kThreadsPerBlock, 0, stream>>>(args);
  return LastLaunch("BatchNorm");
}

absl::Status BatchNormGradSumsCuda(CudaStream stream, const BatchNormGradSumsArgs& args) {
  constexpr char kName[] = "BatchNormGradSums";
  const BatchNormArgs& forward = args.forward;
  if (forward.batch_size > 0) {
    const unsigned blocks = TileBlocks(forward.batch_size, forward.columns);
    BatchNormGradSumsKernel<<<blocks, kThreadsPerBlock, 0, stream>>>(args);
    HOTROW_RETURN_IF_ERROR(LastLaunch(kName));
  }
  return SumBlocks(stream, kName, forward.batch_size, forward.columns, args.workspace, args.sums,
                   args.gradients);
}

absl::Status BatchNormInputGradCuda(CudaStream stream, const BatchNormInputGradArgs& args) {
  const unsigned blocks = TileBlocks(args.forward.batch_size, args.forward.columns);
  const double n = std::max(static_cast<double>(args.samples), 1.0);
  BatchNormInputGradKernel<<<blocks, kThreadsPerBlock, 0, stream>>>(args, n);
  return LastLaunch("BatchNormInputGrad");
}

absl::Status BatchNormEndStepCuda(CudaStream stream, const BatchNormEndStepArgs& args) {
  BatchNormEndStepKernel<<<GridBlocks(args.columns, kThreadsPerBlock), kThreadsPerBlock, 0,
                           stream>>>(args);
  return LastLaunch("BatchNormEndStep");
}

}  // namespace hotrow::internal
