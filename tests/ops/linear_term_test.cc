#include "ops/layers/linear_term.h"

#include <vector>

#include "tests/ops/dense_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

TEST(LinearTermTest, HandWorkedNumbers) {
  const std::vector<float> x = {1, 2, -7, 3, 4, -7};
  const std::vector<float> weights = {10, 100};
  std::vector<float> output(4, 9.0f);
  HOTROW_ASSERT_OK(LinearTerm({}, {.batch_size = 2,
                                   .columns = 2,
                                   .x = x.data(),
                                   .x_stride = 3,
                                   .weights = weights.data(),
                                   .output = output.data(),
                                   .output_stride = 2}));
  EXPECT_EQ(output, (std::vector<float>{210, 9, 430, 9}));
  const std::vector<float> gradient = {2, -7, 3, -7};
  std::vector<float> dx(6, 9.0f);
  HOTROW_ASSERT_OK(LinearTermInputGrad({}, {.batch_size = 2,
                                            .columns = 2,
                                            .weights = weights.data(),
                                            .output_gradient = gradient.data(),
                                            .output_gradient_stride = 2,
                                            .x_gradient = dx.data(),
                                            .x_gradient_stride = 3}));
  EXPECT_EQ(dx, (std::vector<float>{20, 200, 9, 30, 300, 9}));
  std::vector<float> dw(2);
  HOTROW_ASSERT_OK(LinearTermWeightGrad({}, {.batch_size = 2,
                                             .columns = 2,
                                             .x = x.data(),
                                             .x_stride = 3,
                                             .output_gradient = gradient.data(),
                                             .output_gradient_stride = 2,
                                             .weight_gradient = dw.data()}));
  EXPECT_EQ(dw, (std::vector<float>{11, 16}));
  float db = 0;
  HOTROW_ASSERT_OK(BiasGrad({}, {.batch_size = 2,
                                 .output_gradient = gradient.data(),
                                 .output_gradient_stride = 2,
                                 .bias_gradient = &db}));
  EXPECT_EQ(db, 5);
}

TEST(LinearTermTest, AnEmptyBatchHasZeroGradients) {
  std::vector<float> dw(3, 9.0f);
  float db = 9;
  HOTROW_ASSERT_OK(LinearTerm({}, {.batch_size = 0, .columns = 3}));
  HOTROW_ASSERT_OK(LinearTermInputGrad({}, {.batch_size = 0, .columns = 3}));
  HOTROW_ASSERT_OK(
      LinearTermWeightGrad({}, {.batch_size = 0, .columns = 3, .weight_gradient = dw.data()}));
  HOTROW_ASSERT_OK(BiasGrad({}, {.batch_size = 0, .bias_gradient = &db}));
  EXPECT_EQ(dw, std::vector<float>(3));
  EXPECT_EQ(db, 0);
}

TEST(LinearTermTest, EqualBitsOnAnyPool) {
  constexpr int64_t kRows = 300;
  constexpr int64_t kColumns = 150;
  RandomStream random(3, RandomPurpose::kTest);
  const std::vector<float> x = test::RandomFloats(random, kRows * kColumns);
  const std::vector<float> weights = test::RandomFloats(random, kColumns);
  const auto run = [&](const ExecContext& ctx) {
    std::vector<float> y(kRows), dx(x.size()), dw(kColumns);
    HOTROW_EXPECT_OK(LinearTerm(ctx, {.batch_size = kRows,
                                      .columns = kColumns,
                                      .x = x.data(),
                                      .x_stride = kColumns,
                                      .weights = weights.data(),
                                      .output = y.data()}));
    HOTROW_EXPECT_OK(LinearTermInputGrad(ctx, {.batch_size = kRows,
                                               .columns = kColumns,
                                               .weights = weights.data(),
                                               .output_gradient = y.data(),
                                               .x_gradient = dx.data(),
                                               .x_gradient_stride = kColumns}));
    HOTROW_EXPECT_OK(LinearTermWeightGrad(ctx, {.batch_size = kRows,
                                                .columns = kColumns,
                                                .x = x.data(),
                                                .x_stride = kColumns,
                                                .output_gradient = y.data(),
                                                .weight_gradient = dw.data()}));
    y.insert(y.end(), dx.begin(), dx.end());
    y.insert(y.end(), dw.begin(), dw.end());
    return test::Bits(y);
  };
  ThreadPool pool(3);
  EXPECT_EQ(run(test::OnPool(&pool)), run({}));
}

TEST(LinearTermTest, ErrorsNameTheField) {
  std::vector<float> data(12);
  const auto code = absl::StatusCode::kInvalidArgument;
  const auto error = [&](const auto& change, const char* field) {
    LinearTermArgs args = {.batch_size = 2,
                           .columns = 3,
                           .x = data.data(),
                           .x_stride = 3,
                           .weights = data.data(),
                           .output = data.data() + 6};
    change(args);
    EXPECT_THAT(LinearTerm({}, args), test::StatusIs(code, HasSubstr(field)));
  };
  error([](auto& a) { a.batch_size = -1; }, "LinearTerm: batch_size must be >= 0, got -1");
  error([](auto& a) { a.columns = 0; }, "columns must be >= 1, got 0");
  error([](auto& a) { a.x = nullptr; }, "x must not be null");
  error([](auto& a) { a.x_stride = 2; }, "x_stride must be >= 3, got 2");
  error([](auto& a) { a.weights = nullptr; }, "weights");
  error([](auto& a) { a.output = nullptr; }, "output");
  error([](auto& a) { a.output_stride = 0; }, "output_stride must be >= 1");
  EXPECT_THAT(LinearTermInputGrad({}, {.batch_size = 1, .columns = 1}),
              test::StatusIs(code, HasSubstr("LinearTermInputGrad: output_gradient")));
  EXPECT_THAT(LinearTermWeightGrad({}, {.batch_size = 1, .columns = 1}),
              test::StatusIs(code, HasSubstr("LinearTermWeightGrad: weight_gradient")));
  EXPECT_THAT(BiasGrad({}, {.batch_size = 0}),
              test::StatusIs(code, HasSubstr("BiasGrad: bias_gradient")));
  EXPECT_EQ(LinearTermWorkspaceBytes(Device::kCpu, 100, 3), 0);
  EXPECT_EQ(LinearTermWorkspaceBytes(Device::kCuda, 65, 11), 192);  // 3 chunks: 132 bytes
}

}  // namespace
}  // namespace hotrow
