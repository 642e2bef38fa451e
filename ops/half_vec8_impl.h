#ifndef HOTROW_OPS_HALF_VEC8_IMPL_H_
#define HOTROW_OPS_HALF_VEC8_IMPL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/philox.h"
#include "ops/half_impl.h"
#include "ops/rows/weights_precision.h"
#include "ops/vec8_impl.h"

#if HOTROW_VEC8_AVX2 && defined(__F16C__)
#define HOTROW_HALVES_AVX2 1
#else
#define HOTROW_HALVES_AVX2 0
#endif

// Eight columns of 16 bits at a time, between memory and a Vec8, and the random words that they are
// rounded with. Both structs have the same members and give the same bits.
namespace hotrow::internal {

struct PlainHalves {
  struct Words {
    uint32_t v[8];
  };
  // The random words of a row, column after column.
  class Random {
   public:
    Random(uint64_t seed, uint64_t key, uint32_t table) : seed_(seed), key_(key), table_(table) {}
    Words Next() {
      Words words;
      for (int i = 0; i < 8; i += 4) {
        const PhiloxBlock block =
            RandomBlock(seed_, RandomPurpose::kRounding, key_, table_, block_index_++);
        std::copy_n(block.v, 4, words.v + i);
      }
      return words;
    }

   private:
    uint64_t seed_;
    uint64_t key_;
    uint32_t table_;
    uint32_t block_index_ = 0;
  };

  // `lanes` of ForEachVec8: a number in [1, 8]. The other lanes are zero.
  template <WeightsPrecision kPrecision, typename Lanes>
  static Vec8 Widen(const std::byte* in, Lanes lanes) {
    float y[8];
    for (int64_t i = 0; i < lanes; ++i) {
      uint16_t half;
      std::memcpy(&half, in + 2 * i, sizeof(half));
      y[i] = FromHalf<kPrecision>(half);
    }
    return LoadLanes(y, lanes);
  }

  template <WeightsPrecision kPrecision, bool kStochastic, typename Lanes>
  static void Narrow(Vec8 x, const Words& words, std::byte* out, Lanes lanes) {
    float y[8];
    x.Store(y);
    for (int64_t i = 0; i < lanes; ++i) {
      const uint16_t half = ToHalf<kPrecision, kStochastic>(y[i], words.v[i]);
      std::memcpy(out + 2 * i, &half, sizeof(half));
    }
  }
};

#if HOTROW_HALVES_AVX2

struct Avx2Halves {
  using Words = __m256i;
  // Eight Philox blocks at a time, as two chains of four: the rounds of one chain wait for each
  // other, and the processor does the other's meanwhile.
  class Random {
   public:
    Random(uint64_t seed, uint64_t key, uint32_t table) : seed_(seed), key_(key), table_(table) {}
    Words Next() {
      if (next_ == kReady) {
        Refill();
        next_ = 0;
      }
      return ready_[next_++];
    }

   private:
    static constexpr int kReady = 4;
    // Words of 32 bits stand in lanes of 64, where the multiplication wants them; the upper halves
    // hold anything.
    struct FourBlocks {
      __m256i c0, c1, c2, c3;

      void Round(__m256i k0, __m256i k1) {
        const __m256i p0 = _mm256_mul_epu32(_mm256_set1_epi64x(0xD2511F53), c0);
        const __m256i p1 = _mm256_mul_epu32(_mm256_set1_epi64x(0xCD9E8D57), c2);
        c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1), k0);
        c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3), k1);
        c1 = p1;
        c3 = p0;
      }
      void Store(Words* words) const {
        const __m256i c01 = _mm256_blend_epi32(c0, _mm256_slli_epi64(c1, 32), 0xaa);
        const __m256i c23 = _mm256_blend_epi32(c2, _mm256_slli_epi64(c3, 32), 0xaa);
        const __m256i even = _mm256_unpacklo_epi64(c01, c23);  // blocks 0 and 2
        const __m256i odd = _mm256_unpackhi_epi64(c01, c23);   // blocks 1 and 3
        words[0] = _mm256_permute2x128_si256(even, odd, 0x20);
        words[1] = _mm256_permute2x128_si256(even, odd, 0x31);
      }
    };

    FourBlocks Start(uint32_t block_index) const {
      const __m256i key = _mm256_set1_epi64x(static_cast<int64_t>(key_));
      const int64_t c3 = (static_cast<int64_t>(RandomPurpose::kRounding) << 28) | block_index;
      return {key, _mm256_srli_epi64(key, 32), _mm256_set1_epi64x(table_),
              _mm256_add_epi64(_mm256_set1_epi64x(c3), _mm256_setr_epi64x(0, 1, 2, 3))};
    }
    // The rounds of Philox4x32, see base/philox.h.
    void Refill() {
      FourBlocks a = Start(block_index_);
      FourBlocks b = Start(block_index_ + 4);
      block_index_ += 8;
      __m256i k0 = _mm256_set1_epi64x(static_cast<int64_t>(seed_));
      __m256i k1 = _mm256_srli_epi64(k0, 32);
      for (int round = 0; round < 10; ++round) {
        a.Round(k0, k1);
        b.Round(k0, k1);
        k0 = _mm256_add_epi32(k0, Set(0x9E3779B9));
        k1 = _mm256_add_epi32(k1, Set(0xBB67AE85));
      }
      a.Store(ready_);
      b.Store(ready_ + 2);
    }

    uint64_t seed_;
    uint64_t key_;
    uint32_t table_;
    uint32_t block_index_ = 0;
    int next_ = kReady;
    Words ready_[kReady];
  };

  template <WeightsPrecision kPrecision, typename Lanes>
  static Vec8 Widen(const std::byte* in, Lanes lanes) {
    __m128i halves = _mm_setzero_si128();
    std::memcpy(&halves, in, 2 * static_cast<size_t>(lanes));
    if constexpr (kPrecision == WeightsPrecision::kFp16) {
      return {_mm256_cvtph_ps(halves)};
    } else {
      static_assert(kPrecision == WeightsPrecision::kBf16);
      return Floats(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), kBf16CutBits));
    }
  }

  template <WeightsPrecision kPrecision, bool kStochastic, typename Lanes>
  static void Narrow(Vec8 x, Words words, std::byte* out, Lanes lanes) {
    static_assert(kPrecision != WeightsPrecision::kFp32);
    const __m128i halves = kPrecision == WeightsPrecision::kFp16 ? ToFp16<kStochastic>(x, words)
                                                                 : ToBf16<kStochastic>(x, words);
    std::memcpy(out, &halves, 2 * static_cast<size_t>(lanes));
  }

 protected:
  // Magnitudes are below 2^31, so comparing them as signed numbers is right.
  static __m256i Set(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static __m256i Bits(Vec8 x) { return _mm256_castps_si256(x.v); }
  static Vec8 Floats(__m256i bits) { return {_mm256_castsi256_ps(bits)}; }
  static __m256i Sign(Vec8 x) { return _mm256_and_si256(Bits(x), Set(kSignMask)); }
  static __m256i Magnitude(Vec8 x) { return _mm256_andnot_si256(Set(kSignMask), Bits(x)); }
  static __m256i IsFinite(__m256i magnitude) {
    return _mm256_cmpgt_epi32(Set(kInfinity), magnitude);
  }
  static __m256i Select(__m256i mask, __m256i yes, __m256i no) {
    return _mm256_blendv_epi8(no, yes, mask);
  }

  // Whole steps, for steps in [0, 2^31).
  static __m256i RoundStochastic(Vec8 steps, __m256i words) {
    const Vec8 below = {_mm256_floor_ps(steps.v)};
    const Vec8 fraction = steps - below;
    const __m256i up =
        _mm256_cmpgt_epi32(_mm256_cvttps_epi32((fraction * Vec8::Set(kFractionToWord)).v),
                           _mm256_srli_epi32(words, 1));
    return _mm256_sub_epi32(_mm256_cvttps_epi32(below.v), up);  // `up` is -1 or 0
  }

  template <bool kStochastic>
  static __m128i ToFp16(Vec8 x, __m256i words) {
    const __m256i magnitude = Magnitude(x);
    __m256i rounded;
    if constexpr (kStochastic) {
      // To numbers that fp16 has, so that the conversion is exact.
      const __m256i normal = _mm256_andnot_si256(
          Set(kFp16CutMask),
          _mm256_add_epi32(magnitude, _mm256_and_si256(words, Set(kFp16CutMask))));
      const __m256i steps =
          RoundStochastic(Floats(magnitude) * Vec8::Set(kFp16SubnormalsInUnit), words);
      const Vec8 subnormal = Vec8{_mm256_cvtepi32_ps(steps)} * Vec8::Set(1 / kFp16SubnormalsInUnit);
      rounded = Select(_mm256_cmpgt_epi32(Set(kFp16MinNormal), magnitude), Bits(subnormal), normal);
    } else {
      rounded = magnitude;
    }
    const __m256i saturated =
        Select(IsFinite(magnitude), _mm256_min_epi32(rounded, Set(kFp16Max)), magnitude);
    return _mm256_cvtps_ph(Floats(_mm256_or_si256(saturated, Sign(x))).v,
                           _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }

  template <bool kStochastic>
  static __m128i ToBf16(Vec8 x, __m256i words) {
    const __m256i magnitude = Magnitude(x);
    __m256i addend;
    if constexpr (kStochastic) {
      addend = _mm256_and_si256(words, Set(kBf16CutMask));
    } else {
      addend = _mm256_add_epi32(
          Set(kBf16CutMask >> 1),
          _mm256_and_si256(_mm256_srli_epi32(magnitude, kBf16CutBits), Set(1)));  // ties to even
    }
    const __m256i finite = _mm256_min_epi32(_mm256_add_epi32(magnitude, addend), Set(kBf16Max));
    const __m256i is_nan = _mm256_cmpgt_epi32(magnitude, Set(kInfinity));
    const __m256i not_finite = _mm256_or_si256(magnitude, _mm256_and_si256(is_nan, Set(kQuietNaN)));
    const __m256i all = _mm256_or_si256(Select(IsFinite(magnitude), finite, not_finite), Sign(x));
    const __m256i halves = _mm256_srli_epi32(all, kBf16CutBits);
    return _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
  }
};

using FastestHalves = Avx2Halves;

#else

using FastestHalves = PlainHalves;

#endif

// Eight columns from column d on of a row whose weights begin at `row`.
template <WeightsPrecision kPrecision, typename Lanes>
inline Vec8 LoadWeights(const void* row, int64_t d, Lanes lanes) {
  if constexpr (kPrecision == WeightsPrecision::kFp32) {
    return LoadLanes(static_cast<const float*>(row) + d, lanes);
  } else {
    return FastestHalves::Widen<kPrecision>(static_cast<const std::byte*>(row) + 2 * d, lanes);
  }
}

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_HALF_VEC8_IMPL_H_
