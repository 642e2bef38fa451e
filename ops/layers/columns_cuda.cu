#include "ops/layers/columns_impl.h"

#include <algorithm>

#include "base/status_macros.h"
#include "ops/launch_impl.cuh"

// Bound by the memory: each number is read once and written once.
namespace hotrow::internal {
namespace {

using Kind = MoveColumnsArgs::Kind;

// The moves of one launch; a parameter of a kernel.
struct MoveTable {
  static constexpr int kMax = 16;
  MoveColumnsArgs moves[kMax];
  int size = 0;
};

template <Kind kKind, int kLanes>
__device__ void MoveRow(const MoveColumnsArgs& args, int64_t r) {
  const float* const from = args.from.data + r * args.from.row_stride;
  float* const to = args.to.data + r * args.to.row_stride;
  GroupMove<kLanes>(
      GroupLane<kLanes>(), args.width,
      [&](int64_t i) {
        if constexpr (kKind == Kind::kZero) return 0.0f;
        if constexpr (kKind == Kind::kSpread) return from[0];
        if constexpr (kKind == Kind::kCopy) return from[args.from.Offset(i)];
        if constexpr (kKind == Kind::kAdd) {
          return to[args.to.Offset(i)] + from[args.from.Offset(i)];
        }
      },
      [&](int64_t i, float value) { to[args.to.Offset(i)] = value; });
}

// kLanes threads a row, which do all moves of it one after the other. A thread takes a whole narrow
// row: most of a warp would have nothing to do, and the threads of a warp read rows that lie
// together.
// Bytes: a sample, for each column 8 copied, 12 added, 4 spread or zero
template <int kLanes>
__global__ void __launch_bounds__(kThreadsPerBlock) MoveColumnsKernel(MoveTable table) {
  const int64_t rows = table.moves[0].batch_size;
  for (int64_t r = GridGroup<kLanes>(); r < rows; r += GridGroups<kLanes>()) {
    for (int m = 0; m < table.size; ++m) {
      const MoveColumnsArgs& args = table.moves[m];
      switch (args.kind) {
        case Kind::kCopy:
          MoveRow<Kind::kCopy, kLanes>(args, r);
          break;
        case Kind::kAdd:
          MoveRow<Kind::kAdd, kLanes>(args, r);
          break;
        case Kind::kSpread:
          MoveRow<Kind::kSpread, kLanes>(args, r);
          break;
        case Kind::kZero:
          MoveRow<Kind::kZero, kLanes>(args, r);
      }
      // The next move may read what another lane has written.
      if constexpr (kLanes > 1) __syncwarp();
    }
  }
}

// A thread a row, so in the CPU's order. What a warp reads of its rows at a time is far apart, but
// the sectors are used up by the columns that follow.
// Bytes: 4 (W + 1) a sample, in whole sectors
__global__ void __launch_bounds__(kThreadsPerBlock) SumColumnsKernel(SumColumnsArgs args) {
  for (int64_t r = GridThread(); r < args.batch_size; r += GridThreads()) {
    const float* const row = args.x.data + r * args.x.row_stride;
    float sum = 0;
    for (int64_t c = 0; c < args.width; c += args.x.dim) {
      const float* const field = row + args.x.Offset(c);
      const int64_t n = min(int64_t{args.x.dim}, args.width - c);
#pragma unroll 4
      for (int64_t i = 0; i < n; ++i) sum += field[i];
    }
    args.output[r * args.output_stride] = sum;
  }
}

}  // namespace

absl::Status MoveColumnsCuda(CudaStream stream, std::span<const MoveColumnsArgs> moves) {
  constexpr int32_t kNarrow = 8;  // a sector
  const int64_t rows = moves[0].batch_size;
  while (!moves.empty()) {
    MoveTable table;
    table.size = static_cast<int>(std::min<size_t>(moves.size(), MoveTable::kMax));
    int32_t widest = 0;
    for (int m = 0; m < table.size; ++m) {
      table.moves[m] = moves[static_cast<size_t>(m)];
      widest = std::max(widest, table.moves[m].width);
    }
    if (widest <= kNarrow) {
      MoveColumnsKernel<1>
          <<<GridBlocks(rows, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(table);
    } else {
      MoveColumnsKernel<kWarpThreads>
          <<<GridBlocks(rows, kThreadsPerBlock / kWarpThreads), kThreadsPerBlock, 0, stream>>>(
              table);
    }
    HOTROW_RETURN_IF_ERROR(LastLaunch("MoveColumns"));
    moves = moves.subspan(static_cast<size_t>(table.size));
  }
  return absl::OkStatus();
}

absl::Status SumColumnsCuda(CudaStream stream, const SumColumnsArgs& args) {
  SumColumnsKernel<<<GridBlocks(args.batch_size, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(
      args);
  return LastLaunch("SumColumns");
}

}  // namespace hotrow::internal
