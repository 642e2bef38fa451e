#ifndef HOTROW_OPS_INTERACTIONS_PADDED_DOT_IMPL_H_
#define HOTROW_OPS_INTERACTIONS_PADDED_DOT_IMPL_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/macros.h"
#include "base/math.h"
#include "base/thread_pool.h"
#include "ops/half_impl.h"
#include "ops/interactions/dot_interaction_impl.h"
#include "ops/interactions/padded_dot.h"

namespace hotrow::internal {

absl::Status PaddedDotCpu(ThreadPool* pool, const PaddedDotArgs& args);
absl::Status PaddedDotGradCpu(ThreadPool* pool, const PaddedDotGradArgs& args);
absl::Status PaddedDotCuda(CudaStream stream, const PaddedDotArgs& args);
absl::Status PaddedDotGradCuda(CudaStream stream, const PaddedDotGradArgs& args);

// Rows of matrices that cublasLt multiplies with 16-byte loads, in any type of numbers.
constexpr int64_t kDotPadding = 16;

// --- One number, as it is kept and as it is multiplied

// Beyond the largest number: infinity, which is what a loss scale looks for. (ToHalf, for rows,
// stays at the largest.)
HOTROW_HOST_DEVICE inline uint16_t RoundToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & ~kSignMask;
  if (magnitude > kInfinity) return 0x7fff;
  constexpr uint32_t kHalfStepAboveMax = kBf16Max + (kBf16CutMask >> 1) + 1;
  if (magnitude >= kHalfStepAboveMax) return static_cast<uint16_t>((bits >> 16 & 0x8000) | 0x7f80);
  return ToBf16<false>(x, 0);
}
HOTROW_HOST_DEVICE inline uint16_t RoundToFp16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & ~kSignMask;
  if (magnitude > kInfinity) return 0x7fff;
  constexpr uint32_t kHalfStepAboveMax = kFp16Max + (kFp16CutMask >> 1) + 1;
  if (magnitude >= kHalfStepAboveMax) return static_cast<uint16_t>((bits >> 16 & 0x8000) | 0x7c00);
  return ToFp16<false>(x, 0);
}
// Rounds to ten bits of fraction, ties away from zero.
HOTROW_HOST_DEVICE inline float RoundedToTf32(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & ~kSignMask) > kInfinity) return x;
  return std::bit_cast<float>((bits + 0x1000u) & 0xffffe000u);
}

template <DotPrecision kPrecision>
struct DotElement {
  static_assert(kPrecision == DotPrecision::kFp32 || kPrecision == DotPrecision::kTf32);
  using Stored = float;
  HOTROW_HOST_DEVICE static float Widen(float x) { return x; }
  HOTROW_HOST_DEVICE static float Factor(float x) {
    return kPrecision == DotPrecision::kTf32 ? RoundedToTf32(x) : x;
  }
  HOTROW_HOST_DEVICE static float Narrow(float x) { return x; }
};
template <>
struct DotElement<DotPrecision::kBf16> {
  using Stored = uint16_t;
  HOTROW_HOST_DEVICE static float Widen(uint16_t x) { return FromBf16(x); }
  HOTROW_HOST_DEVICE static float Factor(uint16_t x) { return FromBf16(x); }
  HOTROW_HOST_DEVICE static uint16_t Narrow(float x) { return RoundToBf16(x); }
};
template <>
struct DotElement<DotPrecision::kFp16> {
  using Stored = uint16_t;
  HOTROW_HOST_DEVICE static float Widen(uint16_t x) { return FromFp16(x); }
  HOTROW_HOST_DEVICE static float Factor(uint16_t x) { return FromFp16(x); }
  HOTROW_HOST_DEVICE static uint16_t Narrow(float x) { return RoundToFp16(x); }
};

// fn(precision as a constant).
template <typename Fn>
auto WithDotPrecision(DotPrecision precision, Fn&& fn) {
  switch (precision) {
    case DotPrecision::kTf32:
      return fn(std::integral_constant<DotPrecision, DotPrecision::kTf32>());
    case DotPrecision::kBf16:
      return fn(std::integral_constant<DotPrecision, DotPrecision::kBf16>());
    case DotPrecision::kFp16:
      return fn(std::integral_constant<DotPrecision, DotPrecision::kFp16>());
    case DotPrecision::kFp32:
      break;
  }
  return fn(std::integral_constant<DotPrecision, DotPrecision::kFp32>());
}

// --- How the kernels share a processor (docs/gpu_dense.md has the budget)

// A warp takes a sample, a chunk of its columns at a time. Chunks go through a ring of stages in
// shared memory: while one is multiplied, the next are on their way.
struct DotPlan {
  int32_t row_tiles = 0;      // of 16 vectors
  int32_t rounds = 1;         // over a sample's chunks; more than one only in fp32, forward
  int32_t chunk_columns = 0;  // multiple of 16; the last chunk of a sample may be shorter
  int32_t chunks = 0;         // of a sample
  int32_t warps = 0;          // of a block
  int32_t stages = 0;         // of a warp, 2 or 3
  int32_t pitch_bytes = 0;    // from vector to vector in a stage
  int32_t stage_bytes = 0;
  int32_t scratch_bytes = 0;  // of a warp: an output row; backward, in fp32, the matrix of pairs
  int32_t scratch_pitch_bytes = 0;  // from row to row of the matrix
  int32_t shared_bytes = 0;         // of a block
};

constexpr int32_t kDotTile = 16;        // vectors, and columns, of a tile
constexpr int32_t kDotVectorsMax = 64;  // four tiles, whose sums fit in a warp's registers
constexpr int32_t kDotDimMax = 512;
constexpr int32_t kDotChunkBytes = 256;  // of a vector; also the bytes of zeros beside the stages
constexpr int32_t kDotWarpsMax = 4;
constexpr int32_t kDotStagesMax = 3;

// In fp32, forward: two threads have tiles of 4 x 4 pairs, so many in a round, of which a warp has
// so many threads twice. Backward: a thread has two columns of so many vectors.
constexpr int32_t kDotPairTile = 4;
constexpr int32_t kDotPairTiles = 2;
constexpr int32_t kDotPairItems = 16;
constexpr int32_t kDotGradVectors = 28;
HOTROW_HOST_DEVICE constexpr int32_t DotGroups(int32_t vectors) {
  return (vectors + kDotPairTile - 1) / kDotPairTile;
}
// Those of groups that a quarter of a warp has at a time are never from both ends.
HOTROW_HOST_DEVICE constexpr int32_t DotGroupSlots(int32_t groups) { return (groups + 3) / 4 * 4; }

// Bytes from the beginning of a block's shared memory: zeros, which stand for the vectors that a
// tile lacks; barriers of the stages; then scratch and stages of each warp.
constexpr int32_t kDotBarriersAt = kDotChunkBytes;
constexpr int32_t kDotWarpsAt =
    kDotBarriersAt + RoundUp(kDotWarpsMax * kDotStagesMax * sizeof(uint64_t), 16);

// False where the shape is none for these kernels, or shared_bytes_max (of a block) has no room for
// one warp.
inline bool PlanDot(DotPrecision precision, int32_t num_sparse, int32_t dim, bool backward,
                    int64_t shared_bytes_max, DotPlan* plan) {
  const int64_t vectors = int64_t{num_sparse} + 1;
  if (vectors > kDotVectorsMax || dim > kDotDimMax || dim % kDotTile != 0) return false;
  const bool fp32 = precision == DotPrecision::kFp32;
  const auto bytes = static_cast<int32_t>(DotElementBytes(precision));
  const auto f = static_cast<int32_t>(vectors);
  *plan = {};
  plan->row_tiles = (f + kDotTile - 1) / kDotTile;
  const int32_t tiles = dim / kDotTile;
  const int32_t chunk_tiles_max = kDotChunkBytes / bytes / kDotTile;
  plan->chunks = (tiles + chunk_tiles_max - 1) / chunk_tiles_max;
  plan->chunk_columns = (tiles + plan->chunks - 1) / plan->chunks * kDotTile;
  // Equal chunks may need one less than there were to be.
  plan->chunks = (dim + plan->chunk_columns - 1) / plan->chunk_columns;
  // Rows that the lanes of a warp read at a time lie in different banks: 16 bytes, times an odd
  // number, from each other for ldmatrix; 32 where columns of four bytes are read one by one, or
  // by two lanes 16 bytes of each of four rows.
  const int32_t skew = fp32 || (backward && bytes == 4) ? 32 : 16;
  plan->pitch_bytes = plan->chunk_columns * bytes + skew;
  const auto products = static_cast<int32_t>(PaddedDotProducts(num_sparse, dim));
  plan->stage_bytes = f * plan->pitch_bytes;
  if (backward && fp32) {
    plan->scratch_pitch_bytes =
        static_cast<int32_t>(RoundUp(f, kDotGradVectors)) * static_cast<int32_t>(sizeof(float));
    plan->scratch_bytes = f * plan->scratch_pitch_bytes;
  } else if (backward) {
    // The vectors, the gradient of the dense one's copy, and those of the pairs.
    const auto pair_bytes = static_cast<int32_t>(RoundUp((products - dim) * bytes, 16));
    plan->stage_bytes += plan->pitch_bytes + pair_bytes;
  } else {
    const int32_t groups = DotGroups(f);
    const int32_t items = DotGroupSlots(groups) * ((groups / 2 + kDotPairTiles) / kDotPairTiles);
    if (fp32) plan->rounds = (items + kDotPairItems - 1) / kDotPairItems;
    plan->scratch_bytes = static_cast<int32_t>(PaddedDotColumns(num_sparse, dim)) * bytes;
  }
  // Eight warps on a processor hide what one waits for: two blocks of four if they fit, each of
  // which loses a KiB to the system; else one block, as large as it can be.
  constexpr int64_t kSystemBytes = 1 << 10;
  constexpr struct {
    int32_t blocks;
    int32_t warps;
    int32_t stages;
  } kChoices[] = {{2, 4, 3}, {2, 4, 2}, {1, 4, 3}, {1, 4, 2},
                  {1, 2, 3}, {1, 2, 2}, {1, 1, 3}, {1, 1, 2}};
  for (const auto& choice : kChoices) {
    const int64_t shared =
        kDotWarpsAt +
        int64_t{choice.warps} * (plan->scratch_bytes + choice.stages * plan->stage_bytes);
    if (choice.blocks * (shared + kSystemBytes) > shared_bytes_max + kSystemBytes) continue;
    plan->warps = choice.warps;
    plan->stages = choice.stages;
    plan->shared_bytes = static_cast<int32_t>(shared);
    return true;
  }
  return false;
}

// Whether the copies of 16 bytes that the kernels make meet whole ones.
inline bool DotRowsAreAligned(const void* data, int64_t stride, DotPrecision precision) {
  constexpr int64_t kUnit = 16;
  return reinterpret_cast<uintptr_t>(data) % kUnit == 0 &&
         stride * DotElementBytes(precision) % kUnit == 0;
}

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_INTERACTIONS_PADDED_DOT_IMPL_H_
