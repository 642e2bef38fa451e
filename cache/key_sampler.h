#ifndef HOTROW_CACHE_KEY_SAMPLER_H_
#define HOTROW_CACHE_KEY_SAMPLER_H_

#include <cstdint>

#include "base/hash.h"

namespace hotrow {

// Chooses the keys of sampled traces and curves: those with a low hash (spatial sampling:
// Waldspurger et al., "Efficient MRC Construction with SHARDS", FAST'15). A key is always in the
// sample or never, so all its reuse is seen. The larger of two samples with one seed contains the
// smaller, so a curve may use a lower rate than its trace.
//
// The hash is part of the format of access traces (docs/formats/trace.md).
class KeySampler {
 public:
  // `rate` in (0, 1]; 1 takes every key.
  static constexpr uint64_t LimitOfRate(double rate) {
    if (rate >= 1) return UINT64_MAX;
    const double limit = rate * 0x1p64;
    return limit < 1 ? 0 : static_cast<uint64_t>(limit) - 1;
  }
  static constexpr double RateOfLimit(uint64_t limit) {
    return (static_cast<double>(limit) + 1) * 0x1p-64;
  }

  // 2^64 / golden ratio keeps the salts of neighbouring tables and seeds apart.
  constexpr KeySampler(uint64_t seed, uint32_t table)
      : salt_(Mix64(Mix64(seed + 0x9e3779b97f4a7c15ULL) ^
                    (static_cast<uint64_t>(table) + 1) * 0x9e3779b97f4a7c15ULL)) {}

  // A bijection of the keys of one table, so the hash stands for the key. Keys of two tables
  // collide with probability 2^-64 a pair.
  constexpr uint64_t Hash(uint64_t key) const { return Mix64(key ^ salt_); }
  constexpr bool IsSampled(uint64_t key, uint64_t limit) const { return Hash(key) <= limit; }

 private:
  uint64_t salt_;
};

}  // namespace hotrow

#endif  // HOTROW_CACHE_KEY_SAMPLER_H_
