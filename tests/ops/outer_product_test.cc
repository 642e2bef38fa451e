#include "ops/interactions/outer_product.h"

#include <vector>

#include "tests/ops/dense_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

TEST(OuterProductTest, HandWorkedNumbers) {
  // Two fields of two columns with a column of another feature behind each: s = (4, 6).
  const std::vector<float> fields = {1, 2, -1, 3, 4, -1};
  std::vector<float> output(4, 9.0f);
  const OuterProductArgs forward = {.batch_size = 1,
                                    .num_fields = 2,
                                    .dim = 2,
                                    .fields = fields.data(),
                                    .fields_stride = 6,
                                    .field_stride = 3,
                                    .output = output.data(),
                                    .output_stride = 4};
  HOTROW_ASSERT_OK(OuterProduct({}, forward));
  EXPECT_EQ(output, (std::vector<float>{16, 24, 36, 9}));
  // g = 1 | 10 100: ds = (2 * 1 * 4 + 10 * 6, 10 * 4 + 2 * 100 * 6).
  const std::vector<float> output_gradient = {1, 10, 100, 9};
  std::vector<float> gradient(8, 9.0f);
  HOTROW_ASSERT_OK(OuterProductGrad({}, {.forward = forward,
                                         .output_gradient = output_gradient.data(),
                                         .fields_gradient = gradient.data(),
                                         .fields_gradient_stride = 8,
                                         .field_gradient_stride = 4}));
  EXPECT_EQ(gradient, (std::vector<float>{68, 1240, 9, 9, 68, 1240, 9, 9}));
}

TEST(OuterProductTest, EqualBitsOnAnyPool) {
  constexpr int64_t kSamples = 200;
  constexpr int32_t kFields = 3;
  constexpr int32_t kDim = 11;
  constexpr int64_t kOutputs = OuterProductOutputSize(kDim);
  RandomStream random(3, RandomPurpose::kTest);
  const std::vector<float> fields = test::RandomFloats(random, kSamples * kFields * kDim);
  const auto run = [&](const ExecContext& ctx) {
    std::vector<float> y(kSamples * kOutputs), dx(fields.size());
    const OuterProductArgs forward = {.batch_size = kSamples,
                                      .num_fields = kFields,
                                      .dim = kDim,
                                      .fields = fields.data(),
                                      .fields_stride = kFields * kDim,
                                      .field_stride = kDim,
                                      .output = y.data(),
                                      .output_stride = kOutputs};
    HOTROW_EXPECT_OK(OuterProduct(ctx, forward));
    HOTROW_EXPECT_OK(OuterProductGrad(ctx, {.forward = forward,
                                            .output_gradient = y.data(),
                                            .fields_gradient = dx.data(),
                                            .fields_gradient_stride = kFields * kDim,
                                            .field_gradient_stride = kDim}));
    y.insert(y.end(), dx.begin(), dx.end());
    return test::Bits(y);
  };
  ThreadPool pool(3);
  EXPECT_EQ(run(test::OnPool(&pool)), run({}));
}

TEST(OuterProductTest, ErrorsNameTheField) {
  HOTROW_EXPECT_OK(OuterProduct({}, {.batch_size = 0, .num_fields = 2, .dim = 3}));
  HOTROW_EXPECT_OK(OuterProductGrad({}, {.forward = {.batch_size = 0, .num_fields = 2, .dim = 3}}));
  std::vector<float> data(24);
  const auto code = absl::StatusCode::kInvalidArgument;
  const OuterProductArgs good = {.batch_size = 1,
                                 .num_fields = 2,
                                 .dim = 3,
                                 .fields = data.data(),
                                 .fields_stride = 6,
                                 .field_stride = 3,
                                 .output = data.data() + 6,
                                 .output_stride = 6};
  const auto error = [&](const auto& change, const char* field) {
    OuterProductArgs args = good;
    change(args);
    EXPECT_THAT(OuterProduct({}, args), test::StatusIs(code, HasSubstr(field)));
  };
  HOTROW_EXPECT_OK(OuterProduct({}, good));
  error([](auto& a) { a.batch_size = -1; }, "OuterProduct: batch_size must be >= 0, got -1");
  error([](auto& a) { a.num_fields = 0; }, "num_fields must be >= 1, got 0");
  error([](auto& a) { a.dim = 0; }, "dim must lie in [1, 65535], got 0");
  error([](auto& a) { a.dim = 65'536; }, "dim must lie in [1, 65535], got 65536");
  error([](auto& a) { a.fields = nullptr; }, "fields must not be null");
  error([](auto& a) { a.field_stride = 2; }, "field_stride must be >= 3, got 2");
  error([](auto& a) { a.fields_stride = 5; }, "fields_stride must be >= 6, got 5");
  error([](auto& a) { a.output = nullptr; }, "output must not be null");
  error([](auto& a) { a.output_stride = 5; }, "output_stride must be >= 6, got 5");
  const auto grad_error = [&](const auto& change, const char* field) {
    OuterProductGradArgs args = {.forward = good,
                                 .output_gradient = data.data() + 6,
                                 .fields_gradient = data.data() + 12,
                                 .fields_gradient_stride = 6,
                                 .field_gradient_stride = 3};
    change(args);
    EXPECT_THAT(OuterProductGrad({}, args), test::StatusIs(code, HasSubstr(field)));
  };
  grad_error([](auto& a) { a.forward.dim = 0; }, "dim");
  grad_error([](auto& a) { a.output_gradient = nullptr; }, "output_gradient must not be null");
  grad_error([](auto& a) { a.fields_gradient = nullptr; }, "fields_gradient must not be null");
  grad_error([](auto& a) { a.fields_gradient_stride = 5; }, "fields_gradient_stride must be >= 6");
  grad_error([](auto& a) { a.field_gradient_stride = 2; }, "field_gradient_stride must be >= 3");
}

}  // namespace
}  // namespace hotrow
