#ifndef HOTROW_TESTS_OPS_HALF_REFERENCE_H_
#define HOTROW_TESTS_OPS_HALF_REFERENCE_H_

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "base/philox.h"
#include "ops/rows/weights_precision.h"

// Numbers of 16 bits by their definition, in double, where all of it is exact. The formulas share
// nothing with the library but the random words.
namespace hotrow::test {

inline constexpr WeightsPrecision kHalfPrecisions[] = {WeightsPrecision::kFp16,
                                                       WeightsPrecision::kBf16};

inline constexpr uint16_t kFp16Largest = 0x7bff;
inline constexpr uint16_t kBf16Largest = 0x7f7f;

inline uint16_t LargestHalf(WeightsPrecision precision) {
  return precision == WeightsPrecision::kFp16 ? kFp16Largest : kBf16Largest;
}

// The number that the bits of a half without a sign stand for.
inline double HalfValue(WeightsPrecision precision, uint16_t bits) {
  const bool is_fp16 = precision == WeightsPrecision::kFp16;
  const int fraction_bits = is_fp16 ? 10 : 7;
  const int bias = is_fp16 ? 15 : 127;
  const int exponent = bits >> fraction_bits;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  if (exponent == 0) return std::ldexp(fraction, 1 - bias - fraction_bits);
  return std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

// The same of any bits, as a float, which has all of these numbers.
inline float WidenedHalf(WeightsPrecision precision, uint16_t bits) {
  const bool is_negative = (bits & 0x8000) != 0;
  const uint16_t magnitude = bits & 0x7fff;
  const uint16_t infinity = precision == WeightsPrecision::kFp16 ? 0x7c00 : 0x7f80;
  if (magnitude > infinity) return std::numeric_limits<float>::quiet_NaN();
  const float value = magnitude == infinity ? std::numeric_limits<float>::infinity()
                                            : static_cast<float>(HalfValue(precision, magnitude));
  return is_negative ? -value : value;
}

// The largest half that is not above x in [0, the largest half].
inline uint16_t HalfBelow(WeightsPrecision precision, double x) {
  uint16_t low = 0;
  uint16_t high = LargestHalf(precision);
  while (low < high) {
    const auto middle = static_cast<uint16_t>((low + high + 1) / 2);
    if (HalfValue(precision, middle) <= x) {
      low = middle;
    } else {
      high = static_cast<uint16_t>(middle - 1);
    }
  }
  return low;
}

inline uint16_t ReferenceHalf(WeightsPrecision precision, bool stochastic, float x, uint32_t word) {
  const bool is_fp16 = precision == WeightsPrecision::kFp16;
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000 : 0);
  if (std::isnan(x)) return is_fp16 ? sign | 0x7e00 | ((bits >> 13) & 0x1ff) : (bits >> 16) | 0x40;
  if (std::isinf(x)) return sign | (is_fp16 ? 0x7c00 : 0x7f80);
  const double magnitude = std::fabs(static_cast<double>(x));
  if (magnitude >= HalfValue(precision, LargestHalf(precision))) {
    return sign | LargestHalf(precision);
  }
  const uint16_t below = HalfBelow(precision, magnitude);
  const double low = HalfValue(precision, below);
  const double fraction = (magnitude - low) / (HalfValue(precision, below + 1) - low);
  bool up;
  if (!stochastic) {
    up = fraction > 0.5 || (fraction == 0.5 && below % 2 == 1);
  } else if (is_fp16 && below < 0x0400) {
    up = (word >> 1) < std::floor(fraction * 0x1p31);
  } else {
    const double cut = is_fp16 ? 0x1p13 : 0x1p16;
    up = std::fmod(word, cut) + fraction * cut >= cut;
  }
  return sign | static_cast<uint16_t>(below + (up ? 1 : 0));
}

// The word that an update rounds a column with.
inline uint32_t UpdateWord(uint64_t seed, uint32_t step, uint32_t table, uint64_t key,
                           int64_t column) {
  const PhiloxBlock outer = RandomBlock(seed, RandomPurpose::kRounding, step, 0, 2);
  const uint64_t mixed = outer.v[0] + 0x100000000ull * outer.v[1];
  return RandomBlock(mixed, RandomPurpose::kRounding, key, table, static_cast<uint32_t>(column / 4))
      .v[column % 4];
}

// A weight of any precision, by column.
inline float LoadWeight(WeightsPrecision precision, const std::byte* weights, int64_t column) {
  if (precision == WeightsPrecision::kFp32) {
    float x;
    std::memcpy(&x, weights + 4 * column, sizeof(x));
    return x;
  }
  uint16_t half;
  std::memcpy(&half, weights + 2 * column, sizeof(half));
  return WidenedHalf(precision, half);
}
inline void StoreWeight(WeightsPrecision precision, bool stochastic, float x, uint32_t word,
                        std::byte* weights, int64_t column) {
  if (precision == WeightsPrecision::kFp32) {
    std::memcpy(weights + 4 * column, &x, sizeof(x));
    return;
  }
  const uint16_t half = ReferenceHalf(precision, stochastic, x, word);
  std::memcpy(weights + 2 * column, &half, sizeof(half));
}

// Weights as a row has them, rounded to the nearest; `x` becomes what they then are.
inline std::vector<std::byte> NarrowedRow(WeightsPrecision precision, std::vector<float>& x) {
  std::vector<std::byte> row(x.size() * static_cast<size_t>(WeightBytes(precision)));
  for (size_t d = 0; d < x.size(); ++d) {
    const auto column = static_cast<int64_t>(d);
    StoreWeight(precision, /*stochastic=*/false, x[d], 0, row.data(), column);
    x[d] = LoadWeight(precision, row.data(), column);
  }
  return row;
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_OPS_HALF_REFERENCE_H_
