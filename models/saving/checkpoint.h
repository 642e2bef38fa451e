#ifndef HOTROW_MODELS_SAVING_CHECKPOINT_H_
#define HOTROW_MODELS_SAVING_CHECKPOINT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/saving/dense_file.h"
#include "models/saving/saved_model.h"

namespace hotrow {

// Checkpoints of a training run, in one directory:
//
//   DIR/step-000000001000/manifest.json        a saved model that knows where training stands
//   DIR/step-000000001000/dense.safetensors
//   DIR/step-000000001000/residuals-00002      of each of several ranks, with error feedback
//   DIR/LOCK                                   locked by the job that writes them
//   DIR/tables/                                snapshots of tables that live in memory; of several
//                                              ranks in DIR/tables/rank-00002-of-00004
//
// Tables on a disk keep their snapshots in their own store. A checkpoint is there as soon as its
// directory has its name; docs/formats/saved_model.md has the rest.

// "step-000000001000"
std::string CheckpointName(int64_t step);

// Names of the committed checkpoints of a directory, by step; none where there is no directory.
absl::StatusOr<std::vector<std::string>> ListCheckpoints(Env& env, const std::string& dir);

// Reads the manifest of what a user calls a checkpoint: a directory of checkpoints (its newest
// one), one of them, or what --save_dir has written. Errors: FailedPrecondition (nothing of the
// kind there; a newer version), DataLoss (damaged; names the file and the remedy, and the newest
// checkpoint whose manifest is good).
absl::StatusOr<SavedModel> ReadCheckpoint(Env& env, const std::string& path);

// Makes a checkpoint out of parts: writes the dense file and the manifest of `model` into
// checkpoint_dir/CheckpointName(model.step) and commits it. The tables' snapshots must have been
// prepared: model.parts says where. Returns the checkpoint's directory. Errors: AlreadyExists (of
// that step), what the file system says; there is no such checkpoint then, or, where only the last
// sync failed, perhaps.
absl::StatusOr<std::string> WriteCheckpoint(Env& env, const std::string& checkpoint_dir,
                                            SavedModel model,
                                            const DenseArrays<const float>& dense);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_CHECKPOINT_H_
