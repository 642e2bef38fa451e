#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <cmath>
#include <limits>
#include <vector>

#include "ops/layers/linear_term.h"
#include "tests/ops/dense_cuda_test_util.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"

namespace hotrow {
namespace {

struct Shape {
  int64_t batch_size;
  int64_t columns;
  int64_t gap = 0;       // unused floats after each row
  int64_t y_stride = 1;  // of outputs and their gradients
};

struct Inputs {
  explicit Inputs(const Shape& s) {
    RandomStream random(9, RandomPurpose::kTest);
    x = test::RandomFloats(random, s.batch_size * (s.columns + s.gap));
    weights = test::RandomFloats(random, s.columns);
    dy = test::RandomFloats(random, s.batch_size * s.y_stride);
  }
  std::vector<float> x, weights, dy;
};

struct Outputs {
  explicit Outputs(const Inputs& in)
      : y(in.dy.size(), 9.0f), dx(in.x.size(), 9.0f), dw(in.weights.size(), 9.0f), db(1, 9.0f) {}
  std::vector<float> y, dx, dw, db;
};

// Arrays in the memory of ctx.device.
struct Arrays {
  const float *x, *weights, *dy;
  float *y, *dx, *dw, *db;
  std::byte* workspace;
  int64_t workspace_bytes;
};
void Run(const ExecContext& ctx, const Shape& s, const Arrays& a) {
  const int64_t stride = s.columns + s.gap;
  HOTROW_ASSERT_OK(LinearTerm(ctx, {.batch_size = s.batch_size,
                                    .columns = s.columns,
                                    .x = a.x,
                                    .x_stride = stride,
                                    .weights = a.weights,
                                    .output = a.y,
                                    .output_stride = s.y_stride}));
  HOTROW_ASSERT_OK(LinearTermInputGrad(ctx, {.batch_size = s.batch_size,
                                             .columns = s.columns,
                                             .weights = a.weights,
                                             .output_gradient = a.dy,
                                             .output_gradient_stride = s.y_stride,
                                             .x_gradient = a.dx,
                                             .x_gradient_stride = stride}));
  HOTROW_ASSERT_OK(LinearTermWeightGrad(ctx, {.batch_size = s.batch_size,
                                              .columns = s.columns,
                                              .x = a.x,
                                              .x_stride = stride,
                                              .output_gradient = a.dy,
                                              .output_gradient_stride = s.y_stride,
                                              .weight_gradient = a.dw,
                                              .workspace = a.workspace,
                                              .workspace_bytes = a.workspace_bytes}));
  HOTROW_ASSERT_OK(BiasGrad(ctx, {.batch_size = s.batch_size,
                                  .output_gradient = a.dy,
                                  .output_gradient_stride = s.y_stride,
                                  .bias_gradient = a.db,
                                  .workspace = a.workspace,
                                  .workspace_bytes = a.workspace_bytes}));
}

Outputs RunOnCpu(const Shape& s, const Inputs& in) {
  Outputs out(in);
  Run({}, s,
      {in.x.data(), in.weights.data(), in.dy.data(), out.y.data(), out.dx.data(), out.dw.data(),
       out.db.data(), nullptr, 0});
  return out;
}

// As a graph, so that what allocates or waits fails; `times` times.
Outputs RunOnGpu(const Shape& s, const Inputs& in, int times) {
  Outputs out(in);
  test::GpuStream stream;
  test::DeviceArray<float> x(in.x), weights(in.weights), dy(in.dy), y(out.y), dx(out.dx),
      dw(out.dw), db(out.db);
  test::DeviceArray<std::byte> workspace(
      static_cast<size_t>(LinearTermWorkspaceBytes(Device::kCuda, s.batch_size, s.columns)));
  stream.RunAsGraph(times, [&] {
    Run(stream.ctx(), s,
        {x.data(), weights.data(), dy.data(), y.data(), dx.data(), dw.data(), db.data(),
         workspace.data(), static_cast<int64_t>(workspace.size())});
  });
  out.y = y.ToHost();
  out.dx = dx.ToHost();
  out.dw = dw.ToHost();
  out.db = db.ToHost();
  return out;
}

TEST(LinearTermCudaTest, IsThatOfTheCpuWithinTheRoundingOfSumsAndRepeats) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const Shape& s :
       {Shape{0, 3}, Shape{1, 1}, Shape{1, 45, 3, 2}, Shape{31, 13}, Shape{33, 13, 3, 5},
        Shape{257, 1, 6}, Shape{100, 300}, Shape{test::ForGpu(70'000, 1100), 13, 0, 2}}) {
    SCOPED_TRACE(testing::Message() << s.batch_size << " samples of " << s.columns << ", gap "
                                    << s.gap << ", stride " << s.y_stride);
    const Inputs in(s);
    const Outputs cpu = RunOnCpu(s, in);
    const Outputs gpu = RunOnGpu(s, in, 1);
    ASSERT_EQ(test::Bits(gpu.y), test::Bits(cpu.y));
    ASSERT_EQ(test::Bits(gpu.dx), test::Bits(cpu.dx));
    // Sums over the batch: each device errs by so much of the sum of magnitudes.
    const double gamma = 2 * test::Gamma(static_cast<double>(s.batch_size + 1));
    double bias = 0;
    std::vector<double> magnitude(in.weights.size());
    for (int64_t b = 0; b < s.batch_size; ++b) {
      const double g = std::abs(in.dy[static_cast<size_t>(b * s.y_stride)]);
      bias += g;
      for (size_t i = 0; i < magnitude.size(); ++i) {
        magnitude[i] += g * std::abs(in.x[static_cast<size_t>(b * (s.columns + s.gap)) + i]);
      }
    }
    EXPECT_NEAR(gpu.db[0], cpu.db[0], gamma * bias);
    for (size_t i = 0; i < magnitude.size(); ++i) {
      ASSERT_NEAR(gpu.dw[i], cpu.dw[i], gamma * magnitude[i]) << i;
    }
    // The emulated GPU draws other orders of threads and blocks each time.
    for (int time = 0; time < 2; ++time) {
      const Outputs again = RunOnGpu(s, in, 2);
      ASSERT_EQ(test::Bits(again.dw), test::Bits(gpu.dw));
      ASSERT_EQ(test::Bits(again.db), test::Bits(gpu.db));
      ASSERT_EQ(test::Bits(again.y), test::Bits(gpu.y));
    }
  }
}

TEST(LinearTermCudaTest, ANanStaysInItsSampleAndIsInItsSum) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const Shape s = {70, 5};
  Inputs in(s);
  in.x[37 * 5 + 2] = std::numeric_limits<float>::quiet_NaN();
  const Outputs cpu = RunOnCpu(s, in);
  const Outputs gpu = RunOnGpu(s, in, 1);
  for (const Outputs* const found : {&cpu, &gpu}) {
    for (size_t b = 0; b < found->y.size(); ++b) {
      EXPECT_EQ(std::isnan(found->y[b]), b == 37) << b;
    }
    for (size_t i = 0; i < found->dw.size(); ++i) {
      EXPECT_EQ(std::isnan(found->dw[i]), i == 2) << i;
    }
    EXPECT_FALSE(std::isnan(found->db[0]));
  }
  in.dy[37] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(RunOnGpu(s, in, 1).db[0]));
}

}  // namespace
}  // namespace hotrow
