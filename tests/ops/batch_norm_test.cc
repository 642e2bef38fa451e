#include "ops/layers/batch_norm.h"

#include <cmath>
#include <cstddef>
#include <vector>

#include "base/buffer.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

HostBuffer<std::byte> Workspace(int64_t batch_size, int64_t columns) {
  auto made = HostBuffer<std::byte>::Create(BatchNormWorkspaceBytes(batch_size, columns));
  HOTROW_EXPECT_OK(made);
  return *std::move(made);
}

TEST(BatchNormTest, HandWorkedNumbers) {
  // Two columns of two samples, one unused number behind each row.
  const std::vector<float> x = {1, 10, -7, 5, 10, -7};
  HostBuffer<std::byte> workspace = Workspace(2, 2);
  std::vector<double> sums(4), moments(4);
  HOTROW_ASSERT_OK(BatchNormSums({}, {.batch_size = 2,
                                      .columns = 2,
                                      .x = x.data(),
                                      .x_stride = 3,
                                      .sums = sums.data(),
                                      .workspace = workspace.data(),
                                      .workspace_bytes = workspace.bytes()}));
  EXPECT_EQ(sums, (std::vector<double>{6, 20, 26, 200}));
  std::vector<float> mean(2), inverse(2);
  const BatchNormScale scale = {mean.data(), inverse.data()};
  HOTROW_ASSERT_OK(BatchNormMoments({}, {.columns = 2,
                                         .sums = sums.data(),
                                         .samples = 2,
                                         .moments = moments.data(),
                                         .scale = scale}));
  EXPECT_EQ(moments, (std::vector<double>{3, 10, 4, 0}));
  EXPECT_EQ(mean, (std::vector<float>{3, 10}));
  EXPECT_EQ(inverse[0], static_cast<float>(1 / std::sqrt(4 + 1e-5)));
  EXPECT_EQ(inverse[1], static_cast<float>(1 / std::sqrt(1e-5)));

  inverse = {0.5f, 2};  // easier to work with
  const std::vector<float> gamma = {2, 3};
  const std::vector<float> beta = {1, -1};
  std::vector<float> y(4);
  BatchNormArgs forward = {.batch_size = 2,
                           .columns = 2,
                           .relu = true,
                           .x = x.data(),
                           .x_stride = 3,
                           .scale = scale,
                           .gamma = gamma.data(),
                           .beta = beta.data(),
                           .output = y.data(),
                           .output_stride = 2};
  HOTROW_ASSERT_OK(BatchNorm({}, forward));  // -1, -1; 3, -1
  EXPECT_EQ(y, (std::vector<float>{0, 0, 3, 0}));
  forward.relu = false;
  HOTROW_ASSERT_OK(BatchNorm({}, forward));
  EXPECT_EQ(y, (std::vector<float>{-1, -1, 3, -1}));

  const std::vector<float> dy = {7, 7, 6, 7};
  std::vector<float> gradients(4), dx(4);
  const auto run = [&](bool relu) {
    forward.relu = relu;
    HOTROW_ASSERT_OK(BatchNormGradSums({}, {.forward = forward,
                                            .output_gradient = dy.data(),
                                            .output_gradient_stride = 2,
                                            .sums = sums.data(),
                                            .gradients = gradients.data(),
                                            .workspace = workspace.data(),
                                            .workspace_bytes = workspace.bytes()}));
    HOTROW_ASSERT_OK(BatchNormInputGrad({}, {.forward = forward,
                                             .output_gradient = dy.data(),
                                             .output_gradient_stride = 2,
                                             .sums = sums.data(),
                                             .samples = 2,
                                             .x_gradient = dx.data(),
                                             .x_gradient_stride = 2}));
  };
  ASSERT_NO_FATAL_FAILURE(run(true));  // xhat is -1, 0; 1, 0 and one number alone is above 0
  EXPECT_EQ(sums, (std::vector<double>{6, 0, 6, 0}));
  EXPECT_EQ(gradients, (std::vector<float>{6, 0, 6, 0}));
  EXPECT_EQ(dx, (std::vector<float>{0 - 3 + 3, 0, 6 - 3 - 3, 0}));
  ASSERT_NO_FATAL_FAILURE(run(false));
  EXPECT_EQ(gradients, (std::vector<float>{-1, 0, 13, 14}));
  EXPECT_EQ(dx, (std::vector<float>{7 - 6.5f - 0.5f, 0, 6 - 6.5f + 0.5f, 0}));

  std::vector<float> running = {1, 0, 2, 3};
  HOTROW_ASSERT_OK(BatchNormEndStep({}, {.columns = 2,
                                         .samples = 2,
                                         .moments = moments.data(),
                                         .momentum = 0.25,
                                         .mean = running.data(),
                                         .variance = running.data() + 2}));
  EXPECT_EQ(running, (std::vector<float>{1.5f, 2.5f, 1.5f + 2, 2.25f}));
  HOTROW_ASSERT_OK(BatchNormRunning(
      {}, {.columns = 2, .mean = running.data(), .variance = running.data() + 2, .scale = scale}));
  EXPECT_EQ(mean, (std::vector<float>{1.5f, 2.5f}));
  EXPECT_EQ(inverse[1], static_cast<float>(1 / std::sqrt(2.25 + 1e-5)));
}

TEST(BatchNormTest, AnEmptyBatchHasZeroSumsAndLeavesRunningStatisticsAlone) {
  std::vector<double> sums(2, 9), moments(2, 9);
  std::vector<float> mean(1, 9), inverse(1, 9), gradients(2, 9);
  HOTROW_ASSERT_OK(BatchNormSums({}, {.columns = 1, .sums = sums.data()}));
  EXPECT_EQ(sums, std::vector<double>(2));
  HOTROW_ASSERT_OK(BatchNormMoments({}, {.columns = 1,
                                         .sums = sums.data(),
                                         .moments = moments.data(),
                                         .scale = {mean.data(), inverse.data()}}));
  EXPECT_EQ(moments, std::vector<double>(2));
  HOTROW_ASSERT_OK(BatchNorm({}, {.columns = 1}));
  HOTROW_ASSERT_OK(BatchNormGradSums(
      {}, {.forward = {.columns = 1}, .sums = sums.data(), .gradients = gradients.data()}));
  EXPECT_EQ(gradients, std::vector<float>(2));
  HOTROW_ASSERT_OK(BatchNormInputGrad({}, {.forward = {.columns = 1}}));
  HOTROW_ASSERT_OK(BatchNormEndStep({}, {.columns = 1,
                                         .samples = 0,
                                         .moments = moments.data(),
                                         .momentum = 0.1,
                                         .mean = gradients.data(),
                                         .variance = gradients.data()}));
  EXPECT_EQ(gradients, std::vector<float>(2));
}

TEST(BatchNormTest, EqualBitsOnAnyPool) {
  constexpr int64_t kRows = 3 * kBatchNormBlockRows + 5;
  RandomStream random(3, RandomPurpose::kTest);
  const std::vector<float> x = test::RandomFloats(random, kRows * 3);
  const auto run = [&](const ExecContext& ctx) {
    HostBuffer<std::byte> workspace = Workspace(kRows, 3);
    std::vector<double> sums(6);
    HOTROW_EXPECT_OK(BatchNormSums(ctx, {.batch_size = kRows,
                                         .columns = 3,
                                         .x = x.data(),
                                         .x_stride = 3,
                                         .sums = sums.data(),
                                         .workspace = workspace.data(),
                                         .workspace_bytes = workspace.bytes()}));
    return sums;
  };
  ThreadPool pool(3);
  EXPECT_EQ(run(test::OnPool(&pool)), run({}));
}

TEST(BatchNormTest, ErrorsNameTheFieldAndTheLimit) {
  const auto expect_error = [](const absl::Status& status, const char* text) {
    EXPECT_THAT(status, test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  std::vector<float> v(8);
  std::vector<double> sums(8);
  expect_error(BatchNormSums({}, {.batch_size = 1}), "BatchNormSums: columns must be >= 1, got 0");
  expect_error(BatchNormSums({}, {.columns = 1}), "sums must not be null");
  expect_error(BatchNormSums({}, {.batch_size = 1, .columns = 1, .sums = sums.data()}),
               "workspace_bytes must be at least 64, got 0");
  expect_error(BatchNormMoments({}, {.columns = 1, .samples = -1}), "samples must be >= 0, got -1");
  expect_error(BatchNormMoments({}, {.columns = 1, .sums = sums.data(), .moments = sums.data()}),
               "scale.mean must not be null");
  expect_error(BatchNormRunning({}, {.columns = 1, .mean = v.data()}), "variance must not be null");
  BatchNormArgs forward = {.batch_size = 1, .columns = 4, .x = v.data(), .x_stride = 3};
  expect_error(BatchNorm({}, forward), "BatchNorm: x_stride must be >= columns = 4, got 3");
  forward.x_stride = 4;
  forward.scale = {v.data(), v.data()};
  expect_error(BatchNorm({}, forward), "gamma must not be null");
  forward.gamma = v.data();
  forward.beta = v.data();
  expect_error(BatchNorm({}, forward), "output must not be null");
  expect_error(BatchNormGradSums({}, {.forward = forward, .sums = sums.data()}),
               "BatchNormGradSums: gradients must not be null");
  expect_error(BatchNormInputGrad({}, {.forward = forward,
                                       .output_gradient = v.data(),
                                       .output_gradient_stride = 4,
                                       .sums = sums.data(),
                                       .x_gradient = v.data()}),
               "x_gradient_stride must be >= columns = 4, got 0");
  expect_error(BatchNormEndStep({}, {.columns = 1, .momentum = 2}), "momentum must be in [0, 1]");
}

}  // namespace
}  // namespace hotrow
