#ifndef HOTROW_BASE_WARP_H_
#define HOTROW_BASE_WARP_H_

#include <bit>
#include <cstdint>

#if defined(__AVX2__) || defined(__SSE2__)
#include <immintrin.h>
#endif

namespace hotrow {

// The operations in which bucket logic is written once for CPU and GPU. A bucket has 32 ways, and a
// warp 32 lanes: lane i looks at way i. One thread does the work of all lanes, on the CPU with
// vector instructions for the scans that matter, on the GPU (base/warp.cuh) with a bucket for each
// thread. Code that uses a Warp decides by votes, never by one lane.
struct WayScore {
  int way = -1;  // -1: no lane was eligible
  uint8_t score = 0;
};

struct HostWarp {
  static constexpr int kLanes = 32;

  // Bit i is set when the bits of `mask` in bytes[i] are `value`. bytes is 32-byte aligned.
  static uint32_t MatchByte(const uint8_t* bytes, uint8_t value, uint8_t mask = 0xff) {
#if defined(__AVX2__)
    const __m256i bits = _mm256_set1_epi8(static_cast<char>(mask));
    const __m256i v =
        _mm256_and_si256(_mm256_load_si256(reinterpret_cast<const __m256i*>(bytes)), bits);
    return static_cast<uint32_t>(
        _mm256_movemask_epi8(_mm256_cmpeq_epi8(v, _mm256_set1_epi8(static_cast<char>(value)))));
#elif defined(__SSE2__)
    const __m128i needle = _mm_set1_epi8(static_cast<char>(value));
    const __m128i bits = _mm_set1_epi8(static_cast<char>(mask));
    const auto* const halves = reinterpret_cast<const __m128i*>(bytes);
    const __m128i lo = _mm_and_si128(_mm_load_si128(halves), bits);
    const __m128i hi = _mm_and_si128(_mm_load_si128(halves + 1), bits);
    return static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(lo, needle))) |
           (static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(hi, needle))) << 16);
#else
    uint32_t matches = 0;
    for (int i = 0; i < kLanes; ++i) {
      matches |= static_cast<uint32_t>((bytes[i] & mask) == value) << i;
    }
    return matches;
#endif
  }

  // Bit i is set when tags[i] == tag. tags is 64-byte aligned.
  static uint32_t MatchTag(const uint16_t* tags, uint16_t tag) {
#if defined(__AVX2__)
    const auto* const halves = reinterpret_cast<const __m256i*>(tags);
    const __m256i needle = _mm256_set1_epi16(static_cast<int16_t>(tag));
    const __m256i lo = _mm256_cmpeq_epi16(_mm256_load_si256(halves), needle);
    const __m256i hi = _mm256_cmpeq_epi16(_mm256_load_si256(halves + 1), needle);
    // Packing takes 8 bytes of the one and 8 of the other in turn.
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi16(lo, hi), 0xd8);
    return static_cast<uint32_t>(_mm256_movemask_epi8(packed));
#else
    uint32_t matches = 0;
    for (int i = 0; i < kLanes; ++i) matches |= static_cast<uint32_t>(tags[i] == tag) << i;
    return matches;
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
