#include "ops/layers/target_attention.h"

#include <vector>

#include "tests/ops/dense_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

// Three samples with two rows, none and one of two columns; offsets may begin anywhere.
const std::vector<float> kRows = {1, 2, 3, 4, 5, 6};
const std::vector<int64_t> kOffsets = {7, 9, 9, 10};
const std::vector<float> kTarget = {10, 20, -7, 30, 40, -7, 50, 60, -7};

JaggedRows Small() {
  return {.batch_size = 3, .dim = 2, .rows = kRows.data(), .offsets = kOffsets.data()};
}

TEST(TargetAttentionTest, HandWorkedNumbers) {
  std::vector<float> pairs(24);
  HOTROW_ASSERT_OK(TargetPairs(
      {}, {.rows = Small(), .target = kTarget.data(), .target_stride = 3, .pairs = pairs.data()}));
  EXPECT_EQ(pairs, (std::vector<float>{1, 2, 10, 20, -9,  -18, 10,  40,  //
                                       3, 4, 10, 20, -7,  -16, 30,  80,  //
                                       5, 6, 50, 60, -45, -54, 250, 360}));
  const std::vector<float> weights = {2, 10, 3};
  std::vector<float> y(9, 9.0f);
  WeightedRowSumArgs sum = {
      .rows = Small(), .weights = weights.data(), .output = y.data(), .output_stride = 3};
  HOTROW_ASSERT_OK(WeightedRowSum({}, sum));
  EXPECT_EQ(y, (std::vector<float>{32, 44, 9, 0, 0, 9, 15, 18, 9}));
  sum.weights = nullptr;
  HOTROW_ASSERT_OK(WeightedRowSum({}, sum));
  EXPECT_EQ(y, (std::vector<float>{4, 6, 9, 0, 0, 9, 5, 6, 9}));

  const std::vector<float> dy = {1, 10, 1, 1, 2, 0};
  std::vector<float> dweights(3);
  HOTROW_ASSERT_OK(RowWeightGrad({}, {.rows = Small(),
                                      .output_gradient = dy.data(),
                                      .output_gradient_stride = 2,
                                      .weight_gradient = dweights.data()}));
  EXPECT_EQ(dweights, (std::vector<float>{21, 43, 10}));
  std::vector<float> drows(6, 100.0f);
  HOTROW_ASSERT_OK(RowSumGrad({}, {.rows = Small(),
                                   .output_gradient = dy.data(),
                                   .output_gradient_stride = 2,
                                   .row_gradient = drows.data()}));
  EXPECT_EQ(drows, (std::vector<float>{101, 110, 101, 110, 102, 100}));

  // The pairs' gradients: g_0 = 1, g_1 = 2, g_2 = 3, g_3 = 4 in all columns.
  std::vector<float> dpairs;
  for (int row = 0; row < 3; ++row) {
    for (float part = 1; part <= 4; ++part) dpairs.insert(dpairs.end(), 2, part);
  }
  drows.assign(6, 1000.0f);
  std::vector<float> dtarget(6, 9.0f);
  TargetAttentionGradArgs grad = {.rows = Small(),
                                  .weights = weights.data(),
                                  .target = kTarget.data(),
                                  .target_stride = 3,
                                  .pair_gradient = dpairs.data(),
                                  .output_gradient = dy.data(),
                                  .output_gradient_stride = 2,
                                  .row_gradient = drows.data(),
                                  .target_gradient = dtarget.data(),
                                  .target_gradient_stride = 2};
  HOTROW_ASSERT_OK(TargetAttentionGrad({}, grad));
  EXPECT_EQ(drows, (std::vector<float>{1046, 1104, 1054, 1184, 1210, 1244}));
  EXPECT_EQ(dtarget, (std::vector<float>{14, 22, 0, 0, 19, 23}));
  grad.target_gradient = nullptr;
  HOTROW_ASSERT_OK(TargetAttentionGrad({}, grad));
  EXPECT_EQ(dtarget, (std::vector<float>{14, 22, 0, 0, 19, 23}));
}

// One history for three targets, as rows that are there once and as copies.
TEST(TargetAttentionTest, SharedRowsAreThoseOfEachSample) {
  const std::vector<int64_t> offsets = {0, 2, 4, 6};
  std::vector<float> copies;
  for (int i = 0; i < 3; ++i) copies.insert(copies.end(), kRows.begin(), kRows.begin() + 4);
  const std::vector<float> weights = {2, 10, 3, 4, 5, 6};
  std::vector<float> results[2];
  for (const bool shared : {false, true}) {
    const JaggedRows rows = {.batch_size = 3,
                             .dim = 2,
                             .rows = shared ? kRows.data() : copies.data(),
                             .offsets = offsets.data(),
                             .shared = shared};
    std::vector<float>& out = results[shared ? 1 : 0];
    out.assign(48 + 6 + 6, -1.0f);
    HOTROW_ASSERT_OK(TargetPairs(
        {}, {.rows = rows, .target = kTarget.data(), .target_stride = 3, .pairs = out.data()}));
    WeightedRowSumArgs sum = {
        .rows = rows, .weights = weights.data(), .output = out.data() + 48, .output_stride = 2};
    HOTROW_ASSERT_OK(WeightedRowSum({}, sum));
    sum.weights = nullptr;
    sum.output += 6;
    HOTROW_ASSERT_OK(WeightedRowSum({}, sum));
    if (!shared) continue;
    EXPECT_THAT(RowSumGrad({}, {.rows = rows, .output_gradient = out.data()}),
                test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("shared")));
  }
  EXPECT_EQ(results[1], results[0]);
}

TEST(TargetAttentionTest, ErrorsNameTheFieldAndTheLimit) {
  const auto expect_error = [](const absl::Status& status, const char* text) {
    EXPECT_THAT(status, test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  std::vector<float> v(8);
  expect_error(TargetPairs({}, {}), "TargetPairs: dim must be >= 1, got 0");
  expect_error(TargetPairs({}, {.rows = {.batch_size = -1, .dim = 1}}),
               "batch_size must be >= 0, got -1");
  expect_error(TargetPairs({}, {.rows = {.batch_size = 1, .dim = 1}}), "offsets must not be null");
  expect_error(TargetPairs({}, {.rows = Small()}), "target must not be null");
  expect_error(WeightedRowSum({}, {.rows = Small(), .output = v.data(), .output_stride = 1}),
               "WeightedRowSum: output_stride must be >= dim = 2, got 1");
  expect_error(RowWeightGrad({}, {.rows = Small()}), "output_gradient must not be null");
  expect_error(RowSumGrad({}, {.rows = Small(), .output_gradient = v.data()}),
               "RowSumGrad: output_gradient_stride must be >= dim = 2, got 0");
  TargetAttentionGradArgs grad = {.rows = Small(),
                                  .target = v.data(),
                                  .target_stride = 2,
                                  .output_gradient = v.data(),
                                  .output_gradient_stride = 2,
                                  .target_gradient = v.data()};
  expect_error(TargetAttentionGrad({}, grad),
               "TargetAttentionGrad: target_gradient_stride must be >= dim = 2, got 0");
  const JaggedRows none = {.batch_size = 0, .dim = 2};
  HOTROW_EXPECT_OK(TargetPairs({}, {.rows = none}));
  HOTROW_EXPECT_OK(WeightedRowSum({}, {.rows = none}));
  HOTROW_EXPECT_OK(RowWeightGrad({}, {.rows = none}));
  HOTROW_EXPECT_OK(RowSumGrad({}, {.rows = none}));
  HOTROW_EXPECT_OK(TargetAttentionGrad({}, {.rows = none}));
}

}  // namespace
}  // namespace hotrow
