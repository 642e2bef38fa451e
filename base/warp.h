#ifndef HOTROW_BASE_WARP_H_
#define HOTROW_BASE_WARP_H_

#include <bit>
#include <cstdint>

#if defined(__AVX2__) || defined(__SSE2__)
#include <immintrin.h>
#endif

namespace hotrow {

// The operations in which bucket logic is written once for CPU and GPU. A bucket has 32 ways, a
// warp 32 lanes; lane i looks at way i. On the GPU (base/warp.cuh) each lane evaluates its own way
// and the warp votes. On the CPU one thread does the work of all lanes, with vector instructions
// for the two scans that matter. Code that uses a Warp must be warp-uniform: every decision follows
// from a vote, never from one lane.
struct WayScore {
  int way = -1;  // -1: no lane was eligible
  uint8_t score = 0;
};

struct HostWarp {
  static constexpr int kLanes = 32;

  // Bit i is set when bytes[i] == value. bytes is 32-byte aligned.
  static uint32_t MatchByte(const uint8_t* bytes, uint8_t value) {
#if defined(__AVX2__)
    const __m256i v = _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes));
    return static_cast<uint32_t>(
        _mm256_movemask_epi8(_mm256_cmpeq_epi8(v, _mm256_set1_epi8(static_cast<char>(value)))));
#elif defined(__SSE2__)
    const __m128i needle = _mm_set1_epi8(static_cast<char>(value));
    const __m128i lo = _mm_load_si128(reinterpret_cast<const __m128i*>(bytes));
    const __m128i hi = _mm_load_si128(reinterpret_cast<const __m128i*>(bytes + 16));
    return static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(lo, needle))) |
           (static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(hi, needle))) << 16);
#else
    uint32_t mask = 0;
    for (int i = 0; i < kLanes; ++i) mask |= static_cast<uint32_t>(bytes[i] == value) << i;
    return mask;
#endif
  }

  // The lowest byte among the lanes whose bit is set, and its lane; the lowest lane wins a tie.
  // bytes is 32-byte aligned.
  static WayScore MinByte(const uint8_t* bytes, uint32_t lanes) {
    if (lanes == 0) return {};
#if defined(__AVX2__)
    // Lanes that may not win become 255; then the horizontal minimum, then who has it.
    const __m256i bit =
        _mm256_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 1, 2, 4, 8, 16, 32, 64, -128, 1, 2, 4, 8, 16,
                         32, 64, -128, 1, 2, 4, 8, 16, 32, 64, -128);
    const __m256i spread =
        _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(lanes)),
                            _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2,
                                             2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3));
    const __m256i eligible = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
    const __m256i v = _mm256_or_si256(_mm256_load_si256(reinterpret_cast<const __m256i*>(bytes)),
                                      _mm256_andnot_si256(eligible, _mm256_set1_epi8(-1)));
    __m128i m = _mm_min_epu8(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_min_epu8(m, _mm_srli_si128(m, 8));
    m = _mm_min_epu8(m, _mm_srli_si128(m, 4));
    m = _mm_min_epu8(m, _mm_srli_si128(m, 2));
    m = _mm_min_epu8(m, _mm_srli_si128(m, 1));
    const auto lowest = static_cast<uint8_t>(_mm_cvtsi128_si32(m));
    const uint32_t who = lanes & MatchByte(bytes, lowest);
    return {std::countr_zero(who), lowest};
#else
    WayScore best;
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
      const int way = std::countr_zero(rest);
      if (best.way < 0 || bytes[way] < best.score) best = {way, bytes[way]};
    }
    return best;
#endif
  }

  // Bit i is set when lane i is in `lanes` and predicate(i) holds.
  template <typename Predicate>
  static uint32_t Ballot(uint32_t lanes, Predicate&& predicate) {
    uint32_t mask = 0;
    for (; lanes != 0; lanes &= lanes - 1) {
      const int way = std::countr_zero(lanes);
      mask |= static_cast<uint32_t>(static_cast<bool>(predicate(way))) << way;
    }
    return mask;
  }

  static int FirstLane(uint32_t mask) { return std::countr_zero(mask); }
  static int CountLanes(uint32_t mask) { return std::popcount(mask); }
  // Runs on one lane of the warp: for stores that must happen once.
  template <typename Body>
  static void Once(Body&& body) {
    body();
  }
};

}  // namespace hotrow

#endif  // HOTROW_BASE_WARP_H_
