#include "ops/launch_impl.cuh"
#include "ops/layers/target_attention_impl.h"

// A sample's rows lie together, so a group of threads takes a sample. Each thread has a column and
// walks the rows in their order. Bound by the memory: each number of a row, a pair or its gradient
// is read once and written once; what belongs to the sample comes out of the cache of the
// processor.
namespace hotrow::internal {
namespace {

// Threads of a sample: a warp, or of rows of at most kNarrow columns a quarter of one, so that the
// others have a sample as well; its eight threads read a sector.
constexpr int32_t kNarrow = 16;
constexpr int kNarrowLanes = 8;

// use(row, load(row)) for the rows of a sample in order, several of which are read before the first
// is used: the compiler cannot know that what `use` writes is something else.
template <typename Load, typename Use>
__device__ void ForRows(const RowRange& range, const Load& load, const Use& use) {
  constexpr int kInFlight = 4;
  for (int64_t first = range.begin; first < range.end; first += kInFlight) {
    decltype(load(first)) values[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (first + k < range.end) values[k] = load(first + k);
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (first + k < range.end) use(first + k, values[k]);
    }
  }
}

// Bytes: 20 D a row
template <int kLanes>
__global__ void __launch_bounds__(kThreadsPerBlock) TargetPairsKernel(TargetPairsArgs args) {
  const int64_t d = args.rows.dim;
  for (int64_t b = GridGroup<kLanes>(); b < args.rows.batch_size; b += GridGroups<kLanes>()) {
    const RowRange range = RowsOf(args.rows, b);
    for (int64_t i = GroupLane<kLanes>(); i < d; i += kLanes) {
      const float t = args.target[b * args.target_stride + i];
      ForRows(
          range, [&](int64_t j) { return args.rows.rows[(j - range.shift) * d + i]; },
          [&](int64_t j, float h) {
            float* const pair = args.pairs + j * 4 * d + i;
            pair[0] = h;
            pair[d] = t;
            pair[2 * d] = h - t;
            pair[3 * d] = h * t;
          });
    }
  }
}

// Bytes: 8 D a row
template <int kLanes>
__global__ void __launch_bounds__(kThreadsPerBlock) RowSumGradKernel(RowSumGradArgs args) {
  const int64_t d = args.rows.dim;
  for (int64_t b = GridGroup<kLanes>(); b < args.rows.batch_size; b += GridGroups<kLanes>()) {
    const RowRange range = RowsOf(args.rows, b);
    for (int64_t i = GroupLane<kLanes>(); i < d; i += kLanes) {
      const float dy = args.output_gradient[b * args.output_gradient_stride + i];
      ForRows(
          range, [&](int64_t j) { return args.row_gradient[j * d + i]; },
          [&](int64_t j, float dh) { args.row_gradient[j * d + i] = dh + dy; });
    }
  }
}

// Bytes: 4 D + 4 a row
template <int kLanes>
__global__ void __launch_bounds__(kThreadsPerBlock) WeightedRowSumKernel(WeightedRowSumArgs args) {
  const int64_t d = args.rows.dim;
  for (int64_t b = GridGroup<kLanes>(); b < args.rows.batch_size; b += GridGroups<kLanes>()) {
    const RowRange range = RowsOf(args.rows, b);
    for (int64_t i = GroupLane<kLanes>(); i < d; i += kLanes) {
      float sum = 0;
#pragma unroll 8
      for (int64_t j = range.begin; j < range.end; ++j) {
        const float weight = args.weights == nullptr ? 1.0f : args.weights[j];
        sum += weight * args.rows.rows[(j - range.shift) * d + i];
      }
      args.output[b * args.output_stride + i] = sum;
    }
  }
}

// Bytes: 4 D + 4 a row
template <int kLanes>
__global__ void __launch_bounds__(kThreadsPerBlock) RowWeightGradKernel(RowWeightGradArgs args) {
  const int64_t d = args.rows.dim;
  const int lane = GroupLane<kLanes>();
  const unsigned lanes = kLanes == kWarpThreads
                             ? kAllLanes
                             : ((1u << (kLanes % kWarpThreads)) - 1)
                                   << (threadIdx.x % kWarpThreads / kLanes * kLanes);
  for (int64_t b = GridGroup<kLanes>(); b < args.rows.batch_size; b += GridGroups<kLanes>()) {
    const RowRange range = RowsOf(args.rows, b);
    const float* const dy = args.output_gradient + b * args.output_gradient_stride;
    constexpr int kInFlight = 4;
    for (int64_t first = range.begin; first < range.end; first += kInFlight) {
      const int n = static_cast<int>(min(range.end - first, int64_t{kInFlight}));
      float sums[kInFlight] = {};
      for (int64_t i = lane; i < d; i += kLanes) {
        const float g = dy[i];
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          if (k < n) sums[k] += g * args.rows.rows[(first + k) * d + i];
        }
      }
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        for (int half = kLanes / 2; half > 0; half /= 2) {
          sums[k] += __shfl_xor_sync(lanes, sums[k], half);
        }
        if (lane == 0 && k < n) args.weight_gradient[first + k] = sums[k];
      }
    }
  }
}

// Bytes: 28 D + 4 a row
template <int kLanes>
__global__ void __launch_bounds__(kThreadsPerBlock)
    TargetAttentionGradKernel(TargetAttentionGradArgs args) {
  struct Row {
    float h, weight, dh;
    float g[4];
  };
  const int64_t d = args.rows.dim;
  for (int64_t b = GridGroup<kLanes>(); b < args.rows.batch_size; b += GridGroups<kLanes>()) {
    const RowRange range = RowsOf(args.rows, b);
    for (int64_t i = GroupLane<kLanes>(); i < d; i += kLanes) {
      const float dy = args.output_gradient[b * args.output_gradient_stride + i];
      const float t = args.target[b * args.target_stride + i];
      float dt = 0;
      ForRows(
          range,
          [&](int64_t j) {
            const float* const g = args.pair_gradient + j * 4 * d + i;
            return Row{args.rows.rows[j * d + i],
                       args.weights[j],
                       args.row_gradient[j * d + i],
                       {g[0], g[d], g[2 * d], g[3 * d]}};
          },
          [&](int64_t j, const Row& row) {
            const float* const g = row.g;
            args.row_gradient[j * d + i] = row.dh + (row.weight * dy + g[0] + g[2] + t * g[3]);
            dt += g[1] - g[2] + row.h * g[3];
          });
      if (args.target_gradient != nullptr) {
        args.target_gradient[b * args.target_gradient_stride + i] = dt;
      }
    }
  }
}

// Launches `narrow`, with kNarrowLanes threads a sample, or `wide`, with a warp.
template <typename Args>
absl::Status LaunchGroups(CudaStream stream, const char* op, void (*narrow)(Args),
                          void (*wide)(Args), const Args& args) {
  const bool is_narrow = args.rows.dim <= kNarrow;
  const auto kernel = is_narrow ? narrow : wide;
  const int lanes = is_narrow ? kNarrowLanes : kWarpThreads;
  kernel<<<GridBlocks(args.rows.batch_size, kThreadsPerBlock / lanes), kThreadsPerBlock, 0,
           stream>>>(args);
  return LastLaunch(op);
}

}  // namespace

absl::Status TargetPairsCuda(CudaStream stream, const TargetPairsArgs& args) {
  return LaunchGroups(stream, "TargetPairs", TargetPairsKernel<kNarrowLanes>,
                      TargetPairsKernel<kWarpThreads>, args);
}

absl::Status WeightedRowSumCuda(CudaStream stream, const WeightedRowSumArgs& args) {
  return LaunchGroups(stream, "WeightedRowSum", WeightedRowSumKernel<kNarrowLanes>,
                      WeightedRowSumKernel<kWarpThreads>, args);
}

absl::Status RowWeightGradCuda(CudaStream stream, const RowWeightGradArgs& args) {
  return LaunchGroups(stream, "RowWeightGrad", RowWeightGradKernel<kNarrowLanes>,
                      RowWeightGradKernel<kWarpThreads>, args);
}

absl::Status RowSumGradCuda(CudaStream stream, const RowSumGradArgs& args) {
  return LaunchGroups(stream, "RowSumGrad", RowSumGradKernel<kNarrowLanes>,
                      RowSumGradKernel<kWarpThreads>, args);
}

absl::Status TargetAttentionGradCuda(CudaStream stream, const TargetAttentionGradArgs& args) {
  return LaunchGroups(stream, "TargetAttentionGrad", TargetAttentionGradKernel<kNarrowLanes>,
                      TargetAttentionGradKernel<kWarpThreads>, args);
}

}  // namespace hotrow::internal
