#include "ops/half_vec8_impl.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/half_impl.h"
#include "ops/rows/weights_precision.h"
#include "tests/ops/half_reference.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using internal::FastestHalves;
using internal::PlainHalves;
using internal::WithPrecision;
using test::StatusIs;
using testing::HasSubstr;

TEST(WeightsPrecisionTest, NamesRoundTrip) {
  for (const WeightsPrecision precision :
       {WeightsPrecision::kFp32, WeightsPrecision::kFp16, WeightsPrecision::kBf16}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const WeightsPrecision parsed,
                                ParseWeightsPrecision(WeightsPrecisionName(precision)));
    EXPECT_EQ(parsed, precision);
  }
  EXPECT_EQ(WeightBytes(WeightsPrecision::kFp32), 4);
  EXPECT_EQ(WeightBytes(WeightsPrecision::kFp16), 2);
  EXPECT_EQ(WeightBytes(WeightsPrecision::kBf16), 2);
  EXPECT_THAT(ParseWeightsPrecision("half"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("\"half\"; expected one of fp32, fp16, bf16")));
}

// Eight columns by each of the two, which must agree to the bit, also on a NaN.
template <typename Halves>
std::vector<float> Widened(WeightsPrecision precision, const std::vector<uint16_t>& halves) {
  std::vector<float> floats(halves.size());
  const auto* const bytes = reinterpret_cast<const std::byte*>(halves.data());
  WithPrecision(precision, [&](auto constant) {
    if constexpr (constant() != WeightsPrecision::kFp32) {
      internal::ForEachVec8(std::ssize(halves), [&](int64_t i, auto lanes) {
        internal::StoreLanes(Halves::template Widen<constant()>(bytes + 2 * i, lanes),
                             floats.data() + i, lanes);
      });
    }
  });
  return floats;
}

TEST(HalfTest, AllHalvesWiden) {
  for (const WeightsPrecision precision : test::kHalfPrecisions) {
    std::vector<uint16_t> halves(65536 + 3);  // the last group has three columns
    for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
    const std::vector<float> plain = Widened<PlainHalves>(precision, halves);
    const std::vector<float> fastest = Widened<FastestHalves>(precision, halves);
    for (size_t i = 0; i < halves.size(); ++i) {
      const float want = test::WidenedHalf(precision, halves[i]);
      if (want != want) {
        EXPECT_NE(plain[i], plain[i]);
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(plain[i]), std::bit_cast<uint32_t>(want)) << i;
      }
      ASSERT_EQ(std::bit_cast<uint32_t>(plain[i]), std::bit_cast<uint32_t>(fastest[i])) << i;
      // And back: a half is one of the numbers that the format has, with any word.
      if (want != want) continue;
      for (const uint32_t word : {0u, 0xffffffffu}) {
        ASSERT_EQ(test::ReferenceHalf(precision, true, want, word), halves[i]);
      }
    }
  }
}

template <typename Halves, bool kStochastic>
std::vector<uint16_t> Narrowed(WeightsPrecision precision, const std::vector<float>& floats,
                               uint64_t seed, uint64_t key, uint32_t table) {
  std::vector<uint16_t> halves(floats.size());
  auto* const bytes = reinterpret_cast<std::byte*>(halves.data());
  typename Halves::Random random(seed, key, table);
  WithPrecision(precision, [&](auto constant) {
    if constexpr (constant() != WeightsPrecision::kFp32) {
      internal::ForEachVec8(std::ssize(floats), [&](int64_t i, auto lanes) {
        Halves::template Narrow<constant(), kStochastic>(
            internal::LoadLanes(floats.data() + i, lanes), random.Next(), bytes + 2 * i, lanes);
      });
    }
  });
  return halves;
}

TEST(HalfTest, NarrowsLikeTheReference) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const uint64_t seed : test::Seeds(5)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    std::vector<float> floats = {
        0,         -0.0f,     kInf,     -kInf,
        65504,     65519.9f,  65520,    -1e9f,
        0x1p-14f,  0x1p-24f,  0x1p-25f, 0x1.8p-25f,
        0x1p-126f, 0x1p-149f, 3.4e38f,  std::numeric_limits<float>::quiet_NaN()};
    for (int i = 0; i < 3000; ++i) floats.push_back(std::bit_cast<float>(random.Next32()));
    // Around the range of fp16.
    for (int i = 0; i < 3003; ++i) {
      floats.push_back(std::ldexp(random.Normal(), static_cast<int>(random.Below(46)) - 28));
    }
    const uint64_t key = random.Next64();
    const uint32_t table = random.Next32();
    for (const WeightsPrecision precision : test::kHalfPrecisions) {
      const auto nearest = Narrowed<PlainHalves, false>(precision, floats, seed, key, table);
      const auto at_random = Narrowed<PlainHalves, true>(precision, floats, seed, key, table);
      for (size_t i = 0; i < floats.size(); ++i) {
        const uint32_t word =
            RandomBlock(seed, RandomPurpose::kRounding, key, table, static_cast<uint32_t>(i / 4))
                .v[i % 4];
        ASSERT_EQ(nearest[i], test::ReferenceHalf(precision, false, floats[i], 0)) << floats[i];
        ASSERT_EQ(at_random[i], test::ReferenceHalf(precision, true, floats[i], word)) << floats[i];
      }
      EXPECT_EQ((Narrowed<FastestHalves, false>(precision, floats, seed, key, table)), nearest);
      EXPECT_EQ((Narrowed<FastestHalves, true>(precision, floats, seed, key, table)), at_random);
    }
  }
}

TEST(HalfTest, UsesOfASeedHaveSeedsOfTheirOwn) {
  using internal::RoundingSeed;
  using internal::RoundingUse;
  EXPECT_NE(RoundingSeed(1, RoundingUse::kExchange, 5, 0),
            RoundingSeed(1, RoundingUse::kWeights, 5, 0));
  EXPECT_NE(RoundingSeed(1, RoundingUse::kWeights, 5, 0),
            RoundingSeed(1, RoundingUse::kWeights, 6, 0));
  EXPECT_NE(RoundingSeed(1, RoundingUse::kWeights, 5, 0),
            RoundingSeed(2, RoundingUse::kWeights, 5, 0));
}

}  // namespace
}  // namespace hotrow
