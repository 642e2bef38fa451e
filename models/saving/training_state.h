#ifndef HOTROW_MODELS_SAVING_TRAINING_STATE_H_
#define HOTROW_MODELS_SAVING_TRAINING_STATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "models/data/metrics.h"
#include "ops/update/sparse_optimizer_config.h"

namespace hotrow {

// What the validations so far have decided: ValidationPolicy (models/train/learning_rate.h).
struct ValidationState {
  double factor = 1;
  bool observed = false;
  double best_auc = 0;
  int64_t plateau_validations = 0;  // since the best one or the last lowering
  int64_t worse_validations = 0;    // since the best one
};

// A window of time (--window) that was judged, trained, or both.
struct TrainedWindow {
  int64_t number = 0;  // windows since 1970
  int64_t samples = 0;
  CtrMetrics valid;                     // before it was trained; of several tasks the means
  std::vector<CtrMetrics> valid_tasks;  // of each of several tasks
  double best_auc = 0;                  // of the data's own probabilities; 0: they have none
  double train_logloss = 0;  // each batch before its own update; 0: not trained to its end
};

// Where a training run stands between two steps. A run that resumes from it ends with the same bits
// as one that was never interrupted.
struct TrainingState {
  // Flags that decide the run's bits, with their values.
  std::vector<std::pair<std::string, std::string>> settings;
  // What chose the kernels of the matrix products (ops/products/processor_kind.h); with several
  // ranks, each kind once. Empty: not known. On another kind of processor the run resumes with
  // other bits.
  std::string processor;

  // The next batch: its epoch, or window, and how much of that epoch has been trained on.
  int64_t epoch = 0;
  int64_t samples_in_epoch = 0;
  int64_t batches_in_epoch = 0;
  // A validation is due or was cut off; it runs before the batch.
  bool validation_due = false;
  int64_t validated_step = -1;  // the step after which validation ran last

  int64_t first_step = 0;  // updates that the model had seen when the run began (--init_from)
  int64_t steps = 0;       // of the run: SavedModel::step is first_step more
  int64_t samples = 0;
  int64_t epochs_done = 0;
  int64_t last_epoch = -1;  // of the last step; and since that epoch began:
  int64_t steps_in_last_epoch = 0;
  int64_t samples_in_last_epoch = 0;
  double loss_sum_in_last_epoch = 0;
  double recent_loss = 0;  // decaying mean

  // The loss scale of a run in fp16, LossScale (ops/training/loss_scale.h), as it stands after the
  // last step.
  struct SavedLossScale {
    double scale = 0;
    int64_t good_steps = 0;
    int64_t skipped_steps = 0;
  };
  std::optional<SavedLossScale> loss_scale;

  // Where tables decay as a whole: the factors of the steps behind first_step
  // (EmbeddingCollection::learning_rates), which rows may still have to make up for.
  std::vector<LearningRateRun> learning_rates;
  // EmbeddingCollection::Settle was called after the last step. Only keys without a row then have
  // to make up for these steps, when they get one.
  bool settled = false;
  // Rows are not as they stand after the last step.
  bool rows_missed_steps() const { return !learning_rates.empty() && !settled; }

  ValidationState policy;
  bool stopped_early = false;
  int64_t best_epoch = 0;
  int64_t best_step = 0;
  CtrMetrics valid;  // of several tasks the means
  CtrMetrics test;
  // The metrics of each of several tasks; empty: one task, or no validation, or no test yet.
  std::vector<CtrMetrics> valid_tasks;
  std::vector<CtrMetrics> test_tasks;
  double best_auc = 0;
  // The windows that have samples, up to the last one that was begun; `epoch` is a position in
  // them.
  std::vector<TrainedWindow> windows;
};

// A JSON object of it, and back, for files other than the manifest (portable exports). Errors:
// InvalidArgument, naming the member that is missing or wrong.
std::string TrainingStateToJson(const TrainingState& state);
absl::StatusOr<TrainingState> TrainingStateFromJson(std::string_view json);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_TRAINING_STATE_H_
