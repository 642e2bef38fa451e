#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "base/cuda_handles.h"
#include "models/zoo/dlrm_model.h"
#include "ops/bce_loss.h"
#include "ops/dense_optimizer.h"
#include "tests/models/model_test_util.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"
#include "tests/support/test_util.h"

// One step of a small DLRM on a GPU beside the same step on the CPU: forward, loss, backward and
// the update of the parameters.

namespace hotrow {
namespace {

DlrmOptions SmallOptions(int32_t num_dense, float dropout) {
  return {{.num_dense = num_dense,
           .num_sparse = 6,
           .embedding_dim = 8,
           .over_arch_layer_sizes = {40, 16, 1},
           .dropout = dropout,
           .seed = 11,
           .max_batch_size = 128},
          {24, 8}};
}

const DenseOptimizerConfig kAdam = {.kind = DenseOptimizerKind::kAdam, .learning_rate = 0.01f};

// What a step gives, on the host.
struct StepResult {
  std::vector<float> logits, embedding_gradient, gradients, parameters;
  double loss = 0;
};

std::vector<float> LabelsOf(const test::ModelBatch& batch) {
  std::vector<float> labels;
  for (int64_t b = 0; b < batch.size; ++b) {
    labels.push_back(static_cast<float>((batch.first_sample + b) % 2));
  }
  return labels;
}

// mean_over: samples of the batch of which this one is a part.
StepResult StepOnCpu(const DlrmOptions& options, const test::ModelBatch& batch, int64_t mean_over) {
  StepResult r;
  auto created = DlrmModel::Create(options);
  HOTROW_EXPECT_OK(created);
  GraphModel& model = **created;
  const std::vector<float> labels = LabelsOf(batch);
  std::vector<float> logit_gradient(labels.size());
  r.logits.resize(labels.size());
  r.embedding_gradient.resize(batch.embeddings.size());
  HOTROW_EXPECT_OK(model.Forward({}, batch.Input(/*training=*/true, 1), r.logits));
  HOTROW_EXPECT_OK(BceWithLogits({}, {.logits = r.logits.data(),
                                      .labels = labels.data(),
                                      .batch_size = batch.size,
                                      .gradient = logit_gradient.data(),
                                      .mean_over = mean_over,
                                      .loss = &r.loss}));
  HOTROW_EXPECT_OK(model.Backward({}, logit_gradient, r.embedding_gradient.data()));
  r.gradients.assign(model.gradients().begin(), model.gradients().end());
  std::vector<float> m1(r.gradients.size()), m2(r.gradients.size());
  const DenseTensor all = {model.parameters(), model.gradients(), m1, m2};
  HOTROW_EXPECT_OK(DenseUpdate({}, kAdam, {&all, 1}, 1.0f, 1));
  r.parameters.assign(model.parameters().begin(), model.parameters().end());
  return r;
}

std::vector<float> ToHost(std::span<const float> on_gpu) {
  std::vector<float> host(on_gpu.size());
  EXPECT_EQ(cudaMemcpy(host.data(), on_gpu.data(), on_gpu.size_bytes(), cudaMemcpyDeviceToHost),
            cudaSuccess);
  return host;
}

StepResult StepOnGpu(const DlrmOptions& options, const test::ModelBatch& batch) {
  StepResult r;
  auto stream = CreateStream();
  HOTROW_EXPECT_OK(stream);
  const ExecContext ctx = {.device = Device::kCuda, .stream = stream->get()};
  {
    auto created = DlrmModel::Create(options, ctx);
    HOTROW_EXPECT_OK(created);
    GraphModel& model = **created;
    EXPECT_EQ(model.device(), Device::kCuda);
    const auto b = static_cast<size_t>(batch.size);
    test::DeviceArray<float> dense(batch.dense), embeddings(batch.embeddings),
        labels(LabelsOf(batch)), logits(b), logit_gradient(b),
        embedding_gradient(batch.embeddings.size()), m1(model.parameters().size()),
        m2(model.parameters().size());
    test::DeviceArray<double> loss(1);
    test::DeviceArray<std::byte> workspace(
        static_cast<size_t>(BceWithLogitsWorkspaceBytes(Device::kCuda, batch.size)));
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // the copies may be on their way
    CtrModel::Input input = batch.Input(/*training=*/true, 1);
    input.dense = dense.data();
    input.embeddings = embeddings.data();
    HOTROW_EXPECT_OK(model.Forward(ctx, input, {logits.data(), b}));
    HOTROW_EXPECT_OK(
        BceWithLogits(ctx, {.logits = logits.data(),
                            .labels = labels.data(),
                            .batch_size = batch.size,
                            .gradient = logit_gradient.data(),
                            .loss = loss.data(),
                            .workspace = workspace.data(),
                            .workspace_bytes = static_cast<int64_t>(workspace.size())}));
    HOTROW_EXPECT_OK(model.Backward(ctx, {logit_gradient.data(), b}, embedding_gradient.data()));
    const DenseTensor all = {
        model.parameters(), model.gradients(), {m1.data(), m1.size()}, {m2.data(), m2.size()}};
    HOTROW_EXPECT_OK(DenseUpdate(ctx, kAdam, {&all, 1}, 1.0f, 1));
    EXPECT_EQ(cudaStreamSynchronize(ctx.stream), cudaSuccess);
    r = {.logits = logits.ToHost(),
         .embedding_gradient = embedding_gradient.ToHost(),
         .gradients = ToHost(model.gradients()),
         .parameters = ToHost(model.parameters()),
         .loss = loss.ToHost()[0]};
  }
  return r;
}

TEST(DlrmModelCudaTest, FirstParametersAreThoseOfTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  auto stream = CreateStream();
  HOTROW_ASSERT_OK(stream);
  const ExecContext ctx = {.device = Device::kCuda, .stream = stream->get()};
  for (const int32_t num_dense : {5, 0}) {
    const DlrmOptions options = SmallOptions(num_dense, 0);
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GraphModel> want, DlrmModel::Create(options));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GraphModel> got,
                                DlrmModel::Create(options, ctx));
    EXPECT_EQ(test::FloatBits(ToHost(got->parameters())), test::FloatBits(want->parameters()));
  }
}

TEST(DlrmModelCudaTest, AStepIsThatOfTheCpuWithinTheRoundingOfSumsAndRepeats) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const int32_t num_dense : {5, 0}) {
    for (const float dropout : {0.0f, 0.3f}) {
      for (const int64_t size : {1, 37, 128}) {
        SCOPED_TRACE(testing::Message() << num_dense << " dense features, dropout " << dropout
                                        << ", " << size << " samples");
        const DlrmOptions options = SmallOptions(num_dense, dropout);
        const test::ModelBatch batch = test::RandomModelBatch(size, num_dense, 6 * 8, 3);
        const StepResult want = StepOnCpu(options, batch, 0);
        const StepResult got = StepOnGpu(options, batch);

        // How much the samples add to each sum over the batch, without regard to sign.
        std::vector<double> magnitude(want.gradients.size());
        for (int64_t b = 0; b < size; ++b) {
          const StepResult one = StepOnCpu(options, test::SliceOf(batch, b, b + 1), size);
          for (size_t i = 0; i < magnitude.size(); ++i) magnitude[i] += std::abs(one.gradients[i]);
        }
        // As in CheckSlices: sums over at most a few hundred terms err by less than 1000 roundings
        // of that, and numbers that come from larger ones by their share of the largest.
        const auto bound = [](double of, double largest) {
          return 1000 * 0x1p-24 * (of + largest / 16);
        };
        const auto expect_near = [&](const std::vector<float>& a, const std::vector<float>& b,
                                     const char* what) {
          ASSERT_EQ(a.size(), b.size());
          double largest = 0;
          for (const float x : b) largest = std::max(largest, std::abs(static_cast<double>(x)));
          EXPECT_GT(largest, 0) << what << ": nothing was tested";
          for (size_t i = 0; i < b.size(); ++i) {
            ASSERT_NEAR(a[i], b[i], bound(std::abs(b[i]), largest)) << what << " " << i;
          }
        };
        expect_near(got.logits, want.logits, "logit");
        expect_near(got.embedding_gradient, want.embedding_gradient, "embedding gradient");
        EXPECT_NEAR(got.loss, want.loss, bound(want.loss, want.loss));
        const double largest = *std::max_element(magnitude.begin(), magnitude.end());
        for (size_t i = 0; i < magnitude.size(); ++i) {
          ASSERT_NEAR(got.gradients[i], want.gradients[i], bound(magnitude[i], largest)) << i;
        }
        // Adam's first step is lr g / (|g| + eps'): it moves by the learning rate whatever the size
        // of g, so parameters are near where the gradient is not lost in its own error.
        for (size_t i = 0; i < magnitude.size(); ++i) {
          if (std::abs(want.gradients[i]) < 100 * bound(magnitude[i], largest)) continue;
          ASSERT_NEAR(got.parameters[i], want.parameters[i], 2e-4) << i;
        }

        const StepResult again = StepOnGpu(options, batch);
        EXPECT_EQ(test::FloatBits(again.logits), test::FloatBits(got.logits));
        EXPECT_EQ(test::FloatBits(again.gradients), test::FloatBits(got.gradients));
        EXPECT_EQ(test::FloatBits(again.embedding_gradient),
                  test::FloatBits(got.embedding_gradient));
        EXPECT_EQ(test::FloatBits(again.parameters), test::FloatBits(got.parameters));
        EXPECT_EQ(again.loss, got.loss);
      }
    }
  }
}

TEST(DlrmModelCudaTest, HooksAreCalledInTheirOrderAndAnEmptyBatchHasZeroGradients) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  auto stream = CreateStream();
  HOTROW_ASSERT_OK(stream);
  const ExecContext ctx = {.device = Device::kCuda, .stream = stream->get()};
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<GraphModel> model,
                              DlrmModel::Create(SmallOptions(5, 0), ctx));
  bool awaited = false;
  HOTROW_ASSERT_OK(model->Forward(ctx,
                                  {.batch_size = 0,
                                   .training = true,
                                   .step = 1,
                                   .await_embeddings =
                                       [&] {
                                         awaited = true;
                                         return absl::OkStatus();
                                       }},
                                  {}));
  EXPECT_TRUE(awaited);
  int told = 0;
  auto left = static_cast<int64_t>(model->gradients().size());
  HOTROW_ASSERT_OK(model->Backward(ctx, {}, nullptr,
                                   {.embedding_gradient_ready =
                                        [&] {
                                          ++told;
                                          return absl::OkStatus();
                                        },
                                    .gradients_ready =
                                        [&](int64_t begin, int64_t end) {
                                          EXPECT_EQ(told, 1);
                                          EXPECT_EQ(end, left);
                                          left = begin;
                                          return absl::OkStatus();
                                        }}));
  EXPECT_EQ(left, 0);
  EXPECT_EQ(cudaStreamSynchronize(ctx.stream), cudaSuccess);
  const std::vector<float> gradients = ToHost(model->gradients());
  EXPECT_TRUE(std::all_of(gradients.begin(), gradients.end(), [](float g) { return g == 0; }));
}

}  // namespace
}  // namespace hotrow
