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

// Names and values. A name is a flag without dashes ("batch_size"), or the path of a field of
// TrainerOptions without a flag ("table_optimizer.beta1").
using Settings = std::vector<std::pair<std::string, std::string>>;

// The name among TrainerOptions::settings of what the data hold (DataSource::Identity), where a
// program says so. Checkpoints that do not have it fit any data.
inline constexpr char kDataContent[] = "data.content";

// The settings that decide the bits of a run: TrainingState::settings of its checkpoints. A run
// that resumes must have the same. TrainerOptions::settings and shape come first and win over
// settings of the same name.
//
// They exclude the number of epochs, since a run may be prolonged; tiers, threads and the frequency
// of checkpoints, which change no bit; and the budget of residuals, which begin at zero when it
// changes.
Settings BitSettings(const TrainerOptions& options);

// Those of them that scores depend on and that neither rows nor parameters show: what unseen keys
// read, and how products are made. ScoringData::settings.
Settings ScoringSettings(const TrainerOptions& options);

// The settings that all ranks of a run must share, named as errors name them: BitSettings; settings
// that decide the collective calls and what is stored; and the identity of the data
// (DataSource::Identity).
//
// Each rank may have its own budgets, store_path, cache_policy, prefetch_depth and threads, which
// change no bit and no collective call; `out`, stop_signal and where its numbers go; and names of
// directories and files to write, as long as all ranks give them or none does.
//
// Errors: those of reading the data's files.
absl::StatusOr<NamedValues> RankSettings(const TrainerOptions& options, const DataSource& data);

// Compares the settings of a checkpoint with BitSettings of the run that resumes from it. A setting
// that is younger than the checkpoint counts with the value that runs had then. `flag` begins the
// error: "--resume from DIR". Errors: FailedPrecondition, which names each difference, both values
// and the remedy in one line.
absl::Status CompareWithCheckpoint(const Settings& saved, const Settings& here,
                                   const std::string& flag);

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_RUN_SETTINGS_H_
