#ifndef HOTROW_OPS_ROW_SUM_IMPL_CUH_
#define HOTROW_OPS_ROW_SUM_IMPL_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/row_tiles_impl.h"

namespace hotrow::internal {

// Columns p[0..width) for width in [1, 4]; the others are zero. One access where all four are there
// and lie on 16 bytes, which rows in general need not.
__device__ inline float4 LoadQuad(const float* p, int32_t width) {
  if (width == RowTiles::kColumns && reinterpret_cast<uintptr_t>(p) % sizeof(float4) == 0) {
    return *reinterpret_cast<const float4*>(p);
  }
  float4 x = make_float4(p[0], 0, 0, 0);
  if (width > 1) x.y = p[1];
  if (width > 2) x.z = p[2];
  if (width > 3) x.w = p[3];
  return x;
}

__device__ inline void StoreQuad(float4 x, float* p, int32_t width) {
  if (width == RowTiles::kColumns && reinterpret_cast<uintptr_t>(p) % sizeof(float4) == 0) {
    *reinterpret_cast<float4*>(p) = x;
    return;
  }
  p[0] = x.x;
  if (width > 1) p[1] = x.y;
  if (width > 2) p[2] = x.z;
  if (width > 3) p[3] = x.w;
}

struct DeviceScaledRow {
  const float* row;
  float scale;
};

// SumRows (row_sum_impl.h) of columns [column, column + width), 1 <= width <= 4, of n rows, in the
// same order and with the same roundings, so with the same bits; zeros for n = 0. kInFlight rows
// are asked for before the first of them is added.
template <int kInFlight, typename Term>
__device__ inline float4 SumQuads(int64_t n, int64_t column, int32_t width, Term&& term) {
  float4 sum = make_float4(0, 0, 0, 0);
  for (int64_t i = 0; i < n; i += kInFlight) {
    DeviceScaledRow terms[kInFlight];
    float4 x[kInFlight];
    uintptr_t addresses = 0;
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      terms[k] = i + k < n ? term(i + k) : DeviceScaledRow{nullptr, 0.0f};
      addresses |= reinterpret_cast<uintptr_t>(terms[k].row);
    }
    // LoadQuad, with one branch for all of them; a column begins on 16 bytes where its row does.
    if (width == RowTiles::kColumns && addresses % sizeof(float4) == 0) {
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        if (i + k < n) x[k] = *reinterpret_cast<const float4*>(terms[k].row + column);
      }
    } else {
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        x[k] = make_float4(0, 0, 0, 0);
        if (i + k >= n) continue;
        const float* const p = terms[k].row + column;
        x[k].x = p[0];
        if (width > 1) x[k].y = p[1];
        if (width > 2) x[k].z = p[2];
        if (width > 3) x[k].w = p[3];
      }
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (i + k >= n) continue;
      const float scale = terms[k].scale;
      const float4 y = make_float4(scale * x[k].x, scale * x[k].y, scale * x[k].z, scale * x[k].w);
      // The first term is taken, not added to zero: a lone -0 stays one.
      sum = i + k == 0 ? y : make_float4(sum.x + y.x, sum.y + y.y, sum.z + y.z, sum.w + y.w);
    }
  }
  return sum;
}

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_ROW_SUM_IMPL_CUH_
