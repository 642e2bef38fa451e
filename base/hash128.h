#ifndef HOTROW_BASE_HASH128_H_
#define HOTROW_BASE_HASH128_H_

#include <cstdint>
#include <string>

namespace hotrow {

// A 128-bit sum. Adding is commutative, so the sum over rows does not depend on the order of the
// rows.
struct Hash128 {
  uint64_t hi = 0;
  uint64_t lo = 0;

  constexpr Hash128& operator+=(const Hash128& other) {
    const uint64_t old_lo = lo;
    lo += other.lo;
    hi += other.hi + (lo < old_lo ? 1 : 0);
    return *this;
  }
  friend bool operator==(const Hash128& a, const Hash128& b) = default;
  std::string ToHex() const;  // 32 lower-case digits, hi first
};

}  // namespace hotrow

#endif  // HOTROW_BASE_HASH128_H_
