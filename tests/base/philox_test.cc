#include "base/philox.h"

#include <cmath>
#include <set>
#include <vector>

#include "tests/support/test_util.h"

namespace hotrow {
namespace {

void ExpectBlock(const PhiloxBlock& got, const PhiloxBlock& want) {
  for (int i = 0; i < 4; ++i) EXPECT_EQ(got.v[i], want.v[i]) << "word " << i;
}

// From kat_vectors of Random123 1.14, philox4x32-10.
TEST(PhiloxTest, KnownAnswersOfRandom123) {
  ExpectBlock(Philox4x32({{0, 0, 0, 0}}, 0), {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  ExpectBlock(Philox4x32({{~0u, ~0u, ~0u, ~0u}}, ~uint64_t{0}),
              {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  ExpectBlock(Philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822),
              {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST(PhiloxTest, BlockLayoutKeepsEveryInputApart) {
  // Where each input goes is part of the checkpoint format: rows are initialised with it.
  ExpectBlock(RandomBlock(9, RandomPurpose::kRowInit, 0x1111111122222222, 3, 4),
              Philox4x32({{0x22222222, 0x11111111, 3, 0x10000004}}, 9));
  ExpectBlock(RandomBlock(9, RandomPurpose::kData, ~uint64_t{0}, ~0u, 0x0fffffff),
              Philox4x32({{~0u, ~0u, ~0u, 0x5fffffff}}, 9));
}

// n uniform numbers: the mean has a standard deviation of 1/sqrt(12 n), the mean square (expected
// 1/3) one of sqrt(4/45/n).
TEST(UniformTest, MeanAndVariance) {
  constexpr int kN = 400000;
  double sum = 0;
  double squares = 0;
  for (uint64_t i = 0; i < kN / 4; ++i) {
    const PhiloxBlock block = RandomBlock(1, RandomPurpose::kTest, i, 0, 0);
    for (const uint32_t bits : block.v) {
      const float u = UniformFloat(bits);
      ASSERT_GE(u, 0.0f);
      ASSERT_LT(u, 1.0f);
      sum += u;
      squares += static_cast<double>(u) * u;
    }
  }
  EXPECT_NEAR(sum / kN, 0.5, 4 / std::sqrt(12.0 * kN));
  EXPECT_NEAR(squares / kN, 1.0 / 3, 4 * std::sqrt(4.0 / 45 / kN));
}

TEST(UniformTest, EndsOfTheRange) {
  EXPECT_EQ(UniformFloat(0), 0.0f);
  EXPECT_EQ(UniformFloat(~0u), 1.0f - 0x1p-24f);
  EXPECT_EQ(UniformFloat(0x80000000u), 0.5f);
  EXPECT_EQ(UniformDouble(0, 0), 0.0);
  EXPECT_EQ(UniformDouble(~0u, ~0u), 1.0 - 0x1p-53);
  EXPECT_EQ(UniformDouble(0x40000000u, 0), 0.25);
}

// Moments of n standard normals: mean 0 +- 1/sqrt(n), second 1 +- sqrt(2/n), fourth 3 +-
// sqrt(96/n), product of a pair 0 +- 1/sqrt(n/2).
TEST(NormalTest, MomentsAndIndependence) {
  constexpr int kN = 400000;
  RandomStream random(2, RandomPurpose::kTest);
  double sum[4] = {0, 0, 0, 0};
  double products = 0;
  for (int i = 0; i < kN / 2; ++i) {
    const uint32_t bits0 = random.Next32();
    const NormalPair pair = NormalFloats(bits0, random.Next32());
    products += static_cast<double>(pair.first) * pair.second;
    for (const double z : {pair.first, pair.second}) {
      sum[0] += z;
      sum[1] += z * z;
      sum[2] += z * z * z;
      sum[3] += z * z * z * z;
    }
  }
  EXPECT_NEAR(sum[0] / kN, 0, 4 / std::sqrt(kN));
  EXPECT_NEAR(sum[1] / kN, 1, 4 * std::sqrt(2.0 / kN));
  EXPECT_NEAR(sum[2] / kN, 0, 4 * std::sqrt(15.0 / kN));
  EXPECT_NEAR(sum[3] / kN, 3, 4 * std::sqrt(96.0 / kN));
  EXPECT_NEAR(products / (kN / 2), 0, 4 / std::sqrt(kN / 2));
}

TEST(NormalTest, CornersAreFinite) {
  for (const uint32_t a : {0u, 1u, 0x80000000u, ~0u}) {
    for (const uint32_t b : {0u, 1u, 0x80000000u, ~0u}) {
      const NormalPair pair = NormalFloats(a, b);
      EXPECT_TRUE(std::isfinite(pair.first) && std::isfinite(pair.second)) << a << " " << b;
    }
  }
  // sqrt(-2 log 2^-32): the largest value there is.
  EXPECT_FLOAT_EQ(NormalFloats(0, 0).first, std::sqrt(64 * std::log(2.0f)));
  EXPECT_EQ(NormalFloats(~0u, 0).first, 0.0f);
}

TEST(RandomStreamTest, WalksTheBlocksOfItsStream) {
  RandomStream random(7, RandomPurpose::kTest, 0xabcdef0123456789);
  for (uint32_t block = 0; block < 5; ++block) {
    const PhiloxBlock want = RandomBlock(7, RandomPurpose::kTest, 0xabcdef0123456789, block, 0);
    for (const uint32_t word : want.v) EXPECT_EQ(random.Next32(), word);
  }
}

TEST(RandomStreamTest, CopyContinuesWithTheSameNumbers) {
  RandomStream random(7, RandomPurpose::kTest);
  random.Next32();
  RandomStream copy = random;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(copy.Next64(), random.Next64());
}

TEST(RandomStreamTest, SeedsPurposesAndStreamsDiffer) {
  std::set<uint64_t> firsts;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (const RandomPurpose purpose : {RandomPurpose::kData, RandomPurpose::kTest}) {
      for (uint64_t stream = 0; stream < 10; ++stream) {
        firsts.insert(RandomStream(seed, purpose, stream).Next64());
      }
    }
  }
  EXPECT_EQ(firsts.size(), 200u);
}

TEST(RandomStreamTest, BelowStaysBelowAndReachesAll) {
  RandomStream random(1, RandomPurpose::kTest);
  std::vector<int> counts(7);
  for (int i = 0; i < 7000; ++i) ++counts[random.Below(7)];
  for (const int count : counts) EXPECT_NEAR(count, 1000, 5 * std::sqrt(1000));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(random.Below(1), 0u);
}

TEST(RandomStreamTest, UniformAndNormalHaveTheirMeans) {
  RandomStream random(3, RandomPurpose::kTest);
  double uniform = 0;
  double normal = 0;
  for (int i = 0; i < 100000; ++i) {
    const double u = random.Uniform();
    ASSERT_TRUE(u >= 0 && u < 1);
    uniform += u;
    normal += random.Normal();
  }
  EXPECT_NEAR(uniform / 100000, 0.5, 4 / std::sqrt(12e5));
  EXPECT_NEAR(normal / 100000, 0, 4 / std::sqrt(1e5));
}

}  // namespace
}  // namespace hotrow
