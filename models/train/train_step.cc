#include "models/train/train_step_impl.h"

#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "base/status_macros.h"
#include "base/trace.h"
#include "comm/communicator.h"
#include "models/train/non_finite_impl.h"

namespace hotrow {
namespace {

// The mean over this rank's samples, of a batch of global_batch_size; none: a GPU has it.
absl::StatusOr<std::optional<double>> Loss(const StepParts& parts, const ExecContext& ctx,
                                           const StepPlace& place, const CtrBatch& batch,
                                           int64_t global_batch_size) {
  HOTROW_ASSIGN_OR_RETURN(
      const std::optional<double> loss,
      parts.buffers.Loss(ctx, batch, global_batch_size, parts.options.task_weights));
  if (loss.has_value() && !std::isfinite(*loss)) {
    return DivergedError(parts.options, place.run_step, "training loss",
                         FindNonFinite(parts, batch));
  }
  return loss;
}

// All gradients of a scaled loss, and whether the updates that follow are left out.
absl::Status Unscale(const StepParts& parts, const ExecContext& ctx) {
  LossScaler& scaler = *parts.loss_scaler;
  for (const std::span<float> of_rows : parts.buffers.gradients_of_rows()) {
    HOTROW_RETURN_IF_ERROR(scaler.Unscale(ctx, of_rows));
  }
  HOTROW_RETURN_IF_ERROR(scaler.Unscale(ctx, parts.model.mutable_gradients()));
  return scaler.EndStep(ctx, parts.buffers.loss_scale_told());
}

// Forward, loss and backward of one rank alone. Where dense features and labels are is known.
absl::StatusOr<std::optional<double>> RunDense(const StepParts& parts, const ExecContext& ctx,
                                               const StepPlace& place,
                                               const BatchReader::Item& item, const float* dense) {
  const CtrBatch& batch = item.batch;
  StepBuffers& buffers = parts.buffers;
  {
    TraceSpan span(ctx.trace, "forward");
    HOTROW_RETURN_IF_ERROR(parts.model.Forward(ctx,
                                               {.batch_size = batch.batch_size,
                                                .dense = dense,
                                                .embeddings = buffers.embeddings(),
                                                .sequences = buffers.sequences(),
                                                .training = true,
                                                .step = place.number,
                                                .device_step = buffers.device_step()},
                                               buffers.logits(batch.batch_size)));
  }
  HOTROW_ASSIGN_OR_RETURN(const std::optional<double> loss,
                          Loss(parts, ctx, place, batch, item.global_batch_size));
  if (parts.loss_scaler != nullptr) {
    HOTROW_RETURN_IF_ERROR(
        parts.loss_scaler->ScaleLoss(ctx, buffers.logit_gradient(batch.batch_size)));
  }
  {
    TraceSpan span(ctx.trace, "backward");
    HOTROW_RETURN_IF_ERROR(parts.model.Backward(ctx, buffers.logit_gradient(batch.batch_size),
                                                buffers.embedding_gradient()));
  }
  if (parts.loss_scaler != nullptr) HOTROW_RETURN_IF_ERROR(Unscale(parts, ctx));
  return loss;
}

absl::StatusOr<std::optional<double>> RunStepAlone(const StepParts& parts, const ExecContext& ctx,
                                                   const StepPlace& place,
                                                   BatchInFlight* in_flight) {
  const CtrBatch& batch = in_flight->item->batch;
  StepBuffers& buffers = parts.buffers;
  HOTROW_RETURN_IF_ERROR(buffers.Bind(batch));
  {
    TraceSpan span(ctx.trace, "lookup");
    HOTROW_RETURN_IF_ERROR(in_flight->step.Lookup(buffers.output()));
  }
  HOTROW_ASSIGN_OR_RETURN(const float* const dense, buffers.DenseFeatures(batch));
  HOTROW_RETURN_IF_ERROR(buffers.UploadLabels(batch, place.number));
  std::optional<double> loss;
  if (parts.graph != nullptr) {
    HOTROW_RETURN_IF_ERROR(parts.graph->Run(ctx, batch.batch_size, [&](const ExecContext& here) {
      return RunDense(parts, here, place, *in_flight->item, dense).status();
    }));
  } else {
    HOTROW_ASSIGN_OR_RETURN(loss, RunDense(parts, ctx, place, *in_flight->item, dense));
  }
  const uint32_t* const skip = parts.loss_scaler == nullptr ? nullptr : parts.loss_scaler->skip();
  {
    TraceSpan span(ctx.trace, "update");
    EmbeddingGradient gradient = buffers.gradient();
    gradient.skip = skip;
    HOTROW_RETURN_IF_ERROR(std::move(in_flight->step).Update(gradient, place.learning_rate_factor));
  }
  HOTROW_RETURN_IF_ERROR(parts.dense.Update(place.learning_rate_factor, place.number,
                                            place.run_step, buffers.gradient_norm(), skip));
  HOTROW_RETURN_IF_ERROR(parts.model.EndStep(ctx));
  HOTROW_RETURN_IF_ERROR(buffers.Post());
  return loss;
}

// The mean loss over a batch, from what the ranks lost in sum; and a signal that any of them has is
// that of all. Each rank sees the same sums, so all of them ask, or none.
absl::StatusOr<double> MeanOverRanks(const StepParts& parts, const DenseState::Totals& totals,
                                     int64_t batch_size) {
  if (totals.signal) HOTROW_RETURN_IF_ERROR(parts.ranks.AgreeOnStop());
  return totals.loss_sum / static_cast<double>(batch_size);
}

// This rank's slice of a batch: rows set out before the dense half needs them, and gradients as
// soon as they are final.
absl::StatusOr<std::optional<double>> RunStepOnRanks(const StepParts& parts, const ExecContext& ctx,
                                                     const StepPlace& place,
                                                     BatchInFlight* in_flight) {
  const CtrBatch& batch = in_flight->item->batch;
  const int64_t global_batch_size = in_flight->item->global_batch_size;
  StepBuffers& buffers = parts.buffers;
  HOTROW_RETURN_IF_ERROR(buffers.Bind(batch));
  {
    TraceSpan span(ctx.trace, "lookup");
    HOTROW_RETURN_IF_ERROR(in_flight->step.BeginLookup());
  }
  {
    TraceSpan span(ctx.trace, "forward");
    HOTROW_ASSIGN_OR_RETURN(const float* const dense, buffers.DenseFeatures(batch));
    HOTROW_RETURN_IF_ERROR(parts.model.Forward(
        ctx,
        {.batch_size = batch.batch_size,
         .dense = dense,
         .embeddings = buffers.embeddings(),
         .sequences = buffers.sequences(),
         .training = true,
         .step = place.number,
         .first_sample = in_flight->item->first_sample,
         .await_embeddings = [&] { return in_flight->step.Lookup(buffers.output()); },
         .sum_over_slices =
             [&](std::span<double> sums) { return parts.ranks.channel()->AllReduceSum(sums); }},
        buffers.logits(batch.batch_size)));
  }
  HOTROW_RETURN_IF_ERROR(buffers.UploadLabels(batch, place.number));
  HOTROW_ASSIGN_OR_RETURN(const std::optional<double> slice_loss,
                          Loss(parts, ctx, place, batch, global_batch_size));
  std::optional<DenseState::Totals> mine;
  if (slice_loss.has_value()) {
    mine = {.loss_sum = *slice_loss * static_cast<double>(batch.batch_size),
            .signal = parts.ranks.own_signal() != 0};
  }
  parts.dense.BeginSums(mine);
  {
    TraceSpan span(ctx.trace, "backward");
    HOTROW_RETURN_IF_ERROR(parts.model.Backward(
        ctx, buffers.logit_gradient(batch.batch_size), buffers.embedding_gradient(),
        {.embedding_gradient_ready =
             [&] { return in_flight->step.BeginUpdate(buffers.gradient()); },
         .gradients_ready = [&](int64_t begin,
                                int64_t) { return parts.dense.GradientsReady(begin); }}));
  }
  {
    TraceSpan span(ctx.trace, "update");
    HOTROW_RETURN_IF_ERROR(std::move(in_flight->step).Update({}, place.learning_rate_factor));
  }
  HOTROW_ASSIGN_OR_RETURN(const std::optional<DenseState::Totals> totals, parts.dense.FinishSums());
  HOTROW_RETURN_IF_ERROR(parts.dense.Update(place.learning_rate_factor, place.number,
                                            place.run_step, buffers.gradient_norm()));
  HOTROW_RETURN_IF_ERROR(parts.model.EndStep(ctx));
  HOTROW_RETURN_IF_ERROR(buffers.Post());
  if (!totals.has_value()) return std::nullopt;
  return MeanOverRanks(parts, *totals, global_batch_size);
}

}  // namespace

absl::StatusOr<std::optional<double>> RunStep(const StepParts& parts, const ExecContext& ctx,
                                              const StepPlace& place, BatchInFlight* batch) {
  return parts.ranks.many() ? RunStepOnRanks(parts, ctx, place, batch)
                            : RunStepAlone(parts, ctx, place, batch);
}

absl::StatusOr<double> ReadLoss(const StepParts& parts, const UnreadStep& step) {
  HOTROW_ASSIGN_OR_RETURN(const StepBuffers::Posted posted,
                          parts.buffers.ReadPosted(parts.options.task_weights));
  if (!std::isfinite(posted.loss)) {
    return DivergedError(parts.options, step.run_step, "training loss",
                         FindNonFiniteData(parts.schema.num_dense, parts.model.num_tasks(),
                                           posted.dense, posted.labels));
  }
  const bool skipped = parts.loss_scaler != nullptr && posted.skipped;
  // Halving the scale has not helped.
  const bool is_lost = skipped && posted.loss_scale <= kLossScaleMin;
  if (is_lost ||
      (!skipped && parts.options.max_gradient_norm > 0 && !std::isfinite(posted.gradient_norm))) {
    return DivergedError(parts.options, step.run_step, DenseState::kGradientName);
  }
  if (!parts.ranks.many()) return posted.loss;
  const auto own_batch_size = std::ssize(posted.labels) / parts.model.num_tasks();
  double sums[] = {posted.loss * static_cast<double>(own_batch_size),
                   static_cast<double>(parts.ranks.own_signal() != 0)};
  HOTROW_RETURN_IF_ERROR(parts.ranks.channel()->AllReduceSum(std::span<double>(sums)));
  return MeanOverRanks(parts, {.loss_sum = sums[0], .signal = sums[1] != 0}, step.batch_size);
}

}  // namespace hotrow
