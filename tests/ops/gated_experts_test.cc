#include "ops/layers/gated_experts.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/ops/dense_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

// Two experts of two columns; the gate's numbers differ by ln 3, so the shares are 1/4 and 3/4.
const std::vector<float> kGate = {5, 5 + std::log(3.0f), -9};
const std::vector<float> kX = {4, 8, 12, 16, -9};

GatedExpertsArgs SmallArgs(GatedOutput kind) {
  return {.kind = kind,
          .batch_size = 1,
          .num_experts = 2,
          .dim = 2,
          .gate = kGate.data(),
          .gate_stride = 3,
          .x = kX.data(),
          .x_stride = 5};
}

void ExpectNear(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5) << i;
}

TEST(GatedExpertsTest, HandWorkedNumbers) {
  GatedExpertsArgs sum = SmallArgs(GatedOutput::kSum);
  std::vector<float> y(3, 9.0f);
  sum.output = y.data();
  sum.output_stride = 3;
  HOTROW_ASSERT_OK(GatedExperts({}, sum));
  ExpectNear(y, {10, 14, 9});
  GatedExpertsArgs scaled = SmallArgs(GatedOutput::kScaled);
  std::vector<float> parts(5, 9.0f);
  scaled.output = parts.data();
  scaled.output_stride = 5;
  HOTROW_ASSERT_OK(GatedExperts({}, scaled));
  ExpectNear(parts, {1, 2, 9, 12, 9});

  // d = (12, 28) for the sum, of which the mean by shares is 24.
  const std::vector<float> dy = {1, 1, 1, 1};
  std::vector<float> dgate(3, 9.0f), dx(5, 9.0f);
  GatedExpertsGradArgs grad = {.forward = SmallArgs(GatedOutput::kSum),
                               .output_gradient = dy.data(),
                               .output_gradient_stride = 2,
                               .gate_gradient = dgate.data(),
                               .gate_gradient_stride = 3,
                               .x_gradient = dx.data(),
                               .x_gradient_stride = 5};
  HOTROW_ASSERT_OK(GatedExpertsGrad({}, grad));
  ExpectNear(dgate, {-3, 3, 9});
  ExpectNear(dx, {0.25f, 0.25f, 0.75f, 0.75f, 9});
  // Now each expert has its own gradient: d = (8, 16), mean 14.
  const std::vector<float> own = {2, 0, 0, 1};
  grad.forward.kind = GatedOutput::kScaled;
  grad.output_gradient = own.data();
  grad.output_gradient_stride = 4;
  HOTROW_ASSERT_OK(GatedExpertsGrad({}, grad));
  ExpectNear(dgate, {-1.5f, 1.5f, 9});
  ExpectNear(dx, {0.5f, 0, 0, 0.75f, 9});
  // What nobody wants is left alone.
  grad.gate_gradient = nullptr;
  dgate = {9, 9, 9};
  HOTROW_ASSERT_OK(GatedExpertsGrad({}, grad));
  ExpectNear(dgate, {9, 9, 9});
}

TEST(GatedExpertsTest, LargeGatesDoNotOverflowAndANanIsInAllSharesOfItsSample) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> gate = {1e30f, 1e30f, nan, 0, 0, nan};
  const std::vector<float> x = {2, 4, 2, 4, 2, 4};
  std::vector<float> y(3);
  HOTROW_ASSERT_OK(GatedExperts({}, {.batch_size = 3,
                                     .num_experts = 2,
                                     .dim = 1,
                                     .gate = gate.data(),
                                     .gate_stride = 2,
                                     .x = x.data(),
                                     .x_stride = 2,
                                     .output = y.data(),
                                     .output_stride = 1}));
  EXPECT_EQ(y[0], 3);
  EXPECT_TRUE(std::isnan(y[1]));
  EXPECT_TRUE(std::isnan(y[2]));
}

TEST(GatedExpertsTest, EqualBitsOnAnyPool) {
  constexpr int64_t kRows = 200;
  RandomStream random(3, RandomPurpose::kTest);
  const std::vector<float> gate = test::RandomFloats(random, kRows * 3);
  const std::vector<float> x = test::RandomFloats(random, kRows * 15);
  const auto run = [&](const ExecContext& ctx) {
    std::vector<float> y(kRows * 5);
    HOTROW_EXPECT_OK(GatedExperts(ctx, {.batch_size = kRows,
                                        .num_experts = 3,
                                        .dim = 5,
                                        .gate = gate.data(),
                                        .gate_stride = 3,
                                        .x = x.data(),
                                        .x_stride = 15,
                                        .output = y.data(),
                                        .output_stride = 5}));
    return test::Bits(y);
  };
  ThreadPool pool(3);
  EXPECT_EQ(run(test::OnPool(&pool)), run({}));
}

TEST(GatedExpertsTest, ErrorsNameTheFieldAndTheLimit) {
  const auto expect_error = [](const absl::Status& status, const char* text) {
    EXPECT_THAT(status, test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  std::vector<float> y(4);
  GatedExpertsArgs args = SmallArgs(GatedOutput::kScaled);
  expect_error(GatedExperts({}, args), "GatedExperts: output must not be null");
  args.output = y.data();
  args.output_stride = 3;
  expect_error(GatedExperts({}, args), "output_stride must be >= 4, got 3");
  args.x_stride = 3;
  expect_error(GatedExperts({}, args), "x_stride must be >= 4, got 3");
  args.gate = nullptr;
  expect_error(GatedExperts({}, args), "gate must not be null");
  args.num_experts = 1 << 30;
  expect_error(GatedExperts({}, args), "num_experts * dim must be <= 2^31 - 1");
  args.num_experts = 0;
  expect_error(GatedExperts({}, args), "num_experts must be >= 1, got 0");
  args.num_experts = 2;
  args.batch_size = 0;
  HOTROW_EXPECT_OK(GatedExperts({}, args));
  HOTROW_EXPECT_OK(GatedExpertsGrad({}, {.forward = args}));
  args.batch_size = -1;
  expect_error(GatedExperts({}, args), "batch_size must be >= 0");

  GatedExpertsGradArgs grad = {.forward = SmallArgs(GatedOutput::kSum)};
  expect_error(GatedExpertsGrad({}, grad), "output_gradient must not be null");
  grad.output_gradient = y.data();
  grad.output_gradient_stride = 2;
  HOTROW_EXPECT_OK(GatedExpertsGrad({}, grad));  // nobody wants anything
  grad.gate_gradient = y.data();
  grad.gate_gradient_stride = 1;
  expect_error(GatedExpertsGrad({}, grad), "gate_gradient_stride must be >= 2, got 1");
  grad.gate_gradient_stride = 2;
  grad.x_gradient = y.data();
  expect_error(GatedExpertsGrad({}, grad), "x_gradient_stride must be >= 4, got 0");
}

}  // namespace
}  // namespace hotrow
