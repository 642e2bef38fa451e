#include "ops/training/ordered_sum.h"

#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(OrderedSumTest, AddsFromTheFirstPartOn) {
  // In another order the first would be 1, the second 0. The third is a sum of one kind of zeros.
  const float big = 0x1p24f;
  const std::vector<float> parts = {big, 1, -0.0f, 9, 1, big, -0.0f, 9, -big, -big, -0.0f, 9};
  std::vector<float> sum(3);
  HOTROW_ASSERT_OK(OrderedSum(
      {}, {.parts = parts.data(), .num_parts = 3, .stride = 4, .size = 3, .sum = sum.data()}));
  EXPECT_THAT(sum, ElementsAre(0, 0, 0));
  EXPECT_TRUE(std::signbit(sum[2]));
  HOTROW_ASSERT_OK(OrderedSum(
      {}, {.parts = parts.data(), .num_parts = 1, .stride = 3, .size = 3, .sum = sum.data()}));
  EXPECT_THAT(sum, ElementsAre(big, 1, 0));
}

TEST(OrderedSumTest, BadArgumentsAreNamed) {
  float x = 1;
  const OrderedSumArgs good = {.parts = &x, .num_parts = 1, .stride = 1, .size = 1, .sum = &x};
  const auto refused = [&](auto change, const char* field) {
    OrderedSumArgs args = good;
    change(args);
    EXPECT_THAT(OrderedSum({}, args),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(field)));
  };
  refused([](OrderedSumArgs& args) { args.num_parts = 0; }, "num_parts must be >= 1");
  refused([](OrderedSumArgs& args) { args.size = -1; }, "size must be >= 0");
  refused([](OrderedSumArgs& args) { args.stride = 0; }, "stride must be >= size");
  refused([](OrderedSumArgs& args) { args.parts = nullptr; }, "parts must not be null");
  refused([](OrderedSumArgs& args) { args.sum = nullptr; }, "sum must not be null");
}

}  // namespace
}  // namespace hotrow
