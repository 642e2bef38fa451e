#ifndef HOTROW_OPS_ROWS_TILE_THREADS_IMPL_CUH_
#define HOTROW_OPS_ROWS_TILE_THREADS_IMPL_CUH_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "base/hopper.cuh"
#include "ops/launch_impl.cuh"
#include "ops/rows/row_sum_impl.cuh"
#include "ops/rows/row_tiles_impl.h"

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
  __device__ void Sync() const {
    if (lanes == kWarpThreads) {
      __syncwarp();  // no question who is there, which costs more than the barrier
    } else {
      __syncwarp(mask);
    }
  }
};

// A term of a sum as one thread finds it for all.
struct alignas(16) TileTerm {
  const std::byte* row;
  float scale;
  unsigned flags;
};

// The thread's places in shared memory for quads that come while it works on others. A thread
// copies what it reads itself: it waits for its own copies and for nobody else. Places i of
// neighbouring threads lie side by side.
struct QuadRing {
  float4* first;

  static constexpr int32_t Bytes(int32_t places) {
    return places * kThreadsPerBlock * static_cast<int32_t>(sizeof(float4));
  }
  // A ring in the dynamic shared memory of the block, from `begin` on.
  __device__ static QuadRing OfBlock(std::byte* begin) {
    return {reinterpret_cast<float4*>(begin) + threadIdx.x};
  }
  __device__ float4* At(int32_t i) const { return first + i * kThreadsPerBlock; }
};

// Whether a quad of weights can be copied: all of its columns are there, and lie on its size.
template <WeightsPrecision kPrecision = WeightsPrecision::kFp32>
__device__ inline bool IsWholeQuad(const std::byte* quad, int32_t width) {
  return width == RowTiles::kColumns &&
         reinterpret_cast<uintptr_t>(quad) % kQuadBytes<kPrecision> == 0;
}
// Begins to copy a quad, or leaves it to TakeQuad. kByL1: where others of the processor may have
// read it lately, or soon will.
template <WeightsPrecision kPrecision = WeightsPrecision::kFp32, bool kByL1 = false>
__device__ inline void AskQuad(const std::byte* quad, int32_t width, float4* place) {
  if (!IsWholeQuad<kPrecision>(quad, width)) return;
  if constexpr (kPrecision == WeightsPrecision::kFp32) {
    kByL1 ? gpu::CopyAsync16ByL1(place, quad) : gpu::CopyAsync16(place, quad);
  } else {
    gpu::CopyAsync8(place, quad);
  }
}
template <WeightsPrecision kPrecision = WeightsPrecision::kFp32>
__device__ inline float4 TakeQuad(const std::byte* quad, int32_t width, const float4* place) {
  return IsWholeQuad<kPrecision>(quad, width)
             ? LoadWholeQuad<kPrecision>(reinterpret_cast<const std::byte*>(place))
             : LoadQuadByWeights<kPrecision>(quad, width);
}

// Walks the n terms of a tile in order: work.Ask(stage, term) begins to copy what a term needs
// into the thread's places of a stage, kStages - 1 terms before work.Take(stage, i, term) uses
// them. Each term is found by one thread, work.Find(i), so that finding it may cost loads that
// depend on each other: those of tile.lanes terms run side by side, a window ahead; then all
// threads call work.Found(term) for each, where there is such a function.
//
// terms: two a thread, of the tile, in shared memory; the first window, up to tile.lanes terms, is
// there, and all threads know it. May be used again after a Sync.
template <int kStages, typename Work>
__device__ inline void StreamTerms(const TileThreads& tile, TileTerm* terms, int32_t n,
                                   Work&& work) {
  static_assert(kStages >= 2 && kStages <= 9, "a window of the narrowest tile must reach so far");
  const int32_t last = 2 * tile.lanes - 1;
  int32_t stage_asked = 0;
  const auto ask = [&](int32_t i) {
    if (i < n) work.Ask(stage_asked, terms[i & last]);
    gpu::CommitCopies();
    if (++stage_asked == kStages) stage_asked = 0;
  };
#pragma unroll 1
  for (int32_t i = 0; i < kStages - 1; ++i) ask(i);
  int32_t stage = 0;
#pragma unroll 1
  for (int32_t i = 0; i < n; ++i) {
    if ((i & (tile.lanes - 1)) == 0 && i + tile.lanes < n) {
      const int32_t next = i + tile.lanes + tile.lane;
      tile.Sync();  // all have taken the terms that are written over
      if (next < n) terms[next & last] = work.Find(next);
      tile.Sync();
      if constexpr (requires { work.Found(terms[0]); }) {
        for (int32_t k = i + tile.lanes; k < min(i + 2 * tile.lanes, n); ++k) {
          work.Found(terms[k & last]);
        }
      }
    }
    ask(i + kStages - 1);
    gpu::WaitForCopies<kStages - 1>();
    work.Take(stage, i, terms[i & last]);
    if (++stage == kStages) stage = 0;
  }
}

// Numbers that the threads of a tile read window by window, thread l those at l, l + tile.lanes,
// ...: each is asked for a window before it is wanted.
class IndexAhead {
 public:
  __device__ IndexAhead(const TileThreads& tile, const int32_t* indices, int32_t n)
      : indices_(indices),
        n_(n),
        lanes_(tile.lanes),
        next_(tile.lane < n ? indices[tile.lane] : 0) {}

  // indices[i]; the thread's i in order.
  __device__ int32_t operator()(int32_t i) {
    const int32_t index = next_;
    if (i + lanes_ < n_) next_ = indices_[i + lanes_];
    return index;
  }

 private:
  const int32_t* indices_;
  int32_t n_;
  int32_t lanes_;
  int32_t next_;
};

// SumRows (row_sum_impl.h) of columns [column, column + width) of n rows, in the same order and
// with the same roundings, so with the same bits; zeros for n = 0. find(i) gives the terms. Threads
// with width = 0 have no columns, and help to find. kStages places of the ring are used. They and
// the terms, two a thread of the tile in shared memory, may be used again at once.
template <int kStages, typename FindTerm>
__device__ inline float4 SumTileTerms(const TileThreads& tile, TileTerm* terms, QuadRing ring,
                                      int32_t n, int32_t column, int32_t width, FindTerm&& find) {
  struct Work {
    const QuadRing& ring;
    FindTerm& find;
    int32_t column;
    int32_t width;
    float4 sum;

    __device__ TileTerm Find(int32_t i) const { return find(i); }
    __device__ void Found(const TileTerm& term) const {
      if (width > 0) gpu::PrefetchToL2(At(term));
    }
    __device__ const std::byte* At(const TileTerm& term) const {
      return term.row + column * static_cast<int32_t>(sizeof(float));
    }
    __device__ void Ask(int32_t stage, const TileTerm& term) const {
      AskQuad(At(term), width, ring.At(stage));
    }
    __device__ void Take(int32_t stage, int32_t i, const TileTerm& term) {
      if (width == 0) return;
      sum = AddTerm(i == 0, term.scale, TakeQuad(At(term), width, ring.At(stage)), sum);
    }
  };
  Work work = {ring, find, column, width, make_float4(0, 0, 0, 0)};
  if (tile.lane < n) terms[tile.lane] = find(tile.lane);
  tile.Sync();
  StreamTerms<kStages>(tile, terms, n, work);
  tile.Sync();
  return work.sum;
}

// Up to kRows rows of few terms each, which a tile walks as if they were one: row r's terms follow
// those of the rows before it.
class RowGroup {
 public:
  static constexpr int32_t kRows = 8;  // a tile has as many threads at least

  // Where a row's terms end among all of the group, and what its own numbers are behind these.
  struct alignas(8) Span {
    int32_t end;
    int32_t shift;
  };

  // spans: kRows, of the tile, in shared memory.
  __device__ explicit RowGroup(Span* spans) : spans_(spans) {}

  // Thread r < kRows names the lookups of row r, [begin, begin + count). All threads of the tile
  // call; then Sync.
  __device__ void Place(const TileThreads& tile, int32_t begin, int32_t count) {
    int32_t end = tile.lane < kRows ? count : 0;
#pragma unroll
    for (int distance = 1; distance < kRows; distance *= 2) {
      const int32_t before = __shfl_up_sync(tile.mask, end, distance, kRows);
      if (tile.lane % kRows >= distance) end += before;
    }
    if (tile.lane < kRows) spans_[tile.lane] = {end, begin - (end - count)};
  }
  // How many lookups there are in all.
  __device__ int32_t Count() const { return spans_[kRows - 1].end; }

  struct Term {
    int32_t row;
    int32_t lookup;
    bool is_first;  // of its row
    bool is_last;
  };
  __device__ Term At(int32_t i) const {
    Term term = {0, 0, false, false};
    int32_t begin = 0;
#pragma unroll
    for (int r = 0; r < kRows - 1; ++r) {
      const int32_t end = spans_[r].end;
      if (end > i) continue;
      begin = end;
      term.row = r + 1;
    }
    const Span span = spans_[term.row];
    term.lookup = i + span.shift;
    term.is_first = i == begin;
    term.is_last = i + 1 == span.end;
    return term;
  }

 private:
  Span* spans_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_ROWS_TILE_THREADS_IMPL_CUH_
