#ifndef HOTROW_BASE_MATH_H_
#define HOTROW_BASE_MATH_H_

#include <cstdint>

#include "base/macros.h"

namespace hotrow {

// Smallest multiple count: CeilDiv(7, 4) == 2. Both arguments non-negative, b > 0.
HOTROW_HOST_DEVICE constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rounds a up to a multiple of b.
HOTROW_HOST_DEVICE constexpr int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

// Maps a 32-bit hash to [0, n) by a multiplication (Lemire, "Fast random integer generation in an
// interval", 2019). n is any number up to 2^32, so a budget need not be a power of two.
HOTROW_HOST_DEVICE constexpr uint32_t FastRange32(uint32_t hash, uint64_t n) {
  return static_cast<uint32_t>((static_cast<uint64_t>(hash) * n) >> 32);
}

}  // namespace hotrow

#endif  // HOTROW_BASE_MATH_H_
