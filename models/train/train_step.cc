#include "models/train/train_step_impl.h"

#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "comm/communicator.h"
#include "models/train/non_finite_impl.h"

namespace hotrow {
namespace {

// The mean over this rank's samples, of a batch of global_batch_size; none: a GPU has it.
absl::StatusOr<std::optional<double>> Loss(const StepParts& parts, const StepPlace& place,
                                           const CtrBatch& batch, int64_t global_batch_size) {
  HOTROW_ASSIGN_OR_RETURN(const std::optional<double> loss,
                          parts.buffers.Loss(batch, global_batch_size, parts.options.task_weights));
  if (loss.has_value() && !std::isfinite(*loss)) {
    return DivergedError(parts.options, place.run_step, "training loss",
                         FindNonFinite(parts, batch));
  }
  return loss;
}

absl::StatusOr<std::optional<double>> RunStepAlone(const StepParts& parts, const ExecContext& ctx,
                                                   const StepPlace& place,
                                                   BatchInFlight* in_flight) {
  const CtrBatch& batch = in_flight->item->batch;
  StepBuffers& buffers = parts.buffers;
  buffers.Bind(batch);
  {
    TraceSpan span(ctx.trace, "lookup");
    HOTROW_RETURN_IF_ERROR(in_flight->step.Lookup(buffers.output()));
  }
  {
    TraceSpan span(ctx.trace, "forward");
    HOTROW_ASSIGN_OR_RETURN(const float* const dense, buffers.DenseFeatures(batch));
    HOTROW_RETURN_IF_ERROR(parts.model.Forward(ctx,
                                               {.batch_size = batch.batch_size,
                                                .dense = dense,
                                                .embeddings = buffers.embeddings(),
                                                .sequences = buffers.sequences(),
                                                .training = true,
                                                .step = place.number},
                                               buffers.logits(batch.batch_size)));
  }
  HOTROW_ASSIGN_OR_RETURN(const std::optional<double> loss,
                          Loss(parts, place, batch, in_flight->item->global_batch_size));
  {
    TraceSpan span(ctx.trace, "backward");
    HOTROW_RETURN_IF_ERROR(parts.model.Backward(ctx, buffers.logit_gradient(batch.batch_size),
                                                buffers.embedding_gradient()));
  }
  {
    TraceSpan span(ctx.trace, "update");
    HOTROW_RETURN_IF_ERROR(
        std::move(in_flight->step).Update(buffers.gradient(), place.learning_rate_factor));
  }
  HOTROW_RETURN_IF_ERROR(parts.dense.Update(place.learning_rate_factor, place.number,
                                            place.run_step, buffers.gradient_norm()));
  HOTROW_RETURN_IF_ERROR(parts.model.EndStep(ctx));
  HOTROW_RETURN_IF_ERROR(buffers.Post());
  return loss;
}

// This rank's slice of a batch, on the CPU: rows set out before the dense half needs them, and
// gradients as soon as they are final.
absl::StatusOr<std::optional<double>> RunStepOnRanks(const StepParts& parts, const ExecContext& ctx,
                                                     const StepPlace& place,
                                                     BatchInFlight* in_flight) {
  const CtrBatch& batch = in_flight->item->batch;
  const int64_t global_batch_size = in_flight->item->global_batch_size;
  StepBuffers& buffers = parts.buffers;
  buffers.Bind(batch);
  {
    TraceSpan span(ctx.trace, "lookup");
    HOTROW_RETURN_IF_ERROR(in_flight->step.BeginLookup());
  }
  {
    TraceSpan span(ctx.trace, "forward");
    HOTROW_RETURN_IF_ERROR(parts.model.Forward(
        ctx,
        {.batch_size = batch.batch_size,
         .dense = batch.dense.data(),
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
  HOTROW_ASSIGN_OR_RETURN(const std::optional<double> slice_loss,
                          Loss(parts, place, batch, global_batch_size));
  HOTROW_CHECK(slice_loss.has_value());
  parts.dense.BeginSums(*slice_loss * static_cast<double>(batch.batch_size),
                        parts.ranks.own_signal());
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
  HOTROW_ASSIGN_OR_RETURN(const DenseState::Totals totals, parts.dense.FinishSums());
  // Each rank sees the same sum, so all of them ask, or none.
  if (totals.signal) HOTROW_RETURN_IF_ERROR(parts.ranks.AgreeOnStop());
  HOTROW_RETURN_IF_ERROR(parts.dense.Update(place.learning_rate_factor, place.number,
                                            place.run_step, buffers.gradient_norm()));
  HOTROW_RETURN_IF_ERROR(parts.model.EndStep(ctx));
  return totals.loss_sum / static_cast<double>(global_batch_size);
}

}  // namespace

absl::StatusOr<std::optional<double>> RunStep(const StepParts& parts, const ExecContext& ctx,
                                              const StepPlace& place, BatchInFlight* batch) {
  return parts.ranks.many() ? RunStepOnRanks(parts, ctx, place, batch)
                            : RunStepAlone(parts, ctx, place, batch);
}

absl::StatusOr<double> ReadLoss(const StepParts& parts, int64_t run_step) {
  HOTROW_ASSIGN_OR_RETURN(const StepBuffers::Posted posted,
                          parts.buffers.ReadPosted(parts.options.task_weights));
  if (!std::isfinite(posted.loss)) {
    return DivergedError(parts.options, run_step, "training loss",
                         FindNonFiniteData(parts.schema.num_dense, parts.model.num_tasks(),
                                           posted.dense, posted.labels));
  }
  if (parts.options.max_gradient_norm > 0 && !std::isfinite(posted.gradient_norm)) {
    return DivergedError(parts.options, run_step, DenseState::kGradientName);
  }
  return posted.loss;
}

}  // namespace hotrow
