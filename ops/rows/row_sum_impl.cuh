#ifndef HOTROW_OPS_ROWS_ROW_SUM_IMPL_CUH_
#define HOTROW_OPS_ROWS_ROW_SUM_IMPL_CUH_

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "ops/half_impl.h"
#include "ops/rows/row_tiles_impl.h"
#include "ops/rows/weights_precision.h"

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

// FromHalf in one instruction; of a NaN only that it is one is kept.
template <WeightsPrecision kPrecision>
__device__ inline float WidenHalf(uint16_t half) {
  if constexpr (kPrecision == WeightsPrecision::kFp16) {
    return __half2float(__ushort_as_half(half));
  } else {
    return FromHalf<kPrecision>(half);
  }
}

// How many bytes of a row a quad of weights takes, and what it lies on where it goes in one access.
template <WeightsPrecision kPrecision>
constexpr uintptr_t kQuadBytes = RowTiles::kColumns* WeightBytes(kPrecision);

// A quad of weights in one access: `p` lies on kQuadBytes.
template <WeightsPrecision kPrecision>
__device__ inline float4 LoadWholeQuad(const std::byte* p) {
  if constexpr (kPrecision == WeightsPrecision::kFp32) {
    return *reinterpret_cast<const float4*>(p);
  } else {
    const uint2 halves = *reinterpret_cast<const uint2*>(p);
    const auto widen = [](uint32_t half) {
      return WidenHalf<kPrecision>(static_cast<uint16_t>(half));
    };
    return make_float4(widen(halves.x & 0xffff), widen(halves.x >> 16), widen(halves.y & 0xffff),
                       widen(halves.y >> 16));
  }
}
// One weight after the other: `p` lies on WeightBytes().
template <WeightsPrecision kPrecision>
__device__ inline float4 LoadQuadByWeights(const std::byte* p, int32_t width) {
  const auto load = [p](int32_t i) {
    if constexpr (kPrecision == WeightsPrecision::kFp32) {
      return reinterpret_cast<const float*>(p)[i];
    } else {
      return WidenHalf<kPrecision>(reinterpret_cast<const uint16_t*>(p)[i]);
    }
  };
  float4 x = make_float4(load(0), 0, 0, 0);
  if (width > 1) x.y = load(1);
  if (width > 2) x.z = load(2);
  if (width > 3) x.w = load(3);
  return x;
}

// Columns [column, column + width), 1 <= width <= 4, of a row whose weights begin at `row`.
template <WeightsPrecision kPrecision>
__device__ inline float4 LoadWeightQuad(const std::byte* row, int64_t column, int32_t width) {
  const std::byte* const p = row + column * WeightBytes(kPrecision);
  if (width == RowTiles::kColumns && reinterpret_cast<uintptr_t>(p) % kQuadBytes<kPrecision> == 0) {
    return LoadWholeQuad<kPrecision>(p);
  }
  return LoadQuadByWeights<kPrecision>(p, width);
}

// And back; weights of 16 bits are rounded stochastically with the quad's words.
template <WeightsPrecision kPrecision>
__device__ inline void StoreWeightQuad(float4 x, const PhiloxBlock& words, std::byte* row,
                                       int64_t column, int32_t width) {
  std::byte* const p = row + column * WeightBytes(kPrecision);
  if constexpr (kPrecision == WeightsPrecision::kFp32) {
    StoreQuad(x, reinterpret_cast<float*>(p), width);
  } else {
    const uint16_t half0 = ToHalf<kPrecision, true>(x.x, words.v[0]);
    const uint16_t half1 = ToHalf<kPrecision, true>(x.y, words.v[1]);
    const uint16_t half2 = ToHalf<kPrecision, true>(x.z, words.v[2]);
    const uint16_t half3 = ToHalf<kPrecision, true>(x.w, words.v[3]);
    if (width == RowTiles::kColumns &&
        reinterpret_cast<uintptr_t>(p) % kQuadBytes<kPrecision> == 0) {
      *reinterpret_cast<uint2*>(p) =
          make_uint2(half0 | uint32_t{half1} << 16, half2 | uint32_t{half3} << 16);
      return;
    }
    auto* const halves = reinterpret_cast<uint16_t*>(p);
    halves[0] = half0;
    if (width > 1) halves[1] = half1;
    if (width > 2) halves[2] = half2;
    if (width > 3) halves[3] = half3;
  }
}

// One more term of a sum. The first is taken, not added to zero: a lone -0 stays one.
__device__ inline float4 AddTerm(bool is_first, float scale, float4 x, float4 sum) {
  const float4 y = make_float4(scale * x.x, scale * x.y, scale * x.z, scale * x.w);
  return is_first ? y : make_float4(sum.x + y.x, sum.y + y.y, sum.z + y.z, sum.w + y.w);
}

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_ROWS_ROW_SUM_IMPL_CUH_
