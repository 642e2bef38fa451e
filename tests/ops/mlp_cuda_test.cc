#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/layers/mlp.h"
#include "tests/ops/mlp_cuda_problem.cuh"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"

namespace hotrow {
namespace {

using test::kUnused;
using test::NewMlp;
using ::testing::HasSubstr;
using GpuProblem = test::GpuMlpProblem;
using Problem = test::MlpProblem;
using Result = test::MlpResult;

struct Case {
  std::vector<int32_t> sizes;
  std::vector<int64_t> batch_sizes;
  bool relu_on_output = false;
  float dropout = 0;
};

TEST(MlpCudaTest, MatchesADoubleReferenceForwardAndBackwardAndRepeats) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::GpuStream stream;
  const int64_t large = test::ForGpu(2048, 300);  // more chunks of a sum than threads share
  constexpr int32_t kWide = 300;                  // several tiles of a product
  const Case cases[] = {
      {.sizes = {1, 1}, .batch_sizes = {1, 2, 37, large}},
      {.sizes = {1, 17, 1}, .batch_sizes = {1, 33, large}, .relu_on_output = true},
      {.sizes = {13, 64, 16}, .batch_sizes = {1, 37, large}, .relu_on_output = true},
      {.sizes = {367, 70, 1}, .batch_sizes = {37, 130}, .dropout = 0.25f},
      {.sizes = {16, 13, 5, 3, 2}, .batch_sizes = {7, large}, .dropout = 0.5f},
      {.sizes = {kWide, kWide, 1}, .batch_sizes = {1, 37}},
      {.sizes = {5, 129, kWide - 1},
       .batch_sizes = {37, 200},
       .relu_on_output = true,
       .dropout = 0.1f}};
  for (const Case& c : cases) {
    const MlpOptions options = {.sizes = c.sizes,
                                .relu_on_output = c.relu_on_output,
                                .dropout = c.dropout,
                                .seed = 99,
                                .first_layer_id = 10,
                                .max_batch_size = 2048};
    const auto mlp = NewMlp(options, stream.ctx());
    ASSERT_NE(mlp, nullptr);
    for (const int64_t batch_size : c.batch_sizes) {
      SCOPED_TRACE(testing::Message() << testing::PrintToString(c.sizes) << ", " << batch_size
                                      << " samples, dropout " << c.dropout);
      const Problem p = test::RandomMlpProblem(*mlp, options, batch_size, 5);
      GpuProblem gpu(p);
      gpu.Enqueue(stream.ctx(), *mlp);
      stream.Wait();
      const Result got = gpu.Get();
      ASSERT_NO_FATAL_FAILURE(test::ExpectMlpMatches(*mlp, p, got));
      gpu.Enqueue(stream.ctx(), *mlp);
      stream.Wait();
      ASSERT_TRUE(gpu.Get() == got) << "another run gave other bits";
    }
  }
}

TEST(MlpCudaTest, APassThatHasRunOnceIsCapturedInAGraph) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::GpuStream stream;
  const MlpOptions options = {.sizes = {13, 256, 128, 1}, .dropout = 0.3f, .max_batch_size = 512};
  const auto mlp = NewMlp(options, stream.ctx());
  ASSERT_NE(mlp, nullptr);
  const Problem p = test::RandomMlpProblem(*mlp, options, 512, 3);
  GpuProblem gpu(p);
  gpu.Enqueue(stream.ctx(), *mlp);
  stream.Wait();
  const Result want = gpu.Get();
  GpuProblem again(p);
  ASSERT_NO_FATAL_FAILURE(stream.RunAsGraph(3, [&] { again.Enqueue(stream.ctx(), *mlp); }));
  EXPECT_TRUE(again.Get() == want);
}

// Rows are as far apart as they are, and layers of the same shape differ in alignment alone.
TEST(MlpCudaTest, RowsMayStartAnywhere) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::GpuStream stream;
  const MlpOptions options = {.sizes = {16, 32, 8}, .max_batch_size = 64};
  const auto mlp = NewMlp(options, stream.ctx());
  ASSERT_NE(mlp, nullptr);
  for (const int64_t gap : {0, 1, 2, 4, 16}) {
    SCOPED_TRACE(testing::Message() << "gap " << gap);
    Problem p = test::RandomMlpProblem(*mlp, options, 64, 4);
    RandomStream random(6, RandomPurpose::kTest);
    p.gap = gap;
    p.x = test::RandomFloats(random, 64 * p.x_stride());
    p.dy = test::RandomFloats(random, 64 * p.y_stride());
    GpuProblem gpu(p);
    gpu.Enqueue(stream.ctx(), *mlp);
    stream.Wait();
    ASSERT_NO_FATAL_FAILURE(test::ExpectMlpMatches(*mlp, p, gpu.Get()));
  }
}

TEST(MlpCudaTest, AnEmptyBatchHasZeroGradientsAndReportsEveryLayer) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::GpuStream stream;
  for (const DensePrecision precision :
       {DensePrecision::kFp32, DensePrecision::kTf32, DensePrecision::kBf16}) {
    SCOPED_TRACE(std::string(DensePrecisionName(precision)));
    const auto mlp =
        NewMlp({.sizes = {3, 4, 2}, .max_batch_size = 4, .precision = precision}, stream.ctx());
    ASSERT_NE(mlp, nullptr);
    test::DeviceArray<float> dw(
        std::vector<float>(static_cast<size_t>(mlp->num_parameters()), kUnused));
    std::vector<std::pair<int64_t, int64_t>> ready;
    const auto tell = [&](int64_t begin, int64_t end) {
      ready.emplace_back(begin, end);
      return absl::OkStatus();
    };
    HOTROW_ASSERT_OK(mlp->Forward(stream.ctx(), {.batch_size = 0, .training = true}));
    HOTROW_ASSERT_OK(
        mlp->Backward(stream.ctx(), {.parameter_gradients = dw.data(), .gradients_ready = tell}));
    stream.Wait();
    EXPECT_EQ(dw.ToHost(), std::vector<float>(dw.size(), 0.0f));
    const std::vector<std::pair<int64_t, int64_t>> want = {
        {mlp->weight_offset(1), mlp->num_parameters()}, {0, mlp->weight_offset(1)}};
    EXPECT_EQ(ready, want);
  }
}

// As in PyTorch, and on the CPU: neither in a hidden layer nor in the last.
TEST(MlpCudaTest, NoGradientPassesWhereReluIsAtZero) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::GpuStream stream;
  for (const DensePrecision precision : {DensePrecision::kFp32, DensePrecision::kTf32,
                                         DensePrecision::kBf16, DensePrecision::kFp16}) {
    for (const bool of_output : {false, true}) {
      SCOPED_TRACE(std::string(DensePrecisionName(precision)) + (of_output ? ", output" : ""));
      const MlpOptions options = {.sizes = {16, 20, 3},
                                  .relu_on_output = of_output,
                                  .max_batch_size = 5,
                                  .precision = precision};
      const auto mlp = NewMlp(options, stream.ctx());
      ASSERT_NE(mlp, nullptr);
      Problem p = test::RandomMlpProblem(*mlp, options, 5, 1);
      const auto zeros =
          static_cast<size_t>(of_output ? mlp->num_parameters() : mlp->weight_offset(1));
      std::fill_n(p.parameters.begin(), zeros, 0.0f);
      GpuProblem gpu(p);
      gpu.Enqueue(stream.ctx(), *mlp);
      stream.Wait();
      const Result got = gpu.Get();
      for (size_t i = 0; i < zeros; ++i) ASSERT_EQ(got.parameter_gradients[i], 0.0f) << i;
      if (of_output) continue;
      EXPECT_NE(got.parameter_gradients[static_cast<size_t>(mlp->bias_offset(1))], 0.0f);
    }
  }
}

// The output is fp32, and what is less than half of fp16's least number is still more than 0.
TEST(MlpCudaTest, GradientsPassOutputsThatFp16WouldRoundToZero) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::GpuStream stream;
  const MlpOptions options = {.sizes = {1, 1},
                              .relu_on_output = true,
                              .max_batch_size = 1,
                              .precision = DensePrecision::kFp16};
  const auto mlp = NewMlp(options, stream.ctx());
  ASSERT_NE(mlp, nullptr);
  Problem p = test::RandomMlpProblem(*mlp, options, 1, 1);
  std::fill(p.parameters.begin(), p.parameters.end(), 0.0f);
  const auto weight = static_cast<size_t>(mlp->weight_offset(0));
  p.parameters[weight] = p.x[0] = 0x1p-14f;
  p.dy[0] = 2;
  GpuProblem gpu(p);
  gpu.Enqueue(stream.ctx(), *mlp);
  stream.Wait();
  const Result got = gpu.Get();
  EXPECT_EQ(got.y[0], 0x1p-28f);
  EXPECT_EQ(got.dx[0], 0x1p-13f);
  EXPECT_EQ(got.parameter_gradients[weight], 0x1p-13f);
}

TEST(MlpCudaTest, NaNReachesTheOutputThroughReLU) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::GpuStream stream;
  const MlpOptions options = {.sizes = {13, 20, 2}, .max_batch_size = 2};
  const auto mlp = NewMlp(options, stream.ctx());
  ASSERT_NE(mlp, nullptr);
  Problem p = test::RandomMlpProblem(*mlp, options, 2, 1);
  p.x[0] = std::numeric_limits<float>::quiet_NaN();
  GpuProblem gpu(p);
  gpu.Enqueue(stream.ctx(), *mlp);
  stream.Wait();
  const Result r = gpu.Get();
  EXPECT_TRUE(std::isnan(r.y[0]));
  EXPECT_FALSE(std::isnan(r.y[static_cast<size_t>(p.y_stride())]));
}

TEST(MlpCudaTest, ACallOnTheCpuIsRefused) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::GpuStream stream;
  const auto mlp = NewMlp({.sizes = {3, 2}, .max_batch_size = 1}, stream.ctx());
  ASSERT_NE(mlp, nullptr);
  EXPECT_THAT(
      mlp->Forward({}, {.batch_size = 0}),
      test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("made for device cuda")));
}

}  // namespace
}  // namespace hotrow
