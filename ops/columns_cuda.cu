#include "ops/columns_impl.h"
#include "ops/launch_impl.cuh"

// Bound by the memory: each number is read once and written once.
namespace hotrow::internal {
namespace {

using Kind = MoveColumnsArgs::Kind;

// kLanes threads a row. Of narrow rows a thread takes a whole one: most of a warp would have
// nothing to do, and the threads of a warp read rows that lie together.
template <Kind kKind, int kLanes>
__global__ void __launch_bounds__(kThreadsPerBlock) MoveColumnsKernel(MoveColumnsArgs args) {
  for (int64_t r = GridGroup<kLanes>(); r < args.batch_size; r += GridGroups<kLanes>()) {
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
}

// A thread a row, so in the CPU's order. What a warp reads of its rows at a time is far apart, but
// the sectors are used up by the columns that follow.
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

template <Kind kKind>
absl::Status Launch(CudaStream stream, const MoveColumnsArgs& args) {
  constexpr int32_t kNarrow = 8;  // a sector
  if (args.width <= kNarrow) {
    MoveColumnsKernel<kKind, 1>
        <<<GridBlocks(args.batch_size, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(args);
  } else {
    MoveColumnsKernel<kKind, kWarpThreads>
        <<<GridBlocks(args.batch_size, kThreadsPerBlock / kWarpThreads), kThreadsPerBlock, 0,
           stream>>>(args);
  }
  return LastLaunch("MoveColumns");
}

}  // namespace

absl::Status MoveColumnsCuda(CudaStream stream, const MoveColumnsArgs& args) {
  switch (args.kind) {
    case Kind::kCopy:
      return Launch<Kind::kCopy>(stream, args);
    case Kind::kAdd:
      return Launch<Kind::kAdd>(stream, args);
    case Kind::kSpread:
      return Launch<Kind::kSpread>(stream, args);
    case Kind::kZero:
      break;
  }
  return Launch<Kind::kZero>(stream, args);
}

absl::Status SumColumnsCuda(CudaStream stream, const SumColumnsArgs& args) {
  SumColumnsKernel<<<GridBlocks(args.batch_size, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(
      args);
  return LastLaunch("SumColumns");
}

}  // namespace hotrow::internal
