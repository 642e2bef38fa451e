#include "ops/products/int8_rows_impl.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

#if defined(__x86_64__)
// GCC 12 takes what its own headers leave undefined on purpose for a mistake.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

// As in bf16_rows.cc, set function by function.
#define HOTROW_INT8_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))

namespace hotrow::internal {
namespace {

constexpr int64_t kLanes = 16;
constexpr float kCodeMax = 255;
constexpr uint32_t kInfinityBits = 0x7f800000;

// The lanes of a register from column c on that a row of `columns` has.
HOTROW_INT8_TARGET inline __mmask16 Lanes(int64_t c, int64_t columns) {
  const int64_t rest = columns - c;
  return rest >= kLanes ? __mmask16{0xffff} : static_cast<__mmask16>((uint32_t{1} << rest) - 1);
}

// Of equal zeros, and of a NaN and a number, the second operand is taken: a NaN stays one.
HOTROW_INT8_TARGET inline __m512 ReluOfLanes(__m512 y) {
  return _mm512_max_ps(_mm512_setzero_ps(), y);
}

// Adds the bias to lanes of a row, and stores them.
HOTROW_INT8_TARGET inline void FinishLanes(__m512 y, const float* bias, bool relu, __mmask16 lanes,
                                           float* out) {
  if (bias != nullptr) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(lanes, bias));
  _mm512_mask_storeu_ps(out, lanes, relu ? ReluOfLanes(y) : y);
}

}  // namespace

bool Int8RowsSupported() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("fma") != 0;
}

HOTROW_INT8_TARGET Int8Row EncodeInt8Row(const float* x, int64_t columns, int64_t padded,
                                         uint8_t* q) {
  __m512 lows = _mm512_setzero_ps();
  __m512 highs = _mm512_setzero_ps();
  __m512i magnitudes = _mm512_setzero_si512();  // as whole numbers, they have the floats' order
  for (int64_t c = 0; c < columns; c += kLanes) {
    const __m512 v = _mm512_maskz_loadu_ps(Lanes(c, columns), x + c);
    lows = _mm512_min_ps(lows, v);
    highs = _mm512_max_ps(highs, v);
    magnitudes = _mm512_max_epu32(
        magnitudes, _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff)));
  }
  const float low = _mm512_reduce_min_ps(lows);
  const float high = _mm512_reduce_max_ps(highs);
  const bool finite = _mm512_reduce_max_epu32(magnitudes) < kInfinityBits;
  // Divided first: high - low may be beyond all floats.
  const float scale = high / kCodeMax - low / kCodeMax;
  if (!finite || scale < kInt8ScaleMin) {
    std::fill_n(q, padded, uint8_t{0});
    return {.scale = finite ? 0.0f : std::numeric_limits<float>::quiet_NaN()};
  }
  const float inverse = 1 / scale;
  const auto zero = static_cast<int32_t>(std::nearbyint(-low * inverse));
  int64_t c = 0;
  for (; c < columns; c += kLanes) {
    const __m512 v = _mm512_maskz_loadu_ps(Lanes(c, columns), x + c);
    const __m512i steps = _mm512_cvtps_epi32(_mm512_mul_ps(v, _mm512_set1_ps(inverse)));
    const __m512i code =
        _mm512_max_epi32(_mm512_add_epi32(steps, _mm512_set1_epi32(zero)), _mm512_setzero_si512());
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + c), _mm512_cvtusepi32_epi8(code));
  }
  std::fill(q + c, q + padded, uint8_t{0});
  return {.scale = scale, .zero = zero};
}

HOTROW_INT8_TARGET void DecodeInt8Sums(const int32_t* sums, const Int8Row& row, const float* scales,
                                       const int32_t* weight_sums, const float* bias,
                                       int64_t columns, bool relu, float* y) {
  const __m512 scale = _mm512_set1_ps(row.scale);
  const __m512i zero = _mm512_set1_epi32(row.zero);
  for (int64_t c = 0; c < columns; c += kLanes) {
    const __mmask16 lanes = Lanes(c, columns);
    const __m512i shift =
        _mm512_mullo_epi32(zero, _mm512_maskz_loadu_epi32(lanes, weight_sums + c));
    const __m512i sum = _mm512_sub_epi32(_mm512_maskz_loadu_epi32(lanes, sums + c), shift);
    const __m512 factor = _mm512_mul_ps(scale, _mm512_maskz_loadu_ps(lanes, scales + c));
    FinishLanes(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), factor),
                bias == nullptr ? nullptr : bias + c, relu, lanes, y + c);
  }
}

HOTROW_INT8_TARGET void MultiplyFewOutputs(const float* x, const float* w, const float* bias,
                                           int64_t inputs, int64_t outputs, bool relu, float* y) {
  HOTROW_DCHECK(outputs <= kFewOutputs);
  alignas(64) float products[kLanes] = {};  // y may be x
  for (int64_t j = 0; j < outputs; ++j, w += inputs) {
    __m512 even = _mm512_setzero_ps();
    __m512 odd = _mm512_setzero_ps();
    int64_t k = 0;
    for (; k + 2 * kLanes <= inputs; k += 2 * kLanes) {
      even = _mm512_fmadd_ps(_mm512_loadu_ps(x + k), _mm512_loadu_ps(w + k), even);
      odd = _mm512_fmadd_ps(_mm512_loadu_ps(x + k + kLanes), _mm512_loadu_ps(w + k + kLanes), odd);
    }
    for (; k < inputs; k += kLanes) {
      const __mmask16 lanes = Lanes(k, inputs);
      even = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(lanes, x + k),
                             _mm512_maskz_loadu_ps(lanes, w + k), even);
    }
    products[j] = _mm512_reduce_add_ps(_mm512_add_ps(even, odd));
  }
  FinishLanes(_mm512_load_ps(products), bias, relu, Lanes(0, outputs), y);
}

HOTROW_INT8_TARGET void MultiplyFewInputs(const float* x, const float* transposed, int64_t stride,
                                          const float* bias, int64_t inputs, int64_t outputs,
                                          bool relu, float* y) {
  HOTROW_DCHECK(inputs <= kFewInputs);
  constexpr int kRegisters = 8;  // sums under way at once: a fused multiply-add takes 4 cycles
  constexpr int64_t kBlock = kRegisters * kLanes;
  float factors[kFewInputs + 1];  // y may be x
  std::copy_n(x, inputs, factors);
  int64_t j = 0;
  for (; j + kBlock <= outputs; j += kBlock) {
    __m512 sums[kRegisters];
#pragma GCC unroll 8
    for (int i = 0; i < kRegisters; ++i) sums[i] = _mm512_setzero_ps();
    for (int64_t k = 0; k < inputs; ++k) {
      const __m512 factor = _mm512_set1_ps(factors[k]);
      const float* const row = transposed + k * stride + j;
#pragma GCC unroll 8
      for (int i = 0; i < kRegisters; ++i) {
        sums[i] = _mm512_fmadd_ps(factor, _mm512_loadu_ps(row + i * kLanes), sums[i]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRegisters; ++i) {
      const int64_t at = j + i * kLanes;
      FinishLanes(sums[i], bias == nullptr ? nullptr : bias + at, relu, Lanes(at, outputs), y + at);
    }
  }
  for (; j < outputs; j += kLanes) {
    const __mmask16 lanes = Lanes(j, outputs);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t k = 0; k < inputs; ++k) {
      sum = _mm512_fmadd_ps(_mm512_set1_ps(factors[k]),
                            _mm512_maskz_loadu_ps(lanes, transposed + k * stride + j), sum);
    }
    FinishLanes(sum, bias == nullptr ? nullptr : bias + j, relu, lanes, y + j);
  }
}

}  // namespace hotrow::internal

#else

namespace hotrow::internal {

bool Int8RowsSupported() { return false; }
Int8Row EncodeInt8Row(const float*, int64_t, int64_t, uint8_t*) {
  HOTROW_CHECK(false);
  return {};
}
void DecodeInt8Sums(const int32_t*, const Int8Row&, const float*, const int32_t*, const float*,
                    int64_t, bool, float*) {
  HOTROW_CHECK(false);
}
void MultiplyFewOutputs(const float*, const float*, const float*, int64_t, int64_t, bool, float*) {
  HOTROW_CHECK(false);
}
void MultiplyFewInputs(const float*, const float*, int64_t, const float*, int64_t, int64_t, bool,
                       float*) {
  HOTROW_CHECK(false);
}

}  // namespace hotrow::internal

#endif
