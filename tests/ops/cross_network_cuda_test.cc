#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/layers/cross_network.h"
#include "tests/ops/bf16_reference.h"
#include "tests/ops/cross_reference.h"
#include "tests/ops/dense_cuda_test_util.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"

namespace hotrow {
namespace {

using Problem = test::CrossProblem;
using Result = test::CrossResult;
using test::kCrossUnused;
using ::testing::HasSubstr;

std::unique_ptr<CrossNetwork> NewNetwork(const CrossNetworkOptions& options,
                                         const ExecContext& ctx) {
  auto net = CrossNetwork::Create(options, ctx);
  HOTROW_EXPECT_OK(net);
  return net.ok() ? *std::move(net) : nullptr;
}

// Arrays in the memory of ctx.device.
struct Arrays {
  const float *parameters, *x;
  float *y, *dy, *dx, *parameter_gradients;
};
void Run(const ExecContext& ctx, CrossNetwork& net, const Problem& p, const Arrays& a) {
  HOTROW_EXPECT_OK(net.Forward(ctx, {.parameters = a.parameters,
                                     .x = a.x,
                                     .x_stride = p.stride,
                                     .batch_size = p.batch_size,
                                     .y = a.y,
                                     .y_stride = p.stride,
                                     .training = true}));
  HOTROW_EXPECT_OK(net.Backward(ctx, {.parameters = a.parameters,
                                      .dy = a.dy,
                                      .dy_stride = p.stride,
                                      .dx = a.dx,
                                      .dx_stride = p.stride,
                                      .parameter_gradients = a.parameter_gradients}));
}

Result Unused(const Problem& p) {
  const std::vector<float> rows(p.x.size(), kCrossUnused);
  return {rows, rows, std::vector<float>(p.parameters.size(), kCrossUnused)};
}

Result RunOnCpu(const CrossNetworkOptions& options, const Problem& p) {
  Result r = Unused(p);
  std::vector<float> dy = p.dy;
  const auto net = NewNetwork(options, {});
  Run({}, *net, p,
      {p.parameters.data(), p.x.data(), r.y.data(), dy.data(), r.dx.data(),
       r.parameter_gradients.data()});
  return r;
}

// The first pass directly, or in a graph after one.
Result RunOnGpu(test::GpuStream& stream, CrossNetwork& net, const Problem& p,
                bool as_graph = false) {
  const Result unused = Unused(p);
  test::DeviceArray<float> parameters(p.parameters), x(p.x), dy_given(p.dy), dy(p.dy), y(unused.y),
      dx(unused.dx), dw(unused.parameter_gradients);
  const auto enqueue = [&] {
    const ExecContext ctx = stream.ctx();
    EXPECT_EQ(cudaMemcpyAsync(dy.data(), dy_given.data(), dy.size() * sizeof(float),
                              cudaMemcpyDeviceToDevice, ctx.stream),
              cudaSuccess);
    Run(ctx, net, p, {parameters.data(), x.data(), y.data(), dy.data(), dx.data(), dw.data()});
  };
  enqueue();
  stream.Wait();
  if (as_graph) stream.RunAsGraph(2, enqueue);
  return {y.ToHost(), dx.ToHost(), dw.ToHost()};
}

struct Case {
  CrossKind kind;
  int32_t width;
  int32_t num_layers;
  int32_t rank = 0;
};
CrossNetworkOptions OptionsOf(const Case& c, int64_t batch_size) {
  return {.kind = c.kind,
          .width = c.width,
          .num_layers = c.num_layers,
          .rank = c.rank,
          .max_batch_size = batch_size};
}

TEST(CrossNetworkCudaTest, MatchesTheFormulasAndTheirFiniteDifferencesAndRepeats) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::GpuStream stream;
  const Case cases[] = {
      {CrossKind::kVector, 1, 1},      {CrossKind::kVector, 1, 3},  {CrossKind::kVector, 7, 2},
      {CrossKind::kVector, 17, 5},     {CrossKind::kVector, 16, 4}, {CrossKind::kMatrix, 1, 1},
      {CrossKind::kMatrix, 1, 2, 1},   {CrossKind::kMatrix, 7, 3},  {CrossKind::kMatrix, 13, 2, 3},
      {CrossKind::kMatrix, 16, 1, 16}, {CrossKind::kMatrix, 17, 2}, {CrossKind::kMatrix, 9, 3, 1}};
  for (const Case& c : cases) {
    for (const int64_t batch_size : {1, 6}) {
      SCOPED_TRACE(testing::Message()
                   << "kind=" << static_cast<int>(c.kind) << " width=" << c.width
                   << " layers=" << c.num_layers << " rank=" << c.rank << " B=" << batch_size);
      const CrossNetworkOptions options = OptionsOf(c, batch_size + 2);
      const auto net = NewNetwork(options, stream.ctx());
      ASSERT_NE(net, nullptr);
      const Problem p = test::RandomCrossProblem(*net, options, batch_size, 5);
      const Result got = RunOnGpu(stream, *net, p, /*as_graph=*/batch_size > 1);
      ASSERT_NO_FATAL_FAILURE(test::ExpectCrossForward(*net, p, got));
      ASSERT_NO_FATAL_FAILURE(test::ExpectCrossBackward(*net, p, got));
      ASSERT_TRUE(RunOnGpu(stream, *net, p) == got) << "another run gave other bits";
    }
  }
}

double ErrorOf(const std::vector<float>& got, const std::vector<float>& want) {
  return test::RelativeError(got, std::vector<double>(want.begin(), want.end()));
}

// More columns, layers and samples than a block, a warp or a chunk of sums has.
TEST(CrossNetworkCudaTest, LargerNetworksAreNearTheCpus) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::GpuStream stream;
  for (const auto& [c, batch_size] :
       {std::pair(Case{CrossKind::kVector, 150, 3}, int64_t{300}),
        std::pair(Case{CrossKind::kVector, 5, 37}, int64_t{130}),
        std::pair(Case{CrossKind::kVector, 3, 140}, int64_t{3}),
        std::pair(Case{CrossKind::kMatrix, 140, 2}, int64_t{70}),
        std::pair(Case{CrossKind::kMatrix, 150, 2, 21}, int64_t{70})}) {
    SCOPED_TRACE(testing::Message() << "kind=" << static_cast<int>(c.kind) << " width=" << c.width
                                    << " layers=" << c.num_layers << " rank=" << c.rank);
    const CrossNetworkOptions options = OptionsOf(c, batch_size);
    const auto net = NewNetwork(options, stream.ctx());
    ASSERT_NE(net, nullptr);
    Problem p = test::RandomCrossProblem(*net, options, batch_size, 5);
    // Weights so small that the layers do not make numbers without end.
    for (float& w : p.parameters) w /= static_cast<float>(c.num_layers);
    const Result want = RunOnCpu(options, p);
    const Result got = RunOnGpu(stream, *net, p);
    EXPECT_LT(ErrorOf(got.y, want.y), 1e-6);
    EXPECT_LT(ErrorOf(got.dx, want.dx), 1e-6);
    EXPECT_LT(ErrorOf(got.parameter_gradients, want.parameter_gradients), 1e-6);
    EXPECT_TRUE(RunOnGpu(stream, *net, p) == got) << "another run gave other bits";
  }
}

Problem WholeProblem(const CrossNetwork& net, const CrossNetworkOptions& options,
                     int64_t batch_size) {
  Problem p = test::RandomCrossProblem(net, options, batch_size, 3);
  RandomStream random(2, RandomPurpose::kTest);
  test::MakeWhole(random, 0.6, p.x);
  test::MakeWhole(random, 0.6, p.dy);
  for (int32_t l = 0; l < options.num_layers; ++l) {
    const int64_t begin = net.weight_offset(l);
    const int64_t end = net.bias_offset(l);
    test::MakeWhole(random, 0.05, std::span(p.parameters).subspan(begin, end - begin));
    test::MakeWhole(random, 0.5, std::span(p.parameters).subspan(end, options.width));
  }
  return p;
}

TEST(CrossNetworkCudaTest, HalfFactorsAreExactWhereTheNumbersAre) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::GpuStream stream;
  for (const int32_t rank : {0, 5, 31, 65}) {
    for (const int32_t width : {70, 96}) {  // with and without room behind it
      for (const int64_t batch_size : {1, 67}) {
        SCOPED_TRACE(testing::Message() << rank << " " << width << " " << batch_size);
        // Where rows end in a whole word, the last one is the end of the memory, too.
        CrossNetworkOptions options = OptionsOf({CrossKind::kMatrix, width, 2, rank},
                                                width == 96 ? batch_size : batch_size + 3);
        const auto fp32 = NewNetwork(options, stream.ctx());
        ASSERT_NE(fp32, nullptr);
        const Problem p = WholeProblem(*fp32, options, batch_size);
        const Result want = RunOnGpu(stream, *fp32, p);
        for (const DensePrecision precision : {DensePrecision::kBf16, DensePrecision::kFp16}) {
          // Emulated: each with every width and with every size of a batch, not with each pair.
          const bool even = (precision == DensePrecision::kBf16) == (width == 96);
          if (test::kEmulatedGpu && even != (batch_size == 1)) continue;
          options.precision = precision;
          const auto half = NewNetwork(options, stream.ctx());
          ASSERT_NE(half, nullptr);
          const Result got = RunOnGpu(stream, *half, p);
          EXPECT_EQ(got.y, want.y);
          EXPECT_EQ(got.dx, want.dx);
          EXPECT_EQ(got.parameter_gradients, want.parameter_gradients);
        }
      }
    }
  }
}

TEST(CrossNetworkCudaTest, HalfFactorsStayNearFp32AndRepeat) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::GpuStream stream;
  for (const int32_t rank : {0, 20}) {
    CrossNetworkOptions options = OptionsOf({CrossKind::kMatrix, 100, 3, rank}, 100);
    const auto fp32 = NewNetwork(options, {});
    const Problem p = test::RandomCrossProblem(*fp32, options, 100, 2);
    const Result want = RunOnCpu(options, p);
    double error_before = 0;
    // fp16 has 3 bits more: an eighth of the error.
    for (const DensePrecision precision : {DensePrecision::kFp16, DensePrecision::kBf16}) {
      options.precision = precision;
      const auto half = NewNetwork(options, stream.ctx());
      ASSERT_NE(half, nullptr);
      const Result got = RunOnGpu(stream, *half, p);
      const double error = ErrorOf(got.y, want.y);
      EXPECT_LT(error, 0.02);
      EXPECT_GT(error, std::max(1e-5, 4 * error_before));
      error_before = error;
      EXPECT_LT(ErrorOf(got.dx, want.dx), 0.04);
      EXPECT_LT(ErrorOf(got.parameter_gradients, want.parameter_gradients), 0.04);
      EXPECT_TRUE(RunOnGpu(stream, *half, p, /*as_graph=*/true) == got);
    }
  }
}

std::vector<CrossNetworkOptions> OneOfEachEngine(int64_t batch_size) {
  std::vector<CrossNetworkOptions> all = {OptionsOf({CrossKind::kVector, 21, 3}, batch_size),
                                          OptionsOf({CrossKind::kMatrix, 21, 2}, batch_size),
                                          OptionsOf({CrossKind::kMatrix, 21, 2, 4}, batch_size)};
  for (const int32_t rank : {0, 4}) {
    all.push_back(OptionsOf({CrossKind::kMatrix, 21, 2, rank}, batch_size));
    all.back().precision = DensePrecision::kBf16;
  }
  return all;
}

TEST(CrossNetworkCudaTest, ANanStaysInItsSample) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::GpuStream stream;
  for (const CrossNetworkOptions& options : OneOfEachEngine(40)) {
    const auto net = NewNetwork(options, stream.ctx());
    ASSERT_NE(net, nullptr);
    Problem p = test::RandomCrossProblem(*net, options, 40, 2);
    p.x[static_cast<size_t>(17 * p.stride + 4)] = std::numeric_limits<float>::quiet_NaN();
    const Result got = RunOnGpu(stream, *net, p);
    for (int64_t b = 0; b < 40; ++b) {
      int nans = 0;
      for (int64_t i = 0; i < options.width; ++i) {
        const auto at = static_cast<size_t>(b * p.stride + i);
        nans += std::isnan(got.y[at]) + std::isnan(got.dx[at]);
      }
      EXPECT_EQ(nans > 0, b == 17) << b;
    }
    EXPECT_TRUE(
        std::isnan(got.parameter_gradients[static_cast<size_t>(net->weight_offset(0)) + 4]));
  }
}

TEST(CrossNetworkCudaTest, AnEmptyBatchHasZeroGradientsAndReportsEveryLayer) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::GpuStream stream;
  for (const CrossNetworkOptions& options : OneOfEachEngine(4)) {
    const auto net = NewNetwork(options, stream.ctx());
    ASSERT_NE(net, nullptr);
    test::DeviceArray<float> dw(
        std::vector<float>(static_cast<size_t>(net->num_parameters()), kCrossUnused));
    int64_t ready = net->num_parameters();
    int reports = 0;
    const auto tell = [&](int64_t begin, int64_t end) {
      EXPECT_EQ(end, ready);
      ready = begin;
      ++reports;
      return absl::OkStatus();
    };
    HOTROW_ASSERT_OK(net->Forward(stream.ctx(), {.batch_size = 0, .training = true}));
    HOTROW_ASSERT_OK(
        net->Backward(stream.ctx(), {.parameter_gradients = dw.data(), .gradients_ready = tell}));
    stream.Wait();
    EXPECT_EQ(dw.ToHost(), std::vector<float>(dw.size(), 0.0f));
    EXPECT_EQ(ready, 0);
    EXPECT_EQ(reports, options.num_layers);
  }
}

// The gradient of the input may be unwanted, and that of the parameters comes later.
TEST(CrossNetworkCudaTest, ParametersNeedNoGradientOfTheInputAndNoDyAnyMore) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::GpuStream stream;
  for (const CrossNetworkOptions& options : OneOfEachEngine(40)) {
    const auto net = NewNetwork(options, stream.ctx());
    ASSERT_NE(net, nullptr);
    const Problem p = test::RandomCrossProblem(*net, options, 40, 2);
    const Result want = RunOnGpu(stream, *net, p);
    test::DeviceArray<float> parameters(p.parameters), x(p.x), dy(p.dy), y(want.y),
        dw(Unused(p).parameter_gradients);
    const ExecContext ctx = stream.ctx();
    HOTROW_ASSERT_OK(net->Forward(ctx, {.parameters = parameters.data(),
                                        .x = x.data(),
                                        .x_stride = p.stride,
                                        .batch_size = p.batch_size,
                                        .y = y.data(),
                                        .y_stride = p.stride,
                                        .training = true}));
    const CrossNetwork::BackwardArgs args = {.parameters = parameters.data(),
                                             .dy = dy.data(),
                                             .dy_stride = p.stride,
                                             .parameter_gradients = dw.data()};
    HOTROW_ASSERT_OK(net->BackwardInput(ctx, args));
    ASSERT_EQ(cudaMemsetAsync(dy.data(), 0xff, dy.size() * sizeof(float), ctx.stream), cudaSuccess);
    HOTROW_ASSERT_OK(net->BackwardParameters(ctx, args));
    stream.Wait();
    EXPECT_EQ(test::Bits(dw.ToHost()), test::Bits(want.parameter_gradients));
    EXPECT_THAT(net->BackwardInput(ctx, args),
                test::StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("training")));
  }
}

TEST(CrossNetworkCudaTest, ACallOnTheCpuIsRefused) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::GpuStream stream;
  const auto net = NewNetwork(OptionsOf({CrossKind::kVector, 3, 2}, 1), stream.ctx());
  ASSERT_NE(net, nullptr);
  EXPECT_THAT(
      net->Forward({}, {.batch_size = 0}),
      test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("made for device cuda")));
}

}  // namespace
}  // namespace hotrow
