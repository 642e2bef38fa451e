#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "ops/layers/mlp.h"
#include "tests/ops/bf16_reference.h"
#include "tests/ops/mlp_cuda_problem.cuh"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"

namespace hotrow {
namespace {

using test::kUnused;
using test::NewMlp;
using GpuProblem = test::GpuMlpProblem;
using Problem = test::MlpProblem;
using Result = test::MlpResult;

MlpOptions InBf16(MlpOptions options) {
  options.precision = DensePrecision::kBf16;
  return options;
}

Result RunOn(const test::GpuStream& stream, Mlp& mlp, const Problem& p) {
  GpuProblem gpu(p);
  gpu.Enqueue(stream.ctx(), mlp);
  stream.Wait();
  return gpu.Get();
}

// With numbers that bf16 and fp16 have, all precisions are exact, with any padding, masks and
// copies.
TEST(MlpBf16CudaTest, IsExactWhereTheNumbersAre) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const test::GpuStream stream;
  const std::vector<std::vector<int32_t>> shapes = {
      {1, 1}, {13, 1}, {15, 16, 1}, {13, 33, 17, 16}, {367, 70, 1}, {64, 128, 64}, {5, 200, 47}};
  int turn = 0;
  for (const std::vector<int32_t>& sizes : shapes) {
    for (const int64_t batch_size : {1, 33, 130}) {
      ++turn;  // emulated: each pair of an output and a precision in its turn
      for (const bool relu_on_output : {false, true}) {
        if (test::kEmulatedGpu && relu_on_output != (turn % 2 == 0)) continue;
        SCOPED_TRACE(testing::Message() << testing::PrintToString(sizes) << " " << batch_size);
        // More than the batch: what lies behind it must not count.
        const MlpOptions options = {
            .sizes = sizes, .relu_on_output = relu_on_output, .max_batch_size = batch_size + 3};
        const auto fp32 = NewMlp(options, stream.ctx());
        ASSERT_NE(fp32, nullptr);
        const Problem p = test::WholeMlpProblem(*fp32, options, batch_size);
        const Result want = RunOn(stream, *fp32, p);
        for (const DensePrecision precision : {DensePrecision::kBf16, DensePrecision::kFp16}) {
          const bool is_bf16 = precision == DensePrecision::kBf16;
          if (test::kEmulatedGpu && is_bf16 != (turn / 2 % 2 == 0)) continue;
          MlpOptions of_half = options;
          of_half.precision = precision;
          const auto half = NewMlp(of_half, stream.ctx());
          ASSERT_NE(half, nullptr);
          const Result got = RunOn(stream, *half, p);
          EXPECT_EQ(got.y, want.y);
          EXPECT_EQ(got.dx, want.dx);
          EXPECT_EQ(got.parameter_gradients, want.parameter_gradients);
        }
      }
    }
  }
}

// 3 bits of fraction more than bf16, and an end at 65,504, beyond which lies infinity.
TEST(MlpFp16CudaTest, IsNearerToFp32AndEndsEarlier) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const test::GpuStream stream;
  MlpOptions options = {.sizes = {40, 60, 33, 3}, .dropout = 0.3f, .seed = 9, .max_batch_size = 50};
  const auto fp32 = NewMlp(options, stream.ctx());
  ASSERT_NE(fp32, nullptr);
  Problem p = test::RandomMlpProblem(*fp32, options, 50, 3);
  const Result want = RunOn(stream, *fp32, p);
  const auto error = [&](const Result& got) {
    return test::RelativeError(got.y, std::vector<double>(want.y.begin(), want.y.end()));
  };
  options.precision = DensePrecision::kFp16;
  const auto fp16 = NewMlp(options, stream.ctx());
  ASSERT_NE(fp16, nullptr);
  const auto bf16 = NewMlp(InBf16(options), stream.ctx());
  ASSERT_NE(bf16, nullptr);
  const Result got = RunOn(stream, *fp16, p);
  EXPECT_LT(4 * error(got), error(RunOn(stream, *bf16, p)));
  EXPECT_TRUE(RunOn(stream, *fp16, p) == got) << "another run gave other bits";
  p.dy[7] = 1e5f;
  const Result beyond = RunOn(stream, *fp16, p);
  EXPECT_TRUE(std::any_of(beyond.parameter_gradients.begin(), beyond.parameter_gradients.end(),
                          [](float g) { return !std::isfinite(g); }));
  const Result within = RunOn(stream, *bf16, p);
  EXPECT_TRUE(std::all_of(within.parameter_gradients.begin(), within.parameter_gradients.end(),
                          [](float g) { return std::isfinite(g); }));
}

TEST(MlpBf16CudaTest, MatchesADoubleReferenceThatRoundsWhereItDoesAndRepeats) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const test::GpuStream stream;
  for (const float dropout : {0.0f, 0.3f}) {
    const MlpOptions options =
        InBf16({.sizes = {100, 200, 131, 3}, .dropout = dropout, .seed = 9, .max_batch_size = 150});
    const auto mlp = NewMlp(options, stream.ctx());
    ASSERT_NE(mlp, nullptr);
    const Problem p = test::RandomMlpProblem(*mlp, options, 150, 3);
    const Result got = RunOn(stream, *mlp, p);
    test::ExpectMlpRounded(*mlp, p, got, {.biases = true, .before_dropout = true});
    EXPECT_TRUE(RunOn(stream, *mlp, p) == got) << "another run gave other bits";
  }
}

TEST(MlpBf16CudaTest, APassThatHasRunOnceIsCapturedInAGraph) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::GpuStream stream;
  const MlpOptions options =
      InBf16({.sizes = {13, 64, 32, 1}, .dropout = 0.3f, .max_batch_size = 128});
  const auto mlp = NewMlp(options, stream.ctx());
  ASSERT_NE(mlp, nullptr);
  const Problem p = test::RandomMlpProblem(*mlp, options, 128, 3);
  const Result want = RunOn(stream, *mlp, p);
  GpuProblem again(p);
  ASSERT_NO_FATAL_FAILURE(stream.RunAsGraph(3, [&] { again.Enqueue(stream.ctx(), *mlp); }));
  EXPECT_TRUE(again.Get() == want);
}

TEST(MlpBf16CudaTest, RowsMayStartAnywhereAndBatchesBeOfAnySize) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const test::GpuStream stream;
  const MlpOptions options = InBf16({.sizes = {16, 31, 8}, .max_batch_size = 64});
  const auto mlp = NewMlp(options, stream.ctx());
  ASSERT_NE(mlp, nullptr);
  for (const auto& [gap, batch_size] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 64}, {1, 5}, {2, 64}, {16, 1}}) {
    SCOPED_TRACE(testing::Message() << "gap " << gap);
    Problem p = test::RandomMlpProblem(*mlp, options, batch_size, 4);
    RandomStream random(6, RandomPurpose::kTest);
    p.gap = gap;
    p.x = test::RandomFloats(random, batch_size * p.x_stride());
    p.dy = test::RandomFloats(random, batch_size * p.y_stride());
    const Result got = RunOn(stream, *mlp, p);
    test::ExpectMlpRounded(*mlp, p, got, {.biases = true, .before_dropout = true});
    for (int64_t b = 0; b < batch_size; ++b) {
      for (int64_t i = 8; i < p.y_stride(); ++i) {
        ASSERT_EQ(got.y[static_cast<size_t>(b * p.y_stride() + i)], kUnused);
      }
    }
  }
}

// Dropout of a slice is that of its place in the batch.
TEST(MlpBf16CudaTest, SlicesGiveTheOutputsOfTheWholeBatch) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const test::GpuStream stream;
  const MlpOptions options =
      InBf16({.sizes = {7, 35, 2}, .dropout = 0.4f, .seed = 4, .max_batch_size = 20});
  const auto mlp = NewMlp(options, stream.ctx());
  ASSERT_NE(mlp, nullptr);
  const Problem p = test::RandomMlpProblem(*mlp, options, 20, 8);
  test::DeviceArray<float> parameters(p.parameters);
  test::DeviceArray<float> x(p.x);
  test::DeviceArray<float> whole(std::vector<float>(p.dy.size(), kUnused));
  test::DeviceArray<float> slices(std::vector<float>(p.dy.size(), kUnused));
  const auto forward = [&](int64_t begin, int64_t end, test::DeviceArray<float>& y) {
    HOTROW_EXPECT_OK(mlp->Forward(stream.ctx(), {.parameters = parameters.data(),
                                                 .x = x.data() + begin * p.x_stride(),
                                                 .x_stride = p.x_stride(),
                                                 .batch_size = end - begin,
                                                 .y = y.data() + begin * p.y_stride(),
                                                 .y_stride = p.y_stride(),
                                                 .training = true,
                                                 .step = p.step,
                                                 .first_row = begin}));
  };
  forward(0, 20, whole);
  forward(0, 7, slices);
  forward(7, 20, slices);
  stream.Wait();
  const std::vector<float> want = whole.ToHost();
  const std::vector<float> got = slices.ToHost();
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 0.01) << i;
}

// A sample's NaN reaches its own outputs, through ReLU and dropout, and all weights; one in a
// parameter reaches every sample.
TEST(MlpBf16CudaTest, NaNStaysOneAndStaysInItsSample) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const test::GpuStream stream;
  for (const bool relu_on_output : {false, true}) {
    const MlpOptions options =
        InBf16({.sizes = {13, 20, 2}, .relu_on_output = relu_on_output, .max_batch_size = 2});
    const auto mlp = NewMlp(options, stream.ctx());
    ASSERT_NE(mlp, nullptr);
    Problem p = test::RandomMlpProblem(*mlp, options, 2, 1);
    const std::vector<float> x = p.x;
    p.x[0] = std::numeric_limits<float>::quiet_NaN();
    Result r = RunOn(stream, *mlp, p);
    EXPECT_TRUE(std::isnan(r.y[0]) && std::isnan(r.y[1]));
    EXPECT_FALSE(std::isnan(r.y[static_cast<size_t>(p.y_stride())]));
    EXPECT_TRUE(std::isnan(r.parameter_gradients[0]));
    EXPECT_FALSE(std::isnan(r.dx[static_cast<size_t>(p.x_stride())]));
    p.x = x;
    p.parameters[static_cast<size_t>(mlp->bias_offset(0))] =
        std::numeric_limits<float>::quiet_NaN();
    r = RunOn(stream, *mlp, p);
    EXPECT_TRUE(std::isnan(r.y[0]) && std::isnan(r.y[static_cast<size_t>(p.y_stride())]));
  }
}

// Half a backward pass has gradients of weights under way on the second stream, of which the first
// layer's have only begun: what they read stays until they end, and another pass waits for them.
TEST(MlpBf16CudaTest, APassThatIsLeftInTheMiddleKeepsItsMemoryUntilItsWorkHasEnded) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const DensePrecision precision : {DensePrecision::kFp32, DensePrecision::kBf16}) {
    test::GpuStream stream;
    const MlpOptions options = {
        .sizes = {300, 200, 2}, .max_batch_size = 200, .precision = precision};
    auto mlp = NewMlp(options, stream.ctx());
    ASSERT_NE(mlp, nullptr);
    const Problem p = test::RandomMlpProblem(*mlp, options, 200, 3);
    const Result want = RunOn(stream, *mlp, p);
    test::DeviceArray<float> parameters(p.parameters), x(p.x), y(p.dy), dy(p.dy),
        gradients(p.parameters);
    const auto leave = [&] {
      HOTROW_EXPECT_OK(mlp->Forward(stream.ctx(), {.parameters = parameters.data(),
                                                   .x = x.data(),
                                                   .x_stride = p.x_stride(),
                                                   .batch_size = p.batch_size,
                                                   .y = y.data(),
                                                   .y_stride = p.y_stride(),
                                                   .training = true,
                                                   .step = p.step}));
      HOTROW_EXPECT_OK(mlp->BackwardInput(stream.ctx(), {.parameters = parameters.data(),
                                                         .dy = dy.data(),
                                                         .dy_stride = p.y_stride(),
                                                         .parameter_gradients = gradients.data()}));
    };
    leave();
    EXPECT_TRUE(RunOn(stream, *mlp, p) == want);
#if HOTROW_EMULATED_GPU
    // In a graph, which comes to nothing then.
    ASSERT_NO_FATAL_FAILURE(stream.FailAsGraph([&] { leave(); }));
    EXPECT_TRUE(RunOn(stream, *mlp, p) == want);
#endif
    leave();
    mlp.reset();
    stream.Wait();
  }
}

}  // namespace
}  // namespace hotrow
