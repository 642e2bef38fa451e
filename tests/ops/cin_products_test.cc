#include "ops/interactions/cin_products.h"

#include <vector>

#include "tests/ops/dense_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

TEST(CinProductsTest, HandWorkedTransposes) {
  // Two samples of two fields of three columns, a column of another feature behind each.
  const std::vector<float> fields = {1, 2, 3, -1, 4, 5, 6, -1, 7, 8, 9, -1, 10, 11, 12, -1};
  std::vector<float> rows(12);
  HOTROW_ASSERT_OK(TransposeFields({}, {.batch_size = 2,
                                        .rows = 2,
                                        .columns = 3,
                                        .from = fields.data(),
                                        .from_stride = 8,
                                        .from_row_stride = 4,
                                        .to = rows.data(),
                                        .to_stride = 6,
                                        .to_row_stride = 2}));
  EXPECT_EQ(rows, (std::vector<float>{1, 4, 2, 5, 3, 6, 7, 10, 8, 11, 9, 12}));
  std::vector<float> back(16, -1.0f);
  HOTROW_ASSERT_OK(TransposeFields({}, {.batch_size = 2,
                                        .rows = 3,
                                        .columns = 2,
                                        .from = rows.data(),
                                        .from_stride = 6,
                                        .from_row_stride = 2,
                                        .to = back.data(),
                                        .to_stride = 8,
                                        .to_row_stride = 4}));
  EXPECT_EQ(back, fields);
}

TEST(CinProductsTest, HandWorkedProducts) {
  const std::vector<float> x = {2, 3, 5};
  const std::vector<float> x0 = {10, 100};
  std::vector<float> products(6);
  const CinProductsArgs forward = {.num_rows = 1,
                                   .x_columns = 3,
                                   .x0_columns = 2,
                                   .x = x.data(),
                                   .x0 = x0.data(),
                                   .products = products.data()};
  HOTROW_ASSERT_OK(CinProducts({}, forward));
  EXPECT_EQ(products, (std::vector<float>{20, 200, 30, 300, 50, 500}));
  const std::vector<float> g = {1, 2, 3, 4, 5, 6};
  std::vector<float> dx(3, 9.0f);
  std::vector<float> dx0 = {1000, 2000};
  CinProductsGradArgs grad = {.forward = forward,
                              .products_gradient = g.data(),
                              .x_gradient = dx.data(),
                              .x0_gradient = dx0.data(),
                              .add_to_x0_gradient = true};
  HOTROW_ASSERT_OK(CinProductsGrad({}, grad));
  EXPECT_EQ(dx, (std::vector<float>{210, 430, 650}));
  EXPECT_EQ(dx0, (std::vector<float>{1036, 2046}));  // + 2 + 9 + 25, + 4 + 12 + 30
  grad.add_to_x0_gradient = false;
  HOTROW_ASSERT_OK(CinProductsGrad({}, grad));
  EXPECT_EQ(dx0, (std::vector<float>{36, 46}));

  // Squares of x0: both factors have gradients.
  grad.forward.x_columns = 2;
  grad.forward.x = x0.data();
  grad.x_gradient = nullptr;
  HOTROW_ASSERT_OK(CinProductsGrad({}, grad));
  EXPECT_EQ(dx0, (std::vector<float>{10 + 300 + 210, 20 + 400 + 430}));
}

TEST(CinProductsTest, HandWorkedSums) {
  const std::vector<float> values = {1, 2, 10, 20, 100, 200, 3, 4, 30, 40, 300, 400};
  std::vector<float> output(6, 9.0f);
  HOTROW_ASSERT_OK(CinSum({}, {.batch_size = 2,
                               .rows = 3,
                               .columns = 2,
                               .values = values.data(),
                               .output = output.data(),
                               .output_stride = 3}));
  EXPECT_EQ(output, (std::vector<float>{111, 222, 9, 333, 444, 9}));
  std::vector<float> gradient(12, 1.0f);
  CinSumGradArgs grad = {.batch_size = 2,
                         .rows = 3,
                         .columns = 2,
                         .output_gradient = output.data(),
                         .output_gradient_stride = 3,
                         .values_gradient = gradient.data(),
                         .add = true};
  HOTROW_ASSERT_OK(CinSumGrad({}, grad));
  EXPECT_EQ(gradient,
            (std::vector<float>{112, 223, 112, 223, 112, 223, 334, 445, 334, 445, 334, 445}));
  grad.add = false;
  HOTROW_ASSERT_OK(CinSumGrad({}, grad));
  EXPECT_EQ(gradient,
            (std::vector<float>{111, 222, 111, 222, 111, 222, 333, 444, 333, 444, 333, 444}));
}

TEST(CinProductsTest, EmptyBatchesNeedNoPointers) {
  HOTROW_EXPECT_OK(TransposeFields({}, {.batch_size = 0, .rows = 2, .columns = 3}));
  HOTROW_EXPECT_OK(CinProducts({}, {.num_rows = 0, .x_columns = 2, .x0_columns = 3}));
  HOTROW_EXPECT_OK(
      CinProductsGrad({}, {.forward = {.num_rows = 0, .x_columns = 2, .x0_columns = 3}}));
  HOTROW_EXPECT_OK(CinSum({}, {.batch_size = 0, .rows = 2, .columns = 3}));
  HOTROW_EXPECT_OK(CinSumGrad({}, {.batch_size = 0, .rows = 2, .columns = 3}));
}

TEST(CinProductsTest, ErrorsNameTheField) {
  std::vector<float> data(36);
  float* const a = data.data();
  float* const b = data.data() + 12;
  float* const c = data.data() + 24;
  const auto code = absl::StatusCode::kInvalidArgument;
  const auto transpose_error = [&](const auto& change, const char* field) {
    TransposeFieldsArgs args = {.batch_size = 2,
                                .rows = 2,
                                .columns = 3,
                                .from = a,
                                .from_stride = 6,
                                .from_row_stride = 3,
                                .to = b,
                                .to_stride = 6,
                                .to_row_stride = 2};
    HOTROW_EXPECT_OK(TransposeFields({}, args));
    change(args);
    EXPECT_THAT(TransposeFields({}, args), test::StatusIs(code, HasSubstr(field)));
  };
  transpose_error([](auto& t) { t.batch_size = -1; }, "TransposeFields: batch_size must be >= 0");
  transpose_error([](auto& t) { t.rows = 0; }, "rows must be >= 1, got 0");
  transpose_error([](auto& t) { t.columns = 0; }, "columns must be >= 1, got 0");
  transpose_error([](auto& t) { t.from = nullptr; }, "from must not be null");
  transpose_error([](auto& t) { t.to = nullptr; }, "to must not be null");
  transpose_error([](auto& t) { t.from_stride = 5; }, "from_stride must be >= 6, got 5");
  transpose_error([](auto& t) { t.from_row_stride = 2; }, "from_row_stride must be >= 3, got 2");
  transpose_error([](auto& t) { t.to_stride = 5; }, "to_stride must be >= 6, got 5");
  transpose_error([](auto& t) { t.to_row_stride = 1; }, "to_row_stride must be >= 2, got 1");

  const CinProductsArgs forward = {
      .num_rows = 2, .x_columns = 2, .x0_columns = 3, .x = a, .x0 = b, .products = c};
  const auto products_error = [&](const auto& change, const char* field) {
    CinProductsArgs args = forward;
    change(args);
    EXPECT_THAT(CinProducts({}, args), test::StatusIs(code, HasSubstr(field)));
  };
  products_error([](auto& p) { p.num_rows = -1; }, "CinProducts: num_rows must be >= 0, got -1");
  products_error([](auto& p) { p.x_columns = 0; }, "x_columns must be >= 1, got 0");
  products_error([](auto& p) { p.x0_columns = 0; }, "x0_columns must be >= 1, got 0");
  products_error([](auto& p) { p.x_columns = p.x0_columns = 1 << 16; },
                 "x_columns * x0_columns must be < 2^31, got 4294967296");
  products_error([](auto& p) { p.x = nullptr; }, "x must not be null");
  products_error([](auto& p) { p.x0 = nullptr; }, "x0 must not be null");
  products_error([](auto& p) { p.products = nullptr; }, "products must not be null");

  const auto grad_error = [&](const auto& change, const char* field) {
    CinProductsGradArgs args = {
        .forward = forward, .products_gradient = c, .x_gradient = a, .x0_gradient = b};
    change(args);
    EXPECT_THAT(CinProductsGrad({}, args), test::StatusIs(code, HasSubstr(field)));
  };
  grad_error([](auto& g) { g.forward.x = nullptr; }, "CinProductsGrad: x must not be null");
  grad_error([](auto& g) { g.products_gradient = nullptr; }, "products_gradient must not be null");
  grad_error([](auto& g) { g.x0_gradient = nullptr; }, "x0_gradient must not be null");
  grad_error([](auto& g) { g.x_gradient = nullptr; }, "x_gradient must not be null");

  EXPECT_THAT(CinSum({}, {.batch_size = 1, .rows = 0, .columns = 1}),
              test::StatusIs(code, HasSubstr("CinSum: rows must be >= 1, got 0")));
  EXPECT_THAT(
      CinSum(
          {},
          {.batch_size = 1, .rows = 1, .columns = 2, .values = a, .output = b, .output_stride = 1}),
      test::StatusIs(code, HasSubstr("output_stride must be >= 2, got 1")));
  EXPECT_THAT(CinSum({}, {.batch_size = 1, .rows = 1, .columns = 1}),
              test::StatusIs(code, HasSubstr("values must not be null")));
  EXPECT_THAT(CinSumGrad({}, {.batch_size = 1, .rows = 1, .columns = 1, .output_gradient = a}),
              test::StatusIs(code, HasSubstr("CinSumGrad: values_gradient must not be null")));
}

}  // namespace
}  // namespace hotrow
