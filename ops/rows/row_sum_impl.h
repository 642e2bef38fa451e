#ifndef HOTROW_OPS_ROWS_ROW_SUM_IMPL_H_
#define HOTROW_OPS_ROWS_ROW_SUM_IMPL_H_

#include <cstdint>
#include <cstring>

#include "ops/half_vec8_impl.h"
#include "ops/rows/weights_precision.h"
#include "ops/vec8_impl.h"

namespace hotrow::internal {

struct ScaledRow {
  const void* row = nullptr;  // floats, or what SumRows is told
  float scale = 1;
};

// out = scale_0 * row_0 + ... + scale_n-1 * row_n-1 column by column, left to right, for n > 0;
// term(i) gives the i-th ScaledRow and is called in that order. Four rows share one pass over
// `out`, which keeps the order of additions and saves three of four loads and stores of `out`. A
// scale of 1 is exact, so sums without weights need no code for themselves. Rows of 16 bits are
// widened as they are added, which gives the bits of widening them first. `out` must not overlap
// the rows. adds: `out` has the sum of terms before these, which is where the sum goes on.
template <WeightsPrecision kPrecision = WeightsPrecision::kFp32, typename Term>
void SumRows(int64_t n, int32_t dim, float* out, Term&& term, bool adds = false) {
  const auto load = [](const void* row, int64_t d, auto lanes) {
    return LoadWeights<kPrecision>(row, d, lanes);
  };
  const ScaledRow first = adds ? ScaledRow() : term(0);
  if (adds) {
  } else if (first.scale == 1 && kPrecision == WeightsPrecision::kFp32) {
    std::memcpy(out, first.row, static_cast<size_t>(dim) * sizeof(float));
  } else if (first.scale == 1) {
    ForEachVec8(
        dim, [&](int64_t d, auto lanes) { StoreLanes(load(first.row, d, lanes), out + d, lanes); });
  } else {
    const Vec8 scale = Vec8::Set(first.scale);
    ForEachVec8(dim, [&](int64_t d, auto lanes) {
      StoreLanes(scale * load(first.row, d, lanes), out + d, lanes);
    });
  }
  int64_t i = adds ? 0 : 1;
  for (; i + 4 <= n; i += 4) {
    const void* rows[4];
    Vec8 scales[4];
    for (int k = 0; k < 4; ++k) {
      const ScaledRow t = term(i + k);
      rows[k] = t.row;
      scales[k] = Vec8::Set(t.scale);
    }
    ForEachVec8(dim, [&](int64_t d, auto lanes) {
      Vec8 sum = LoadLanes(out + d, lanes);
      sum = sum + scales[0] * load(rows[0], d, lanes);
      sum = sum + scales[1] * load(rows[1], d, lanes);
      sum = sum + scales[2] * load(rows[2], d, lanes);
      sum = sum + scales[3] * load(rows[3], d, lanes);
      StoreLanes(sum, out + d, lanes);
    });
  }
  for (; i < n; ++i) {
    const ScaledRow t = term(i);
    const Vec8 scale = Vec8::Set(t.scale);
    ForEachVec8(dim, [&](int64_t d, auto lanes) {
      StoreLanes(LoadLanes(out + d, lanes) + scale * load(t.row, d, lanes), out + d, lanes);
    });
  }
}

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_ROWS_ROW_SUM_IMPL_H_
