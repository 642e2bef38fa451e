#include "ops/interactions/padded_dot_ring_impl.cuh"

// Dot products in fp32 with the CPU's bits, which sums a product in eight lanes and then across
// them: a warp a sample, tiles of sums in registers. docs/gpu_dense.md says what bounds it.
namespace hotrow::internal {
namespace {

constexpr int kPairTile = kDotPairTile;
constexpr int kStepBytes = 32;  // of a vector: a number of each of the eight lanes

struct Fp32Args {
  TilesArgs tiles;
  float* output;
  int64_t output_stride;
  DotColumns columns;
};
struct Fp32GradArgs {
  TilesArgs tiles;
  const float* output_gradient;
  int64_t output_stride;
  int32_t first_product;
  float* dense_gradient;
  int64_t dense_gradient_stride;
  float* sparse_gradient;
  int64_t sparse_gradient_stride;
};

__device__ int PairColumn(int i, int j) { return i * (i - 1) / 2 + j; }

// Vectors are dealt out to groups: of G groups, group b has the vectors b, b + G, b + 2 G, b + 3 G.
// A tile is the 4 x 4 pairs of group b with group (b + o) mod G, where o is from 0 to G / 2, and
// two threads have it, with four of the eight lanes each. Theirs are two tiles, of o and o + 1. The
// eight threads that read 16 bytes at a time have groups b that follow each other, from a multiple
// of four on, so they meet hardly a bank twice.
// Bytes: 4 (F D + columns) a sample
__global__ void __launch_bounds__(kDotWarpsMax* kWarpThreads, 1)
    DotFp32Kernel(const __grid_constant__ Fp32Args args) {
  const TilesArgs& tiles = args.tiles;
  const DotPlan& plan = tiles.plan;
  const WarpShared shared(plan);
  const int lane = GroupLane();
  const int half = lane % 2;
  const int64_t first = GridGroup();
  const int64_t step = GridGroups();
  StageRing<VectorPieces<4>> ring({tiles}, shared.stages, shared.barriers, first, step);
  const int groups = DotGroups(tiles.vectors);
  const int slots = DotGroupSlots(groups);
  // The row that goes out. What lies behind its products stays as it is made here.
  auto* const line = reinterpret_cast<float*>(shared.scratch);
  const int columns = static_cast<int>(args.columns.all);
  float* const products = line + args.columns.first_product;
  const int pairs = PairColumn(tiles.vectors, 0);
  for (int c = args.columns.first_product + pairs + lane; c < columns; c += kWarpThreads) {
    line[c] = c == columns - 1 ? 1.0f : 0.0f;
  }
  __syncthreads();
  ring.Begin();
  for (int64_t sample = first; sample < tiles.batch_size; sample += step) {
    for (int round = 0; round < plan.rounds; ++round) {
      const int item = round * kDotPairItems + lane / 2;
      const int b = min(item % slots, groups - 1);
      const int offset = item / slots * kDotPairTiles;
      float sums[kDotPairTiles][kPairTile][kPairTile][4] = {};
      for (int chunk = 0; chunk < plan.chunks; ++chunk) {
        const std::byte* const stage = ring.Next();
        const int bytes = tiles.ChunkColumns(chunk) * static_cast<int>(sizeof(float));
        const std::byte* right[kPairTile];
        const std::byte* left[kDotPairTiles][kPairTile];
#pragma unroll
        for (int r = 0; r < kPairTile; ++r) {
          right[r] = StageRow(tiles, shared, stage, b + groups * r);
#pragma unroll
          for (int p = 0; p < kDotPairTiles; ++p) {
            left[p][r] = StageRow(tiles, shared, stage, (b + offset + p) % groups + groups * r);
          }
        }
        for (int at = 16 * half; at < bytes; at += kStepBytes) {
          float4 y[kPairTile];
#pragma unroll
          for (int c = 0; c < kPairTile; ++c) {
            y[c] = *reinterpret_cast<const float4*>(right[c] + at);
          }
#pragma unroll
          for (int p = 0; p < kDotPairTiles; ++p) {
#pragma unroll
            for (int r = 0; r < kPairTile; ++r) {
              const float4 x = *reinterpret_cast<const float4*>(left[p][r] + at);
#pragma unroll
              for (int c = 0; c < kPairTile; ++c) {
                float(&sum)[4] = sums[p][r][c];
                sum[0] = fmaf(x.x, y[c].x, sum[0]);
                sum[1] = fmaf(x.y, y[c].y, sum[1]);
                sum[2] = fmaf(x.z, y[c].z, sum[2]);
                sum[3] = fmaf(x.w, y[c].w, sum[3]);
              }
            }
          }
        }
        if (round == 0 && args.columns.first_product > 0) {
          auto* const copy = reinterpret_cast<float4*>(line + chunk * plan.chunk_columns);
          for (int i = lane; i < bytes / 16; i += kWarpThreads) {
            copy[i] = reinterpret_cast<const float4*>(stage)[i];
          }
        }
      }
#pragma unroll
      for (int p = 0; p < kDotPairTiles; ++p) {
        // Half as many where group b meets the group opposite, which meets it.
        const int o = offset + p;
        const bool some = item % slots == b && (2 * o < groups || (2 * o == groups && b < o));
        const int a = (b + o) % groups;
        // Each of the two gets two of the four rows.
#pragma unroll
        for (int r = 0; r < kPairTile / 2; ++r) {
#pragma unroll
          for (int c = 0; c < kPairTile; ++c) {
            const auto four = [&](int row) {
              const float(&sum)[4] = sums[p][row][c];
              return (sum[0] + sum[2]) + (sum[1] + sum[3]);
            };
            const float low = four(r);
            const float high = four(r + kPairTile / 2);
            const float product =
                (half == 0 ? low : high) + __shfl_xor_sync(kAllLanes, half == 0 ? high : low, 1);
            const int i = a + groups * (r + kPairTile / 2 * half);
            const int j = b + groups * c;
            // Within a group each pair is there twice.
            if (some && max(i, j) < tiles.vectors && (a != b || i > j)) {
              products[PairColumn(max(i, j), min(i, j))] = product;
            }
          }
        }
      }
    }
    __syncwarp();
    float* const to = args.output + sample * args.output_stride;
    GroupMove<kWarpThreads, 5>(
        lane, columns, [&](int64_t c) { return line[c]; },
        [&](int64_t c, float x) { __stcs(to + c, x); });
    __syncwarp();
  }
}

// Each thread has two columns of a chunk, in up to kDotGradVectors gradients at a time: of each
// vector, in their order, it reads its columns, and the pairs that the vector has with the others.
// Bytes: 4 (2 F D + columns) a sample
__global__ void __launch_bounds__(kDotWarpsMax* kWarpThreads, 1)
    DotFp32GradKernel(const __grid_constant__ Fp32GradArgs args) {
  const TilesArgs& tiles = args.tiles;
  const DotPlan& plan = tiles.plan;
  const WarpShared shared(plan);
  const int lane = GroupLane();
  const int64_t first = GridGroup();
  const int64_t step = GridGroups();
  StageRing<VectorPieces<4>> ring({tiles}, shared.stages, shared.barriers, first, step);
  // The pairs as a symmetric matrix. Its diagonal, and what lies behind the vectors, stays zero.
  auto* const matrix = reinterpret_cast<float*>(shared.scratch);
  const int pitch = plan.scratch_pitch_bytes / static_cast<int>(sizeof(float));
  for (int i = lane; i < tiles.vectors * pitch; i += kWarpThreads) matrix[i] = 0;
  __syncthreads();
  ring.Begin();
  for (int64_t sample = first; sample < tiles.batch_size; sample += step) {
    const float* const output_gradient = args.output_gradient + sample * args.output_stride;
    const float* const pairs = output_gradient + args.first_product;
    __syncwarp();
    for (int begin = 0; begin < tiles.vectors - 1; begin += kWarpThreads) {
      const int j = begin + lane;
      ThreadMove<13>(
          tiles.vectors - 1 - begin,
          [&](int n) { return lane <= n ? pairs[PairColumn(begin + n + 1, j)] : 0.0f; },
          [&](int n, float pair) {
            const int i = begin + n + 1;
            if (lane <= n) matrix[i * pitch + j] = matrix[j * pitch + i] = pair;
          });
    }
    for (int chunk = 0; chunk < plan.chunks; ++chunk) {
      const int columns = tiles.ChunkColumns(chunk);
      const int d = min(2 * lane, columns - 2);
      const int column = chunk * plan.chunk_columns + d;
      float2 start = make_float2(0, 0);
      if (args.first_product > 0) {
        start = make_float2(output_gradient[column], output_gradient[column + 1]);
      }
      const std::byte* const stage = ring.Next();
      for (int row = 0; row < tiles.vectors; row += kDotGradVectors) {
        float2 sums[kDotGradVectors] = {};
        if (row == 0) sums[0] = start;
#pragma unroll 2
        for (int j = 0; j < tiles.vectors; ++j) {
          const float2 x = reinterpret_cast<const float2*>(stage + j * plan.pitch_bytes)[d / 2];
          const float4* const factors = reinterpret_cast<const float4*>(matrix + j * pitch + row);
#pragma unroll
          for (int i = 0; i < kDotGradVectors; i += 4) {
            const float4 four = factors[i / 4];
            const auto add = [x](float pair, float2& sum) {
              sum.x = fmaf(pair, x.x, sum.x);
              sum.y = fmaf(pair, x.y, sum.y);
            };
            add(four.x, sums[i]);
            add(four.y, sums[i + 1]);
            add(four.z, sums[i + 2]);
            add(four.w, sums[i + 3]);
          }
        }
        if (2 * lane >= columns) continue;
        float* const dense = args.dense_gradient + sample * args.dense_gradient_stride + column;
        float* const sparse = args.sparse_gradient + sample * args.sparse_gradient_stride + column;
#pragma unroll
        for (int i = 0; i < kDotGradVectors; ++i) {
          if (row + i >= tiles.vectors) break;
          float* const to = row + i == 0 ? dense : sparse + (row + i - 1) * tiles.dim;
          __stcs(reinterpret_cast<float2*>(to), sums[i]);
        }
      }
    }
  }
}

// False where the shape or the alignment is none for these kernels.
absl::StatusOr<bool> Plan(const PaddedDotArgs& args, bool backward, DotPlan* plan) {
  HOTROW_ASSIGN_OR_RETURN(const int64_t shared_bytes_max, SharedBytesMax());
  return args.precision == DotPrecision::kFp32 && VectorsAreAligned(args) &&
         PlanDot(args.precision, args.num_sparse, args.dim, backward, shared_bytes_max, plan);
}

}  // namespace

absl::StatusOr<bool> DotInFp32(CudaStream stream, const PaddedDotArgs& args,
                               const DotColumns& columns) {
  DotPlan plan;
  HOTROW_ASSIGN_OR_RETURN(const bool takes, Plan(args, false, &plan));
  if (!takes) return false;
  HOTROW_RETURN_IF_ERROR(Launch("PaddedDot", stream, &DotFp32Kernel,
                                {.tiles = MakeTilesArgs(args, plan),
                                 .output = static_cast<float*>(args.output),
                                 .output_stride = args.output_stride,
                                 .columns = columns}));
  return true;
}

absl::StatusOr<bool> DotGradInFp32(CudaStream stream, const PaddedDotGradArgs& args,
                                   const DotColumns& columns) {
  const PaddedDotArgs& forward = args.forward;
  DotPlan plan;
  HOTROW_ASSIGN_OR_RETURN(const bool takes, Plan(forward, true, &plan));
  if (!takes || !GradientsAreAligned(args)) return false;
  HOTROW_RETURN_IF_ERROR(Launch("PaddedDotGrad", stream, &DotFp32GradKernel,
                                {.tiles = MakeTilesArgs(forward, plan),
                                 .output_gradient = static_cast<const float*>(args.output_gradient),
                                 .output_stride = forward.output_stride,
                                 .first_product = columns.first_product,
                                 .dense_gradient = static_cast<float*>(args.dense_gradient),
                                 .dense_gradient_stride = args.dense_gradient_stride,
                                 .sparse_gradient = static_cast<float*>(args.sparse_gradient),
                                 .sparse_gradient_stride = args.sparse_gradient_stride}));
  return true;
}

}  // namespace hotrow::internal
