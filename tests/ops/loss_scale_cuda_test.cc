#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <limits>
#include <vector>

#include "ops/training/loss_scale.h"
#include "tests/ops/dense_cuda_test_util.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"

namespace hotrow {
namespace {

struct Step {
  std::vector<float> scaled, unscaled;
  std::vector<double> told;
  LossScale state;
};

// A step whose backward pass puts `bad` at `place` (none: -1); gradients begin `gap` floats behind
// a 16-byte border.
Step OnCpu(LossScale state, std::vector<float> gradient, int64_t place, float bad) {
  Step step = {.told = {-1, -1}};
  HOTROW_EXPECT_OK(ScaleGradient({}, {.state = &state, .gradient = gradient}));
  step.scaled = gradient;
  if (place >= 0) gradient[static_cast<size_t>(place)] = bad;
  HOTROW_EXPECT_OK(UnscaleGradient({}, {.state = &state, .gradient = gradient}));
  HOTROW_EXPECT_OK(EndLossScaleStep({}, &state, step.told.data()));
  step.unscaled = gradient;
  step.state = state;
  return step;
}

Step OnGpu(const LossScale& state, const std::vector<float>& gradient, int64_t place, float bad,
           int64_t gap) {
  test::GpuStream stream;
  std::vector<float> with_gap(static_cast<size_t>(gap), 7.0f);
  with_gap.insert(with_gap.end(), gradient.begin(), gradient.end());
  with_gap.push_back(9.0f);  // behind it
  test::DeviceArray<float> there(with_gap), bad_there(std::vector<float>{bad}), scaled(with_gap);
  test::DeviceArray<LossScale> state_there(std::vector<LossScale>{state});
  test::DeviceArray<double> told(std::vector<double>{-1, -1});
  const std::span<float> view(there.data() + gap, gradient.size());
  stream.RunAsGraph(1, [&] {
    const ExecContext ctx = stream.ctx();
    const auto copy = [&](float* to, const float* from, size_t n) {
      EXPECT_EQ(cudaMemcpyAsync(to, from, n * sizeof(float), cudaMemcpyDeviceToDevice, ctx.stream),
                cudaSuccess);
    };
    HOTROW_EXPECT_OK(ScaleGradient(ctx, {.state = state_there.data(), .gradient = view}));
    copy(scaled.data(), there.data(), with_gap.size());
    if (place >= 0) copy(view.data() + place, bad_there.data(), 1);
    HOTROW_EXPECT_OK(UnscaleGradient(ctx, {.state = state_there.data(), .gradient = view}));
    HOTROW_EXPECT_OK(EndLossScaleStep(ctx, state_there.data(), told.data()));
  });
  const auto part = [&](const std::vector<float>& all) {
    EXPECT_EQ(all.back(), 9.0f);
    return std::vector<float>(all.begin() + gap, all.end() - 1);
  };
  return {part(scaled.ToHost()), part(there.ToHost()), told.ToHost(), state_there.ToHost()[0]};
}

TEST(LossScaleCudaTest, IsThatOfTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  RandomStream random(3, RandomPurpose::kTest);
  for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{1026}}) {
    const std::vector<float> gradient = test::RandomFloats(random, n);
    for (const int64_t gap : {0, 1}) {
      for (const float bad : {1.0f, std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
        // In the first number, in the last one, nowhere.
        for (const int64_t place : {n > 0 ? int64_t{0} : -1, n - 1, int64_t{-1}}) {
          const LossScale state = {.scale = 256, .good_steps = kLossScaleGrowthSteps - 1};
          const Step want = OnCpu(state, gradient, place, bad);
          const Step got = OnGpu(state, gradient, place, bad, gap);
          ASSERT_EQ(test::Bits(got.scaled), test::Bits(want.scaled));
          ASSERT_EQ(test::Bits(got.unscaled), test::Bits(want.unscaled));
          ASSERT_EQ(got.told, want.told);
          ASSERT_EQ(got.state.scale, want.state.scale);
          ASSERT_EQ(got.state.good_steps, want.state.good_steps);
          ASSERT_EQ(got.state.skip, want.state.skip);
          ASSERT_EQ(got.state.non_finite, 0);
          ASSERT_EQ(got.state.skipped_steps, want.state.skipped_steps);
        }
      }
    }
  }
}

}  // namespace
}  // namespace hotrow
