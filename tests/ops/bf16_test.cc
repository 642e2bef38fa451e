#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/layers/cross_network.h"
#include "ops/layers/mlp.h"
#include "ops/products/bf16_gemm_impl.h"
#include "ops/products/dense_precision.h"
#include "tests/ops/bf16_reference.h"
#include "tests/ops/dense_test_util.h"
#include "tests/ops/mlp_reference.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::Bits;
using test::kUnused;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Problem = test::MlpProblem;
using Result = test::MlpResult;

bool Bf16Here() { return CheckDensePrecision(DensePrecision::kBf16).ok(); }
#define SKIP_WITHOUT_BF16() \
  if (!Bf16Here()) GTEST_SKIP() << "this processor has no bf16"

std::unique_ptr<Mlp> NewMlp(MlpOptions options, DensePrecision precision) {
  options.precision = precision;
  auto mlp = Mlp::Create(options);
  HOTROW_EXPECT_OK(mlp);
  return *std::move(mlp);
}

Result RunMlp(const ExecContext& ctx, Mlp& mlp, const Problem& p) {
  Result r;
  r.y.assign(static_cast<size_t>(p.batch_size * p.y_stride()), kUnused);
  r.dx.assign(static_cast<size_t>(p.batch_size * p.x_stride()), kUnused);
  r.parameter_gradients.assign(p.parameters.size(), kUnused);
  std::vector<float> dy = p.dy;
  HOTROW_EXPECT_OK(mlp.Forward(ctx, {.parameters = p.parameters.data(),
                                     .x = p.x.data(),
                                     .x_stride = p.x_stride(),
                                     .batch_size = p.batch_size,
                                     .y = r.y.data(),
                                     .y_stride = p.y_stride(),
                                     .training = p.training,
                                     .step = p.step}));
  HOTROW_EXPECT_OK(mlp.Backward(ctx, {.parameters = p.parameters.data(),
                                      .dy = dy.data(),
                                      .dy_stride = p.y_stride(),
                                      .dx = r.dx.data(),
                                      .dx_stride = p.x_stride(),
                                      .parameter_gradients = r.parameter_gradients.data()}));
  return r;
}

TEST(Bf16Test, NamesAreReadBackAndOthersRefused) {
  for (const DensePrecision precision :
       {DensePrecision::kFp32, DensePrecision::kTf32, DensePrecision::kBf16, DensePrecision::kFp16,
        DensePrecision::kInt8}) {
    EXPECT_EQ(*ParseDensePrecision(DensePrecisionName(precision)), precision);
  }
  EXPECT_THAT(ParseDensePrecision("fp8"),
              test::StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr("fp32, tf32, bf16, fp16, int8")));
}

TEST(Bf16Test, AProcessorWithoutItIsRefusedWithFlagReasonAndRemedy) {
  HOTROW_EXPECT_OK(CheckDensePrecision(DensePrecision::kFp32));
  HOTROW_EXPECT_OK(internal::CheckBf16(true, true, "oneDNN 2.6.3 avx512_core_amx", ""));
  for (const bool onednn : {false, true}) {
    EXPECT_THAT(
        internal::CheckBf16(onednn, !onednn, "oneDNN 2.6.3 avx2", "--precision="),
        test::StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("--precision=bf16"), HasSubstr("AVX-512 BF16"),
                             HasSubstr("oneDNN 2.6.3 avx2"), HasSubstr("--precision=fp32"))));
  }
}

TEST(Bf16Test, RowsAreRoundedToTheNearestEven) {
  SKIP_WITHOUT_BF16();
  const std::vector<float> x = {1.0f,        1.00390625f,   1.01171875f,
                                -1.0039064f, 3.3895314e38f, std::numeric_limits<float>::infinity()};
  const std::vector<uint16_t> want = {0x3f80, 0x3f80, 0x3f82, 0xbf81, 0x7f7f, 0x7f80};
  std::vector<internal::Bf16> rows(2 * 64, 7);
  internal::ToBf16(x.data(), 6, 1, 6, 2, 64, rows.data());
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], i < 6 ? want[i] : 0) << i;
}

// With numbers that bf16 has, both precisions are exact: they agree in every bit of every output,
// with any padding and layout.
TEST(Bf16Test, IsExactWhereTheNumbersAre) {
  SKIP_WITHOUT_BF16();
  const std::vector<std::vector<int32_t>> shapes = {
      {1, 1}, {13, 1}, {13, 33, 17, 16}, {479, 70, 1}, {64, 128, 64}, {300, 65, 9}, {5, 200, 300}};
  for (const std::vector<int32_t>& sizes : shapes) {
    for (const int64_t batch_size : {1, 33, 128, 300}) {
      for (const bool relu_on_output : {false, true}) {
        SCOPED_TRACE(testing::Message() << testing::PrintToString(sizes) << " " << batch_size);
        const MlpOptions options = {
            .sizes = sizes, .relu_on_output = relu_on_output, .max_batch_size = batch_size};
        const auto fp32 = NewMlp(options, DensePrecision::kFp32);
        const auto bf16 = NewMlp(options, DensePrecision::kBf16);
        const Problem p = test::WholeMlpProblem(*fp32, options, batch_size);
        const Result want = RunMlp({}, *fp32, p);
        const Result got = RunMlp({}, *bf16, p);
        EXPECT_EQ(got.y, want.y);
        EXPECT_EQ(got.dx, want.dx);
        EXPECT_EQ(got.parameter_gradients, want.parameter_gradients);
      }
    }
  }
}

TEST(Bf16Test, MatchesADoubleReferenceThatRoundsWhereItDoes) {
  SKIP_WITHOUT_BF16();
  for (const float dropout : {0.0f, 0.3f}) {
    const MlpOptions options = {
        .sizes = {100, 200, 130, 3}, .dropout = dropout, .seed = 9, .max_batch_size = 150};
    const auto mlp = NewMlp(options, DensePrecision::kBf16);
    const Problem p = test::RandomMlpProblem(*mlp, options, 150, 3);
    const Result got = RunMlp({}, *mlp, p);
    test::ExpectMlpRounded(*mlp, p, got, {});
  }
}

TEST(Bf16Test, ThreadsAndReportsChangeNoBit) {
  SKIP_WITHOUT_BF16();
  const MlpOptions options = {.sizes = {100, 300, 70, 1}, .dropout = 0.2f, .max_batch_size = 700};
  const auto mlp = NewMlp(options, DensePrecision::kBf16);
  const Problem p = test::RandomMlpProblem(*mlp, options, 700, 5);
  const Result want = RunMlp({}, *mlp, p);
  for (const int32_t threads : {2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_TRUE(RunMlp(test::OnPool(&pool), *mlp, p) == want) << threads;
  }
  std::vector<float> dy = p.dy;
  std::vector<float> gradients(p.parameters.size(), kUnused);
  std::vector<float> y(static_cast<size_t>(p.batch_size * p.y_stride()));
  HOTROW_ASSERT_OK(mlp->Forward({}, {.parameters = p.parameters.data(),
                                     .x = p.x.data(),
                                     .x_stride = p.x_stride(),
                                     .batch_size = p.batch_size,
                                     .y = y.data(),
                                     .y_stride = p.y_stride(),
                                     .training = true,
                                     .step = p.step}));
  int64_t begin_before = mlp->num_parameters();
  HOTROW_ASSERT_OK(mlp->Backward({}, {.parameters = p.parameters.data(),
                                      .dy = dy.data(),
                                      .dy_stride = p.y_stride(),
                                      .parameter_gradients = gradients.data(),
                                      .gradients_ready = [&](int64_t begin, int64_t end) {
                                        EXPECT_EQ(end, begin_before);
                                        begin_before = begin;
                                        return absl::OkStatus();
                                      }}));
  EXPECT_EQ(begin_before, 0);
  EXPECT_EQ(Bits(gradients), Bits(want.parameter_gradients));
}

TEST(Bf16Test, BatchSizesMayChangeBetweenCalls) {
  SKIP_WITHOUT_BF16();
  const MlpOptions options = {.sizes = {13, 40, 5}, .relu_on_output = true, .max_batch_size = 600};
  const auto mlp = NewMlp(options, DensePrecision::kBf16);
  for (const int64_t batch_size : {600, 7, 1, 0, 129, 128, 600, 63}) {
    SCOPED_TRACE(batch_size);
    const Problem p = test::RandomMlpProblem(*mlp, options, batch_size, 40);
    const auto fresh = NewMlp(options, DensePrecision::kBf16);
    EXPECT_TRUE(RunMlp({}, *mlp, p) == RunMlp({}, *fresh, p));
  }
}

TEST(Bf16Test, WhatIsNotANumberComesThrough) {
  SKIP_WITHOUT_BF16();
  std::vector<internal::Bf16> numbers(64, 0xbf80);                                 // -1
  const internal::Bf16 kept[] = {0x7fc0, 0xffc0, 0x7f80, 0x0000, 0x0001, 0x3f80};  // NaNs first
  std::copy(std::begin(kept), std::end(kept), numbers.begin());
  numbers[6] = 0xff80;  // -infinity
  internal::Relu(64, numbers.data());
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(numbers[i], i < 6 ? kept[i] : 0) << i;

  // The way back of those outputs.
  std::vector<internal::Bf16> gradients(64, 0x3f80);
  std::vector<float> sums(64);
  internal::MaskAndSum(numbers.data(), 1, 64, gradients.data(), sums.data());
  for (size_t i = 0; i < 64; ++i) {
    const bool passes = i < 6 && kept[i] != 0;
    EXPECT_EQ(gradients[i], passes ? 0x3f80 : 0) << i;
    EXPECT_EQ(sums[i], passes ? 1.0f : 0.0f) << i;
  }

  for (const bool relu_on_output : {false, true}) {
    for (const float dropout : {0.0f, 0.1f}) {
      const MlpOptions options = {.sizes = {20, 30, 40, 1},
                                  .relu_on_output = relu_on_output,
                                  .dropout = dropout,
                                  .max_batch_size = 3};
      const auto mlp = NewMlp(options, DensePrecision::kBf16);
      Problem p = test::RandomMlpProblem(*mlp, options, 3, 4);
      p.gap = 0;
      p.x[20 + 7] = std::numeric_limits<float>::quiet_NaN();
      const Result r = RunMlp({}, *mlp, p);
      EXPECT_FALSE(std::isnan(r.y[0]));
      EXPECT_TRUE(std::isnan(r.y[1]));
      EXPECT_FALSE(std::isnan(r.y[2]));
    }
  }
}

// Evaluation pads a batch less than training does; a row's output is the same.
TEST(Bf16Test, EvaluationGivesTheOutputsOfTraining) {
  SKIP_WITHOUT_BF16();
  const MlpOptions options = {.sizes = {70, 200, 3}, .max_batch_size = 140};
  const auto mlp = NewMlp(options, DensePrecision::kBf16);
  const Problem p = test::RandomMlpProblem(*mlp, options, 140, 4);
  const auto forward = [&](bool training) {
    std::vector<float> y(static_cast<size_t>(p.batch_size * p.y_stride()));
    HOTROW_EXPECT_OK(mlp->Forward({}, {.parameters = p.parameters.data(),
                                       .x = p.x.data(),
                                       .x_stride = p.x_stride(),
                                       .batch_size = p.batch_size,
                                       .y = y.data(),
                                       .y_stride = p.y_stride(),
                                       .training = training}));
    return y;
  };
  EXPECT_EQ(Bits(forward(true)), Bits(forward(false)));
}

// --- cross layers ---

Result RunCross(const ExecContext& ctx, const CrossNetworkOptions& options, bool whole) {
  auto made = CrossNetwork::Create(options);
  HOTROW_EXPECT_OK(made);
  CrossNetwork& net = **made;
  const int64_t batch = options.max_batch_size;
  const int64_t stride = options.width + 3;
  RandomStream random(2, RandomPurpose::kTest);
  std::vector<float> parameters(static_cast<size_t>(net.num_parameters()));
  net.InitParameters(3, parameters);
  std::vector<float> x = test::RandomFloats(random, batch * stride);
  std::vector<float> dy = test::RandomFloats(random, batch * stride);
  if (whole) {
    test::MakeWhole(random, 0.6, x);
    test::MakeWhole(random, 0.6, dy);
    for (int32_t l = 0; l < options.num_layers; ++l) {
      const int64_t end = net.bias_offset(l);
      test::MakeWhole(
          random, 0.05,
          std::span(parameters).subspan(net.weight_offset(l), end - net.weight_offset(l)));
      test::MakeWhole(random, 0.5, std::span(parameters).subspan(end, options.width));
    }
  }
  Result r;
  r.y.assign(x.size(), kUnused);
  r.dx.assign(x.size(), kUnused);
  r.parameter_gradients.assign(parameters.size(), kUnused);
  HOTROW_EXPECT_OK(net.Forward(ctx, {.parameters = parameters.data(),
                                     .x = x.data(),
                                     .x_stride = stride,
                                     .batch_size = batch,
                                     .y = r.y.data(),
                                     .y_stride = stride,
                                     .training = true}));
  HOTROW_EXPECT_OK(net.Backward(ctx, {.parameters = parameters.data(),
                                      .dy = dy.data(),
                                      .dy_stride = stride,
                                      .dx = r.dx.data(),
                                      .dx_stride = stride,
                                      .parameter_gradients = r.parameter_gradients.data()}));
  return r;
}

TEST(Bf16Test, CrossLayersAreExactWhereTheNumbersAre) {
  SKIP_WITHOUT_BF16();
  for (const int32_t rank : {0, 5, 65}) {
    for (const int64_t batch_size : {1, 130}) {
      SCOPED_TRACE(testing::Message() << rank << " " << batch_size);
      CrossNetworkOptions options = {
          .width = 70, .num_layers = 2, .rank = rank, .max_batch_size = batch_size};
      const Result want = RunCross({}, options, /*whole=*/true);
      options.precision = DensePrecision::kBf16;
      const Result got = RunCross({}, options, /*whole=*/true);
      EXPECT_EQ(got.y, want.y);
      EXPECT_EQ(got.dx, want.dx);
      EXPECT_EQ(got.parameter_gradients, want.parameter_gradients);
    }
  }
}

TEST(Bf16Test, CrossLayersStayNearFp32OnAnyNumberOfThreads) {
  SKIP_WITHOUT_BF16();
  for (const int32_t rank : {0, 20}) {
    CrossNetworkOptions options = {
        .width = 100, .num_layers = 3, .rank = rank, .max_batch_size = 400};
    const Result fp32 = RunCross({}, options, /*whole=*/false);
    options.precision = DensePrecision::kBf16;
    const Result bf16 = RunCross({}, options, /*whole=*/false);
    const auto error = [](const std::vector<float>& got, const std::vector<float>& want) {
      return test::RelativeError(got, std::vector<double>(want.begin(), want.end()));
    };
    EXPECT_LT(error(bf16.y, fp32.y), 0.02);
    EXPECT_GT(error(bf16.y, fp32.y), 1e-4);
    EXPECT_LT(error(bf16.dx, fp32.dx), 0.04);
    EXPECT_LT(error(bf16.parameter_gradients, fp32.parameter_gradients), 0.04);
    ThreadPool pool(3);
    EXPECT_TRUE(RunCross(test::OnPool(&pool), options, /*whole=*/false) == bf16);
  }
}

}  // namespace
}  // namespace hotrow
