#include "ops/layers/batch_norm.h"

#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/buffer.h"
#include "tests/ops/dense_cuda_test_util.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"

namespace hotrow {
namespace {

constexpr float kUnused = -77.0f;

struct Shape {
  int64_t batch_size;
  int32_t columns;
  bool relu = true;
  int64_t gap = 0;  // unused floats after each row

  int64_t stride() const { return columns + gap; }
};

// What a step and an evaluation read and write, on either device. moments, sums and scale are
// those of the CPU, unless `own`: so errors do not add up.
template <template <typename> typename Array>
struct Arrays {
  Array<float> x, dy, gamma, beta, running;
  Array<double> sums, moments, gradient_sums;
  Array<float> scale, evaluation_scale, y, gradients, dx;
};
template <typename T>
using HostArray = std::vector<T>;

Arrays<HostArray> NewArrays(const Shape& s) {
  RandomStream random(9, RandomPurpose::kTest);
  const auto width = static_cast<size_t>(2 * s.columns);
  Arrays<HostArray> a;
  a.x = test::RandomFloats(random, s.batch_size * s.stride());
  for (float& x : a.x) x = 3 * x + 5;
  a.dy = test::RandomFloats(random, s.batch_size * s.stride());
  a.gamma = test::RandomFloats(random, s.columns);
  a.beta = test::RandomFloats(random, s.columns);
  a.running = test::RandomFloats(random, 2 * s.columns);
  for (float& x : a.running) x = std::abs(x);
  a.sums.assign(width, kUnused);
  a.moments.assign(width, kUnused);
  a.gradient_sums.assign(width, kUnused);
  a.scale.assign(width, kUnused);
  a.evaluation_scale.assign(width, kUnused);
  a.y.assign(a.x.size(), kUnused);
  a.gradients.assign(width, kUnused);
  a.dx.assign(a.x.size(), kUnused);
  return a;
}

// Sums of a batch, or what follows from sums: then those of the arrays are read.
enum class Part { kSums, kRest };

template <template <typename> typename Array>
void Run(const ExecContext& ctx, const Shape& s, Part part, std::byte* workspace, int64_t bytes,
         Arrays<Array>& a) {
  const BatchNormScale scale = {a.scale.data(), a.scale.data() + s.columns};
  const BatchNormArgs forward = {.batch_size = s.batch_size,
                                 .columns = s.columns,
                                 .relu = s.relu,
                                 .x = a.x.data(),
                                 .x_stride = s.stride(),
                                 .scale = scale,
                                 .gamma = a.gamma.data(),
                                 .beta = a.beta.data(),
                                 .output = a.y.data(),
                                 .output_stride = s.stride()};
  if (part == Part::kSums) {
    HOTROW_ASSERT_OK(BatchNormSums(ctx, {.batch_size = s.batch_size,
                                         .columns = s.columns,
                                         .x = a.x.data(),
                                         .x_stride = s.stride(),
                                         .sums = a.sums.data(),
                                         .workspace = workspace,
                                         .workspace_bytes = bytes}));
    HOTROW_ASSERT_OK(BatchNormGradSums(ctx, {.forward = forward,
                                             .output_gradient = a.dy.data(),
                                             .output_gradient_stride = s.stride(),
                                             .sums = a.gradient_sums.data(),
                                             .gradients = a.gradients.data(),
                                             .workspace = workspace,
                                             .workspace_bytes = bytes}));
    return;
  }
  HOTROW_ASSERT_OK(BatchNormMoments(ctx, {.columns = s.columns,
                                          .sums = a.sums.data(),
                                          .samples = s.batch_size,
                                          .moments = a.moments.data(),
                                          .scale = scale}));
  HOTROW_ASSERT_OK(BatchNorm(ctx, forward));
  HOTROW_ASSERT_OK(BatchNormInputGrad(ctx, {.forward = forward,
                                            .output_gradient = a.dy.data(),
                                            .output_gradient_stride = s.stride(),
                                            .sums = a.gradient_sums.data(),
                                            .samples = s.batch_size,
                                            .x_gradient = a.dx.data(),
                                            .x_gradient_stride = s.stride()}));
  HOTROW_ASSERT_OK(BatchNormRunning(
      ctx, {.columns = s.columns,
            .mean = a.running.data(),
            .variance = a.running.data() + s.columns,
            .scale = {a.evaluation_scale.data(), a.evaluation_scale.data() + s.columns}}));
  HOTROW_ASSERT_OK(BatchNormEndStep(ctx, {.columns = s.columns,
                                          .samples = s.batch_size,
                                          .moments = a.moments.data(),
                                          .momentum = 0.1,
                                          .mean = a.running.data(),
                                          .variance = a.running.data() + s.columns}));
}

void RunOnCpu(const Shape& s, Part part, Arrays<HostArray>& a) {
  auto workspace = HostBuffer<std::byte>::Create(BatchNormWorkspaceBytes(s.batch_size, s.columns));
  HOTROW_ASSERT_OK(workspace);
  Run({}, s, part, workspace->data(), workspace->bytes(), a);
}

// As a graph, so that what allocates or waits fails.
Arrays<HostArray> RunOnGpu(const Shape& s, Part part, const Arrays<HostArray>& in) {
  test::GpuStream stream;
  Arrays<test::DeviceArray> a = {
      test::DeviceArray<float>(in.x),        test::DeviceArray<float>(in.dy),
      test::DeviceArray<float>(in.gamma),    test::DeviceArray<float>(in.beta),
      test::DeviceArray<float>(in.running),  test::DeviceArray<double>(in.sums),
      test::DeviceArray<double>(in.moments), test::DeviceArray<double>(in.gradient_sums),
      test::DeviceArray<float>(in.scale),    test::DeviceArray<float>(in.evaluation_scale),
      test::DeviceArray<float>(in.y),        test::DeviceArray<float>(in.gradients),
      test::DeviceArray<float>(in.dx)};
  test::DeviceArray<std::byte> workspace(
      static_cast<size_t>(BatchNormWorkspaceBytes(s.batch_size, s.columns)));
  stream.RunAsGraph(1, [&] {
    Run(stream.ctx(), s, part, workspace.data(), static_cast<int64_t>(workspace.size()), a);
  });
  Arrays<HostArray> out = in;
  out.running = a.running.ToHost();
  out.sums = a.sums.ToHost();
  out.moments = a.moments.ToHost();
  out.gradient_sums = a.gradient_sums.ToHost();
  out.scale = a.scale.ToHost();
  out.evaluation_scale = a.evaluation_scale.ToHost();
  out.y = a.y.ToHost();
  out.gradients = a.gradients.ToHost();
  out.dx = a.dx.ToHost();
  return out;
}

// What normalizing with these moments makes of a step: in the order of the work, sums first.
Arrays<HostArray> StepOnCpu(const Shape& s) {
  Arrays<HostArray> a = NewArrays(s);
  // The first pass gives the scale, which the sums of gradients need.
  RunOnCpu(s, Part::kSums, a);
  a.running = NewArrays(s).running;
  RunOnCpu(s, Part::kRest, a);
  RunOnCpu(s, Part::kSums, a);
  a.running = NewArrays(s).running;
  RunOnCpu(s, Part::kRest, a);
  return a;
}

std::vector<Shape> Shapes() {
  return {{0, 3},           {1, 1},
          {1, 40, true, 3}, {7, 33, false, 1},
          {256, 3},         {257, 33, true, 2},
          {600, 2, false},  {test::ForGpu(5000, 2100), 3}};
}

TEST(BatchNormCudaTest, SumsAreThoseOfTheCpuWithinTheirRoundingAndRepeat) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const Shape& s : Shapes()) {
    SCOPED_TRACE(testing::Message()
                 << s.batch_size << " samples of " << s.columns << ", gap " << s.gap);
    const Arrays<HostArray> cpu = StepOnCpu(s);
    const Arrays<HostArray> gpu = RunOnGpu(s, Part::kSums, cpu);
    const auto columns = static_cast<size_t>(s.columns);
    for (size_t i = 0; i < columns; ++i) {
      double magnitudes[] = {0, 0, 0, 0};
      for (size_t b = 0; b < static_cast<size_t>(s.batch_size); ++b) {
        const double x = cpu.x[b * static_cast<size_t>(s.stride()) + i];
        const double dy = cpu.dy[b * static_cast<size_t>(s.stride()) + i];
        const double normalized = (x - cpu.scale[i]) * cpu.scale[columns + i];
        magnitudes[0] += std::abs(x);
        magnitudes[1] += x * x;
        magnitudes[2] += std::abs(dy * normalized);
        magnitudes[3] += std::abs(dy);
      }
      // The bound of n terms in double, on either device.
      const double bound = 2 * static_cast<double>(s.batch_size + 1) * 0x1p-53;
      ASSERT_NEAR(gpu.sums[i], cpu.sums[i], bound * magnitudes[0]) << i;
      ASSERT_NEAR(gpu.sums[columns + i], cpu.sums[columns + i], bound * magnitudes[1]) << i;
      ASSERT_NEAR(gpu.gradient_sums[i], cpu.gradient_sums[i], bound * magnitudes[2]) << i;
      ASSERT_NEAR(gpu.gradient_sums[columns + i], cpu.gradient_sums[columns + i],
                  bound * magnitudes[3])
          << i;
    }
    for (size_t i = 0; i < 2 * columns; ++i) {
      ASSERT_EQ(gpu.gradients[i], static_cast<float>(gpu.gradient_sums[i])) << i;
    }
    // The emulated GPU draws other orders of threads and blocks each time.
    const Arrays<HostArray> again = RunOnGpu(s, Part::kSums, cpu);
    ASSERT_EQ(again.sums, gpu.sums);
    ASSERT_EQ(again.gradient_sums, gpu.gradient_sums);
  }
}

TEST(BatchNormCudaTest, FromEqualSumsAllElseHasTheBitsOfTheCpuAndGapsAreLeftAlone) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const Shape& s : Shapes()) {
    SCOPED_TRACE(testing::Message()
                 << s.batch_size << " samples of " << s.columns << ", gap " << s.gap);
    const Arrays<HostArray> cpu = StepOnCpu(s);
    Arrays<HostArray> before = NewArrays(s);
    before.sums = cpu.sums;
    before.gradient_sums = cpu.gradient_sums;
    const Arrays<HostArray> gpu = RunOnGpu(s, Part::kRest, before);
    ASSERT_EQ(gpu.moments, cpu.moments);
    ASSERT_EQ(test::Bits(gpu.scale), test::Bits(cpu.scale));
    ASSERT_EQ(test::Bits(gpu.evaluation_scale), test::Bits(cpu.evaluation_scale));
    ASSERT_EQ(test::Bits(gpu.y), test::Bits(cpu.y));
    ASSERT_EQ(test::Bits(gpu.dx), test::Bits(cpu.dx));
    ASSERT_EQ(test::Bits(gpu.running), test::Bits(cpu.running));
  }
}

TEST(BatchNormCudaTest, ANanIsInItsColumnOnly) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const Shape s = {300, 5};
  const Arrays<HostArray> cpu = StepOnCpu(s);
  for (const bool of_gradient : {false, true}) {
    Arrays<HostArray> in = cpu;
    (of_gradient ? in.dy : in.x)[7 * 5 + 3] = std::numeric_limits<float>::quiet_NaN();
    if (of_gradient) in.x[7 * 5 + 3] = 100 * in.gamma[3];  // where ReLU lets it through
    Arrays<HostArray> gpu = RunOnGpu(s, Part::kSums, in);
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(std::isnan(gpu.sums[i]), !of_gradient && i == 3) << i;
      EXPECT_EQ(std::isnan(gpu.gradient_sums[i]), i == 3) << i;
    }
    // A NaN of x passes ReLU, and with its column's sums everything of the column is one.
    gpu = RunOnGpu(s, Part::kRest, gpu);
    for (size_t i = 0; i < gpu.y.size(); ++i) {
      EXPECT_EQ(std::isnan(gpu.y[i]), !of_gradient && i % 5 == 3) << i;
      EXPECT_EQ(std::isnan(gpu.dx[i]), i % 5 == 3) << i;
    }
  }
}

}  // namespace
}  // namespace hotrow
