#include "ops/rows/affine_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/philox.h"
#include "gtest/gtest.h"

namespace hotrow {
namespace {

constexpr AffineCode kCodes[] = {AffineCode::kInt8, AffineCode::kInt4};

std::vector<float> Decoded(AffineCode code, const std::vector<float>& weights) {
  const auto dim = static_cast<int32_t>(weights.size());
  // A byte more, which must stay.
  std::vector<std::byte> row(static_cast<size_t>(AffineRowBytes(code, dim)) + 1, std::byte{0xa5});
  EXPECT_TRUE(EncodeAffineRow(code, weights, row.data()));
  EXPECT_EQ(row.back(), std::byte{0xa5});
  std::vector<float> out(weights.size() + 1, -77.0f);
  DecodeAffineRow(code, row.data(), std::span(out).first(weights.size()));
  EXPECT_EQ(out.back(), -77.0f);
  out.pop_back();
  return out;
}

TEST(AffineRowsTest, BytesOfARow) {
  EXPECT_EQ(AffineRowBytes(AffineCode::kInt8, 64), 68);
  EXPECT_EQ(AffineRowBytes(AffineCode::kInt4, 64), 36);
  EXPECT_EQ(AffineRowBytes(AffineCode::kInt4, 7), 8);
}

// Half a step, of a scale and an offset that rounding has moved by one part in 128 at most.
TEST(AffineRowsTest, ADecodedWeightIsWithinHalfAStep) {
  RandomStream random(3, RandomPurpose::kTest);
  for (const AffineCode code : kCodes) {
    const double levels = code == AffineCode::kInt8 ? 255 : 15;
    for (const double size : {1e-30, 1e-5, 0.01, 1.0, 300.0, 1e30}) {
      for (const double shift : {0.0, 1.0, -1.0, 40.0}) {
        for (const size_t dim : {1u, 2u, 7u, 16u, 33u, 64u}) {
          std::vector<float> weights(dim);
          for (float& w : weights) {
            w = static_cast<float>(size * (random.Uniform() - 0.5 + shift));
          }
          const auto [least, most] = std::minmax_element(weights.begin(), weights.end());
          const double range = static_cast<double>(*most) - *least + std::abs(*least) / 128;
          const double step = range / levels * (1 + 1.0 / 128);
          const double rounding = 2e-7 * std::max(std::abs(*least), std::abs(*most));
          const std::vector<float> found = Decoded(code, weights);
          for (size_t i = 0; i < dim; ++i) {
            ASSERT_NEAR(found[i], weights[i], 0.5 * step + 2 * rounding)
                << "size " << size << ", shift " << shift << ", dim " << dim;
          }
        }
      }
    }
  }
}

TEST(AffineRowsTest, WhatBf16HasStaysAsItIs) {
  for (const AffineCode code : kCodes) {
    for (const float w : {0.0f, 1.0f, -2.5f, 0x1.fep127f, -0x1p-130f}) {
      EXPECT_EQ(Decoded(code, std::vector<float>(5, w)), std::vector<float>(5, w));
    }
    // Ends and what lies between them, in steps of a power of two.
    std::vector<float> ladder;
    for (int q = 0; q <= 15; ++q) ladder.push_back(-1.0f + 0.125f * static_cast<float>(q));
    if (code == AffineCode::kInt8) ladder.push_back(-1.0f + 0.125f * 255);
    EXPECT_EQ(Decoded(code, ladder), ladder);
  }
}

TEST(AffineRowsTest, WeightsWithoutACodeAreRefused) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kMax = std::numeric_limits<float>::max();
  for (const AffineCode code : kCodes) {
    for (const std::vector<float>& weights : std::vector<std::vector<float>>{
             {1, kInfinity}, {-kInfinity, 2}, {kNaN, 1}, {1, kNaN}, {-kMax, kMax}, {-kMax, 0}}) {
      std::vector<std::byte> row(16, std::byte{0x5a});
      EXPECT_FALSE(EncodeAffineRow(code, weights, row.data()));
      EXPECT_EQ(std::count(row.begin(), row.end(), std::byte{0x5a}), 16);
    }
  }
}

}  // namespace
}  // namespace hotrow
