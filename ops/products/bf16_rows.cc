#include <algorithm>

#include "base/check.h"
#include "base/math.h"
#include "ops/products/bf16_rows_impl.h"

#if defined(__x86_64__)
// GCC 12 takes what its own headers leave undefined on purpose for a mistake.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

// Set function by function: with flags for the whole file, functions of headers that it compiles
// would end up in programs for processors without AVX-512.
#define HOTROW_BF16_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

namespace hotrow::internal {
namespace {

constexpr int64_t kPairNumbers = 2 * kPanelColumns;            // of a pair of rows in a panel
constexpr int64_t kBlockNumbers = kPanelRows * kPanelColumns;  // of kPanelRows rows in a panel

// The first 16, or the last 16, numbers of two registers of 32, by turns.
HOTROW_BF16_TARGET inline __m512i InterleaveLow(__m512i a, __m512i b) {
  const __m512i index = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                         8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  return _mm512_permutex2var_epi16(a, index, b);
}
HOTROW_BF16_TARGET inline __m512i InterleaveHigh(__m512i a, __m512i b) {
  const __m512i index =
      _mm512_set_epi16(63, 31, 62, 30, 61, 29, 60, 28, 59, 27, 58, 26, 57, 25, 56, 24, 55, 23, 54,
                       22, 53, 21, 52, 20, 51, 19, 50, 18, 49, 17, 48, 16);
  return _mm512_permutex2var_epi16(a, index, b);
}

// Transposes 16 x 16 numbers of 32 bits.
HOTROW_BF16_TARGET inline void Transpose(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int g = 0; g < 16; g += 4) {
    r[g] = _mm512_unpacklo_epi64(t[g], t[g + 2]);
    r[g + 1] = _mm512_unpackhi_epi64(t[g], t[g + 2]);
    r[g + 2] = _mm512_unpacklo_epi64(t[g + 1], t[g + 3]);
    r[g + 3] = _mm512_unpackhi_epi64(t[g + 1], t[g + 3]);
  }
  // Quarter q of r[4 g + j] is column 4 q + j of the rows 4 g ... 4 g + 3.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i even_low = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);
    const __m512i even_high = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
    t[j] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    t[4 + j] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    t[8 + j] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
    t[12 + j] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

// 32 floats from column c of a row that has `columns`; behind those are zeros.
HOTROW_BF16_TARGET inline __m512i Load32(const float* row, int64_t c, int64_t columns) {
  __m512 low;
  __m512 high;
  if (c + 32 <= columns) {
    low = _mm512_loadu_ps(row + c);
    high = _mm512_loadu_ps(row + c + 16);
  } else {
    const int64_t rest = std::max<int64_t>(columns - c, 0);
    const uint32_t mask = static_cast<uint32_t>((uint64_t{1} << rest) - 1);
    low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), row + c);
    high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), row + c + 16);
  }
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

HOTROW_BF16_TARGET inline __m512i Load(const Bf16* p) { return _mm512_loadu_si512(p); }
HOTROW_BF16_TARGET inline void Store(__m512i x, Bf16* p) { _mm512_storeu_si512(p, x); }

// Two rows of 64 numbers as a pair of a panel.
HOTROW_BF16_TARGET inline void StorePair(__m512i a0, __m512i a1, __m512i b0, __m512i b1,
                                         Bf16* out) {
  Store(InterleaveLow(a0, b0), out);
  Store(InterleaveHigh(a0, b0), out + 32);
  Store(InterleaveLow(a1, b1), out + 64);
  Store(InterleaveHigh(a1, b1), out + 96);
}

HOTROW_BF16_TARGET inline __m512 Widen(__m256i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

}  // namespace

bool Bf16RowsSupported() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512bf16") != 0;
}

HOTROW_BF16_TARGET void ToBf16(const float* x, int64_t x_stride, int64_t rows, int64_t columns,
                               int64_t out_rows, int64_t out_columns, Bf16* out) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < out_columns; c += 32) {
      Store(Load32(x + r * x_stride, c, columns), out + r * out_columns + c);
    }
  }
  std::fill(out + rows * out_columns, out + out_rows * out_columns, Bf16{0});
}

HOTROW_BF16_TARGET void ToPanels(const Bf16* x, int64_t count, int64_t columns, int64_t first,
                                 int64_t total, Bf16* panels) {
  for (int64_t r = 0; r < count; r += 2) {
    const Bf16* const a = x + r * columns;
    const Bf16* const b = a + columns;
    Bf16* out = panels + (first + r) / 2 * kPairNumbers;
    for (int64_t c = 0; c < columns; c += kPanelColumns, out += total * kPanelColumns) {
      StorePair(Load(a + c), Load(a + c + 32), Load(b + c), Load(b + c + 32), out);
    }
  }
}

HOTROW_BF16_TARGET void ToColumns(const Bf16* x, int64_t count, int64_t columns, int64_t first,
                                  int64_t total, Bf16* transposed) {
  for (int64_t c = 0; c < columns; c += 32) {
    for (int64_t r = 0; r < count; r += kPanelRows) {
      for (int half = 0; half < 2; ++half) {
        __m512i pairs[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
          const Bf16* const a = x + (r + 2 * i) * columns + c;
          pairs[i] = half == 0 ? InterleaveLow(Load(a), Load(a + columns))
                               : InterleaveHigh(Load(a), Load(a + columns));
        }
        Transpose(pairs);
        Bf16* const out = transposed + (c + 16 * half) * total + first + r;
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) Store(pairs[i], out + i * total);
      }
    }
  }
}

HOTROW_BF16_TARGET void WeightsToPanels(const float* w, int64_t in, int64_t out, int64_t begin,
                                        int64_t end, Bf16* transposed_panels, Bf16* panels) {
  const int64_t in_padded = RoundUp(in, kPanelColumns);
  const int64_t out_padded = RoundUp(out, kPanelColumns);
  // A row behind the last one has no columns.
  for (int64_t n = begin; n < end; n += 16) {
    Bf16* const panel =
        transposed_panels + n / kPanelColumns * in_padded * kPanelColumns + n % kPanelColumns * 2;
    for (int64_t k = 0; k < in_padded; k += kPanelRows) {
      __m512i rows[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        rows[i] = n + i < out ? Load32(w + (n + i) * in, k, in) : _mm512_setzero_si512();
      }
      if (panels != nullptr) {
        Bf16* const block = panels + k / kPanelColumns * out_padded * kPanelColumns +
                            n / 2 * kPairNumbers + k % kPanelColumns * 2;
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
          Store(InterleaveLow(rows[2 * i], rows[2 * i + 1]), block + i * kPairNumbers);
          Store(InterleaveHigh(rows[2 * i], rows[2 * i + 1]), block + i * kPairNumbers + 32);
        }
      }
      Transpose(rows);
      Bf16* const block = panel + k / kPanelRows * kBlockNumbers;
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) Store(rows[i], block + i * kPairNumbers);
    }
  }
}

HOTROW_BF16_TARGET void Relu(int64_t size, Bf16* x) {
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  const __m512i infinity = _mm512_set1_epi16(0x7f80);
  for (int64_t i = 0; i < size; i += 32) {
    const __m512i number = Load(x + i);
    const __mmask32 is_nan = _mm512_cmpgt_epi16_mask(_mm512_and_si512(number, magnitude), infinity);
    const __mmask32 has_sign = _mm512_movepi16_mask(number);
    Store(_mm512_maskz_mov_epi16(~has_sign | is_nan, number), x + i);
  }
}

// The outputs y of a ReLU that its gradient passes: those above zero, and NaNs of either sign.
HOTROW_BF16_TARGET inline __mmask32 PassesRelu(__m512i y) {
  // As whole numbers, bf16 above zero are above zero.
  const __mmask32 above_zero = _mm512_cmpgt_epi16_mask(y, _mm512_setzero_si512());
  const __m512i magnitude = _mm512_and_si512(y, _mm512_set1_epi16(0x7fff));
  return above_zero | _mm512_cmpgt_epi16_mask(magnitude, _mm512_set1_epi16(0x7f80));
}

HOTROW_BF16_TARGET void MaskAndSum(const Bf16* y, int64_t rows, int64_t columns, Bf16* dy,
                                   float* sum) {
  for (int64_t c = 0; c < columns; c += kPanelColumns) {
    __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                      _mm512_setzero_ps()};
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = r * columns + c;
      __m512i low = Load(dy + at);
      __m512i high = Load(dy + at + 32);
      if (y != nullptr) {
        low = _mm512_maskz_mov_epi16(PassesRelu(Load(y + at)), low);
        high = _mm512_maskz_mov_epi16(PassesRelu(Load(y + at + 32)), high);
        Store(low, dy + at);
        Store(high, dy + at + 32);
      }
      sums[0] = _mm512_add_ps(sums[0], Widen(_mm512_castsi512_si256(low)));
      sums[1] = _mm512_add_ps(sums[1], Widen(_mm512_extracti64x4_epi64(low, 1)));
      sums[2] = _mm512_add_ps(sums[2], Widen(_mm512_castsi512_si256(high)));
      sums[3] = _mm512_add_ps(sums[3], Widen(_mm512_extracti64x4_epi64(high, 1)));
    }
    for (int i = 0; i < 4; ++i) _mm512_storeu_ps(sum + c + 16 * i, sums[i]);
  }
}

}  // namespace hotrow::internal

#else

namespace hotrow::internal {

bool Bf16RowsSupported() { return false; }
void ToBf16(const float*, int64_t, int64_t, int64_t, int64_t, int64_t, Bf16*) {
  HOTROW_CHECK(false);
}
void ToPanels(const Bf16*, int64_t, int64_t, int64_t, int64_t, Bf16*) { HOTROW_CHECK(false); }
void ToColumns(const Bf16*, int64_t, int64_t, int64_t, int64_t, Bf16*) { HOTROW_CHECK(false); }
void WeightsToPanels(const float*, int64_t, int64_t, int64_t, int64_t, Bf16*, Bf16*) {
  HOTROW_CHECK(false);
}
void Relu(int64_t, Bf16*) { HOTROW_CHECK(false); }
void MaskAndSum(const Bf16*, int64_t, int64_t, Bf16*, float*) { HOTROW_CHECK(false); }

}  // namespace hotrow::internal

#endif
