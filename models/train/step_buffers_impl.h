#ifndef HOTROW_MODELS_TRAIN_STEP_BUFFERS_IMPL_H_
#define HOTROW_MODELS_TRAIN_STEP_BUFFERS_IMPL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "base/exec_context.h"
#include "models/data/ctr_batch.h"

namespace hotrow {

// The memory that one batch passes through on the device that computes, in training and in
// evaluation alike. Dimensions: B samples at most, T tasks, E = width of the pooled embeddings.
//
// Threads: one call at a time; work is enqueued on the stream of the context.
// Errors:  ResourceExhausted (no memory), those of the device.
class StepBuffers {
 public:
  static absl::StatusOr<std::unique_ptr<StepBuffers>> Create(const ExecContext& ctx,
                                                             int64_t batch_size, int64_t pooled_dim,
                                                             int32_t num_tasks);

  float* embeddings() { return embeddings_.data(); }                  // [B, E]
  float* embedding_gradient() { return embedding_gradient_.data(); }  // [B, E]
  // Of n samples: [n, T].
  std::span<float> logits(int64_t n) { return logits_.span().first(n * num_tasks_); }
  std::span<float> logit_gradient(int64_t n) {
    return logit_gradient_.span().first(n * num_tasks_);
  }

  // The dense features of a batch where the model reads them, until the next call.
  absl::StatusOr<const float*> DenseFeatures(const CtrBatch& batch);
  // Fills logit_gradient of `batch`, a slice of a batch of mean_over samples; returns the mean loss
  // over the slice, for which a GPU's stream is waited for. The losses of the tasks are added up,
  // each times its weight; no weights: ones.
  absl::StatusOr<double> Loss(const CtrBatch& batch, int64_t mean_over,
                              std::span<const double> task_weights);
  // The logits of n samples, until the next call; waits for a GPU's stream.
  absl::StatusOr<std::span<const float>> LogitsOnHost(int64_t n);

 private:
  StepBuffers(const ExecContext& ctx, int32_t num_tasks) : ctx_(ctx), num_tasks_(num_tasks) {}
  bool on_gpu() const { return ctx_.device != Device::kCpu; }
  absl::StatusOr<const float*> OnDevice(const std::vector<float>& host,
                                        DeviceMemory<float>* memory);

  absl::StatusOr<double> TaskLoss(const float* labels, const CtrBatch& batch, int64_t mean_over,
                                  int32_t task, double weight);

  const ExecContext ctx_;
  const int32_t num_tasks_;
  DeviceMemory<float> embeddings_;
  DeviceMemory<float> embedding_gradient_;
  DeviceMemory<float> logits_;
  DeviceMemory<float> logit_gradient_;
  // A GPU: a batch's arrays and the loss there, and a copy of the logits here.
  DeviceMemory<float> dense_features_;
  DeviceMemory<float> labels_;
  DeviceMemory<double> loss_;
  DeviceMemory<std::byte> loss_workspace_;
  std::vector<float> host_logits_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_STEP_BUFFERS_IMPL_H_
