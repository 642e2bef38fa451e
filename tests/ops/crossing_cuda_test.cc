#include "ops/layers/crossing.h"

#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "tests/ops/dense_cuda_test_util.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"

namespace hotrow {
namespace {

constexpr float kUnused = -77.0f;

// Rows of each array have another number of unused floats behind them.
struct Shape {
  int64_t batch_size;
  int32_t width;
  int64_t gap = 0;
  unsigned wanted = 7;  // gradients, a bit each: x0, t, x

  int64_t stride(int64_t array) const { return width + gap * array; }
};

// x0, t, x, dy; then y, dx0, dt, dx.
std::vector<std::vector<float>> ArraysOf(const Shape& s) {
  RandomStream random(9, RandomPurpose::kTest);
  std::vector<std::vector<float>> arrays;
  for (int64_t i = 0; i < 8; ++i) {
    arrays.push_back(
        i < 4 ? test::RandomFloats(random, s.batch_size * s.stride(i))
              : std::vector<float>(static_cast<size_t>(s.batch_size * s.stride(i)), kUnused));
  }
  return arrays;
}

void Run(const ExecContext& ctx, const Shape& s, const std::vector<float*>& a) {
  HOTROW_ASSERT_OK(Crossing(ctx, {.batch_size = s.batch_size,
                                  .width = s.width,
                                  .x0 = a[0],
                                  .x0_stride = s.stride(0),
                                  .t = a[1],
                                  .t_stride = s.stride(1),
                                  .x = a[2],
                                  .x_stride = s.stride(2),
                                  .output = a[4],
                                  .output_stride = s.stride(4)}));
  HOTROW_ASSERT_OK(CrossingGrad(ctx, {.batch_size = s.batch_size,
                                      .width = s.width,
                                      .x0 = a[0],
                                      .x0_stride = s.stride(0),
                                      .t = a[1],
                                      .t_stride = s.stride(1),
                                      .output_gradient = a[3],
                                      .output_gradient_stride = s.stride(3),
                                      .x0_gradient = (s.wanted & 1) != 0 ? a[5] : nullptr,
                                      .x0_gradient_stride = s.stride(5),
                                      .t_gradient = (s.wanted & 2) != 0 ? a[6] : nullptr,
                                      .t_gradient_stride = s.stride(6),
                                      .x_gradient = (s.wanted & 4) != 0 ? a[7] : nullptr,
                                      .x_gradient_stride = s.stride(7)}));
}

// Both devices, the GPU as a graph that runs twice, which leaves the same; then the bits of the
// outputs are compared, gaps included.
void Compare(const Shape& s, std::vector<std::vector<float>> arrays) {
  std::vector<float*> on_cpu, on_gpu;
  std::vector<std::unique_ptr<test::DeviceArray<float>>> copies;
  for (std::vector<float>& array : arrays) {
    copies.push_back(std::make_unique<test::DeviceArray<float>>(array));
    on_gpu.push_back(copies.back()->data());
  }
  for (std::vector<float>& array : arrays) on_cpu.push_back(array.data());
  ASSERT_NO_FATAL_FAILURE(Run({}, s, on_cpu));
  test::GpuStream stream;
  stream.RunAsGraph(2, [&] { Run(stream.ctx(), s, on_gpu); });
  for (size_t i = 4; i < arrays.size(); ++i) {
    const std::vector<float> got = copies[i]->ToHost();
    for (size_t k = 0; k < got.size(); ++k) {
      // Which NaN it is the devices choose.
      ASSERT_EQ(std::isnan(got[k]), std::isnan(arrays[i][k])) << i << ", " << k;
      if (std::isnan(got[k])) continue;
      ASSERT_EQ(got[k], arrays[i][k]) << i << ", " << k;
    }
  }
}

TEST(CrossingCudaTest, GivesTheBitsOfTheCpuAndLeavesGapsAlone) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const Shape& s : {Shape{0, 3}, Shape{1, 1}, Shape{5, 33, 1}, Shape{9, 129, 3},
                         Shape{3, 300, 0, 1}, Shape{3, 7, 2, 2}, Shape{3, 40, 0, 4},
                         Shape{3, 5, 0, 0}, Shape{test::ForGpu(3000, 70), 40}}) {
    SCOPED_TRACE(testing::Message() << s.batch_size << " samples of " << s.width << ", gap "
                                    << s.gap << ", wanted " << s.wanted);
    ASSERT_NO_FATAL_FAILURE(Compare(s, ArraysOf(s)));
  }
}

TEST(CrossingCudaTest, ANanStaysInItsElement) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const Shape s = {9, 40};
  for (size_t input = 0; input < 4; ++input) {
    std::vector<std::vector<float>> arrays = ArraysOf(s);
    arrays[input][133] = std::numeric_limits<float>::quiet_NaN();
    ASSERT_NO_FATAL_FAILURE(Compare(s, arrays));
  }
}

}  // namespace
}  // namespace hotrow
