#ifndef HOTROW_MODELS_TRAIN_RUN_SETTINGS_H_
#define HOTROW_MODELS_TRAIN_RUN_SETTINGS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/compare_ranks.h"
#include "models/data/data_source.h"
#include "models/train/trainer_options.h"

namespace hotrow {

// Names and values. A name is a flag's without its dashes ("batch_size"), or with a dot a field of
// TrainerOptions that has no flag ("table_optimizer.beta1").
using Settings = std::vector<std::pair<std::string, std::string>>;

// What the bits of a run depend on: TrainingState::settings of its checkpoints, which a run that
// resumes must have alike. TrainerOptions::settings and shape come first and win where they name
// the same setting.
//
// Not among them: the number of epochs, since a run may be prolonged; tiers, threads and how often
// checkpoints are taken, which move no bit; the budget of residuals, which begin at zero where it
// is another.
Settings BitSettings(const TrainerOptions& options);

// What all ranks of a run must have alike, as an error names it: BitSettings; what decides which
// collective calls the ranks make and what they store; and what the data are
// (DataSource::Identity).
//
// A rank's own are: the sizes of budgets, store_path, cache_policy, prefetch_depth and threads,
// which move no bit and decide no collective call; `out` and stop_signal; the names of directories
// and files that are written, of which only counts whether they are given.
//
// Errors: those of reading the data's files.
absl::StatusOr<NamedValues> RankSettings(const TrainerOptions& options, const DataSource& data);

// Compares the settings of a checkpoint with BitSettings of the run that resumes from it. A name
// that the checkpoint lacks since it is younger stands for what runs had then. `flag` begins the
// error: "--resume from DIR". Errors: FailedPrecondition, which names each difference, both values
// and the remedy in one line.
absl::Status CompareWithCheckpoint(const Settings& saved, const Settings& here,
                                   const std::string& flag);

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_RUN_SETTINGS_H_
