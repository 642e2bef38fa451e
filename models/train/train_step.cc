#include "models/train/train_step_impl.h"

#include <cmath>
#include <optional>
#include <span>
#include <string>
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
                         FindNonFinite(parts, ctx, batch));
  }
  return loss;
}

// Gradients of rows, and dense ones in [begin, end), of a loss that may have been scaled.
absl::Status UnscaleRows(const StepParts& parts, const ExecContext& ctx) {
  if (parts.loss_scaler == nullptr) return absl::OkStatus();
  for (const std::span<float> of_rows : parts.buffers.gradients_of_rows()) {
    HOTROW_RETURN_IF_ERROR(parts.loss_scaler->Unscale(ctx, of_rows));
  }
  return absl::OkStatus();
}
absl::Status UnscaleDense(const StepParts& parts, const ExecContext& ctx, int64_t begin,
                          int64_t end) {
  if (parts.loss_scaler == nullptr) return absl::OkStatus();
  return parts.loss_scaler->Unscale(
      ctx, parts.model.mutable_gradients().subspan(static_cast<size_t>(begin),
                                                   static_cast<size_t>(end - begin)));
}

// What the updates of a step read to see whether they are left out; null: they never are. On a GPU
// alone they are from a loss on that is not finite: ReadLoss finds what it was made of.
const uint32_t* Skip(const StepParts& parts) {
  if (parts.loss_scaler != nullptr) return parts.loss_scaler->skip();
  return parts.ranks.many() ? nullptr : parts.buffers.lost();
}

// Forward, loss and backward of one rank alone. Where dense features and labels are is known.
// rows: the model reads rows where they lie.
absl::StatusOr<std::optional<double>> RunDense(const StepParts& parts, const ExecContext& ctx,
                                               const StepPlace& place,
                                               const BatchReader::Item& item, const float* dense,
                                               bool rows) {
  const CtrBatch& batch = item.batch;
  StepBuffers& buffers = parts.buffers;
  {
    TraceSpan span(ctx.trace, "forward");
    HOTROW_RETURN_IF_ERROR(
        parts.model.Forward(ctx,
                            {.batch_size = batch.batch_size,
                             .dense = dense,
                             .embeddings = rows ? nullptr : buffers.embeddings(),
                             .embedding_rows = rows ? buffers.embedding_rows() : nullptr,
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
                                                buffers.embedding_gradient(), {}));
  }
  if (parts.loss_scaler != nullptr) {
    HOTROW_RETURN_IF_ERROR(UnscaleRows(parts, ctx));
    HOTROW_RETURN_IF_ERROR(UnscaleDense(parts, ctx, 0, std::ssize(parts.model.gradients())));
    HOTROW_RETURN_IF_ERROR(parts.loss_scaler->EndStep(ctx, buffers.loss_scale_told()));
  }
  return loss;
}

absl::StatusOr<std::optional<double>> RunStepAlone(const StepParts& parts, const ExecContext& ctx,
                                                   const StepPlace& place,
                                                   BatchInFlight* in_flight) {
  const CtrBatch& batch = in_flight->item->batch;
  StepBuffers& buffers = parts.buffers;
  HOTROW_RETURN_IF_ERROR(buffers.Bind(batch, in_flight->item));
  const bool rows = parts.fused_lookups != nullptr && in_flight->step.has_single_lookups();
  {
    TraceSpan span(ctx.trace, "lookup");
    HOTROW_RETURN_IF_ERROR(rows ? in_flight->step.LookupRows(buffers.embedding_rows())
                                : in_flight->step.Lookup(buffers.output()));
    if (rows) ++*parts.fused_lookups;
  }
  HOTROW_ASSIGN_OR_RETURN(const float* const dense, buffers.DenseFeatures(batch));
  HOTROW_RETURN_IF_ERROR(buffers.UploadLabels(batch, place.number));
  std::optional<double> loss;
  if (parts.graph != nullptr) {
    HOTROW_RETURN_IF_ERROR(
        parts.graph->Run(ctx, batch.batch_size, rows, [&](const ExecContext& here) {
          return RunDense(parts, here, place, *in_flight->item, dense, rows).status();
        }));
  } else {
    HOTROW_ASSIGN_OR_RETURN(loss, RunDense(parts, ctx, place, *in_flight->item, dense, rows));
  }
  {
    TraceSpan span(ctx.trace, "update");
    EmbeddingGradient gradient = buffers.gradient();
    gradient.skip = Skip(parts);
    HOTROW_RETURN_IF_ERROR(std::move(in_flight->step).Update(gradient, place.learning_rate_factor));
  }
  HOTROW_RETURN_IF_ERROR(parts.dense.Update(place.learning_rate_factor, place.number,
                                            place.run_step, buffers.gradient_norm(), Skip(parts)));
  HOTROW_RETURN_IF_ERROR(parts.model.EndStep(ctx, batch.batch_size));
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
  HOTROW_RETURN_IF_ERROR(buffers.Bind(batch, in_flight->item));
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
  if (parts.loss_scaler != nullptr) {
    HOTROW_RETURN_IF_ERROR(
        parts.loss_scaler->ScaleLoss(ctx, buffers.logit_gradient(batch.batch_size)));
  }
  parts.dense.BeginSums(mine);
  const auto send_rows = [&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(UnscaleRows(parts, ctx));
    EmbeddingGradient gradient = buffers.gradient();
    gradient.skip = Skip(parts);
    return in_flight->step.BeginUpdate(gradient);
  };
  const auto sum_dense = [&](int64_t begin, int64_t end) -> absl::Status {
    HOTROW_RETURN_IF_ERROR(UnscaleDense(parts, ctx, begin, end));
    return parts.dense.GradientsReady(begin);
  };
  {
    TraceSpan span(ctx.trace, "backward");
    HOTROW_RETURN_IF_ERROR(parts.model.Backward(
        ctx, buffers.logit_gradient(batch.batch_size), buffers.embedding_gradient(),
        {.embedding_gradient_ready = send_rows, .gradients_ready = sum_dense}));
  }
  std::optional<DenseState::Totals> totals;
  if (parts.loss_scaler != nullptr) {
    // Rows wait for the dense sums here: no rank updates what another one leaves out.
    HOTROW_RETURN_IF_ERROR(parts.loss_scaler->AgreeOnRanks(
        ctx, [&](const float* values, std::span<float> sums) -> absl::Status {
          HOTROW_RETURN_IF_ERROR(parts.dense.SumAlso(values, sums));
          HOTROW_ASSIGN_OR_RETURN(totals, parts.dense.FinishSums());
          return absl::OkStatus();
        }));
    HOTROW_RETURN_IF_ERROR(parts.loss_scaler->EndStep(ctx, buffers.loss_scale_told()));
  }
  {
    TraceSpan span(ctx.trace, "update");
    HOTROW_RETURN_IF_ERROR(std::move(in_flight->step).Update({}, place.learning_rate_factor));
  }
  if (parts.loss_scaler == nullptr) {
    HOTROW_ASSIGN_OR_RETURN(totals, parts.dense.FinishSums());
  }
  HOTROW_RETURN_IF_ERROR(parts.dense.Update(place.learning_rate_factor, place.number,
                                            place.run_step, buffers.gradient_norm(), Skip(parts)));
  HOTROW_RETURN_IF_ERROR(parts.model.EndStep(ctx, global_batch_size));
  HOTROW_RETURN_IF_ERROR(buffers.Post());
  if (!totals.has_value()) return std::nullopt;
  return MeanOverRanks(parts, *totals, global_batch_size);
}

// Lookup and Forward of a step that a GPU made, with tables and parameters as they are.
absl::Status LookAgain(const StepParts& parts, const ExecContext& ctx, const UnreadStep& step) {
  const CtrBatch& batch = step.item->batch;
  StepBuffers& buffers = parts.buffers;
  HOTROW_RETURN_IF_ERROR(buffers.Bind(batch, step.item));
  HOTROW_RETURN_IF_ERROR(parts.tables.Evaluate(batch.sparse(), buffers.output()));
  HOTROW_ASSIGN_OR_RETURN(const float* const dense, buffers.DenseFeatures(batch));
  return parts.model.Forward(ctx,
                             {.batch_size = batch.batch_size,
                              .dense = dense,
                              .embeddings = buffers.embeddings(),
                              .sequences = buffers.sequences(),
                              .training = true,
                              .step = step.number},
                             buffers.logits(batch.batch_size));
}

// Why the loss of a step on a GPU is not finite. Nothing has been updated since, but on several
// ranks, where it takes all of them to look rows up.
std::string FindCause(const StepParts& parts, const ExecContext& ctx, const UnreadStep& step) {
  const CtrBatch& batch = step.item->batch;
  if (!parts.ranks.many() && LookAgain(parts, ctx, step).ok()) {
    return FindNonFinite(parts, ctx, batch);
  }
  return FindNonFiniteData(parts.schema.num_dense, batch.num_labels, batch.dense, batch.labels);
}

}  // namespace

absl::StatusOr<std::optional<double>> RunStep(const StepParts& parts, const ExecContext& ctx,
                                              const StepPlace& place, BatchInFlight* batch) {
  return parts.ranks.many() ? RunStepOnRanks(parts, ctx, place, batch)
                            : RunStepAlone(parts, ctx, place, batch);
}

absl::StatusOr<double> ReadLoss(const StepParts& parts, const ExecContext& ctx,
                                const UnreadStep& step) {
  HOTROW_ASSIGN_OR_RETURN(const StepBuffers::Posted posted,
                          parts.buffers.ReadPosted(parts.options.task_weights));
  if (!std::isfinite(posted.loss)) {
    return DivergedError(parts.options, step.run_step, "training loss",
                         FindCause(parts, ctx, step));
  }
  const bool skipped = parts.loss_scaler != nullptr && posted.skipped;
  // Halving the scale has not helped.
  const bool is_lost = skipped && posted.loss_scale <= kLossScaleMin;
  if (is_lost ||
      (!skipped && parts.options.max_gradient_norm > 0 && !std::isfinite(posted.gradient_norm))) {
    return DivergedError(parts.options, step.run_step, DenseState::kGradientName,
                         parts.ranks.many()
                             ? std::string()
                             : FindGradient(ctx, &parts.model, parts.model.gradients()));
  }
  if (!parts.ranks.many()) return posted.loss;
  double sums[] = {posted.loss * static_cast<double>(step.item->batch.batch_size),
                   static_cast<double>(parts.ranks.own_signal() != 0)};
  HOTROW_RETURN_IF_ERROR(parts.ranks.channel()->AllReduceSum(std::span<double>(sums)));
  return MeanOverRanks(parts, {.loss_sum = sums[0], .signal = sums[1] != 0}, step.batch_size);
}

}  // namespace hotrow
