#ifndef HOTROW_OPS_ROW_CODEC_CONVERT_IMPL_H_
#define HOTROW_OPS_ROW_CODEC_CONVERT_IMPL_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/macros.h"
#include "ops/row_codec.h"

// One column between float and what travels: for the CPU without AVX2, and for GPUs (whose code may
// use these constants but not take their address, as std::min would).
namespace hotrow::internal {

// A float is a sign and a magnitude. As integers, magnitudes are ordered like the numbers that they
// stand for, infinity above all numbers and NaNs above infinity. Rounding is of magnitudes: nearest
// and stochastic treat x and -x alike.
constexpr uint32_t kSignMask = 0x80000000;
constexpr uint32_t kInfinity = 0x7f800000;
constexpr uint32_t kQuietNaN = 0x00400000;  // the bit that keeps a NaN one when lower bits are cut

constexpr uint32_t kFp16Max = 0x477fe000;        // 65504
constexpr uint32_t kFp16MinNormal = 0x38800000;  // 2^-14
constexpr uint32_t kFp16CutBits = 13;            // of a fraction: 23 - 10
constexpr uint32_t kFp16CutMask = (1u << kFp16CutBits) - 1;
constexpr uint32_t kFp16BiasChange = 112u << 23;  // exponents are biased by 127 and by 15
constexpr float kFp16SubnormalsInUnit = 0x1p24f;  // subnormals are multiples of 2^-24
constexpr uint32_t kBf16Max = 0x7f7f0000;
constexpr uint32_t kBf16CutBits = 16;
constexpr uint32_t kBf16CutMask = (1u << kBf16CutBits) - 1;
constexpr int32_t kInt8Max = 127;

// A fraction of a step is rounded up if a word's upper 31 bits, as a fraction, are below it; 31,
// since AVX2 compares signed numbers only. The product is exact.
constexpr float kFractionToWord = 0x1p31f;

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

HOTROW_HOST_DEVICE inline bool RoundsUp(float fraction, uint32_t word) {
  return (word >> 1) < static_cast<uint32_t>(fraction * kFractionToWord);
}

template <bool kStochastic>
HOTROW_HOST_DEVICE inline uint16_t ToFp16(float x, uint32_t word) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>((bits & kSignMask) >> 16);
  uint32_t magnitude = bits & ~kSignMask;
  if (magnitude > kInfinity) {
    magnitude |= kQuietNaN;
    return sign | 0x7c00 | static_cast<uint16_t>((magnitude >> kFp16CutBits) & 0x03ff);
  }
  if (magnitude == kInfinity) return sign | 0x7c00;
  if (magnitude >= kFp16MinNormal) {
    // A carry out of the fraction raises the exponent, which is what rounding up means there.
    magnitude += kStochastic
                     ? word & kFp16CutMask
                     : (kFp16CutMask >> 1) + ((magnitude >> kFp16CutBits) & 1);  // ties to even
    magnitude = magnitude < kFp16Max ? magnitude : kFp16Max;
    return sign | static_cast<uint16_t>((magnitude - kFp16BiasChange) >> kFp16CutBits);
  }
  // The number of steps is the bits of the result, also where it is the smallest normal number.
  const float steps = std::bit_cast<float>(magnitude) * kFp16SubnormalsInUnit;
  if constexpr (kStochastic) {
    const float below = std::floor(steps);
    return sign | static_cast<uint16_t>(static_cast<int32_t>(below) +
                                        (RoundsUp(steps - below, word) ? 1 : 0));
  }
  return sign | static_cast<uint16_t>(std::nearbyint(steps));  // ties to even
}

HOTROW_HOST_DEVICE inline float FromFp16(uint16_t half) {
  const uint32_t sign = (uint32_t{half} & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  if (magnitude > 0x7c00) {
    return std::bit_cast<float>(sign | kInfinity | kQuietNaN | (magnitude << kFp16CutBits));
  }
  if (magnitude == 0x7c00) return std::bit_cast<float>(sign | kInfinity);
  if (magnitude >= 0x0400) {
    return std::bit_cast<float>(sign | ((magnitude << kFp16CutBits) + kFp16BiasChange));
  }
  const float value = static_cast<float>(magnitude) / kFp16SubnormalsInUnit;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

template <bool kStochastic>
HOTROW_HOST_DEVICE inline uint16_t ToBf16(float x, uint32_t word) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits & kSignMask;
  uint32_t magnitude = bits & ~kSignMask;
  if (magnitude > kInfinity) magnitude |= kQuietNaN;
  if (magnitude < kInfinity) {
    magnitude +=
        kStochastic ? word & kBf16CutMask : (kBf16CutMask >> 1) + ((magnitude >> kBf16CutBits) & 1);
    magnitude = magnitude < kBf16Max ? magnitude : kBf16Max;
  }
  return static_cast<uint16_t>((sign | magnitude) >> kBf16CutBits);
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

HOTROW_HOST_DEVICE inline float FromBf16(uint16_t half) {
  return std::bit_cast<float>(uint32_t{half} << kBf16CutBits);
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

#endif  // HOTROW_OPS_ROW_CODEC_CONVERT_IMPL_H_
