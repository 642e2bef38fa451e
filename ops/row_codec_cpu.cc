#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/check.h"
#include "base/philox.h"
#include "ops/prefetch.h"
#include "ops/row_codec.h"
#include "ops/row_codec_convert_impl.h"
#include "ops/row_codec_impl.h"
#include "ops/vec8_impl.h"

#if HOTROW_VEC8_AVX2 && defined(__F16C__)
#define HOTROW_ROW_CODEC_AVX2 1
#else
#define HOTROW_ROW_CODEC_AVX2 0
#endif

namespace hotrow::internal {
namespace {

// Column by column. Groups of up to eight columns as in Avx2Kernel, so that both have the same
// loops above them.
struct PlainKernel {
  struct Words {
    uint32_t v[8];
  };
  // The random words of a row, column after column.
  class Random {
   public:
    Random(uint64_t exchange_seed, uint64_t key, uint32_t table)
        : seed_(exchange_seed), key_(key), table_(table) {}
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

  // The largest magnitude as bits, beyond infinity's if there is a NaN.
  static uint32_t LargestMagnitude(const float* x, int32_t dim) {
    uint32_t largest = 0;
    for (int32_t d = 0; d < dim; ++d) {
      largest = std::max(largest, std::bit_cast<uint32_t>(x[d]) & ~kSignMask);
    }
    return largest;
  }

  template <ExchangeType kType, bool kStochastic, typename Lanes>
  static void EncodeGroup(const float* x, float scale, const Words& words, std::byte* out,
                          Lanes lanes) {
    for (int64_t i = 0; i < lanes; ++i) {
      if constexpr (kType == ExchangeType::kInt8) {
        const auto q = static_cast<int8_t>(ToInt8<kStochastic>(x[i], scale, words.v[i]));
        std::memcpy(out + i, &q, sizeof(q));
      } else {
        const uint16_t half = kType == ExchangeType::kFp16 ? ToFp16<kStochastic>(x[i], words.v[i])
                                                           : ToBf16<kStochastic>(x[i], words.v[i]);
        std::memcpy(out + 2 * i, &half, sizeof(half));
      }
    }
  }

  template <ExchangeType kType, typename Lanes>
  static Vec8 DecodeGroup(const std::byte* in, float scale, Lanes lanes) {
    float y[8];
    for (int64_t i = 0; i < lanes; ++i) {
      if constexpr (kType == ExchangeType::kFp32) {
        std::memcpy(&y[i], in + 4 * i, sizeof(float));
      } else if constexpr (kType == ExchangeType::kInt8) {
        int8_t q;
        std::memcpy(&q, in + i, sizeof(q));
        y[i] = static_cast<float>(q) * scale;
      } else {
        uint16_t half;
        std::memcpy(&half, in + 2 * i, sizeof(half));
        y[i] = kType == ExchangeType::kFp16 ? FromFp16(half) : FromBf16(half);
      }
    }
    return LoadLanes(y, lanes);
  }

  static Vec8 FiniteOrZero(Vec8 x) {
    float y[8];
    x.Store(y);
    for (float& v : y) v = std::isfinite(v) ? v : 0;
    return Vec8::Load(y);
  }
};

#if HOTROW_ROW_CODEC_AVX2

__m256i Set(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }

// The same in registers. Magnitudes are below 2^31, so comparing them as signed numbers is right.
struct Avx2Kernel {
  using Words = __m256i;
  // Eight Philox blocks at a time, as two chains of four: the rounds of one chain wait for each
  // other, and the processor does the other's meanwhile.
  class Random {
   public:
    Random(uint64_t exchange_seed, uint64_t key, uint32_t table)
        : seed_(exchange_seed), key_(key), table_(table) {}
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

  static uint32_t LargestMagnitude(const float* x, int32_t dim) {
    __m256i largest = _mm256_setzero_si256();
    ForEachVec8(dim, [&](int64_t d, auto lanes) {
      largest = _mm256_max_epi32(largest, Magnitude(LoadLanes(x + d, lanes)));
    });
    const __m128i four =
        _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    const __m128i one = _mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(one));
  }

  template <ExchangeType kType, bool kStochastic, typename Lanes>
  static void EncodeGroup(const float* x, float scale, Words words, std::byte* out, Lanes lanes) {
    const Vec8 v = LoadLanes(x, lanes);
    const auto n = static_cast<size_t>(lanes);
    if constexpr (kType == ExchangeType::kInt8) {
      const __m256i q = ToInt8<kStochastic>(v / Vec8::Set(scale), words);
      const __m128i q16 =
          _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
      const __m128i q8 = _mm_packs_epi16(q16, q16);
      std::memcpy(out, &q8, n);
    } else {
      const __m128i halves = kType == ExchangeType::kFp16 ? ToFp16<kStochastic>(v, words)
                                                          : ToBf16<kStochastic>(v, words);
      std::memcpy(out, &halves, 2 * n);
    }
  }

  template <ExchangeType kType, typename Lanes>
  static Vec8 DecodeGroup(const std::byte* in, float scale, Lanes lanes) {
    const auto n = static_cast<size_t>(lanes);
    if constexpr (kType == ExchangeType::kFp32) {
      __m256 v = _mm256_setzero_ps();
      std::memcpy(&v, in, 4 * n);
      return {v};
    } else if constexpr (kType == ExchangeType::kInt8) {
      __m128i q8 = _mm_setzero_si128();
      std::memcpy(&q8, in, n);
      return Vec8{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q8))} * Vec8::Set(scale);
    } else {
      __m128i halves = _mm_setzero_si128();
      std::memcpy(&halves, in, 2 * n);
      if constexpr (kType == ExchangeType::kFp16) return {_mm256_cvtph_ps(halves)};
      return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), kBf16CutBits))};
    }
  }

  // x - x is NaN where x is not finite.
  static Vec8 FiniteOrZero(Vec8 x) {
    const __m256 is_finite = _mm256_cmp_ps((x - x).v, _mm256_setzero_ps(), _CMP_EQ_OQ);
    return {_mm256_and_ps(x.v, is_finite)};
  }

 private:
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

  template <bool kStochastic>
  static __m256i ToInt8(Vec8 steps, __m256i words) {
    if constexpr (kStochastic) {
      const __m256i q =
          _mm256_min_epi32(RoundStochastic(Floats(Magnitude(steps)), words), Set(kInt8Max));
      return _mm256_sign_epi32(q, Bits(steps));
    }
    // Steps are less than 127.5, see Int8Scale: nothing to clamp.
    return _mm256_cvtps_epi32(steps.v);  // ties to even
  }
};

using FastestKernel = Avx2Kernel;

#else

using FastestKernel = PlainKernel;

#endif

template <typename Kernel, ExchangeType kType, bool kStochastic>
void EncodeRow(const float* x, int32_t dim, typename Kernel::Random& random, std::byte* out) {
  if constexpr (kType == ExchangeType::kFp32) {
    std::memcpy(out, x, static_cast<size_t>(dim) * sizeof(float));
  } else {
    float scale = 0;
    if constexpr (kType == ExchangeType::kInt8) {
      scale = Int8Scale(Kernel::LargestMagnitude(x, dim));
      std::memcpy(out, &scale, sizeof(scale));
      if (!(scale > 0)) {  // all zeros, or not finite
        std::memset(out + kInt8ScaleBytes, 0, static_cast<size_t>(dim));
        return;
      }
    }
    ForEachVec8(dim, [&](int64_t d, auto lanes) {
      typename Kernel::Words words = {};
      if constexpr (kStochastic) words = random.Next();
      Kernel::template EncodeGroup<kType, kStochastic>(x + d, scale, words,
                                                       out + ColumnOffset<kType>(d), lanes);
    });
  }
}

// Calls sink(d, eight columns from d on, how many of them there are).
template <typename Kernel, ExchangeType kType, typename Sink>
void DecodeRow(const std::byte* in, int32_t dim, Sink&& sink) {
  float scale = 0;
  if constexpr (kType == ExchangeType::kInt8) std::memcpy(&scale, in, sizeof(scale));
  ForEachVec8(dim, [&](int64_t d, auto lanes) {
    sink(d, Kernel::template DecodeGroup<kType>(in + ColumnOffset<kType>(d), scale, lanes), lanes);
  });
}

// Calls body(run, i) for each row, and prefetch(i, bytes) for rows that are soon to come, also
// across the borders of runs: with many tables and ranks most runs are short.
template <typename Prefetch, typename Body>
void ForEachRow(ThreadPool* pool, std::span<const RowRun> runs, Prefetch&& prefetch, Body&& body) {
  constexpr int64_t kRowsPerBlock = 256;
  if (runs.empty()) return;
  ParallelFor(pool, runs.back().end, kRowsPerBlock, [&](int64_t begin, int64_t end) {
    auto run = std::upper_bound(runs.begin(), runs.end(), begin,
                                [](int64_t i, const RowRun& r) { return i < r.end; });
    int64_t row_bytes = run->dim * int64_t{sizeof(float)};
    for (int64_t i = begin; i < std::min(begin + kPrefetchRowsAhead, end); ++i) {
      prefetch(i, row_bytes);
    }
    for (int64_t i = begin; i < end; ++i) {
      while (run->end <= i) ++run;
      row_bytes = run->dim * int64_t{sizeof(float)};
      if (i + kPrefetchRowsAhead < end) prefetch(i + kPrefetchRowsAhead, row_bytes);
      body(*run, i);
    }
  });
}

template <typename Kernel, ExchangeType kType, bool kStochastic>
void EncodeAll(const ExecContext& ctx, const EncodeRowsArgs& args) {
  const uint64_t seed = kStochastic ? ExchangeSeed(args.random) : 0;
  const auto prefetch = [&](int64_t i, int64_t bytes) {
    PrefetchForRead(args.rows[i], bytes);
    if (args.residual != nullptr) PrefetchForWrite(args.residual[i], bytes);
  };
  ForEachRow(ctx.pool, args.runs, prefetch, [&](const RowRun& run, int64_t i) {
    std::byte* const out =
        args.out + run.byte_offset + (i - run.begin) * ColumnOffset<kType>(run.dim);
    const float* x = args.rows[i];
    float* const residual = args.residual == nullptr ? nullptr : args.residual[i];
    if (residual != nullptr) {
      ForEachVec8(run.dim, [&](int64_t d, auto lanes) {
        StoreLanes(LoadLanes(x + d, lanes) + LoadLanes(residual + d, lanes), residual + d, lanes);
      });
      x = residual;
    }
    typename Kernel::Random random(seed, kStochastic ? args.keys[i] : 0, run.table);
    EncodeRow<Kernel, kType, kStochastic>(x, run.dim, random, out);
    if (residual != nullptr) {
      DecodeRow<Kernel, kType>(out, run.dim, [&](int64_t d, Vec8 y, auto lanes) {
        const Vec8 lost = LoadLanes(residual + d, lanes) - y;
        StoreLanes(Kernel::FiniteOrZero(lost), residual + d, lanes);
      });
    }
  });
}

template <typename Kernel, ExchangeType kType, bool kAdd>
void DecodeAll(const ExecContext& ctx, const DecodeRowsArgs& args) {
  const auto prefetch = [&](int64_t i, int64_t bytes) { PrefetchForWrite(args.rows[i], bytes); };
  ForEachRow(ctx.pool, args.runs, prefetch, [&](const RowRun& run, int64_t i) {
    const std::byte* const in =
        args.in + run.byte_offset + (i - run.begin) * ColumnOffset<kType>(run.dim);
    float* const row = args.rows[i];
    DecodeRow<Kernel, kType>(in, run.dim, [&](int64_t d, Vec8 y, auto lanes) {
      if constexpr (kAdd) y = LoadLanes(row + d, lanes) + y;
      StoreLanes(y, row + d, lanes);
    });
  });
}

// Calls fn with what is known at run time as a constant.
template <typename Fn>
void WithType(ExchangeType type, Fn&& fn) {
  switch (type) {
    case ExchangeType::kFp32:
      return fn(std::integral_constant<ExchangeType, ExchangeType::kFp32>());
    case ExchangeType::kFp16:
      return fn(std::integral_constant<ExchangeType, ExchangeType::kFp16>());
    case ExchangeType::kBf16:
      return fn(std::integral_constant<ExchangeType, ExchangeType::kBf16>());
    case ExchangeType::kInt8:
      return fn(std::integral_constant<ExchangeType, ExchangeType::kInt8>());
  }
  HOTROW_CHECK(false);
}

template <typename Kernel>
void EncodeWith(const ExecContext& ctx, const EncodeRowsArgs& args) {
  WithType(args.type, [&](auto type) {
    // Nothing is rounded to fp32.
    if (args.rounding == ExchangeRounding::kStochastic && type() != ExchangeType::kFp32) {
      EncodeAll<Kernel, type(), type() != ExchangeType::kFp32>(ctx, args);
    } else {
      EncodeAll<Kernel, type(), false>(ctx, args);
    }
  });
}

template <typename Kernel>
void DecodeWith(const ExecContext& ctx, const DecodeRowsArgs& args) {
  WithType(args.type, [&](auto type) {
    if (args.add) {
      DecodeAll<Kernel, type(), true>(ctx, args);
    } else {
      DecodeAll<Kernel, type(), false>(ctx, args);
    }
  });
}

}  // namespace

absl::Status EncodeRowsCpu(const ExecContext& ctx, const EncodeRowsArgs& args, RowCodecPath path) {
  if (path == RowCodecPath::kPlain) {
    EncodeWith<PlainKernel>(ctx, args);
  } else {
    EncodeWith<FastestKernel>(ctx, args);
  }
  return absl::OkStatus();
}

absl::Status DecodeRowsCpu(const ExecContext& ctx, const DecodeRowsArgs& args, RowCodecPath path) {
  if (path == RowCodecPath::kPlain) {
    DecodeWith<PlainKernel>(ctx, args);
  } else {
    DecodeWith<FastestKernel>(ctx, args);
  }
  return absl::OkStatus();
}

}  // namespace hotrow::internal
