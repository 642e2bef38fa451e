#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "ops/half_vec8_impl.h"
#include "ops/prefetch.h"
#include "ops/rows/row_codec.h"
#include "ops/rows/row_codec_convert_impl.h"
#include "ops/rows/row_codec_impl.h"
#include "ops/vec8_impl.h"

namespace hotrow::internal {
namespace {

template <ExchangeType kType>
constexpr WeightsPrecision kHalfOf =
    kType == ExchangeType::kFp16 ? WeightsPrecision::kFp16 : WeightsPrecision::kBf16;

// Column by column. Groups of up to eight columns as in Avx2Kernel, so that both have the same
// loops above them.
struct PlainKernel : PlainHalves {
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
    if constexpr (kType == ExchangeType::kInt8) {
      for (int64_t i = 0; i < lanes; ++i) {
        const auto q = static_cast<int8_t>(ToInt8<kStochastic>(x[i], scale, words.v[i]));
        std::memcpy(out + i, &q, sizeof(q));
      }
    } else {
      Narrow<kHalfOf<kType>, kStochastic>(LoadLanes(x, lanes), words, out, lanes);
    }
  }

  template <ExchangeType kType, typename Lanes>
  static Vec8 DecodeGroup(const std::byte* in, float scale, Lanes lanes) {
    if constexpr (kType == ExchangeType::kFp16 || kType == ExchangeType::kBf16) {
      return Widen<kHalfOf<kType>>(in, lanes);
    } else {
      float y[8];
      for (int64_t i = 0; i < lanes; ++i) {
        if constexpr (kType == ExchangeType::kFp32) {
          std::memcpy(&y[i], in + 4 * i, sizeof(float));
        } else {
          int8_t q;
          std::memcpy(&q, in + i, sizeof(q));
          y[i] = static_cast<float>(q) * scale;
        }
      }
      return LoadLanes(y, lanes);
    }
  }

  static Vec8 FiniteOrZero(Vec8 x) {
    float y[8];
    x.Store(y);
    for (float& v : y) v = std::isfinite(v) ? v : 0;
    return Vec8::Load(y);
  }
};

#if HOTROW_HALVES_AVX2

// The same in registers. Magnitudes are below 2^31, so comparing them as signed numbers is right.
struct Avx2Kernel : Avx2Halves {
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
    if constexpr (kType == ExchangeType::kInt8) {
      const __m256i q = ToInt8<kStochastic>(v / Vec8::Set(scale), words);
      const __m128i q16 =
          _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
      const __m128i q8 = _mm_packs_epi16(q16, q16);
      std::memcpy(out, &q8, static_cast<size_t>(lanes));
    } else {
      Narrow<kHalfOf<kType>, kStochastic>(v, words, out, lanes);
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
      return Widen<kHalfOf<kType>>(in, lanes);
    }
  }

  // x - x is NaN where x is not finite.
  static Vec8 FiniteOrZero(Vec8 x) {
    const __m256 is_finite = _mm256_cmp_ps((x - x).v, _mm256_setzero_ps(), _CMP_EQ_OQ);
    return {_mm256_and_ps(x.v, is_finite)};
  }

 private:
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

template <typename Kernel, ExchangeType kType>
void SumAll(const ExecContext& ctx, const SumEncodedRowsArgs& args) {
  const auto prefetch = [&](int64_t s, int64_t bytes) { PrefetchForWrite(args.sums[s], bytes); };
  ForEachRow(ctx.pool, args.runs, prefetch, [&](const RowRun& run, int64_t s) {
    float* const sum = args.sums[s];
    std::fill_n(sum, run.dim, 0.0f);
    const auto add = [sum](int64_t d, Vec8 y, auto lanes) {
      StoreLanes(LoadLanes(sum + d, lanes) + y, sum + d, lanes);
    };
    for (int64_t k = args.offsets[s]; k < args.offsets[s + 1]; ++k) {
      const int32_t i = args.order[k];
      if (i >= args.plain_begin && i < args.plain_end) {
        DecodeRow<Kernel, ExchangeType::kFp32>(args.rows[i], run.dim, add);
      } else {
        DecodeRow<Kernel, kType>(args.rows[i], run.dim, add);
      }
    }
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

absl::Status SumEncodedRowsCpu(const ExecContext& ctx, const SumEncodedRowsArgs& args) {
  WithType(args.type, [&](auto type) { SumAll<FastestKernel, type()>(ctx, args); });
  return absl::OkStatus();
}

}  // namespace hotrow::internal
