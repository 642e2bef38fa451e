#include "models/train/evaluator_impl.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "base/out_of_room.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "comm/communicator.h"
#include "models/data/slice_batch.h"

namespace hotrow {

// Rows that a full store would not take back stand before those that are read.
absl::Status Evaluator::EvaluateTables(const CtrBatch& batch) {
  bool made_room = false;
  absl::Status status;
  while (true) {
    status = parts_.tables.Evaluate(batch.sparse(), parts_.buffers.output());
    if (!IsOutOfRoom(status)) break;
    HOTROW_RETURN_IF_ERROR(checkpoints_.MakeRoom(status));
    made_room = true;
  }
  // The step that was refused too is still to come.
  if (made_room) checkpoints_.KeepRoomMade();
  return status;
}

// The logits of a whole batch, on each rank; of one rank its own.
absl::StatusOr<std::span<const float>> Evaluator::GatherLogits(const BatchReader::Item& item,
                                                               std::span<const float> mine) {
  const int32_t world_size = parts_.ranks.world_size();
  if (world_size == 1) return mine;
  const int64_t num_tasks = parts_.model.num_tasks();
  if (global_logits_.size() == 0) {
    HOTROW_ASSIGN_OR_RETURN(global_logits_,
                            HostBuffer<float>::Create(parts_.options.batch_size * num_tasks));
  }
  std::vector<int64_t> bytes(world_size);
  std::vector<int64_t> offsets(world_size);
  for (int32_t p = 0; p < world_size; ++p) {
    const int64_t begin = SliceBegin(item.global_batch_size, p, world_size);
    const int64_t end = SliceBegin(item.global_batch_size, p + 1, world_size);
    offsets[p] = begin * num_tasks * static_cast<int64_t>(sizeof(float));
    bytes[p] = (end - begin) * num_tasks * static_cast<int64_t>(sizeof(float));
  }
  const std::span<float> all = global_logits_.span().first(item.global_batch_size * num_tasks);
  HOTROW_RETURN_IF_ERROR(parts_.ranks.channel()->AllGatherV(std::as_bytes(mine), bytes, offsets,
                                                            std::as_writable_bytes(all)));
  return std::span<const float>(all);
}

absl::StatusOr<Evaluation> Evaluator::Evaluate(Split split, int64_t epoch, int64_t run_step,
                                               Progress* progress) {
  TraceSpan span(ctx_.trace, "evaluate");
  // The stages of the report are those of training; evaluation is one of them.
  ExecContext ctx = ctx_;
  ctx.trace = nullptr;
  StepBuffers& buffers = parts_.buffers;
  RunRanks& ranks = parts_.ranks;
  BatchReaderOptions reader_options =
      ReaderOptions(split, parts_.options.batch_size, ranks.rank(), ranks.world_size(), ctx);
  reader_options.first_epoch = epoch;
  reader_options.epochs = epoch + 1;
  reader_options.keep_global_labels = ranks.many();
  BatchReader reader(&data_, reader_options);
  const int32_t num_tasks = parts_.model.num_tasks();
  std::vector<MetricsAccumulator> metrics(static_cast<size_t>(num_tasks));
  std::vector<float> true_probabilities;
  std::vector<float> labels;
  int64_t samples = 0;
  while (!ranks.stopped()) {
    HOTROW_ASSIGN_OR_RETURN(std::shared_ptr<BatchReader::Item> item, reader.Next());
    if (item == nullptr) break;
    const CtrBatch& batch = item->batch;
    if (!item->ends_epoch()) {
      HOTROW_RETURN_IF_ERROR(buffers.Bind(batch, item));
      HOTROW_RETURN_IF_ERROR(EvaluateTables(batch));
      HOTROW_ASSIGN_OR_RETURN(const float* const dense, buffers.DenseFeatures(batch));
      HOTROW_RETURN_IF_ERROR(parts_.model.Forward(ctx,
                                                  {.batch_size = batch.batch_size,
                                                   .dense = dense,
                                                   .embeddings = buffers.embeddings(),
                                                   .sequences = buffers.sequences()},
                                                  buffers.logits(batch.batch_size)));
      HOTROW_ASSIGN_OR_RETURN(const std::span<const float> logits,
                              buffers.LogitsOnHost(batch.batch_size));
      if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) {
        return DivergedError(parts_.options, run_step, "model's prediction");
      }
      HOTROW_ASSIGN_OR_RETURN(const std::span<const float> all, GatherLogits(*item, logits));
      const std::span<const float> batch_labels = ranks.many() ? item->global_labels : batch.labels;
      const std::vector<float>& truth =
          ranks.many() ? item->global_true_probability : batch.true_probability;
      for (int32_t task = 0; task < num_tasks; ++task) {
        metrics[static_cast<size_t>(task)].Add(all, batch_labels, task, num_tasks);
      }
      samples += item->global_batch_size;
      if (progress != nullptr) progress->Update(samples, "");
      if (!truth.empty() && num_tasks == 1) {
        true_probabilities.insert(true_probabilities.end(), truth.begin(), truth.end());
        labels.insert(labels.end(), batch_labels.begin(), batch_labels.end());
      }
    }
    HOTROW_RETURN_IF_ERROR(checkpoints_.Poll());
    HOTROW_RETURN_IF_ERROR(ranks.AgreeOnStop());
  }
  Evaluation evaluation;
  evaluation.complete = !ranks.stopped();
  if (!evaluation.complete) return evaluation;
  for (const MetricsAccumulator& task : metrics) evaluation.tasks.push_back(task.Compute());
  evaluation.metrics = MeanOverTasks(evaluation.tasks);
  if (num_tasks == 1) evaluation.tasks.clear();
  if (!labels.empty() && !std::isnan(evaluation.metrics.auc)) {
    evaluation.best_auc = Auc(true_probabilities, labels);
  }
  return evaluation;
}

}  // namespace hotrow
