#ifndef HOTROW_OPS_TILE_THREADS_IMPL_CUH_
#define HOTROW_OPS_TILE_THREADS_IMPL_CUH_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "ops/launch_impl.cuh"
#include "ops/row_sum_impl.cuh"
#include "ops/row_tiles_impl.h"

namespace hotrow::internal {

// The threads of a tile (RowTiles) that share work: one looks up what concerns one row or lookup
// and leaves it in shared memory, all of them then work on its columns. Tiles of a warp go their
// own ways; all threads of a tile make each call together.
struct TileThreads {
  int32_t lanes;
  int32_t lane;   // of this thread
  int32_t first;  // lane of the warp
  unsigned mask;  // in the warp

  __device__ explicit TileThreads(int32_t lanes_of_tile)
      : lanes(lanes_of_tile),
        lane(static_cast<int32_t>(threadIdx.x) & (lanes_of_tile - 1)),
        first(static_cast<int32_t>(threadIdx.x) % kWarpThreads - lane),
        mask((kAllLanes >> (kWarpThreads - lanes_of_tile)) << first) {}

  // The tile's part of an array of the block that has `each` elements a thread.
  template <typename T>
  __device__ T* Part(T* of_block, int32_t each = 1) const {
    return of_block + (static_cast<int32_t>(threadIdx.x) - lane) * each;
  }
  // Bit i: of the i-th thread.
  __device__ unsigned Ballot(bool vote) const {
    return (__ballot_sync(mask, vote ? 1 : 0) & mask) >> first;
  }
  // What one of them has read or written before, all may write or read after.
  __device__ void Sync() const { __syncwarp(mask); }
};

// A term of a sum as one thread finds it for all.
struct alignas(16) TileTerm {
  const std::byte* row;
  float scale;
  unsigned flags;
};

__device__ inline void PrefetchToL2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// SumQuads (row_sum_impl.cuh) of a whole tile: the same sum, with the same bits, of the n terms
// that term(i) gives. Each term is found by one thread, so that finding it may cost loads that
// depend on each other: those of tile.lanes terms run side by side, and before these are added the
// next ones are found and their numbers asked for. Threads with width = 0 have no columns, and help
// to find. kInFlight quads are in registers at a time.
//
// terms: two a thread, of the tile, in shared memory. May be used again at once.
template <int kInFlight, typename Term>
__device__ inline float4 SumTileTerms(const TileThreads& tile, TileTerm* terms, int32_t n,
                                      int32_t column, int32_t width, Term&& term) {
  constexpr uintptr_t kQuad = kQuadBytes<WeightsPrecision::kFp32>;
  const auto at = [column](const TileTerm& t) {
    return reinterpret_cast<const float*>(t.row) + column;
  };
  float4 sum = make_float4(0, 0, 0, 0);
  TileTerm* terms_next = terms + tile.lanes;
  uintptr_t addresses = 0;
  for (int32_t base = -tile.lanes; base < n; base += tile.lanes) {
    const int32_t next = base + tile.lanes;
    uintptr_t addresses_next = 0;
    if (next < n) {
      if (next + tile.lane < n) terms_next[tile.lane] = term(next + tile.lane);
      tile.Sync();
#pragma unroll 4
      for (int32_t i = 0; i < min(n - next, tile.lanes); ++i) {
        const float* const p = at(terms_next[i]);
        addresses_next |= reinterpret_cast<uintptr_t>(p);
        if (width > 0) PrefetchToL2(p);
      }
    }
    const int32_t count = base < 0 ? 0 : min(n - base, tile.lanes);
    if (width == RowTiles::kColumns && addresses % kQuad == 0) {
      for (int32_t i = 0; i < count; i += kInFlight) {
        float4 x[kInFlight];
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          if (i + k < count) x[k] = *reinterpret_cast<const float4*>(at(terms[i + k]));
        }
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          if (i + k < count) sum = AddTerm(base + i + k == 0, terms[i + k].scale, x[k], sum);
        }
      }
    } else if (width > 0) {
#pragma unroll 2
      for (int32_t i = 0; i < count; ++i) {
        sum = AddTerm(base + i == 0, terms[i].scale, LoadQuad(at(terms[i]), width), sum);
      }
    }
    tile.Sync();  // before the terms that were added are written over
    TileTerm* const terms_done = terms;
    terms = terms_next;
    terms_next = terms_done;
    addresses = addresses_next;
  }
  return sum;
}

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_TILE_THREADS_IMPL_CUH_
