#include "base/hopper.cuh"
#include "base/status_macros.h"
#include "ops/interactions/padded_dot_cuda_impl.h"
#include "ops/interactions/padded_dot_ring_impl.cuh"
#include "ops/launch_impl.cuh"

// PaddedDot on tensor cores: a warp a sample, vectors in tiles of 16. Copies of the next samples
// are under way while one is multiplied; blocks stay and walk over the batch. docs/gpu_dense.md
// says how data lies and what bounds it.
namespace hotrow::internal {
namespace {

struct ForwardArgs {
  TilesArgs tiles;
  std::byte* output;
  int64_t output_stride_bytes;
  int32_t output_columns;
};
struct BackwardArgs {
  TilesArgs tiles;
  const std::byte* output_gradient;
  int64_t output_stride_bytes;
  std::byte* dense_gradient;
  int64_t dense_gradient_stride_bytes;
  std::byte* sparse_gradient;
  int64_t sparse_gradient_stride_bytes;
};

// Behind the vectors the gradient of the dense one's copy, as one more vector, and with the first
// chunk the gradients of the pairs.
template <int kBytes>
struct BackwardPieces {
  const BackwardArgs& args;

  __device__ const TilesArgs& tiles() const { return args.tiles; }
  __device__ int PairBytes() const {
    const int vectors = args.tiles.vectors;
    return static_cast<int>(RoundUp(vectors * (vectors - 1) / 2 * kBytes, 16));
  }
  __device__ int Count(int chunk) const {
    return args.tiles.vectors + (chunk == 0 && args.tiles.vectors > 1 ? 2 : 1);
  }
  // PairBytes() are 0 where there is no pair.
  __device__ int Bytes(int chunk) const {
    return (args.tiles.vectors + 1) * args.tiles.ChunkColumns(chunk) * kBytes +
           (chunk == 0 ? PairBytes() : 0);
  }
  __device__ Piece At(int64_t sample, int chunk, int i) const {
    const TilesArgs& t = args.tiles;
    const std::byte* const gradient = args.output_gradient + sample * args.output_stride_bytes;
    if (i > t.vectors) return {gradient + t.dim * kBytes, i * t.plan.pitch_bytes, PairBytes()};
    const std::byte* const row = i == t.vectors ? gradient : t.x.Of(sample, i);
    return {row + chunk * t.plan.chunk_columns * kBytes, i * t.plan.pitch_bytes,
            t.ChunkColumns(chunk) * kBytes};
  }
};

// --- The words of a precision

// A step of 32 bytes of a vector is a K of a product: 16 columns of two bytes, 8 of four.
constexpr int kStepBytes = 32;

template <DotPrecision kPrecision>
struct TileMath;

// Two numbers a register.
template <uint32_t (*kPack)(float, float), float2 (*kUnpack)(uint32_t),
          void (*kMma)(float (&)[4], const uint32_t (&)[4], uint32_t, uint32_t)>
struct HalfMath {
  using Stored = uint16_t;
  static constexpr int kBytes = 2;
  __device__ static void RoundFactors(uint32_t (&)[4]) {}
  __device__ static uint32_t Factor(uint16_t x) { return x; }
  __device__ static void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    kMma(c, a, b0, b1);
  }
  __device__ static void StorePair(std::byte* to, float x, float y) {
    *reinterpret_cast<uint32_t*>(to) = kPack(x, y);
  }
  __device__ static float2 LoadPair(const std::byte* from) {
    return kUnpack(*reinterpret_cast<const uint32_t*>(from));
  }
  __device__ static uint16_t Narrow(float x) { return static_cast<uint16_t>(kPack(x, 0)); }
  // The factors b of a step of 16 rows and 16 columns, whose rows lie at `rows` (of the lane's row
  // of ldmatrix): two tiles of 8 columns.
  __device__ static void LoadB(const std::byte* const (&rows)[2], int column, uint32_t (&b)[2][2]) {
    uint32_t words[4];
    gpu::LoadMatricesTransposed(rows[0] + column * kBytes + GroupLane() / 16 * 16, words);
    b[0][0] = words[0];
    b[0][1] = words[1];
    b[1][0] = words[2];
    b[1][1] = words[3];
  }
  // Which row of the K rows of a step the lane names; the second is not read.
  __device__ static int RowOfStep(int which) { return GroupLane() % 16; }
};
template <>
struct TileMath<DotPrecision::kBf16> : HalfMath<gpu::PackBf16, gpu::UnpackBf16, gpu::MmaBf16> {};
template <>
struct TileMath<DotPrecision::kFp16> : HalfMath<gpu::PackFp16, gpu::UnpackFp16, gpu::MmaFp16> {};

template <>
struct TileMath<DotPrecision::kTf32> {
  using Stored = float;
  static constexpr int kBytes = 4;
  __device__ static void RoundFactors(uint32_t (&a)[4]) {
#pragma unroll
    for (int r = 0; r < 4; ++r) a[r] = gpu::RoundToTf32(__uint_as_float(a[r]));
  }
  __device__ static uint32_t Factor(float x) { return gpu::RoundToTf32(x); }
  __device__ static void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    gpu::MmaTf32(c, a, b0, b1);
  }
  __device__ static void StorePair(std::byte* to, float x, float y) {
    *reinterpret_cast<float2*>(to) = make_float2(x, y);
  }
  __device__ static float2 LoadPair(const std::byte* from) {
    return *reinterpret_cast<const float2*>(from);
  }
  __device__ static float Narrow(float x) { return x; }
  // ldmatrix does not transpose numbers of four bytes, so they are read one by one.
  __device__ static void LoadB(const std::byte* const (&rows)[2], int column, uint32_t (&b)[2][2]) {
    const int g = GroupLane() / 4;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        b[tile][half] =
            gpu::RoundToTf32(reinterpret_cast<const float*>(rows[half])[column + 8 * tile + g]);
      }
    }
  }
  __device__ static int RowOfStep(int which) { return GroupLane() % 4 + 4 * which; }
};

// The lane's row of four matrices that make a 16 x 32-byte tile of a: rows 0 to 15 of its first 16
// bytes, then of the others.
__device__ int RowOfTile() { return GroupLane() % 16; }
__device__ int ByteOfTile() { return GroupLane() / 16 * 16; }

// --- Forward: c = x x^T, the tiles of 16 x 8 that have a part of the lower triangle

// Bytes: e (F D + columns) a sample
template <DotPrecision kPrecision, int kRowTiles>
__global__ void __launch_bounds__(kDotWarpsMax* kWarpThreads, 1)
    DotTilesKernel(const __grid_constant__ ForwardArgs args) {
  using Math = TileMath<kPrecision>;
  using Stored = typename Math::Stored;
  constexpr int kTiles = kRowTiles * (kRowTiles + 1);
  const TilesArgs& tiles = args.tiles;
  const DotPlan& plan = tiles.plan;
  const WarpShared shared(plan);
  const int lane = GroupLane();
  const int64_t first = GridGroup();
  const int64_t step = GridGroups();
  StageRing<VectorPieces<Math::kBytes>> ring({tiles}, shared.stages, shared.barriers, first, step);
  // The row that goes out. Its padding stays as it is made here.
  auto* const line = reinterpret_cast<Stored*>(shared.scratch);
  const int products = tiles.dim + tiles.vectors * (tiles.vectors - 1) / 2;
  for (int c = products + lane; c < args.output_columns; c += kWarpThreads) {
    line[c] = Math::Narrow(c == args.output_columns - 1 ? 1.0f : 0.0f);
  }
  __syncthreads();
  ring.Begin();
  for (int64_t sample = first; sample < tiles.batch_size; sample += step) {
    float c[kTiles][4] = {};
    for (int chunk = 0; chunk < plan.chunks; ++chunk) {
      const std::byte* const stage = ring.Next();
      const int bytes = tiles.ChunkColumns(chunk) * Math::kBytes;
      const std::byte* rows[kRowTiles];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        rows[m] = StageRow(tiles, shared, stage, kDotTile * m + RowOfTile()) + ByteOfTile();
      }
#pragma unroll 2
      for (int at = 0; at < bytes; at += kStepBytes) {
        uint32_t a[kRowTiles][4];
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          gpu::LoadMatrices(rows[m] + at, a[m]);
          Math::RoundFactors(a[m]);
        }
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
          for (int n = 0; n < 2 * (m + 1); ++n) {
            // Eight of the same 16 rows are a factor from the right as they are.
            Math::Mma(c[m * (m + 1) + n], a[m], a[n / 2][n % 2], a[n / 2][n % 2 + 2]);
          }
        }
      }
      auto* const copy =
          reinterpret_cast<uint4*>(shared.scratch + chunk * plan.chunk_columns * Math::kBytes);
      for (int i = lane; i < bytes / 16; i += kWarpThreads) {
        copy[i] = reinterpret_cast<const uint4*>(stage)[i];
      }
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < 2 * (m + 1); ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = kDotTile * m + lane / 4 + 8 * (e / 2);
          const int j = 8 * n + 2 * (lane % 4) + e % 2;
          if (j < i && i < tiles.vectors) {
            line[tiles.dim + i * (i - 1) / 2 + j] = Math::Narrow(c[m * (m + 1) + n][e]);
          }
        }
      }
    }
    __syncwarp();
    auto* const to = reinterpret_cast<uint4*>(args.output + sample * args.output_stride_bytes);
    const int quads = args.output_columns * Math::kBytes / 16;
    for (int i = lane; i < quads; i += kWarpThreads) {
      __stcs(to + i, reinterpret_cast<const uint4*>(line)[i]);
    }
    __syncwarp();
  }
}

// --- Backward: dx = g x, where g is the symmetric matrix of the gradients of pairs

// Bytes: e (2 F D + columns) a sample
template <DotPrecision kPrecision, int kRowTiles>
__global__ void __launch_bounds__(kDotWarpsMax* kWarpThreads, 1)
    DotTilesGradKernel(const __grid_constant__ BackwardArgs args) {
  using Math = TileMath<kPrecision>;
  using Stored = typename Math::Stored;
  constexpr int kColumnsOfStep = kStepBytes / Math::kBytes;
  constexpr int kSteps = kRowTiles * kDotTile / kColumnsOfStep;
  constexpr int kParts = 4 / Math::kBytes;  // of a register
  const TilesArgs& tiles = args.tiles;
  const DotPlan& plan = tiles.plan;
  const WarpShared shared(plan);
  const int lane = GroupLane();
  const int g = lane / 4;
  const int t = lane % 4;
  const int64_t first = GridGroup();
  const int64_t step = GridGroups();
  StageRing<BackwardPieces<Math::kBytes>> ring({args}, shared.stages, shared.barriers, first, step);
  // A tile of g, whose lower triangle `pairs` is: of the lane's row and column in the first one.
  // The diagonal, and what lies behind the vectors, is zero.
  const auto load_a = [&](const Stored* pairs, int row, int column, int m, int k, uint32_t(&a)[4]) {
    constexpr int kWidth = kColumnsOfStep / 2;  // of a register's 8 rows; kWidth <= 8
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int first_row = kDotTile * m + 8 * (r % 2);
      const int first_column = kColumnsOfStep * k + kWidth * (r / 2);
      const bool meets_diagonal = first_row / 8 == first_column / 8;
      a[r] = 0;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int i = first_row + row;
        const int j = first_column + column + part;
        const bool lower = meets_diagonal ? i > j : first_row > first_column;
        const bool in_last_tile = max(first_row, first_column) >= kDotTile * (kRowTiles - 1);
        const Stored* from = pairs + (lower ? i * (i - 1) / 2 + j : j * (j - 1) / 2 + i);
        if ((meets_diagonal && i == j) || (in_last_tile && (lower ? i : j) >= tiles.vectors)) {
          from = reinterpret_cast<const Stored*>(shared.zeros);
        }
        a[r] |= Math::Factor(*from) << (16 * part);
      }
    }
  };
  __syncthreads();
  ring.Begin();
  for (int64_t sample = first; sample < tiles.batch_size; sample += step) {
    uint32_t a[kRowTiles][kSteps][4];
    for (int chunk = 0; chunk < plan.chunks; ++chunk) {
      std::byte* const stage = ring.Next();
      const std::byte* const dense_gradient = stage + tiles.vectors * plan.pitch_bytes;
      if (chunk == 0) {
        const auto* pairs = reinterpret_cast<const Stored*>(dense_gradient + plan.pitch_bytes);
        // Or else the places of all pairs stay in registers from sample to sample.
        int row = g;
        int column = kParts * t;
        asm volatile("" : "+r"(row), "+r"(column));
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
          for (int k = 0; k < kSteps; ++k) load_a(pairs, row, column, m, k, a[m][k]);
        }
      }
      const std::byte* rows[kSteps][2];
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
#pragma unroll
        for (int which = 0; which < 2; ++which) {
          rows[k][which] =
              StageRow(tiles, shared, stage, k * kColumnsOfStep + Math::RowOfStep(which));
        }
      }
      const int columns = tiles.ChunkColumns(chunk);
      for (int column = 0; column < columns; column += kDotTile) {
        float c[kRowTiles][2][4] = {};
        if (g == 0) {
#pragma unroll
          for (int tile = 0; tile < 2; ++tile) {
            const float2 start =
                Math::LoadPair(dense_gradient + (column + 8 * tile + 2 * t) * Math::kBytes);
            c[0][tile][0] = start.x;
            c[0][tile][1] = start.y;
          }
        }
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          uint32_t b[2][2];
          Math::LoadB(rows[k], column, b);
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) {
            Math::Mma(c[m][0], a[m][k], b[0][0], b[0][1]);
            Math::Mma(c[m][1], a[m][k], b[1][0], b[1][1]);
          }
        }
        // Nobody reads these columns of the vectors again: the gradient takes their place.
        __syncwarp();
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int i = kDotTile * m + 8 * half + g;
            if (i >= tiles.vectors) continue;
#pragma unroll
            for (int tile = 0; tile < 2; ++tile) {
              Math::StorePair(
                  stage + i * plan.pitch_bytes + (column + 8 * tile + 2 * t) * Math::kBytes,
                  c[m][tile][2 * half], c[m][tile][2 * half + 1]);
            }
          }
        }
      }
      gpu::FenceAsyncCopies();
      __syncwarp();
      // Half a warp a vector, 16 bytes a lane.
      constexpr int kLanes = kDotChunkBytes / 16;
      const int half = lane / kLanes;
      const int at = lane % kLanes * 16;
      const int64_t to = chunk * plan.chunk_columns * Math::kBytes + at;
      std::byte* const dense = args.dense_gradient + sample * args.dense_gradient_stride_bytes + to;
      std::byte* const sparse =
          args.sparse_gradient + sample * args.sparse_gradient_stride_bytes + to;
      const int count = at < columns * Math::kBytes ? (tiles.vectors + 1 - half) / 2 : 0;
      ThreadMove<7>(
          count,
          [&](int n) {
            return *reinterpret_cast<const uint4*>(stage + (2 * n + half) * plan.pitch_bytes + at);
          },
          [&](int n, uint4 numbers) {
            const int i = 2 * n + half;
            std::byte* const row = i == 0 ? dense : sparse + (i - 1) * tiles.x.vector_bytes;
            __stcs(reinterpret_cast<uint4*>(row), numbers);
          });
    }
  }
}

// --- Launches

// fn(precision, tiles of 16 vectors), both as constants.
template <typename Fn>
absl::Status WithTiles(DotPrecision precision, int row_tiles, Fn&& fn) {
  const auto with = [&](auto constant) -> absl::Status {
    switch (row_tiles) {
      case 1:
        return fn(constant, std::integral_constant<int, 1>());
      case 2:
        return fn(constant, std::integral_constant<int, 2>());
      case 3:
        return fn(constant, std::integral_constant<int, 3>());
      default:
        return fn(constant, std::integral_constant<int, 4>());
    }
  };
  switch (precision) {
    case DotPrecision::kBf16:
      return with(std::integral_constant<DotPrecision, DotPrecision::kBf16>());
    case DotPrecision::kFp16:
      return with(std::integral_constant<DotPrecision, DotPrecision::kFp16>());
    default:
      return with(std::integral_constant<DotPrecision, DotPrecision::kTf32>());
  }
}

}  // namespace

absl::StatusOr<bool> PaddedDotOnTiles(CudaStream stream, const PaddedDotArgs& args) {
  if (args.precision == DotPrecision::kFp32) return false;
  HOTROW_ASSIGN_OR_RETURN(const int64_t shared_bytes_max, SharedBytesMax());
  DotPlan plan;
  if (!PlanDot(args.precision, args.num_sparse, args.dim, false, shared_bytes_max, &plan) ||
      !VectorsAreAligned(args) ||
      !DotRowsAreAligned(args.output, args.output_stride, args.precision)) {
    return false;
  }
  const ForwardArgs kernel_args = {
      .tiles = MakeTilesArgs(args, plan),
      .output = static_cast<std::byte*>(args.output),
      .output_stride_bytes = args.output_stride * DotElementBytes(args.precision),
      .output_columns = static_cast<int32_t>(PaddedDotColumns(args.num_sparse, args.dim))};
  HOTROW_RETURN_IF_ERROR(
      WithTiles(args.precision, plan.row_tiles, [&](auto precision, auto row_tiles) {
        return Launch("PaddedDot", stream,
                      &DotTilesKernel<decltype(precision)::value, decltype(row_tiles)::value>,
                      kernel_args);
      }));
  return true;
}

absl::StatusOr<bool> PaddedDotGradOnTiles(CudaStream stream, const PaddedDotGradArgs& args) {
  const PaddedDotArgs& forward = args.forward;
  if (forward.precision == DotPrecision::kFp32) return false;
  HOTROW_ASSIGN_OR_RETURN(const int64_t shared_bytes_max, SharedBytesMax());
  DotPlan plan;
  const bool takes =
      PlanDot(forward.precision, forward.num_sparse, forward.dim, true, shared_bytes_max, &plan) &&
      VectorsAreAligned(forward) && GradientsAreAligned(args) &&
      DotRowsAreAligned(args.output_gradient, forward.output_stride, forward.precision);
  if (!takes) return false;
  const int64_t bytes = DotElementBytes(forward.precision);
  const BackwardArgs kernel_args = {
      .tiles = MakeTilesArgs(forward, plan),
      .output_gradient = static_cast<const std::byte*>(args.output_gradient),
      .output_stride_bytes = forward.output_stride * bytes,
      .dense_gradient = static_cast<std::byte*>(args.dense_gradient),
      .dense_gradient_stride_bytes = args.dense_gradient_stride * bytes,
      .sparse_gradient = static_cast<std::byte*>(args.sparse_gradient),
      .sparse_gradient_stride_bytes = args.sparse_gradient_stride * bytes};
  HOTROW_RETURN_IF_ERROR(
      WithTiles(forward.precision, plan.row_tiles, [&](auto precision, auto row_tiles) {
        return Launch("PaddedDotGrad", stream,
                      &DotTilesGradKernel<decltype(precision)::value, decltype(row_tiles)::value>,
                      kernel_args);
      }));
  return true;
}

}  // namespace hotrow::internal
