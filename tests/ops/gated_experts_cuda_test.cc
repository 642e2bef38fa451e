#include "ops/layers/gated_experts.h"

#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/ops/dense_cuda_test_util.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"

namespace hotrow {
namespace {

constexpr float kUnused = -77.0f;

struct Shape {
  GatedOutput kind;
  int64_t batch_size;
  int32_t num_experts;
  int32_t dim;
  int64_t gap = 0;  // unused floats after each row
  bool wants_gate = true;
  bool wants_x = true;

  int64_t columns() const { return int64_t{num_experts} * dim; }
  int64_t output_columns() const { return kind == GatedOutput::kSum ? dim : columns(); }
};

struct Inputs {
  explicit Inputs(const Shape& s) {
    RandomStream random(9, RandomPurpose::kTest);
    gate = test::RandomFloats(random, s.batch_size * (s.num_experts + s.gap), 2);
    x = test::RandomFloats(random, s.batch_size * (s.columns() + s.gap));
    dy = test::RandomFloats(random, s.batch_size * (s.output_columns() + s.gap));
  }
  std::vector<float> gate, x, dy;
};

struct Outputs {
  explicit Outputs(const Inputs& in)
      : y(in.dy.size(), kUnused), dgate(in.gate.size(), kUnused), dx(in.x.size(), kUnused) {}
  std::vector<float> y, dgate, dx;
};

// Arrays in the memory of ctx.device.
struct Arrays {
  const float *gate, *x, *dy;
  float *y, *dgate, *dx;
};
void Run(const ExecContext& ctx, const Shape& s, const Arrays& a) {
  GatedExpertsArgs args = {.kind = s.kind,
                           .batch_size = s.batch_size,
                           .num_experts = s.num_experts,
                           .dim = s.dim,
                           .gate = a.gate,
                           .gate_stride = s.num_experts + s.gap,
                           .x = a.x,
                           .x_stride = s.columns() + s.gap,
                           .output = a.y,
                           .output_stride = s.output_columns() + s.gap};
  HOTROW_ASSERT_OK(GatedExperts(ctx, args));
  HOTROW_ASSERT_OK(
      GatedExpertsGrad(ctx, {.forward = args,
                             .output_gradient = a.dy,
                             .output_gradient_stride = s.output_columns() + s.gap,
                             .gate_gradient = s.wants_gate ? a.dgate : nullptr,
                             .gate_gradient_stride = s.wants_gate ? s.num_experts + s.gap : 0,
                             .x_gradient = s.wants_x ? a.dx : nullptr,
                             .x_gradient_stride = s.wants_x ? s.columns() + s.gap : 0}));
}

Outputs RunOnCpu(const Shape& s, const Inputs& in) {
  Outputs out(in);
  Run({}, s,
      {in.gate.data(), in.x.data(), in.dy.data(), out.y.data(), out.dgate.data(), out.dx.data()});
  return out;
}

// As a graph, so that what allocates or waits fails; `times` times.
Outputs RunOnGpu(const Shape& s, const Inputs& in, int times) {
  Outputs out(in);
  test::GpuStream stream;
  test::DeviceArray<float> gate(in.gate), x(in.x), dy(in.dy), y(out.y), dgate(out.dgate),
      dx(out.dx);
  stream.RunAsGraph(times, [&] {
    Run(stream.ctx(), s, {gate.data(), x.data(), dy.data(), y.data(), dgate.data(), dx.data()});
  });
  out.y = y.ToHost();
  out.dgate = dgate.ToHost();
  out.dx = dx.ToHost();
  return out;
}

// The largest magnitude, unless that is a NaN.
double Largest(const std::vector<float>& v) {
  double largest = 0;
  for (const float x : v) largest = std::max(largest, std::abs(static_cast<double>(x)));
  return largest;
}

TEST(GatedExpertsCudaTest, IsThatOfTheCpuWithinRoundingAndRepeats) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  constexpr GatedOutput kSum = GatedOutput::kSum;
  constexpr GatedOutput kScaled = GatedOutput::kScaled;
  for (const Shape& s :
       {Shape{kSum, 0, 2, 4}, Shape{kScaled, 0, 2, 4}, Shape{kSum, 1, 1, 1},
        Shape{kScaled, 1, 1, 1}, Shape{kSum, 37, 4, 33, 3}, Shape{kScaled, 37, 3, 5, 3},
        Shape{kSum, 5, 70, 3, 1}, Shape{kScaled, 5, 70, 3, 1}, Shape{kScaled, 3, 33, 129},
        Shape{kSum, 3, 32, 100}, Shape{kSum, 9, 4, 8, 0, false, true},
        Shape{kScaled, 9, 4, 8, 0, true, false}, Shape{kSum, test::ForGpu(5000, 40), 8, 64}}) {
    SCOPED_TRACE(testing::Message()
                 << (s.kind == kSum ? "sum, " : "scaled, ") << s.batch_size << " samples of "
                 << s.num_experts << " experts of " << s.dim << ", gap " << s.gap);
    const Inputs in(s);
    const Outputs cpu = RunOnCpu(s, in);
    const Outputs gpu = RunOnGpu(s, in, 1);
    // An exponential is within two roundings on either device; the sum of the shares and the dot
    // products add some for each term.
    const double terms = static_cast<double>(s.num_experts) + s.dim + 16;
    const auto expect_near = [&](const std::vector<float>& a, const std::vector<float>& b,
                                 double scale, const char* what) {
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < b.size(); ++i) {
        ASSERT_EQ(a[i] == kUnused, b[i] == kUnused) << what << " " << i;
        ASSERT_NEAR(a[i], b[i], 2 * test::Gamma(terms) * scale) << what << " " << i;
      }
    };
    const double x = Largest(in.x);
    const double dy = Largest(in.dy);
    expect_near(gpu.y, cpu.y, x, "output");
    expect_near(gpu.dx, cpu.dx, dy, "gradient of x");
    expect_near(gpu.dgate, cpu.dgate, 3 * s.dim * x * dy, "gradient of the gate");
    // The emulated GPU draws other orders of threads and blocks each time.
    const Outputs again = RunOnGpu(s, in, 2);
    ASSERT_EQ(test::Bits(again.y), test::Bits(gpu.y));
    ASSERT_EQ(test::Bits(again.dx), test::Bits(gpu.dx));
    ASSERT_EQ(test::Bits(again.dgate), test::Bits(gpu.dgate));
  }
}

TEST(GatedExpertsCudaTest, ANanStaysInItsSampleAndLargeGatesDoNotOverflow) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const GatedOutput kind : {GatedOutput::kSum, GatedOutput::kScaled}) {
    const Shape s = {kind, 9, 40, 3};
    Inputs in(s);
    in.gate[3 * 40] = nan;  // the first number, which a maximum starts from
    in.gate[5 * 40 + 39] = nan;
    in.x[7 * 120 + 50] = nan;  // column 2 of expert 16
    for (size_t e = 0; e < 40; ++e) in.gate[80 + e] *= 1e30f;
    const Outputs cpu = RunOnCpu(s, in);
    const Outputs gpu = RunOnGpu(s, in, 1);
    const auto nans = [](const std::vector<float>& v) {
      std::vector<bool> out;
      for (const float x : v) out.push_back(std::isnan(x));
      return out;
    };
    EXPECT_EQ(nans(gpu.y), nans(cpu.y));
    EXPECT_EQ(nans(gpu.dx), nans(cpu.dx));
    EXPECT_EQ(nans(gpu.dgate), nans(cpu.dgate));
    const std::vector<bool> of_y = nans(gpu.y);
    for (size_t i = 0; i < of_y.size(); ++i) {
      const size_t columns = static_cast<size_t>(s.output_columns());
      const size_t b = i / columns;
      const size_t column = kind == GatedOutput::kSum ? 2 : 50;
      EXPECT_EQ(of_y[i], b == 3 || b == 5 || (b == 7 && i % columns == column)) << i;
    }
  }
}

}  // namespace
}  // namespace hotrow
