#include "ops/layers/silu.h"

#include <cmath>
#include <vector>

#include "tests/ops/dense_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

TEST(SiluTest, ForwardAndBackwardMatchTheFormula) {
  ThreadPool pool(2);
  const int64_t rows = 130;  // more than two chunks, of three columns and one behind them
  RandomStream random(1, RandomPurpose::kTest);
  const std::vector<float> x = test::RandomFloats(random, rows * 4, 3.0f);
  const std::vector<float> dy = test::RandomFloats(random, rows * 4);
  std::vector<float> y(x.size(), 9.0f), dx = dy;
  HOTROW_ASSERT_OK(Silu(test::OnPool(&pool), {.num_rows = rows,
                                              .columns = 3,
                                              .x = x.data(),
                                              .x_stride = 4,
                                              .output = y.data(),
                                              .output_stride = 4}));
  HOTROW_ASSERT_OK(SiluGrad(test::OnPool(&pool), {.num_rows = rows,
                                                  .columns = 3,
                                                  .x = x.data(),
                                                  .x_stride = 4,
                                                  .gradient = dx.data(),
                                                  .gradient_stride = 4}));
  const auto silu = [](double at) { return at / (1 + std::exp(-at)); };
  for (size_t i = 0; i < x.size(); ++i) {
    if (i % 4 == 3) {
      EXPECT_EQ(y[i], 9);
      EXPECT_EQ(dx[i], dy[i]);
      continue;
    }
    EXPECT_NEAR(y[i], silu(x[i]), 2e-6) << i;
    const double slope = (silu(x[i] + 1e-6) - silu(x[i] - 1e-6)) / 2e-6;
    EXPECT_NEAR(dx[i], dy[i] * slope, 5e-6) << i;
  }
}

TEST(SiluTest, ProductsMayTakeThePlaceOfAFactor) {
  std::vector<float> a = {1, 2, -7, 3, 4, -7};
  const std::vector<float> b = {10, 100, 1000, 10'000};
  HOTROW_ASSERT_OK(RowProducts({}, {.num_rows = 2,
                                    .columns = 2,
                                    .a = a.data(),
                                    .a_stride = 3,
                                    .b = b.data(),
                                    .b_stride = 2,
                                    .output = a.data(),
                                    .output_stride = 3}));
  EXPECT_EQ(a, (std::vector<float>{10, 200, -7, 3000, 40'000, -7}));
}

TEST(SiluTest, ErrorsNameTheFieldAndTheLimit) {
  const auto expect_error = [](const absl::Status& status, const char* text) {
    EXPECT_THAT(status,
                test::StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr(text)));
  };
  std::vector<float> v(4);
  expect_error(Silu({}, {}), "Silu: columns must be >= 1, got 0");
  expect_error(Silu({}, {.num_rows = 1, .columns = 2, .x = v.data(), .x_stride = 1}),
               "x_stride must be >= columns = 2, got 1");
  expect_error(SiluGrad({}, {.num_rows = 1, .columns = 2, .x = v.data(), .x_stride = 2}),
               "SiluGrad: gradient must not be null");
  expect_error(RowProducts({}, {.num_rows = -1, .columns = 2}), "num_rows must be >= 0, got -1");
  EXPECT_THAT(Silu({.device = Device::kCuda}, {.columns = 1}),
              test::StatusIs(absl::StatusCode::kUnimplemented, ::testing::HasSubstr("CPU only")));
}

}  // namespace
}  // namespace hotrow
