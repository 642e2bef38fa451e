#ifndef HOTROW_TESTS_SUPPORT_COLLIDING_KEYS_H_
#define HOTROW_TESTS_SUPPORT_COLLIDING_KEYS_H_

#include <cstdint>

#include "base/hash.h"

// Keys whose hash the test chooses, as an attacker would.
namespace hotrow::test {

// Inverse of Mix64.
constexpr uint64_t Unmix64(uint64_t x) {
  const auto inverse = [](uint64_t odd) {  // modulo 2^64, by Newton's iteration
    uint64_t result = odd;
    for (int bits = 3; bits < 64; bits *= 2) result *= 2 - odd * result;
    return result;
  };
  const auto unshift = [](uint64_t y) { return y ^ y >> 33; };
  return unshift(inverse(0xff51afd7ed558ccdULL) *
                 unshift(inverse(0xc4ceb9fe1a85ec53ULL) * unshift(x)));
}

// The key of `table` whose HashRowKey has this `lo`.
constexpr RowKey KeyWithHashLo(uint64_t lo, uint32_t table) {
  const uint64_t seed = (uint64_t{table} + 1) * 0x9e3779b97f4a7c15ULL;
  return {Unmix64(Unmix64(lo) ^ 0xd6e8feb86659fd93ULL) ^ seed, table};
}
static_assert(HashRowKey(KeyWithHashLo(12345, 7)).lo == 12345);

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_SUPPORT_COLLIDING_KEYS_H_
