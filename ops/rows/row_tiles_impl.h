#ifndef HOTROW_OPS_ROWS_ROW_TILES_IMPL_H_
#define HOTROW_OPS_ROWS_ROW_TILES_IMPL_H_

#include <cstdint>
#include <type_traits>

#include "base/macros.h"
#include "base/math.h"

namespace hotrow::internal {

// How the threads of a GPU share the columns of a row. A thread takes a quad of neighbouring
// columns (16 bytes), a tile of `lanes` threads 4 * lanes columns side by side; a row that is wider
// than a warp's tile is cut into several blocks of columns, which are independent items of work. So
// a warp holds up to 32 narrow rows at a time. Threads of a tile share no votes and no shuffles:
// tiles of one warp may take different ways.
struct RowTiles {
  static constexpr int32_t kColumns = 4;    // of a thread
  static constexpr int32_t kLanesMax = 32;  // a warp

  int32_t lanes = 1;       // a power of two,
  int32_t lanes_log2 = 0;  // since GPUs divide by shifting, not by dividing
  int32_t blocks = 1;      // of 4 * lanes columns each; the last one may be wider than what is left

  // dim > 0. lanes_min, a power of two up to 32, is for sums that need so many threads at least.
  HOTROW_HOST_DEVICE static constexpr RowTiles For(int32_t dim, int32_t lanes_min = 1) {
    const auto quads = static_cast<int32_t>(CeilDiv(dim, kColumns));
    RowTiles tiles;
    while (tiles.lanes < lanes_min || (tiles.lanes < quads && tiles.lanes < kLanesMax)) {
      tiles.lanes *= 2;
      ++tiles.lanes_log2;
    }
    tiles.blocks = static_cast<int32_t>((int64_t{quads} + tiles.lanes - 1) >> tiles.lanes_log2);
    return tiles;
  }

  // Which tile a thread of a grid belongs to.
  HOTROW_HOST_DEVICE constexpr int64_t Tile(int64_t thread) const { return thread >> lanes_log2; }
  // First column of a thread.
  HOTROW_HOST_DEVICE constexpr int64_t Column(int64_t block, int32_t lane) const {
    return (block * lanes + lane) * kColumns;
  }
  // How many of its columns a row of `dim` has: 0 to 4.
  HOTROW_HOST_DEVICE static constexpr int32_t Width(int32_t dim, int64_t column) {
    const int64_t left = dim - column;
    return left >= kColumns ? kColumns : left > 0 ? static_cast<int32_t>(left) : 0;
  }
};

// The last i in [begin, end) with sorted[i] <= value, where sorted[begin] <= value and `sorted`
// does not decrease. In offsets of bags that is the bag that holds lookup `value`: empty bags
// before it start at the same place and are passed over.
template <typename Index>
HOTROW_HOST_DEVICE constexpr Index LastAtMost(const int64_t* sorted,
                                              std::type_identity_t<Index> begin, Index end,
                                              int64_t value) {
  while (end - begin > 1) {
    const Index middle = begin + (end - begin) / 2;
    if (sorted[middle] <= value) {
      begin = middle;
    } else {
      end = middle;
    }
  }
  return begin;
}

// The same in [begin, end), which holds it, where `guess` is likely, as in bags of equal length.
template <typename Index>
HOTROW_HOST_DEVICE constexpr Index LastAtMostNear(const int64_t* sorted,
                                                  std::type_identity_t<Index> begin, Index end,
                                                  std::type_identity_t<Index> guess,
                                                  int64_t value) {
  const Index next = guess + 1;
  const int64_t here = sorted[guess];
  const int64_t there = next < end ? sorted[next] : value + 1;
  if (value < here) return LastAtMost(sorted, begin, guess, value);
  return value < there ? guess : LastAtMost(sorted, next, end, value);
}

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_ROWS_ROW_TILES_IMPL_H_
