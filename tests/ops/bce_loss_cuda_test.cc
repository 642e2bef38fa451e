#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <cmath>
#include <limits>
#include <vector>

#include "ops/training/bce_loss.h"
#include "tests/ops/dense_cuda_test_util.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"

namespace hotrow {
namespace {

struct Result {
  double loss = -1;
  std::vector<float> gradient;
};

class GpuLoss {
 public:
  GpuLoss(const std::vector<float>& logits, const std::vector<float>& labels, int64_t mean_over)
      : logits_(logits),
        labels_(labels),
        gradient_(std::vector<float>(logits.size(), -9.0f)),
        loss_(std::vector<double>{-1}),
        lost_(std::vector<uint32_t>{0}),
        workspace_(static_cast<size_t>(
            BceWithLogitsWorkspaceBytes(Device::kCuda, static_cast<int64_t>(logits.size())))),
        mean_over_(mean_over) {}

  void Enqueue(const ExecContext& ctx) {
    HOTROW_EXPECT_OK(
        BceWithLogits(ctx, {.logits = logits_.data(),
                            .labels = labels_.data(),
                            .batch_size = static_cast<int64_t>(logits_.size()),
                            .gradient = gradient_.data(),
                            .mean_over = mean_over_,
                            .loss = loss_.data(),
                            .lost = lost_.data(),
                            .workspace = workspace_.data(),
                            .workspace_bytes = static_cast<int64_t>(workspace_.size())}));
  }
  Result Get() {
    const Result result = {loss_.ToHost()[0], gradient_.ToHost()};
    EXPECT_EQ(lost_.ToHost()[0] != 0, !std::isfinite(result.loss));
    return result;
  }

 private:
  test::DeviceArray<float> logits_, labels_, gradient_;
  test::DeviceArray<double> loss_;
  test::DeviceArray<uint32_t> lost_;
  test::DeviceArray<std::byte> workspace_;
  int64_t mean_over_;
};

TEST(BceLossCudaTest, LossAndGradientAreTheCpusToTheLastPlacesOfADouble) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::GpuStream stream;
  for (const int64_t size : {0, 1, 37, 256, 257, 2048, 100'000}) {
    for (const int64_t mean_over : {int64_t{0}, size + 5}) {
      SCOPED_TRACE(testing::Message() << size << " samples, mean over " << mean_over);
      RandomStream random(static_cast<uint64_t>(size), RandomPurpose::kTest);
      const std::vector<float> logits = test::RandomFloats(random, size, 8.0f);
      std::vector<float> labels;
      for (int64_t i = 0; i < size; ++i) labels.push_back(static_cast<float>(i % 5) / 4);
      Result want;
      want.gradient.resize(logits.size());
      HOTROW_ASSERT_OK(BceWithLogits({}, {.logits = logits.data(),
                                          .labels = labels.data(),
                                          .batch_size = size,
                                          .gradient = want.gradient.data(),
                                          .mean_over = mean_over,
                                          .loss = &want.loss}));
      GpuLoss gpu(logits, labels, mean_over);
      gpu.Enqueue(stream.ctx());
      stream.Wait();
      const Result got = gpu.Get();
      // Terms are positive, so that a sum is no worse than its terms; both sum in the same order.
      EXPECT_NEAR(got.loss, want.loss, 64 * 0x1p-53 * want.loss);
      // sigmoid(x) - y, both at most 1, to a few units of a double, and the rounding to a float.
      for (size_t i = 0; i < logits.size(); ++i) {
        const double scale = 1.0 / static_cast<double>(mean_over == 0 ? size : mean_over);
        ASSERT_NEAR(got.gradient[i], want.gradient[i],
                    64 * 0x1p-53 * scale + 0x1p-23 * std::abs(want.gradient[i]))
            << i;
      }
      gpu.Enqueue(stream.ctx());
      stream.Wait();
      const Result again = gpu.Get();
      EXPECT_EQ(again.loss, got.loss);
      EXPECT_EQ(test::Bits(again.gradient), test::Bits(got.gradient));
      ASSERT_NO_FATAL_FAILURE(stream.RunAsGraph(2, [&] { gpu.Enqueue(stream.ctx()); }));
      EXPECT_EQ(gpu.Get().loss, got.loss);
    }
  }
}

TEST(BceLossCudaTest, ABadLabelAndANaNMakeTheLossNaN) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::GpuStream stream;
  const auto loss = [&](float logit, float label) {
    std::vector<float> logits(600, 0.5f);
    std::vector<float> labels(600, 1.0f);
    logits[300] = logit;
    labels[300] = label;
    GpuLoss gpu(logits, labels, 0);
    gpu.Enqueue(stream.ctx());
    stream.Wait();
    return gpu.Get().loss;
  };
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isfinite(loss(1e30f, 1)));
  EXPECT_TRUE(std::isnan(loss(0, 1.5f)));
  EXPECT_TRUE(std::isnan(loss(0, -0.1f)));
  EXPECT_TRUE(std::isnan(loss(0, kNaN)));
  EXPECT_TRUE(std::isnan(loss(kNaN, 1)));
}

}  // namespace
}  // namespace hotrow
