#ifndef HOTROW_MODELS_TRAIN_TRAIN_STEP_IMPL_H_
#define HOTROW_MODELS_TRAIN_TRAIN_STEP_IMPL_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "embedding/embedding_collection.h"
#include "models/data/data_source.h"
#include "models/train/batch_pipeline_impl.h"
#include "models/train/dense_state_impl.h"
#include "models/train/loss_scaler_impl.h"
#include "models/train/run_ranks_impl.h"
#include "models/train/step_buffers_impl.h"
#include "models/train/step_graph_impl.h"
#include "models/train/trainer_options.h"
#include "models/zoo/ctr_model.h"

namespace hotrow {

// The parts of a run that one step works on. They outlive who holds these references.
struct StepParts {
  const TrainerOptions& options;
  CtrModel& model;
  EmbeddingCollection& tables;
  StepBuffers& buffers;
  DenseState& dense;
  LossScaler* loss_scaler;  // null: the loss is not scaled
  StepGraph* graph;         // null: every step is enqueued piece by piece
  int64_t* fused_lookups;   // counts steps whose model read rows where they lie; null: none may
  RunRanks& ranks;
  const DataSchema& schema;
};

// Where a step stands in its run.
struct StepPlace {
  int64_t run_step = 0;  // of the run, from 1, for errors
  uint32_t number = 0;   // of optimizers and dropout, from 1
  float learning_rate_factor = 1;
};

// One step of training on a batch whose rows were prefetched: look up, forward, loss, backward,
// update of rows and dense parameters. Returns the mean loss over the batch. Several ranks make it
// together, each with its slice; a signal that one of them has got is then that of all.
//
// On a GPU the step is enqueued on return and the loss not known: none. ReadLoss tells it; at most
// StepMailbox::kUnreadMax steps may be unread.
//
// Errors: OutOfRange (the loss or a gradient is not finite), those of the tables, the device and
// the communicator. After ResourceExhausted from the tables of a single rank nothing has changed.
absl::StatusOr<std::optional<double>> RunStep(const StepParts& parts, const ExecContext& ctx,
                                              const StepPlace& place, BatchInFlight* batch);

// A step whose loss a GPU has yet to tell.
struct UnreadStep {
  int64_t run_step = 0;
  int64_t batch_size = 0;                         // of all ranks together
  uint32_t number = 0;                            // StepPlace
  std::shared_ptr<const BatchReader::Item> item;  // this rank's batch
};

// The loss of the oldest step on a GPU whose loss was not read; waits for that step alone. step:
// which one it is. Several ranks read together, and hear of each other's signals. Errors:
// OutOfRange, as RunStep, when later steps may have been made: nothing of the run is good any more;
// those of the device and the communicator.
absl::StatusOr<double> ReadLoss(const StepParts& parts, const ExecContext& ctx,
                                const UnreadStep& step);

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_TRAIN_STEP_IMPL_H_
