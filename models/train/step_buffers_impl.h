#ifndef HOTROW_MODELS_TRAIN_STEP_BUFFERS_IMPL_H_
#define HOTROW_MODELS_TRAIN_STEP_BUFFERS_IMPL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "base/exec_context.h"
#include "embedding/embedding_step.h"
#include "models/data/ctr_batch.h"
#include "models/train/step_mailbox_impl.h"
#include "models/zoo/ctr_model.h"

namespace hotrow {

// The memory that one batch passes through on the device that computes, in training and in
// evaluation alike. Dimensions: B samples at most, T tasks, E = width of the pooled embeddings.
//
// Threads: one call at a time; work is enqueued on the stream of the context.
// Errors:  ResourceExhausted (no memory), those of the device.
class StepBuffers {
 public:
  struct Shape {
    int64_t batch_size = 0;
    int64_t pooled_dim = 0;
    int32_t num_tasks = 1;
    std::vector<int32_t> unpooled_features;  // CtrModel
    int64_t columns = 0;                     // of their tables
    // Rows that a sample may have of each: on a GPU there is room for that from the start. 0, or
    // none at all: not known, room grows with the batches.
    std::vector<int64_t> max_lengths;
    int64_t num_dense = 0;
    int64_t num_rows = 0;  // of a sample, whose places embedding_rows has
  };
  static absl::StatusOr<std::unique_ptr<StepBuffers>> Create(const ExecContext& ctx,
                                                             const Shape& shape);

  // Before the others: makes room for the batch's rows that are not pooled. The batch must stay
  // until the model is done with it; on a GPU `owner` keeps it until copies have read it.
  absl::Status Bind(const CtrBatch& batch, std::shared_ptr<const void> owner);
  // Where the tables write for the batch, and where they find the gradient of that.
  EmbeddingOutput output();
  EmbeddingGradient gradient();
  std::span<const CtrModel::Sequence> sequences() const { return sequences_; }

  const float** embedding_rows() { return embedding_rows_.data(); }   // [B, num_rows]
  float* embeddings() { return embeddings_.data(); }                  // [B, E]
  float* embedding_gradient() { return embedding_gradient_.data(); }  // [B, E]
  // The logits of n samples: [n, T].
  std::span<float> logits(int64_t n) { return logits_.span().first(n * shape_.num_tasks); }
  std::span<float> logit_gradient(int64_t n) {
    return logit_gradient_.span().first(n * shape_.num_tasks);
  }

  // The dense features of a batch where the model reads them, until the next call.
  absl::StatusOr<const float*> DenseFeatures(const CtrBatch& batch);
  // Before Loss: brings the labels, and the step's number, to where kernels read them.
  absl::Status UploadLabels(const CtrBatch& batch, uint32_t step_number);
  const uint32_t* device_step() const { return device_step_; }  // null on the CPU
  // On a GPU: not 0 once a loss was not finite; null on the CPU.
  const uint32_t* lost() const { return lost_.data(); }
  // Fills logit_gradient of `batch`, a slice of a batch of mean_over samples, and returns the mean
  // loss over the slice. The losses of the tasks are added up, each times its weight; no weights:
  // ones. On a GPU it returns none, after DenseFeatures and UploadLabels of the same batch: once
  // the step is posted ReadPosted has it.
  absl::StatusOr<std::optional<double>> Loss(const ExecContext& ctx, const CtrBatch& batch,
                                             int64_t mean_over,
                                             std::span<const double> task_weights);

  // Where the norm of the step's dense gradient belongs on a GPU; null on the CPU.
  double* gradient_norm() { return on_gpu() ? mailbox_->numbers() + shape_.num_tasks : nullptr; }
  // Where EndLossScaleStep tells; null on the CPU.
  double* loss_scale_told() {
    return on_gpu() ? mailbox_->numbers() + shape_.num_tasks + 1 : nullptr;
  }
  // All that gradient() views.
  std::vector<std::span<float>> gradients_of_rows();
  // All of a step of training is enqueued; on the CPU it does nothing. StepMailbox::kUnreadMax.
  absl::Status Post();
  int64_t num_unread() const { return on_gpu() ? mailbox_->num_unread() : 0; }
  struct Posted {
    double loss = 0;
    // Numbers as far as they were asked for.
    double gradient_norm = 0;
    bool skipped = false;  // updates were left out, for gradients that are not finite
    double loss_scale = 0;
  };
  // What the oldest step has posted that was not read; waits for that step.
  absl::StatusOr<Posted> ReadPosted(std::span<const double> task_weights);

  // The logits of n samples, until the next call; waits for a GPU's stream.
  absl::StatusOr<std::span<const float>> LogitsOnHost(int64_t n);

 private:
  StepBuffers(const ExecContext& ctx, const Shape& shape) : ctx_(ctx), shape_(shape) {}
  bool on_gpu() const { return ctx_.device != Device::kCpu; }
  // Room for that many floats of the rows of unpooled feature s.
  absl::Status ReserveRows(size_t s, int64_t floats);
  // Writes the loss to *loss, on the device.
  absl::Status TaskLoss(const ExecContext& ctx, const float* labels, const CtrBatch& batch,
                        int64_t mean_over, int32_t task, double weight, double* loss);

  const ExecContext ctx_;
  const Shape shape_;
  DeviceMemory<float> embeddings_;
  DeviceMemory<float> embedding_gradient_;
  DeviceMemory<const float*> embedding_rows_;
  // The batch in hand.
  int64_t batch_size_ = 0;
  struct Rows {
    int64_t count = 0;                      // N
    DeviceMemory<float> values, gradients;  // [N, D], or more
  };
  std::vector<Rows> rows_;
  std::vector<int64_t> offsets_;  // of all unpooled features, on their way to a GPU
  std::vector<CtrModel::Sequence> sequences_;
  DeviceMemory<float> logits_;
  DeviceMemory<float> logit_gradient_;
  // What there is on a GPU.
  std::unique_ptr<StepMailbox> mailbox_;
  const float* device_labels_ = nullptr;
  const uint32_t* device_step_ = nullptr;
  DeviceMemory<std::byte> loss_workspace_;
  DeviceMemory<uint32_t> lost_;  // [1]
  SharedBuffer<float> host_logits_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_STEP_BUFFERS_IMPL_H_
