#include "ops/training/gradient_norm.h"

#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <cmath>
#include <limits>
#include <vector>

#include "tests/ops/dense_cuda_test_util.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"

namespace hotrow {
namespace {

struct Result {
  double norm = -1;
  float scale = -1;
};

Result OnGpu(const std::vector<float>& gradients, double norm_max) {
  const test::GpuStream stream;
  test::DeviceArray<float> there(gradients);
  test::DeviceArray<double> norm(std::vector<double>{-1});
  test::DeviceArray<float> scale(std::vector<float>{-1});
  test::DeviceArray<double> workspace(
      static_cast<size_t>(
          GradientNormWorkspaceBytes(Device::kCuda, static_cast<int64_t>(gradients.size())) / 8) +
      1);
  HOTROW_EXPECT_OK(
      GradientNorm(stream.ctx(), {.gradients = {there.data(), there.size()},
                                  .norm_max = norm_max,
                                  .norm = norm.data(),
                                  .scale = scale.data(),
                                  .workspace = reinterpret_cast<std::byte*>(workspace.data()),
                                  .workspace_bytes = static_cast<int64_t>(8 * workspace.size())}));
  stream.Wait();
  return {norm.ToHost()[0], scale.ToHost()[0]};
}

TEST(GradientNormCudaTest, IsTheCpusNormAndItsOwnBitsEachTime) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  RandomStream random(5, RandomPurpose::kTest);
  // Nothing, less than a block's threads, one chunk, one more, and more chunks than one block sums
  // at a time.
  for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{200}, int64_t{16384}, int64_t{16385},
                          test::ForGpu(int64_t{5'000'001}, int64_t{70'001})}) {
    const std::vector<float> gradients = test::RandomFloats(random, n);
    Result cpu;
    HOTROW_ASSERT_OK(GradientNorm(
        {}, {.gradients = gradients, .norm_max = 0.5, .norm = &cpu.norm, .scale = &cpu.scale}));
    const Result gpu = OnGpu(gradients, 0.5);
    EXPECT_NEAR(gpu.norm, cpu.norm, 1e-12 * cpu.norm) << n;
    EXPECT_FLOAT_EQ(gpu.scale, cpu.scale) << n;
    const Result again = OnGpu(gradients, 0.5);
    EXPECT_EQ(again.norm, gpu.norm) << n;
    EXPECT_EQ(again.scale, gpu.scale) << n;
  }
}

TEST(GradientNormCudaTest, ManyChunksAreAllAdded) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  // Ones have a norm without rounding; 300 chunks are more than a block has threads.
  const int64_t n = 300 * 16384;
  EXPECT_EQ(OnGpu(std::vector<float>(static_cast<size_t>(n), 1.0f), 1).norm,
            std::sqrt(static_cast<double>(n)));
}

TEST(GradientNormCudaTest, WhatIsNotFiniteIsSeenInTheNorm) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  std::vector<float> gradients(20'000, 1.0f);
  gradients[17'000] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(OnGpu(gradients, 1).norm));
  EXPECT_EQ(OnGpu(gradients, 1).scale, 1.0f);
  gradients[17'000] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(OnGpu(gradients, 1).norm));
}

}  // namespace
}  // namespace hotrow
