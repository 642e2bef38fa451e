#ifndef HOTROW_OPS_INTERACTIONS_PADDED_DOT_RING_IMPL_CUH_
#define HOTROW_OPS_INTERACTIONS_PADDED_DOT_RING_IMPL_CUH_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/hopper.cuh"
#include "base/status_macros.h"
#include "ops/interactions/padded_dot_cuda_impl.h"
#include "ops/launch_impl.cuh"

// What the kernels of dot products share: a warp has a sample, whose vectors go through a ring of
// stages in shared memory. docs/gpu_dense.md says how data lies and what bounds it.
namespace hotrow::internal {

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
// Bytes that lie together on both sides: from device memory to `at` in the stage.
struct Piece {
  const std::byte* from;
  int32_t at;
  int32_t bytes;
};

// What a chunk is made of: of each vector its columns. kBytes: of a number.
template <int kBytes>
struct VectorPieces {
  const TilesArgs& args;

  __device__ const TilesArgs& tiles() const { return args; }
  __device__ int Count(int) const { return args.vectors; }
  __device__ int Bytes(int chunk) const { return args.vectors * args.ChunkColumns(chunk) * kBytes; }
  __device__ Piece At(int64_t sample, int chunk, int i) const {
    const TilesArgs& t = args;
    return {t.x.Of(sample, i) + chunk * t.plan.chunk_columns * kBytes, i * t.plan.pitch_bytes,
            t.ChunkColumns(chunk) * kBytes};
  }
};
// A warp's chunks in their order (sample after sample, of each plan.rounds times all), each in its
// own stage, which is filled while those before it are worked on. All lanes call everything.
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

  // The stage of the next chunk, which is there. The stage that the call before gave is done with:
  // lanes have what they read of it in registers, and FenceAsyncCopies behind what they wrote.
  __device__ std::byte* Next() {
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
        if (++ahead_round_ == plan().rounds) {
          ahead_round_ = 0;
          ahead_sample_ += sample_step_;
        }
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
  int ahead_round_ = 0;
  int ahead_stage_ = 0;
  int stage_ = 0;  // the next one to be given
  uint32_t parity_ = 0;
};

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
__device__ inline const std::byte* StageRow(const TilesArgs& tiles, const WarpShared& shared,
                                            const std::byte* stage, int i) {
  return i < tiles.vectors ? stage + i * tiles.plan.pitch_bytes : shared.zeros;
}

// --- Launches

inline absl::StatusOr<int64_t> SharedBytesMax() {
  int device = 0;
  int bytes = 0;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  HOTROW_CUDA_RETURN_IF_ERROR(
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return bytes;
}

// Whether vectors can be copied by 16 bytes, and gradients of vectors stored so.
inline bool VectorsAreAligned(const PaddedDotArgs& args) {
  return DotRowsAreAligned(args.dense, args.dense_stride, args.precision) &&
         (args.num_sparse == 0 || args.sparse_rows != nullptr ||
          DotRowsAreAligned(args.sparse, args.sparse_stride, args.precision));
}
inline bool GradientsAreAligned(const PaddedDotGradArgs& args) {
  const DotPrecision precision = args.forward.precision;
  return DotRowsAreAligned(args.dense_gradient, args.dense_gradient_stride, precision) &&
         (args.forward.num_sparse == 0 ||
          DotRowsAreAligned(args.sparse_gradient, args.sparse_gradient_stride, precision));
}

inline TilesArgs MakeTilesArgs(const PaddedDotArgs& args, const DotPlan& plan) {
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

// Launches as many blocks as run at a time, or fewer where the batch has no more samples.
template <typename Args>
absl::Status Launch(const char* op, CudaStream stream, void (*kernel)(Args),
                    const std::type_identity_t<Args>& args) {
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

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_INTERACTIONS_PADDED_DOT_RING_IMPL_CUH_
