#ifndef HOTROW_TESTS_OPS_DENSE_TEST_UTIL_H_
#define HOTROW_TESTS_OPS_DENSE_TEST_UTIL_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/exec_context.h"
#include "base/philox.h"
#include "base/thread_pool.h"

namespace hotrow::test {

// Rounding error of an n-term float sum or inner product, relative to the sum of magnitudes, for
// any order of additions: n u / (1 - n u) (Higham 2002, sec. 3.1 and 4.2).
inline double Gamma(double n) {
  const double nu = n * 0x1p-24;
  return nu / (1 - nu);
}

inline std::vector<float> RandomFloats(RandomStream& random, int64_t n, float scale = 1.0f) {
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = scale * random.Normal();
  return v;
}

// The bits of floats: unlike ==, it tells 0 from -0 and finds NaNs equal, whose bits a GPU chooses.
inline std::vector<uint32_t> Bits(const std::vector<float>& v) {
  std::vector<uint32_t> bits(v.size());
  for (size_t i = 0; i < v.size(); ++i) {
    bits[i] = std::isnan(v[i]) ? 0x7fc00000 : std::bit_cast<uint32_t>(v[i]);
  }
  return bits;
}

inline ExecContext OnPool(ThreadPool* pool) { return {.pool = pool}; }

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_OPS_DENSE_TEST_UTIL_H_
