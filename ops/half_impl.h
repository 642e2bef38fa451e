#ifndef HOTROW_OPS_HALF_IMPL_H_
#define HOTROW_OPS_HALF_IMPL_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "base/check.h"
#include "base/macros.h"
#include "base/philox.h"
#include "ops/rows/weights_precision.h"

// One number between float and 16 bits: for the CPU without AVX2, and for GPUs (whose code may use
// these constants but not take their address, as std::min would). Eight at a time:
// half_vec8_impl.h.
namespace hotrow::internal {

// What stochastic rounding is for: the last argument of the block that makes the seed of it, so
// that no two uses of one seed share random words.
enum class RoundingUse : uint32_t {
  kExchange = 1,  // rows and gradients on their way between ranks
  kWeights = 2,   // weights of 16 bits that an update has moved
};

// Column c of a row is rounded with word c % 4 of RandomBlock(RoundingSeed(...), kRounding, key,
// table, c / 4). A counter has no room for step, rank and so on beside key, table and column, so
// they are mixed into the seed.
HOTROW_HOST_DEVICE constexpr uint64_t RoundingSeed(uint64_t seed, RoundingUse use, uint64_t a,
                                                   uint32_t b) {
  const PhiloxBlock block =
      RandomBlock(seed, RandomPurpose::kRounding, a, b, static_cast<uint32_t>(use));
  return (uint64_t{block.v[1]} << 32) | block.v[0];
}

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
// A fraction of a step is rounded up if a word's upper 31 bits, as a fraction, are below it; 31,
// since AVX2 compares signed numbers only. The product is exact.
constexpr float kFractionToWord = 0x1p31f;

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

HOTROW_HOST_DEVICE inline float FromBf16(uint16_t half) {
  return std::bit_cast<float>(uint32_t{half} << kBf16CutBits);
}

// The float of 16 bits, with the precision as a constant.
template <WeightsPrecision kPrecision>
HOTROW_HOST_DEVICE inline float FromHalf(uint16_t half) {
  static_assert(kPrecision != WeightsPrecision::kFp32);
  return kPrecision == WeightsPrecision::kFp16 ? FromFp16(half) : FromBf16(half);
}
template <WeightsPrecision kPrecision, bool kStochastic>
HOTROW_HOST_DEVICE inline uint16_t ToHalf(float x, uint32_t word) {
  static_assert(kPrecision != WeightsPrecision::kFp32);
  return kPrecision == WeightsPrecision::kFp16 ? ToFp16<kStochastic>(x, word)
                                               : ToBf16<kStochastic>(x, word);
}

// fn(precision as a constant).
template <typename Fn>
auto WithPrecision(WeightsPrecision precision, Fn&& fn) {
  switch (precision) {
    case WeightsPrecision::kFp32:
      break;
    case WeightsPrecision::kFp16:
      return fn(std::integral_constant<WeightsPrecision, WeightsPrecision::kFp16>());
    case WeightsPrecision::kBf16:
      return fn(std::integral_constant<WeightsPrecision, WeightsPrecision::kBf16>());
  }
  HOTROW_CHECK(precision == WeightsPrecision::kFp32);
  return fn(std::integral_constant<WeightsPrecision, WeightsPrecision::kFp32>());
}

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_HALF_IMPL_H_
