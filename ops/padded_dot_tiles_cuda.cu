#include <algorithm>

#include "base/hopper.cuh"
#include "base/status_macros.h"
#include "ops/launch_impl.cuh"
#include "ops/padded_dot_cuda_impl.h"

// PaddedDot on tensor cores: a warp a sample, vectors in tiles of 16. Copies of the next samples
// are under way while one is multiplied; blocks stay and walk over the batch. docs/gpu_dense.md
// says how data lies and what bounds it.
namespace hotrow::internal {
namespace {

// --- What a warp reads ahead

// Where the vectors of a sample lie.
struct SampleVectors {
  const std::byte* dense;
  int64_t dense_stride_bytes;
  const std::byte* sparse;
  int64_t sparse_stride_bytes;
  const void* const* rows;  // [batch, num_sparse], or null
  int32_t num_sparse;
  int32_t vector_bytes;

  __device__ const std::byte* Of(int64_t sample, int i) const {
    if (i == 0) return dense + sample * dense_stride_bytes;
    if (rows != nullptr) {
      return static_cast<const std::byte*>(rows[sample * num_sparse + i - 1]);
    }
    return sparse + sample * sparse_stride_bytes + int64_t{i - 1} * vector_bytes;
  }
};

struct TilesArgs {
  SampleVectors x;
  int64_t batch_size;
  int32_t vectors;
  int32_t dim;
  DotPlan plan;

  __device__ int ChunkColumns(int chunk) const {
    return min(plan.chunk_columns, dim - chunk * plan.chunk_columns);
  }
};
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

// Bytes that lie together on both sides: from device memory to `at` in the stage.
struct Piece {
  const std::byte* from;
  int32_t at;
  int32_t bytes;
};

// What a chunk is made of, for either direction.
template <int kBytes>
struct ForwardPieces {
  const ForwardArgs& args;

  __device__ const TilesArgs& tiles() const { return args.tiles; }
  __device__ int Count(int) const { return args.tiles.vectors; }
  __device__ int Bytes(int chunk) const {
    return args.tiles.vectors * args.tiles.ChunkColumns(chunk) * kBytes;
  }
  __device__ Piece At(int64_t sample, int chunk, int i) const {
    const TilesArgs& t = args.tiles;
    return {t.x.Of(sample, i) + chunk * t.plan.chunk_columns * kBytes, i * t.plan.pitch_bytes,
            t.ChunkColumns(chunk) * kBytes};
  }
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

// A warp's chunks in their order (sample after sample), each in a stage of its own that is filled
// while those before it are worked on. All lanes call everything.
template <typename Pieces>
class StageRing {
 public:
  // stages: plan.stages of plan.stage_bytes; barriers: one for each. The block meets between this
  // and Begin.
  __device__ StageRing(const Pieces& pieces, std::byte* stages, gpu::CopyBarrier* barriers,
                       int64_t first_sample, int64_t sample_step)
      : pieces_(pieces),
        stages_(stages),
        barriers_(barriers),
        sample_step_(sample_step),
        ahead_sample_(first_sample) {
    if (gpu::HasBulkCopies() && GroupLane() == 0) {
      for (int i = 0; i < plan().stages; ++i) gpu::InitCopyBarrier(barriers + i, 1);
      gpu::FenceAsyncCopies();
    }
  }

  __device__ void Begin() {
    for (int i = 1; i < plan().stages; ++i) FillAhead();
  }

  // The stage of the next chunk, which is there. The stage that the call before gave is done with.
  __device__ std::byte* Next() {
    gpu::FenceAsyncCopies();
    __syncwarp();
    FillAhead();
    if (gpu::HasBulkCopies()) {
      gpu::WaitForPhase(barriers_ + stage_, parity_);
    } else {
      if (plan().stages == kDotStagesMax) {
        gpu::WaitForCopies<kDotStagesMax - 1>();
      } else {
        gpu::WaitForCopies<1>();
      }
      __syncwarp();  // each lane waited for what it copied itself
    }
    std::byte* const stage = stages_ + stage_ * plan().stage_bytes;
    if (++stage_ == plan().stages) {
      stage_ = 0;
      parity_ ^= 1;
    }
    return stage;
  }

 private:
  __device__ const DotPlan& plan() const { return pieces_.tiles().plan; }

  __device__ void FillAhead() {
    const bool some = ahead_sample_ < pieces_.tiles().batch_size;
    if (some) {
      std::byte* const stage = stages_ + ahead_stage_ * plan().stage_bytes;
      if (gpu::HasBulkCopies()) {
        FillByBulk(stage, barriers_ + ahead_stage_);
      } else {
        FillByLanes(stage);
      }
      if (++ahead_stage_ == plan().stages) ahead_stage_ = 0;
      if (++ahead_chunk_ == plan().chunks) {
        ahead_chunk_ = 0;
        ahead_sample_ += sample_step_;
      }
    }
    if (!gpu::HasBulkCopies()) gpu::CommitCopies();  // groups are counted, empty ones too
  }

  __device__ void FillByBulk(std::byte* stage, gpu::CopyBarrier* barrier) {
    const int lane = GroupLane();
    const int count = pieces_.Count(ahead_chunk_);
    if (lane == 0)
      gpu::ArriveAndExpect(barrier, static_cast<uint32_t>(pieces_.Bytes(ahead_chunk_)));
    for (int i = lane; i < count; i += kWarpThreads) {
      const Piece piece = pieces_.At(ahead_sample_, ahead_chunk_, i);
      gpu::BulkCopy(stage + piece.at, piece.from, static_cast<uint32_t>(piece.bytes), barrier);
    }
  }

  // Half a warp a piece: 16 lanes of 16 bytes are as much as a chunk has of a vector.
  __device__ void FillByLanes(std::byte* stage) {
    constexpr int kLanes = kDotChunkBytes / 16;
    const int lane = GroupLane();
    const int count = pieces_.Count(ahead_chunk_);
    for (int i = lane / kLanes; i < count; i += kWarpThreads / kLanes) {
      const Piece piece = pieces_.At(ahead_sample_, ahead_chunk_, i);
      for (int at = lane % kLanes * 16; at < piece.bytes; at += kDotChunkBytes) {
        gpu::CopyAsync16(stage + piece.at + at, piece.from + at);
      }
    }
  }

  const Pieces pieces_;
  std::byte* const stages_;
  gpu::CopyBarrier* const barriers_;
  const int64_t sample_step_;
  int64_t ahead_sample_;  // the next chunk to be asked for
  int ahead_chunk_ = 0;
  int ahead_stage_ = 0;
  int stage_ = 0;  // the next one to be given
  uint32_t parity_ = 0;
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
  __device__ static uint16_t Factor(uint16_t x) { return x; }
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
  __device__ static float Factor(float x) { return __uint_as_float(gpu::RoundToTf32(x)); }
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

// A warp's part of the block's shared memory (padded_dot_impl.h has the layout).
struct WarpShared {
  const std::byte* zeros;
  gpu::CopyBarrier* barriers;
  std::byte* scratch;
  std::byte* stages;

  __device__ explicit WarpShared(const DotPlan& plan) {
    std::byte* const shared = gpu::DynamicShared();
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
    zeros = shared;
    barriers = reinterpret_cast<gpu::CopyBarrier*>(shared + kDotBarriersAt) + warp * kDotStagesMax;
    scratch = shared + kDotWarpsAt + warp * (plan.scratch_bytes + plan.stages * plan.stage_bytes);
    stages = scratch + plan.scratch_bytes;
    for (int i = static_cast<int>(threadIdx.x); i < kDotChunkBytes / 16;
         i += static_cast<int>(blockDim.x)) {
      reinterpret_cast<uint4*>(shared)[i] = make_uint4(0, 0, 0, 0);
    }
  }
};

// Vector i of a stage, or zeros behind the last.
__device__ const std::byte* StageRow(const TilesArgs& tiles, const WarpShared& shared,
                                     const std::byte* stage, int i) {
  return i < tiles.vectors ? stage + i * tiles.plan.pitch_bytes : shared.zeros;
}

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
  StageRing<ForwardPieces<Math::kBytes>> ring({args}, shared.stages, shared.barriers, first, step);
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
  // Where all of g fits in registers it is loaded once a sample.
  constexpr bool kKeep = kRowTiles * kSteps * 4 <= 64;
  const TilesArgs& tiles = args.tiles;
  const DotPlan& plan = tiles.plan;
  const WarpShared shared(plan);
  const int lane = GroupLane();
  const int g = lane / 4;
  const int t = lane % 4;
  const int64_t first = GridGroup();
  const int64_t step = GridGroups();
  StageRing<BackwardPieces<Math::kBytes>> ring({args}, shared.stages, shared.barriers, first, step);
  // The diagonal, and what lies behind the vectors, stay zero.
  for (int i = lane; i < plan.scratch_bytes / 16; i += kWarpThreads) {
    reinterpret_cast<uint4*>(shared.scratch)[i] = make_uint4(0, 0, 0, 0);
  }
  const auto pair_at = [&](int i, int j) {
    return reinterpret_cast<Stored*>(shared.scratch + i * plan.scratch_pitch_bytes) + j;
  };
  const std::byte* const tile_row =
      shared.scratch + RowOfTile() * plan.scratch_pitch_bytes + ByteOfTile();
  const auto load_a = [&](int m, int k, uint32_t(&a)[4]) {
    gpu::LoadMatrices(tile_row + m * kDotTile * plan.scratch_pitch_bytes + k * kStepBytes, a);
  };
  __syncthreads();
  ring.Begin();
  for (int64_t sample = first; sample < tiles.batch_size; sample += step) {
    uint32_t kept[kKeep ? kRowTiles : 1][kKeep ? kSteps : 1][4];
    for (int chunk = 0; chunk < plan.chunks; ++chunk) {
      std::byte* const stage = ring.Next();
      const std::byte* const dense_gradient = stage + tiles.vectors * plan.pitch_bytes;
      if (chunk == 0) {
        const auto* pairs = reinterpret_cast<const Stored*>(dense_gradient + plan.pitch_bytes);
        for (int i = 1; i < tiles.vectors; ++i) {
          for (int j = lane; j < i; j += kWarpThreads) {
            *pair_at(i, j) = *pair_at(j, i) = Math::Factor(pairs[j]);
          }
          pairs += i;
        }
        __syncwarp();
        if constexpr (kKeep) {
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
            for (int k = 0; k < kSteps; ++k) load_a(m, k, kept[m][k]);
          }
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
            uint32_t loaded[4];
            if constexpr (!kKeep) load_a(m, k, loaded);
            const auto& a = kKeep ? kept[kKeep ? m : 0][kKeep ? k : 0] : loaded;
            Math::Mma(c[m][0], a, b[0][0], b[0][1]);
            Math::Mma(c[m][1], a, b[1][0], b[1][1]);
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
      __syncwarp();
      // Half a warp a vector, 16 bytes a lane.
      constexpr int kLanes = kDotChunkBytes / 16;
      const int begin_byte = chunk * plan.chunk_columns * Math::kBytes;
      const int at = lane % kLanes * 16;
      if (at < columns * Math::kBytes) {
        for (int i = lane / kLanes; i < tiles.vectors; i += kWarpThreads / kLanes) {
          std::byte* const row =
              i == 0 ? args.dense_gradient + sample * args.dense_gradient_stride_bytes
                     : args.sparse_gradient + sample * args.sparse_gradient_stride_bytes +
                           int64_t{i - 1} * tiles.x.vector_bytes;
          __stcs(reinterpret_cast<uint4*>(row + begin_byte + at),
                 *reinterpret_cast<const uint4*>(stage + i * plan.pitch_bytes + at));
        }
      }
    }
  }
}

// --- Launches

absl::StatusOr<int64_t> SharedBytesMax() {
  int device = 0;
  int bytes = 0;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  HOTROW_CUDA_RETURN_IF_ERROR(
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return bytes;
}

bool ForwardIsAligned(const PaddedDotArgs& args, const void* output) {
  return DotRowsAreAligned(args.dense, args.dense_stride, args.precision) &&
         (args.num_sparse == 0 || args.sparse_rows != nullptr ||
          DotRowsAreAligned(args.sparse, args.sparse_stride, args.precision)) &&
         DotRowsAreAligned(output, args.output_stride, args.precision);
}

TilesArgs MakeTilesArgs(const PaddedDotArgs& args, const DotPlan& plan) {
  const int64_t bytes = DotElementBytes(args.precision);
  return {.x = {.dense = static_cast<const std::byte*>(args.dense),
                .dense_stride_bytes = args.dense_stride * bytes,
                .sparse = static_cast<const std::byte*>(args.sparse),
                .sparse_stride_bytes = args.sparse_stride * bytes,
                .rows = args.sparse_rows,
                .num_sparse = args.num_sparse,
                .vector_bytes = static_cast<int32_t>(args.dim * bytes)},
          .batch_size = args.batch_size,
          .vectors = args.num_sparse + 1,
          .dim = args.dim,
          .plan = plan};
}

// As many blocks as run at a time, or fewer where the batch has no more samples.
template <typename Args>
absl::Status Launch(const char* op, CudaStream stream, void (*kernel)(Args), const Args& args) {
  const DotPlan& plan = args.tiles.plan;
  const int threads = plan.warps * kWarpThreads;
  HOTROW_CUDA_RETURN_IF_ERROR(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes));
  int device = 0;
  int processors = 0;
  int blocks_of_one = 0;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  HOTROW_CUDA_RETURN_IF_ERROR(
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  HOTROW_CUDA_RETURN_IF_ERROR(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks_of_one, kernel, threads, static_cast<size_t>(plan.shared_bytes)));
  const int64_t blocks = std::min<int64_t>(CeilDiv(args.tiles.batch_size, plan.warps),
                                           int64_t{processors} * std::max(blocks_of_one, 1));
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads),
           static_cast<size_t>(plan.shared_bytes), stream>>>(args);
  return LastLaunch(op);
}

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
  HOTROW_ASSIGN_OR_RETURN(const int64_t shared_bytes_max, SharedBytesMax());
  DotPlan plan;
  if (!PlanDot(args.precision, args.num_sparse, args.dim, false, shared_bytes_max, &plan) ||
      !ForwardIsAligned(args, args.output)) {
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
  HOTROW_ASSIGN_OR_RETURN(const int64_t shared_bytes_max, SharedBytesMax());
  DotPlan plan;
  const bool takes =
      PlanDot(forward.precision, forward.num_sparse, forward.dim, true, shared_bytes_max, &plan) &&
      ForwardIsAligned(forward, args.output_gradient) &&
      DotRowsAreAligned(args.dense_gradient, args.dense_gradient_stride, forward.precision) &&
      (forward.num_sparse == 0 ||
       DotRowsAreAligned(args.sparse_gradient, args.sparse_gradient_stride, forward.precision));
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
