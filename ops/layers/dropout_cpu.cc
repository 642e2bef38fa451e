#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/philox.h"
#include "ops/layers/dropout_impl.h"
#include "ops/vec8_impl.h"

namespace hotrow::internal {
namespace {

// Philox blocks are made in groups of eight neighbours, one in each lane.
constexpr int kGroupBlocks = 8;
constexpr int kGroupElements = 4 * kGroupBlocks;

#if HOTROW_VEC8_AVX2

using Lanes = __m256i;  // eight 32-bit words

Lanes SetLanes(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
Lanes XorLanes(Lanes a, Lanes b) { return _mm256_xor_si256(a, b); }

// The upper and lower words of x * factor. AVX2 multiplies every second word to 64 bits, so the odd
// ones are moved down, multiplied apart and blended in.
void WideMultiply(Lanes x, uint32_t factor, Lanes& high, Lanes& low) {
  const Lanes f = SetLanes(factor);
  const Lanes even = _mm256_mul_epu32(x, f);
  const Lanes odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), f);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}

// Lane i of x where word i is at least the threshold, else 0.
Vec8 KeepAtLeast(Lanes words, Lanes threshold, Vec8 x) {
  const Lanes keep = _mm256_cmpeq_epi32(_mm256_max_epu32(words, threshold), words);
  return {_mm256_and_ps(_mm256_castsi256_ps(keep), x.v)};
}

// words[4 i + k] = lane i of c[k].
void StoreBlocks(const Lanes (&c)[4], uint32_t* words) {
  const Lanes low01 = _mm256_unpacklo_epi32(c[0], c[1]);
  const Lanes low23 = _mm256_unpacklo_epi32(c[2], c[3]);
  const Lanes high01 = _mm256_unpackhi_epi32(c[0], c[1]);
  const Lanes high23 = _mm256_unpackhi_epi32(c[2], c[3]);
  const Lanes blocks04 = _mm256_unpacklo_epi64(low01, low23);
  const Lanes blocks15 = _mm256_unpackhi_epi64(low01, low23);
  const Lanes blocks26 = _mm256_unpacklo_epi64(high01, high23);
  const Lanes blocks37 = _mm256_unpackhi_epi64(high01, high23);
  auto* const out = reinterpret_cast<__m256i*>(words);
  _mm256_storeu_si256(out + 0, _mm256_permute2x128_si256(blocks04, blocks15, 0x20));
  _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(blocks26, blocks37, 0x20));
  _mm256_storeu_si256(out + 2, _mm256_permute2x128_si256(blocks04, blocks15, 0x31));
  _mm256_storeu_si256(out + 3, _mm256_permute2x128_si256(blocks26, blocks37, 0x31));
}

#else

struct Lanes {
  uint32_t v[kGroupBlocks];
};

Lanes SetLanes(uint32_t x) {
  Lanes r;
  for (uint32_t& word : r.v) word = x;
  return r;
}
Lanes XorLanes(Lanes a, const Lanes& b) {
  for (int i = 0; i < kGroupBlocks; ++i) a.v[i] ^= b.v[i];
  return a;
}
void WideMultiply(const Lanes& x, uint32_t factor, Lanes& high, Lanes& low) {
  for (int i = 0; i < kGroupBlocks; ++i) {
    const uint64_t product = static_cast<uint64_t>(factor) * x.v[i];
    high.v[i] = static_cast<uint32_t>(product >> 32);
    low.v[i] = static_cast<uint32_t>(product);
  }
}
Vec8 KeepAtLeast(const Lanes& words, const Lanes& threshold, Vec8 x) {
  for (int i = 0; i < kGroupBlocks; ++i) {
    if (words.v[i] < threshold.v[i]) x.v[i] = 0;
  }
  return x;
}
void StoreBlocks(const Lanes (&c)[4], uint32_t* words) {
  for (int i = 0; i < kGroupBlocks; ++i) {
    for (int k = 0; k < 4; ++k) words[4 * i + k] = c[k].v[i];
  }
}

#endif

Lanes LoadWords(const uint32_t* p) {
  Lanes r;
  static_assert(sizeof(r) == kGroupBlocks * sizeof(*p));
  std::memcpy(&r, p, sizeof(r));
  return r;
}

// The words of the elements kGroupElements * group and on: block 8 group + i of them is
// RandomBlock(seed, kDropout, 8 group + i, step, layer). The rounds are those of Philox4x32
// (base/philox.h), on all lanes at once.
void MakeWords(const DropoutArgs& args, int64_t group, uint32_t* words) {
  const uint64_t first_block = static_cast<uint64_t>(group) * kGroupBlocks;
  // A multiple of 8, so adding the lane never carries into the upper word.
  const auto low = static_cast<uint32_t>(first_block);
  const uint32_t counters[kGroupBlocks] = {low,     low + 1, low + 2, low + 3,
                                           low + 4, low + 5, low + 6, low + 7};
  const uint32_t purpose = static_cast<uint32_t>(RandomPurpose::kDropout) << 28;
  Lanes c[4] = {LoadWords(counters), SetLanes(static_cast<uint32_t>(first_block >> 32)),
                SetLanes(args.step), SetLanes(purpose | args.layer)};
  auto k0 = static_cast<uint32_t>(args.seed);
  auto k1 = static_cast<uint32_t>(args.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    Lanes high0;
    Lanes low0;
    Lanes high1;
    Lanes low1;
    WideMultiply(c[0], 0xD2511F53u, high0, low0);
    WideMultiply(c[2], 0xCD9E8D57u, high1, low1);
    c[0] = XorLanes(XorLanes(high1, c[1]), SetLanes(k0));
    c[1] = low1;
    c[2] = XorLanes(XorLanes(high0, c[3]), SetLanes(k1));
    c[3] = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  StoreBlocks(c, words);
}

// data[0 .. count), of which the first is element `first`.
void DropoutElements(const DropoutArgs& args, int64_t first, int64_t count, float* data) {
  const Lanes threshold = SetLanes(DropoutThreshold(args.rate));
  const Vec8 kept_share = Vec8::Set(1.0f - args.rate);
  // Eight words are read at a time from anywhere in the group; past its end they are not used.
  uint32_t words[kGroupElements + kGroupBlocks] = {};
  for (int64_t done = 0; done < count;) {
    const int64_t skip = (first + done) % kGroupElements;
    const int64_t n = std::min(kGroupElements - skip, count - done);
    MakeWords(args, (first + done) / kGroupElements, words);
    ForEachVec8(n, [&](int64_t i, auto lanes) {
      const Vec8 scaled = LoadLanes(data + done + i, lanes) / kept_share;
      StoreLanes(KeepAtLeast(LoadWords(words + skip + i), threshold, scaled), data + done + i,
                 lanes);
    });
    done += n;
  }
}

}  // namespace

void DropoutRowsCpu(const DropoutArgs& args, int64_t begin, int64_t end) {
  if (args.stride == args.columns) {  // the rows lie end to end, and so do their elements
    DropoutElements(args, (args.first_row + begin) * args.columns, (end - begin) * args.columns,
                    args.data + begin * args.stride);
    return;
  }
  for (int64_t row = begin; row < end; ++row) {
    DropoutElements(args, (args.first_row + row) * args.columns, args.columns,
                    args.data + row * args.stride);
  }
}

absl::Status DropoutCpu(ThreadPool* pool, const DropoutArgs& args) {
  constexpr int64_t kChunkElements = 8192;  // tens of microseconds: more than starting a loop costs
  const int64_t grain = std::max<int64_t>(1, kChunkElements / args.columns);
  ParallelFor(pool, args.rows, grain,
              [&](int64_t begin, int64_t end) { DropoutRowsCpu(args, begin, end); });
  return absl::OkStatus();
}

}  // namespace hotrow::internal
