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
//   DIR/step-000000001000/counters-00002       of each rank, where admission counts lookups
//   DIR/LOCK                                   locked by the job that writes them
//   DIR/tables/                                snapshots of tables that live in memory; of several
//                                              ranks in DIR/tables/rank-00002-of-00004
//
// Tables on a disk keep their snapshots in their own store. A checkpoint exists once its directory
// has its final name. docs/formats/saved_model.md has the details.

// "step-000000001000", or "step-000000001000-1" where a checkpoint of the step came before.
std::string CheckpointName(int64_t step, int64_t again = 0);

// Names of the committed checkpoints of a directory, the oldest first. A missing directory has
// none.
absl::StatusOr<std::vector<std::string>> ListCheckpoints(Env& env, const std::string& dir);

// Reads the manifest of anything that a user may call a checkpoint: a directory of checkpoints (the
// newest one counts), one checkpoint, or what --save_dir wrote. Errors: FailedPrecondition (none of
// these, the portable form, or a version that this build does not read), DataLoss (damaged; names
// the file, the remedy and the newest checkpoint whose manifest is good).
absl::StatusOr<SavedModel> ReadCheckpoint(Env& env, const std::string& path);

// Makes a checkpoint of parts: writes the dense file and the manifest of `model` into
// checkpoint_dir/CheckpointName(model.step) and commits it. The snapshots that model.parts names
// must be prepared. Returns the checkpoint's directory. Errors: AlreadyExists (a checkpoint of that
// step), those of the file system. After an error there is no such checkpoint; only if the last
// sync failed, there may be one.
absl::StatusOr<std::string> WriteCheckpoint(Env& env, const std::string& checkpoint_dir,
                                            SavedModel model,
                                            const DenseArrays<const float>& dense);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_CHECKPOINT_H_
