#include "models/train/step_buffers_impl.h"

#include <algorithm>
#include <utility>

#include "base/device_stream.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "ops/training/bce_loss.h"

namespace hotrow {

absl::StatusOr<std::unique_ptr<StepBuffers>> StepBuffers::Create(const ExecContext& ctx,
                                                                 const Shape& shape) {
  std::unique_ptr<StepBuffers> out(new StepBuffers(ctx, shape));
  const auto& [batch_size, pooled_dim, num_tasks, unpooled_features, columns, max_lengths,
               num_dense, num_rows] = shape;
  out->rows_.resize(unpooled_features.size());
  out->sequences_.resize(unpooled_features.size());
  const auto take = [&ctx](int64_t size, DeviceMemory<float>* memory) {
    // No feature may be pooled.
    auto taken = DeviceMemory<float>::Create(std::max<int64_t>(size, 1),
                                             {ctx.device, ctx.stream, HugePages::kTry});
    if (!taken.ok()) return taken.status();
    *memory = *std::move(taken);
    return absl::OkStatus();
  };
  HOTROW_RETURN_IF_ERROR(take(batch_size * pooled_dim, &out->embeddings_));
  HOTROW_RETURN_IF_ERROR(take(batch_size * pooled_dim, &out->embedding_gradient_));
  HOTROW_RETURN_IF_ERROR(take(batch_size * num_tasks, &out->logits_));
  HOTROW_RETURN_IF_ERROR(take(batch_size * num_tasks, &out->logit_gradient_));
  if (num_rows > 0) {
    HOTROW_ASSIGN_OR_RETURN(
        out->embedding_rows_,
        DeviceMemory<const float*>::Create(batch_size * num_rows, {ctx.device, ctx.stream}));
  }
  if (!out->on_gpu()) return out;
  // The losses of the tasks, the norm of the dense gradient, and what EndLossScaleStep tells.
  HOTROW_ASSIGN_OR_RETURN(
      out->mailbox_,
      StepMailbox::Create(ctx, {.dense_max = batch_size * num_dense,
                                .labels_max = batch_size * num_tasks,
                                .offsets_max = std::ssize(unpooled_features) * (batch_size + 1),
                                .num_numbers = num_tasks + 3}));
  for (size_t s = 0; s < max_lengths.size(); ++s) {
    HOTROW_RETURN_IF_ERROR(out->ReserveRows(s, batch_size * max_lengths[s] * columns));
  }
  HOTROW_ASSIGN_OR_RETURN(out->host_logits_,
                          SharedBuffer<float>::Create(batch_size * num_tasks, {ctx.device}));
  HOTROW_ASSIGN_OR_RETURN(
      out->loss_workspace_,
      DeviceMemory<std::byte>::Create(BceWithLogitsWorkspaceBytes(ctx.device, batch_size),
                                      {ctx.device, ctx.stream}));
  HOTROW_ASSIGN_OR_RETURN(out->lost_, DeviceMemory<uint32_t>::Create(1, {ctx.device, ctx.stream}));
  const uint32_t zero = 0;
  HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx, out->lost_.data(), &zero, sizeof(zero)));
  return out;
}

absl::Status StepBuffers::ReserveRows(size_t s, int64_t floats) {
  Rows& rows = rows_[s];
  if (floats <= rows.gradients.size()) return absl::OkStatus();
  // By half at least, so that it is rarely done.
  const int64_t size = std::max(floats, rows.values.size() + rows.values.size() / 2);
  const MemoryOfDevice memory = {ctx_.device, ctx_.stream, HugePages::kTry};
  HOTROW_RETURN_IF_ERROR(rows.values.Reserve(size, memory));
  return rows.gradients.Reserve(size, memory);
}

absl::Status StepBuffers::Bind(const CtrBatch& batch, std::shared_ptr<const void> owner) {
  batch_size_ = batch.batch_size;
  if (on_gpu()) HOTROW_RETURN_IF_ERROR(mailbox_->Keep(std::move(owner)));
  offsets_.clear();
  for (size_t s = 0; s < rows_.size(); ++s) {
    Rows& rows = rows_[s];
    const int64_t* const offsets =
        batch.offsets.data() + shape_.unpooled_features[s] * batch.batch_size;
    rows.count = offsets[batch.batch_size] - offsets[0];
    HOTROW_RETURN_IF_ERROR(ReserveRows(s, rows.count * shape_.columns));
    sequences_[s] = {
        .rows = rows.values.data(), .offsets = offsets, .gradient = rows.gradients.data()};
    if (on_gpu()) offsets_.insert(offsets_.end(), offsets, offsets + batch.batch_size + 1);
  }
  if (offsets_.empty()) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(const int64_t* const there, mailbox_->UploadOffsets(offsets_));
  for (size_t s = 0; s < sequences_.size(); ++s) {
    sequences_[s].device_offsets = there + static_cast<int64_t>(s) * (batch.batch_size + 1);
  }
  return absl::OkStatus();
}

EmbeddingOutput StepBuffers::output() {
  EmbeddingOutput out = {.pooled = {embeddings_.data(), batch_size_, shape_.pooled_dim}};
  for (Rows& rows : rows_) {
    out.unpooled.push_back({rows.values.data(), rows.count, shape_.columns});
  }
  return out;
}

EmbeddingGradient StepBuffers::gradient() {
  EmbeddingGradient out = {
      .pooled = MatrixView<float>{embedding_gradient_.data(), batch_size_, shape_.pooled_dim}};
  for (Rows& rows : rows_) {
    out.unpooled.push_back(MatrixView<float>{rows.gradients.data(), rows.count, shape_.columns});
  }
  return out;
}

std::vector<std::span<float>> StepBuffers::gradients_of_rows() {
  std::vector<std::span<float>> out = {
      embedding_gradient_.span().first(static_cast<size_t>(batch_size_ * shape_.pooled_dim))};
  for (Rows& rows : rows_) {
    out.push_back(rows.gradients.span().first(static_cast<size_t>(rows.count * shape_.columns)));
  }
  return out;
}

absl::StatusOr<const float*> StepBuffers::DenseFeatures(const CtrBatch& batch) {
  if (!on_gpu()) return batch.dense.data();
  return mailbox_->UploadDense(batch.dense);
}

absl::Status StepBuffers::UploadLabels(const CtrBatch& batch, uint32_t step_number) {
  if (!on_gpu()) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(device_labels_, mailbox_->UploadLabels(batch.labels));
  HOTROW_ASSIGN_OR_RETURN(device_step_, mailbox_->UploadStep(step_number));
  return absl::OkStatus();
}

static double TaskWeight(std::span<const double> task_weights, int32_t task) {
  return task_weights.empty() ? 1 : task_weights[static_cast<size_t>(task)];
}

absl::StatusOr<std::optional<double>> StepBuffers::Loss(const ExecContext& ctx,
                                                        const CtrBatch& batch, int64_t mean_over,
                                                        std::span<const double> task_weights) {
  TraceSpan span(ctx.trace, "loss");
  if (on_gpu()) {
    for (int32_t task = 0; task < shape_.num_tasks; ++task) {
      HOTROW_RETURN_IF_ERROR(TaskLoss(ctx, device_labels_, batch, mean_over, task,
                                      TaskWeight(task_weights, task), mailbox_->numbers() + task));
    }
    return std::nullopt;
  }
  double sum = 0;
  for (int32_t task = 0; task < shape_.num_tasks; ++task) {
    const double weight = TaskWeight(task_weights, task);
    double loss = 0;
    HOTROW_RETURN_IF_ERROR(
        TaskLoss(ctx, batch.labels.data(), batch, mean_over, task, weight, &loss));
    sum += weight * loss;
  }
  return sum;
}

absl::Status StepBuffers::TaskLoss(const ExecContext& ctx, const float* labels,
                                   const CtrBatch& batch, int64_t mean_over, int32_t task,
                                   double weight, double* loss) {
  return BceWithLogits(ctx, {.logits = logits_.data() + task,
                             .labels = labels + task,
                             .batch_size = batch.batch_size,
                             .gradient = logit_gradient_.data() + task,
                             .mean_over = mean_over,
                             .stride = shape_.num_tasks,
                             .weight = weight,
                             .loss = loss,
                             .lost = lost_.data(),
                             .workspace = loss_workspace_.data(),
                             .workspace_bytes = loss_workspace_.bytes()});
}

absl::Status StepBuffers::Post() { return on_gpu() ? mailbox_->Post() : absl::OkStatus(); }

absl::StatusOr<StepBuffers::Posted> StepBuffers::ReadPosted(std::span<const double> task_weights) {
  HOTROW_ASSIGN_OR_RETURN(const std::span<const double> numbers, mailbox_->Read());
  const auto behind = numbers.subspan(static_cast<size_t>(shape_.num_tasks));
  Posted posted = {.gradient_norm = behind[0], .skipped = behind[1] == 1, .loss_scale = behind[2]};
  for (int32_t task = 0; task < shape_.num_tasks; ++task) {
    posted.loss += TaskWeight(task_weights, task) * numbers[static_cast<size_t>(task)];
  }
  return posted;
}

absl::StatusOr<std::span<const float>> StepBuffers::LogitsOnHost(int64_t n) {
  const std::span<const float> there = logits(n);
  if (!on_gpu()) return there;
  HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx_, host_logits_.data(), there.data(),
                                     static_cast<int64_t>(there.size_bytes())));
  HOTROW_RETURN_IF_ERROR(WaitForStream(ctx_));
  return std::span<const float>(host_logits_.first(static_cast<int64_t>(there.size())));
}

}  // namespace hotrow
