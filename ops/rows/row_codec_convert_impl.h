#ifndef HOTROW_OPS_ROWS_ROW_CODEC_CONVERT_IMPL_H_
#define HOTROW_OPS_ROWS_ROW_CODEC_CONVERT_IMPL_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/macros.h"
#include "ops/half_impl.h"
#include "ops/rows/row_codec.h"

// One column between float and what travels, as in half_impl.h.
namespace hotrow::internal {

constexpr int32_t kInt8Max = 127;

// The scale of a row whose largest magnitude has these bits.
HOTROW_HOST_DEVICE inline float Int8Scale(uint32_t magnitude) {
  if (magnitude >= kInfinity) return std::numeric_limits<float>::quiet_NaN();
  const auto largest = std::bit_cast<float>(magnitude);
  const float scale = largest / kInt8Max;
  // Below the normal range the quotient may have lost so much that `largest` would need a q beyond
  // 127, or that a row of small numbers became one of zeros.
  if (scale < std::numeric_limits<float>::min() &&
      static_cast<double>(scale) * kInt8Max < static_cast<double>(largest)) {
    return std::bit_cast<float>(std::bit_cast<uint32_t>(scale) + 1);
  }
  // And the largest finite numbers must not come back infinite.
  if (std::isinf(scale * kInt8Max)) {
    return std::bit_cast<float>(std::bit_cast<uint32_t>(scale) - 1);
  }
  return scale;
}

template <bool kStochastic>
HOTROW_HOST_DEVICE inline int32_t ToInt8(float x, float scale, uint32_t word) {
  const float steps = x / scale;
  int32_t q;
  if constexpr (kStochastic) {
    const float magnitude = std::fabs(steps);
    const float below = std::floor(magnitude);
    q = static_cast<int32_t>(below) + (RoundsUp(magnitude - below, word) ? 1 : 0);
    q = std::signbit(steps) ? -q : q;
  } else {
    q = static_cast<int32_t>(std::nearbyint(steps));  // ties to even
  }
  // The largest column may be a little more than 127 scales, since the scale is rounded.
  return q > kInt8Max ? kInt8Max : (q < -kInt8Max ? -kInt8Max : q);
}

constexpr int64_t kInt8ScaleBytes = sizeof(float);

// Where column d lies in a row of bytes.
template <ExchangeType kType>
HOTROW_HOST_DEVICE constexpr int64_t ColumnOffset(int64_t d) {
  if constexpr (kType == ExchangeType::kFp32) {
    return 4 * d;
  } else if constexpr (kType == ExchangeType::kInt8) {
    return kInt8ScaleBytes + d;
  } else {
    return 2 * d;
  }
}

// The NaN that an x86 processor gives as the sum or product of two numbers that have none but a
// NaN: the first operand that is one, else the second, made quiet, else (infinity - infinity,
// 0 * infinity) its own. GPUs give another, which would show in the bytes of a row.
HOTROW_HOST_DEVICE inline float NanOf(float a, float b) {
  if (a != a) return std::bit_cast<float>(std::bit_cast<uint32_t>(a) | kQuietNaN);
  if (b != b) return std::bit_cast<float>(std::bit_cast<uint32_t>(b) | kQuietNaN);
  return std::bit_cast<float>(kSignMask | kInfinity | kQuietNaN);
}
HOTROW_HOST_DEVICE inline float SumWithNan(float a, float b) {
  const float sum = a + b;
  return sum == sum ? sum : NanOf(a, b);
}
HOTROW_HOST_DEVICE inline float ProductWithNan(float a, float b) {
  const float product = a * b;
  return product == product ? product : NanOf(a, b);
}

// What is left of an error when it is not a number to carry on.
HOTROW_HOST_DEVICE inline float FiniteOrZero(float x) {
  // x - x is NaN where x is not finite.
  return x - x == 0 ? x : 0;
}

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_ROWS_ROW_CODEC_CONVERT_IMPL_H_
