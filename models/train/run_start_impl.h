#ifndef HOTROW_MODELS_TRAIN_RUN_START_IMPL_H_
#define HOTROW_MODELS_TRAIN_RUN_START_IMPL_H_

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"
#include "base/env.h"
#include "embedding/embedding_collection.h"
#include "models/data/vocabulary.h"
#include "models/saving/saved_model.h"
#include "models/saving/training_state.h"
#include "models/train/run_ranks_impl.h"
#include "models/train/trainer_options.h"
#include "models/zoo/ctr_model.h"

namespace hotrow {

// What a run starts from.
struct RunStart {
  std::optional<SavedModel> saved;  // none: new parameters
  bool resumed = false;             // a checkpoint of this run; otherwise what --init_from names

  // The step of the checkpoint that the run goes on from; -1: none.
  int64_t resumed_step() const { return resumed ? saved->step : -1; }
};

// Reads the manifest that the options name, if any. Errors: FailedPrecondition (checkpoints without
// --resume, nothing of the kind in --init_from), DataLoss (a damaged one).
absl::StatusOr<RunStart> FindStart(const TrainerOptions& options, Env& env);

// Whether what was found fits the run, which `description` describes. Errors: FailedPrecondition,
// which names each difference and the remedy.
absl::Status CheckStart(const RunStart& start, const TrainerOptions& options,
                        const SavedModel& description);

// Whether the data were read by the vocabulary of the model, or, where a new run begins, by one
// that joined it. here: of the data, null: none. Errors: FailedPrecondition, DataLoss.
absl::Status CheckVocabulary(const RunStart& start, const TrainerOptions& options,
                             const Vocabulary* here, Env& env);

// Compares over the ranks what no option says: the model that the factory made, and what each rank
// has read from the directories. ctx: of the model, which it waits for on a GPU. Collective.
// Errors: those of CompareRanks.
absl::Status CompareStarts(const RunStart& start, CtrModel& model, RunRanks& ranks,
                           const ExecContext& ctx);

// Makes the tables open their rows from there. Errors: InvalidArgument (a store that this build
// lacks).
absl::Status OpenTablesFrom(const RunStart& start, EmbeddingCollectionOptions* options);

// Loads what this rank's gradients had lost, of as many ranks as wrote the checkpoint. Returns why
// residuals begin at zero instead, for people; empty: they do not, or there are none. Errors:
// DataLoss, which names the file.
absl::StatusOr<std::string> LoadResiduals(const RunStart& start, const RunRanks& ranks, Env& env,
                                          EmbeddingCollection* tables);

// Returns the kinds of processor of all ranks (TrainingState::processor), or nothing on a GPU. If
// the checkpoint was made on another kind, a line about it goes to `notices`. Collective.
absl::StatusOr<std::string> FindProcessor(const RunStart& start, Device device, RunRanks& ranks,
                                          std::FILE* notices);

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_RUN_START_IMPL_H_
