#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <cmath>
#include <limits>
#include <vector>

#include "ops/interactions/fm_interaction.h"
#include "tests/ops/dense_cuda_test_util.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"

namespace hotrow {
namespace {

constexpr float kUnused = -77.0f;

struct Shape {
  int64_t batch_size;
  int32_t num_fields;
  int32_t dim;
  int32_t spare = 0;  // columns of a field behind the vector
  int32_t first_order_column = kNoFirstOrder;
  int64_t gap = 0;       // unused floats after each row
  int64_t y_stride = 1;  // of outputs and their gradients

  int64_t stride() const { return int64_t{num_fields} * (dim + spare) + gap; }
};

// Forward and backward with these arrays, in the memory of ctx.device.
struct Arrays {
  const float* fields;
  const float* output_gradient;
  float* output;
  float* fields_gradient;
};
void RunPasses(const ExecContext& ctx, const Shape& s, const Arrays& a) {
  const FmInteractionArgs forward = {.batch_size = s.batch_size,
                                     .num_fields = s.num_fields,
                                     .dim = s.dim,
                                     .field_stride = s.dim + s.spare,
                                     .fields = a.fields,
                                     .fields_stride = s.stride(),
                                     .first_order_column = s.first_order_column,
                                     .output = a.output,
                                     .output_stride = s.y_stride};
  HOTROW_ASSERT_OK(FmInteraction(ctx, forward));
  HOTROW_ASSERT_OK(FmInteractionGrad(ctx, {.forward = forward,
                                           .output_gradient = a.output_gradient,
                                           .output_gradient_stride = s.y_stride,
                                           .fields_gradient = a.fields_gradient,
                                           .fields_gradient_stride = s.stride()}));
}

struct Outputs {
  std::vector<float> output;
  std::vector<float> gradient;
};

// What both devices make of the same inputs.
void RunOnBoth(const Shape& s, const std::vector<float>& fields, Outputs* cpu, Outputs* gpu) {
  const test::GpuStream stream;
  RandomStream random(8, RandomPurpose::kTest);
  const std::vector<float> output_gradient = test::RandomFloats(random, s.batch_size * s.y_stride);
  cpu->output.assign(output_gradient.size(), kUnused);
  cpu->gradient.assign(fields.size(), kUnused);
  test::DeviceArray<float> gpu_fields(fields), gpu_output_gradient(output_gradient),
      gpu_output(cpu->output), gpu_gradient(cpu->gradient);
  ASSERT_NO_FATAL_FAILURE(RunPasses(
      {}, s, {fields.data(), output_gradient.data(), cpu->output.data(), cpu->gradient.data()}));
  ASSERT_NO_FATAL_FAILURE(RunPasses(
      stream.ctx(), s,
      {gpu_fields.data(), gpu_output_gradient.data(), gpu_output.data(), gpu_gradient.data()}));
  stream.Wait();
  *gpu = {gpu_output.ToHost(), gpu_gradient.ToHost()};
}

TEST(FmInteractionCudaTest, BothPassesGiveTheBitsOfTheCpuAndLeaveGapsAlone) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const Shape& s :
       {Shape{0, 3, 4}, Shape{1, 1, 1}, Shape{1, 1, 1, 1, 1}, Shape{5, 2, 8}, Shape{37, 3, 5, 2, 6},
        Shape{37, 4, 7, 2, 8, 3}, Shape{37, 4, 7, 2, 8, 3, 5}, Shape{9, 26, 33, 1},
        Shape{33, 10, 16, 1, 16, 1}, Shape{test::ForGpu(5000, 300), 26, 16, 1, 16},
        Shape{test::ForGpu(2000, 100), 26, 64}, Shape{3, 70, 13, 9, 20},
        Shape{3, 4, 1000, 1, 1000}}) {
    SCOPED_TRACE(testing::Message() << s.batch_size << " samples, " << s.num_fields << " of "
                                    << s.dim << " + " << s.spare << ", gap " << s.gap);
    RandomStream random(9, RandomPurpose::kTest);
    const std::vector<float> fields = test::RandomFloats(random, s.batch_size * s.stride());
    Outputs cpu, gpu;
    ASSERT_NO_FATAL_FAILURE(RunOnBoth(s, fields, &cpu, &gpu));
    ASSERT_EQ(test::Bits(gpu.output), test::Bits(cpu.output));
    ASSERT_EQ(test::Bits(gpu.gradient), test::Bits(cpu.gradient));
  }
}

// Which NaN it is the devices choose.
TEST(FmInteractionCudaTest, ANanStaysInItsSampleAndColumn) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const Shape s = {40, 5, 12, 1, 12};
  RandomStream random(9, RandomPurpose::kTest);
  std::vector<float> fields = test::RandomFloats(random, s.batch_size * s.stride());
  // Column 9 of field 2 of sample 17.
  fields[static_cast<size_t>(17 * s.stride() + 2 * 13 + 9)] =
      std::numeric_limits<float>::quiet_NaN();
  Outputs cpu, gpu;
  ASSERT_NO_FATAL_FAILURE(RunOnBoth(s, fields, &cpu, &gpu));
  for (const Outputs* const found : {&cpu, &gpu}) {
    for (int64_t b = 0; b < s.batch_size; ++b) {
      EXPECT_EQ(std::isnan(found->output[static_cast<size_t>(b)]), b == 17) << b;
      for (int64_t c = 0; c < s.stride(); ++c) {
        EXPECT_EQ(std::isnan(found->gradient[static_cast<size_t>(b * s.stride() + c)]),
                  b == 17 && c % 13 == 9)
            << b << ", " << c;
      }
    }
  }
}

}  // namespace
}  // namespace hotrow
