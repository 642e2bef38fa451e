#include "ops/vec8_impl.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace hotrow::internal {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(Vec8Test, LoadFirstAndStoreFirstTouchOnlyTheFirstLanes) {
  for (int64_t n = 0; n <= 8; ++n) {
    // Exactly n floats: under AddressSanitizer one more would be an error.
    std::vector<float> from(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) from[static_cast<size_t>(i)] = static_cast<float>(i + 1);
    const Vec8 v = Vec8::LoadFirst(from.data(), n);
    float all[8];
    v.Store(all);
    for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(all[i], i < n ? static_cast<float>(i + 1) : 0.0f);
    std::vector<float> to(static_cast<size_t>(n), -1.0f);
    v.StoreFirst(to.data(), n);
    EXPECT_EQ(to, from);
  }
}

TEST(Vec8Test, SumEachAddsLanesInTheDocumentedOrder) {
  Vec8 a[8];
  float want[8];
  for (int i = 0; i < 8; ++i) {
    float x[8];
    // Magnitudes far apart, so that another order would round differently.
    for (int k = 0; k < 8; ++k) x[k] = (k % 3 == i % 3 ? 1e8f : 1.25f) * static_cast<float>(k - i);
    a[i] = Vec8::Load(x);
    want[i] = ((x[0] + x[2]) + (x[1] + x[3])) + ((x[4] + x[6]) + (x[5] + x[7]));
  }
  float got[8];
  Vec8::SumEach(a).Store(got);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(got[i], want[i]) << i;
}

TEST(Vec8Test, FmaRoundsOnce) {
  const float x = 1.0f + 0x1p-12f;  // x^2 = 1 + 2^-11 + 2^-24, of which a product keeps no 2^-24
  float got[8];
  Vec8::Fma(Vec8::Set(x), Vec8::Set(x), Vec8::Set(-1.0f - 0x1p-11f)).Store(got);
  EXPECT_EQ(got[3], 0x1p-24f);
}

TEST(Vec8Test, ReluKeepsNaNAndItsGradientPassesWhereTheOutputIsPositive) {
  const float x[8] = {-1, 2, kNaN, 0, -0.0f, 3, -4, 5};
  float y[8];
  Vec8::Relu(Vec8::Load(x)).Store(y);
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 2);
  EXPECT_NE(y[2], y[2]);
  EXPECT_EQ(y[3], 0);
  EXPECT_EQ(y[6], 0);
  float g[8];
  Vec8::ReluGrad(Vec8::Load(y), Vec8::Set(7)).Store(g);
  const float want[8] = {0, 7, 7, 0, 0, 7, 0, 7};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(g[i], want[i]) << i;
}

TEST(Vec8Test, ForEachVec8CoversAnyLengthOnce) {
  for (int64_t n : {0, 1, 7, 8, 9, 16, 23}) {
    std::vector<float> v(static_cast<size_t>(n), 1.0f);
    ForEachVec8(n, [&](int64_t i, auto lanes) {
      StoreLanes(LoadLanes(v.data() + i, lanes) + Vec8::Set(1), v.data() + i, lanes);
    });
    EXPECT_EQ(v, std::vector<float>(static_cast<size_t>(n), 2.0f));
  }
}

}  // namespace
}  // namespace hotrow::internal
