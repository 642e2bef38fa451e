#ifndef HOTROW_MODELS_TRAIN_EVALUATOR_IMPL_H_
#define HOTROW_MODELS_TRAIN_EVALUATOR_IMPL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/exec_context.h"
#include "models/data/data_source.h"
#include "models/data/metrics.h"
#include "models/train/batch_reader.h"
#include "models/train/progress.h"
#include "models/train/run_checkpoints_impl.h"
#include "models/train/train_step_impl.h"

namespace hotrow {

struct Evaluation {
  CtrMetrics metrics;             // of several tasks their means
  std::vector<CtrMetrics> tasks;  // several tasks: of each; otherwise empty
  double best_auc = 0;    // of the data's own probabilities; 0 where the data does not know them
  bool complete = false;  // not stopped by a signal; otherwise the others are zeros
};

// Runs the model over a split without changing it, between two steps of training; carries a
// checkpoint on that is being written. Several ranks look at a slice of each batch and see the
// metrics of all.
//
// Threads: one call at a time, on the thread that trains. Collective.
// Errors:  OutOfRange (a prediction that is not finite), those of data, tables and communicator. If
//          the store has no room, older checkpoints make some as in training.
class Evaluator {
 public:
  // What it is given outlives it.
  Evaluator(const StepParts& parts, DataSource* data, RunCheckpoints* checkpoints,
            const ExecContext& ctx)
      : parts_(parts), data_(*data), checkpoints_(*checkpoints), ctx_(ctx) {}

  // epoch: of the split, where its epochs differ. run_step: the step to come, for errors. progress:
  // null: none.
  absl::StatusOr<Evaluation> Evaluate(Split split, int64_t epoch, int64_t run_step,
                                      Progress* progress);

 private:
  absl::Status EvaluateTables(const CtrBatch& batch);
  absl::StatusOr<std::span<const float>> GatherLogits(const BatchReader::Item& item,
                                                      std::span<const float> mine);

  const StepParts parts_;
  DataSource& data_;
  RunCheckpoints& checkpoints_;
  const ExecContext ctx_;
  HostBuffer<float> global_logits_;  // several ranks: of a whole batch
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_EVALUATOR_IMPL_H_
