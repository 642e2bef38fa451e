#ifndef HOTROW_MODELS_SAVING_TRAINING_STATE_H_
#define HOTROW_MODELS_SAVING_TRAINING_STATE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "models/train/learning_rate.h"
#include "models/train/metrics.h"

namespace hotrow {

// Where a training run stands between two of its steps, so that it goes on from there with the bits
// of a run that was never interrupted.
struct TrainingState {
  // What the run's bits depend on, as flag names and values.
  std::vector<std::pair<std::string, std::string>> settings;
  // What decided the kernels of its matrix products (ops/processor_kind.h), of several ranks each
  // kind once; empty: not known. On another kind the run goes on with other bits.
  std::string processor;

  // The batch to come: its epoch, and what was trained on of that epoch.
  int64_t epoch = 0;
  int64_t samples_in_epoch = 0;
  int64_t batches_in_epoch = 0;
  // A validation that was due and not finished; it comes before the batch.
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

  ValidationPolicy::State policy;
  bool stopped_early = false;
  int64_t best_epoch = 0;
  int64_t best_step = 0;
  CtrMetrics valid;
  CtrMetrics test;
  double best_auc = 0;
};

// As a JSON object and back, for those who keep it elsewhere than in a manifest of saved models
// (portable exports). The error names the member that is missing or wrong: InvalidArgument.
std::string TrainingStateToJson(const TrainingState& state);
absl::StatusOr<TrainingState> TrainingStateFromJson(std::string_view json);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_TRAINING_STATE_H_
