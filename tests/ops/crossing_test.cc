#include "ops/layers/crossing.h"

#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

TEST(CrossingTest, HandWorkedNumbers) {
  const std::vector<float> x0 = {2, 3, -7, 4, 5, -7};
  const std::vector<float> t = {10, 20, 30, 40};
  const std::vector<float> x = {1, 2, 3, 4};
  std::vector<float> y(6, 9.0f);
  HOTROW_ASSERT_OK(Crossing({}, {.batch_size = 2,
                                 .width = 2,
                                 .x0 = x0.data(),
                                 .x0_stride = 3,
                                 .t = t.data(),
                                 .t_stride = 2,
                                 .x = x.data(),
                                 .x_stride = 2,
                                 .output = y.data(),
                                 .output_stride = 3}));
  EXPECT_EQ(y, (std::vector<float>{21, 62, 9, 123, 204, 9}));
  const std::vector<float> dy = {1, 2, 3, 4};
  std::vector<float> dx0(4), dt(4), dx(4, 9.0f);
  CrossingGradArgs grad = {.batch_size = 2,
                           .width = 2,
                           .x0 = x0.data(),
                           .x0_stride = 3,
                           .t = t.data(),
                           .t_stride = 2,
                           .output_gradient = dy.data(),
                           .output_gradient_stride = 2,
                           .x0_gradient = dx0.data(),
                           .x0_gradient_stride = 2,
                           .t_gradient = dt.data(),
                           .t_gradient_stride = 2};
  HOTROW_ASSERT_OK(CrossingGrad({}, grad));
  EXPECT_EQ(dx0, (std::vector<float>{10, 40, 90, 160}));
  EXPECT_EQ(dt, (std::vector<float>{2, 6, 12, 20}));
  EXPECT_EQ(dx, std::vector<float>(4, 9.0f));
  grad.x_gradient = dx.data();
  grad.x_gradient_stride = 2;
  grad.x0_gradient = nullptr;
  grad.t_gradient = nullptr;
  HOTROW_ASSERT_OK(CrossingGrad({}, grad));
  EXPECT_EQ(dx, dy);
}

TEST(CrossingTest, ErrorsNameTheFieldAndTheLimit) {
  const auto expect_error = [](const absl::Status& status, const char* text) {
    EXPECT_THAT(status, test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  std::vector<float> v(4);
  CrossingArgs args = {.batch_size = 1, .width = 4, .x0 = v.data(), .x0_stride = 4};
  expect_error(Crossing({}, args), "Crossing: t must not be null");
  args.x0_stride = 3;
  expect_error(Crossing({}, args), "x0_stride must be >= width = 4, got 3");
  args.width = 0;
  expect_error(Crossing({}, args), "width must be >= 1, got 0");
  args.batch_size = -1;
  expect_error(Crossing({}, args), "batch_size must be >= 0, got -1");
  HOTROW_EXPECT_OK(Crossing({}, {.batch_size = 0, .width = 4}));
  CrossingGradArgs grad = {
      .batch_size = 1, .width = 4, .x0 = v.data(), .x0_stride = 4, .t = v.data(), .t_stride = 4};
  expect_error(CrossingGrad({}, grad), "CrossingGrad: output_gradient must not be null");
  grad.output_gradient = v.data();
  grad.output_gradient_stride = 4;
  grad.t_gradient = v.data();
  grad.t_gradient_stride = 2;
  expect_error(CrossingGrad({}, grad), "t_gradient_stride must be >= width = 4, got 2");
  HOTROW_EXPECT_OK(CrossingGrad({}, {.batch_size = 0, .width = 4}));
}

}  // namespace
}  // namespace hotrow
