#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <cmath>
#include <limits>
#include <vector>

#include "ops/interactions/outer_product.h"
#include "tests/ops/dense_cuda_test_util.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"

namespace hotrow {
namespace {

constexpr float kUnused = -77.0f;

struct Shape {
  int64_t batch_size;
  int32_t num_fields;
  int32_t dim;
  int64_t field_gap = 0;  // unused floats after each field, and three more after the gradient's
  int64_t gap = 0;        // unused floats after each row

  int64_t field_stride() const { return dim + field_gap; }
  int64_t gradient_field_stride() const { return dim + (field_gap == 0 ? 0 : field_gap + 3); }
  int64_t fields_stride() const { return num_fields * field_stride() + gap; }
  int64_t gradient_stride() const { return num_fields * gradient_field_stride() + gap; }
  int64_t output_stride() const { return OuterProductOutputSize(dim) + gap; }
};

struct Inputs {
  explicit Inputs(const Shape& s) {
    RandomStream random(9, RandomPurpose::kTest);
    fields = test::RandomFloats(random, s.batch_size * s.fields_stride());
    dy = test::RandomFloats(random, s.batch_size * s.output_stride());
    // The sum of fields begins with the first, so -0 stays -0.
    const auto field = static_cast<size_t>(s.field_stride());
    for (size_t f = 0; f < fields.size() / field; ++f) fields[f * field] = -0.0f;
  }
  std::vector<float> fields, dy;
};

struct Outputs {
  explicit Outputs(const Shape& s)
      : y(static_cast<size_t>(s.batch_size * s.output_stride()), kUnused),
        dx(static_cast<size_t>(s.batch_size * s.gradient_stride()), kUnused) {}
  std::vector<float> y, dx;
};

// With arrays in the memory of ctx.device.
void Run(const ExecContext& ctx, const Shape& s, const float* fields, const float* dy, float* y,
         float* dx) {
  const OuterProductArgs forward = {.batch_size = s.batch_size,
                                    .num_fields = s.num_fields,
                                    .dim = s.dim,
                                    .fields = fields,
                                    .fields_stride = s.fields_stride(),
                                    .field_stride = s.field_stride(),
                                    .output = y,
                                    .output_stride = s.output_stride()};
  HOTROW_ASSERT_OK(OuterProduct(ctx, forward));
  HOTROW_ASSERT_OK(OuterProductGrad(ctx, {.forward = forward,
                                          .output_gradient = dy,
                                          .fields_gradient = dx,
                                          .fields_gradient_stride = s.gradient_stride(),
                                          .field_gradient_stride = s.gradient_field_stride()}));
}

Outputs RunOnCpu(const Shape& s, const Inputs& in) {
  Outputs out(s);
  Run({}, s, in.fields.data(), in.dy.data(), out.y.data(), out.dx.data());
  return out;
}

// As a graph, so that what allocates or waits fails; `times` times.
Outputs RunOnGpu(const Shape& s, const Inputs& in, int times = 1) {
  Outputs out(s);
  test::GpuStream stream;
  test::DeviceArray<float> fields(in.fields), dy(in.dy), y(out.y), dx(out.dx);
  stream.RunAsGraph(times,
                    [&] { Run(stream.ctx(), s, fields.data(), dy.data(), y.data(), dx.data()); });
  out.y = y.ToHost();
  out.dx = dx.ToHost();
  return out;
}

TEST(OuterProductCudaTest, BothPassesGiveTheBitsOfTheCpuAndLeaveGapsAlone) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const Shape& s :
       {Shape{0, 3, 4}, Shape{1, 1, 1}, Shape{1, 2, 3, 2, 1}, Shape{19, 3, 8, 1, 2},
        Shape{test::ForGpu(3000, 37), 26, 16, 1}, Shape{9, 10, 31}, Shape{9, 1, 32, 0, 3},
        Shape{5, 2, 33, 4}, Shape{11, 4, 64}, Shape{3, 3, 100, 1, 5}, Shape{2, 2, 128},
        Shape{2, 9, 129, 1, 1}, Shape{test::ForGpu(100, 3), 2, 333, 2}}) {
    SCOPED_TRACE(testing::Message() << s.batch_size << " samples, " << s.num_fields << " of "
                                    << s.dim << " + " << s.field_gap << ", gap " << s.gap);
    const Inputs in(s);
    const Outputs cpu = RunOnCpu(s, in);
    // The emulated GPU draws other orders of threads and blocks each time.
    for (const int times : {1, 2}) {
      const Outputs gpu = RunOnGpu(s, in, times);
      ASSERT_EQ(test::Bits(gpu.y), test::Bits(cpu.y));
      ASSERT_EQ(test::Bits(gpu.dx), test::Bits(cpu.dx));
    }
  }
}

// The gradient of sums takes so much shared memory that a block has fewer warps.
TEST(OuterProductCudaTest, ManyColumnsGiveTheBitsOfTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const int32_t dim : {test::ForGpu(2500, 700), test::ForGpu(4096, 1100)}) {
    const Shape s = {2, 2, dim};
    const Inputs in(s);
    const Outputs cpu = RunOnCpu(s, in);
    const Outputs gpu = RunOnGpu(s, in);
    ASSERT_EQ(test::Bits(gpu.y), test::Bits(cpu.y)) << dim;
    ASSERT_EQ(test::Bits(gpu.dx), test::Bits(cpu.dx)) << dim;
  }
}

TEST(OuterProductCudaTest, MoreColumnsThanAGpuTakesAreAnError) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const test::GpuStream stream;
  const OuterProductArgs args = {.num_fields = 2, .dim = 4097};
  HOTROW_EXPECT_OK(OuterProduct({}, args));
  const auto too_many = test::StatusIs(absl::StatusCode::kInvalidArgument,
                                       ::testing::HasSubstr("dim must be <= 4096"));
  EXPECT_THAT(OuterProduct(stream.ctx(), args), too_many);
  EXPECT_THAT(OuterProductGrad(stream.ctx(), {.forward = args}), too_many);
}

// Which NaN it is the devices choose.
TEST(OuterProductCudaTest, ANanStaysInItsSample) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const Shape s = {13, 3, 40};
  Inputs in(s);
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  in.fields[static_cast<size_t>(7 * s.fields_stride() + 45)] = kNan;           // column 5
  in.dy[static_cast<size_t>(4 * s.output_stride() + 21 * 22 / 2 + 3)] = kNan;  // of s_21 s_3
  const Outputs cpu = RunOnCpu(s, in);
  const Outputs gpu = RunOnGpu(s, in);
  for (const Outputs* const found : {&cpu, &gpu}) {
    for (int64_t b = 0; b < s.batch_size; ++b) {
      int64_t place = b * s.output_stride();
      for (int64_t i = 0; i < s.dim; ++i) {
        for (int64_t j = 0; j <= i; ++j, ++place) {
          ASSERT_EQ(std::isnan(found->y[static_cast<size_t>(place)]), b == 7 && (i == 5 || j == 5))
              << b << ": " << i << ", " << j;
        }
      }
      for (int64_t c = 0; c < s.fields_stride(); ++c) {
        const int64_t i = c % s.dim;
        ASSERT_EQ(std::isnan(found->dx[static_cast<size_t>(b * s.gradient_stride() + c)]),
                  b == 7 || (b == 4 && (i == 21 || i == 3)))
            << b << ", " << c;
      }
    }
  }
}

}  // namespace
}  // namespace hotrow
