#ifndef HOTROW_OPS_VEC8_IMPL_H_
#define HOTROW_OPS_VEC8_IMPL_H_

#include <cmath>
#include <cstdint>
#include <type_traits>

#if defined(__AVX2__) && defined(__FMA__)
#define HOTROW_VEC8_AVX2 1
#include <immintrin.h>
#else
#define HOTROW_VEC8_AVX2 0
#endif

namespace hotrow::internal {

// Eight floats: one AVX2 register, or a plain array where there is none. Every function gives the
// same bits on both paths, so results do not depend on how the library was compiled.
#if HOTROW_VEC8_AVX2

struct Vec8 {
  __m256 v;

  static Vec8 Zero() { return {_mm256_setzero_ps()}; }
  static Vec8 Set(float x) { return {_mm256_set1_ps(x)}; }
  static Vec8 Load(const float* p) { return {_mm256_loadu_ps(p)}; }
  void Store(float* p) const { _mm256_storeu_ps(p, v); }
  // The first n lanes, n in [0, 8]; the others are zero and their memory is not touched.
  static Vec8 LoadFirst(const float* p, int64_t n) {
    return {_mm256_maskload_ps(p, FirstLanes(n))};
  }
  void StoreFirst(float* p, int64_t n) const { _mm256_maskstore_ps(p, FirstLanes(n), v); }

  friend Vec8 operator+(Vec8 a, Vec8 b) { return {_mm256_add_ps(a.v, b.v)}; }
  friend Vec8 operator-(Vec8 a, Vec8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
  friend Vec8 operator*(Vec8 a, Vec8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
  friend Vec8 operator/(Vec8 a, Vec8 b) { return {_mm256_div_ps(a.v, b.v)}; }
  static Vec8 Fma(Vec8 a, Vec8 b, Vec8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }  // a b + c
  static Vec8 Sqrt(Vec8 a) { return {_mm256_sqrt_ps(a.v)}; }
  // a < 0 ? 0 : a; a NaN stays one.
  static Vec8 Relu(Vec8 a) { return {_mm256_max_ps(_mm256_setzero_ps(), a.v)}; }
  // y <= 0 ? 0 : a; where y is NaN, a passes.
  static Vec8 ReluGrad(Vec8 y, Vec8 a) {
    return {_mm256_andnot_ps(_mm256_cmp_ps(y.v, _mm256_setzero_ps(), _CMP_LE_OQ), a.v)};
  }

  // Lane i is the sum of the lanes of a[i], added as ((0+2)+(1+3)) + ((4+6)+(5+7)): the order that
  // costs the fewest shuffles (9 for 64 numbers).
  static Vec8 SumEach(const Vec8 (&a)[8]) {
    const __m256 ab = SumHalves(a[0].v, a[1].v);
    const __m256 cd = SumHalves(a[2].v, a[3].v);
    const __m256 ef = SumHalves(a[4].v, a[5].v);
    const __m256 gh = SumHalves(a[6].v, a[7].v);
    const __m256 low = SumPairs(ab, cd);   // [a b c d] of lanes 0-3, then of lanes 4-7
    const __m256 high = SumPairs(ef, gh);  // [e f g h] in the same way
    return {
        _mm256_add_ps(_mm256_blend_ps(low, high, 0xF0), _mm256_permute2f128_ps(low, high, 0x21))};
  }

 private:
  static __m256i FirstLanes(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  // Within each 128-bit half: [a0+a2, a1+a3, b0+b2, b1+b3].
  static __m256 SumHalves(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_blend_ps(a, b, 0xCC), _mm256_shuffle_ps(a, b, 0x4E));
  }
  // Within each 128-bit half: [p0+p1, p2+p3, q0+q1, q2+q3].
  static __m256 SumPairs(__m256 p, __m256 q) {
    return _mm256_add_ps(_mm256_shuffle_ps(p, q, 0x88), _mm256_shuffle_ps(p, q, 0xDD));
  }
};

#else

struct Vec8 {
  float v[8];

  static Vec8 Set(float x) { return {{x, x, x, x, x, x, x, x}}; }
  static Vec8 Zero() { return Set(0); }
  static Vec8 Load(const float* p) { return LoadFirst(p, 8); }
  void Store(float* p) const { StoreFirst(p, 8); }
  static Vec8 LoadFirst(const float* p, int64_t n) {
    Vec8 r = Zero();
    for (int64_t i = 0; i < n; ++i) r.v[i] = p[i];
    return r;
  }
  void StoreFirst(float* p, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) p[i] = v[i];
  }

  friend Vec8 operator+(Vec8 a, Vec8 b) {
    return Map([&](int i) { return a.v[i] + b.v[i]; });
  }
  friend Vec8 operator-(Vec8 a, Vec8 b) {
    return Map([&](int i) { return a.v[i] - b.v[i]; });
  }
  friend Vec8 operator*(Vec8 a, Vec8 b) {
    return Map([&](int i) { return a.v[i] * b.v[i]; });
  }
  friend Vec8 operator/(Vec8 a, Vec8 b) {
    return Map([&](int i) { return a.v[i] / b.v[i]; });
  }
  static Vec8 Fma(Vec8 a, Vec8 b, Vec8 c) {
    return Map([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
  }
  static Vec8 Sqrt(Vec8 a) {
    return Map([&](int i) { return std::sqrt(a.v[i]); });
  }
  static Vec8 Relu(Vec8 a) {
    // The comparison of AVX: of equal zeros the second one (a) is taken, so -0 stays -0.
    return Map([&](int i) { return 0.0f > a.v[i] ? 0.0f : a.v[i]; });
  }
  static Vec8 ReluGrad(Vec8 y, Vec8 a) {
    return Map([&](int i) { return y.v[i] <= 0 ? 0.0f : a.v[i]; });
  }

  static Vec8 SumEach(const Vec8 (&a)[8]) {
    return Map([&](int i) {
      const float* const x = a[i].v;
      return ((x[0] + x[2]) + (x[1] + x[3])) + ((x[4] + x[6]) + (x[5] + x[7]));
    });
  }

 private:
  template <typename Fn>
  static Vec8 Map(Fn&& fn) {
    Vec8 r;
    for (int i = 0; i < 8; ++i) r.v[i] = fn(i);
    return r;
  }
};

#endif

// Calls body(i, 8) for every whole group of eight in [0, n), then body(i, rest) if some are left.
// With both calls inlined, a body written with LoadFirst and StoreFirst compiles to plain loads and
// stores in the loop.
template <typename Body>
inline void ForEachVec8(int64_t n, Body&& body) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) body(i, std::integral_constant<int64_t, 8>());
  if (i < n) body(i, n - i);
}

// LoadFirst and StoreFirst that know at compile time when all eight lanes are wanted.
inline Vec8 LoadLanes(const float* p, std::integral_constant<int64_t, 8>) { return Vec8::Load(p); }
inline Vec8 LoadLanes(const float* p, int64_t n) { return Vec8::LoadFirst(p, n); }
inline void StoreLanes(Vec8 x, float* p, std::integral_constant<int64_t, 8>) { x.Store(p); }
inline void StoreLanes(Vec8 x, float* p, int64_t n) { x.StoreFirst(p, n); }

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_VEC8_IMPL_H_
