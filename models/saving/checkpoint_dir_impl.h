#ifndef HOTROW_MODELS_SAVING_CHECKPOINT_DIR_IMPL_H_
#define HOTROW_MODELS_SAVING_CHECKPOINT_DIR_IMPL_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/env.h"
#include "models/saving/dense_file.h"
#include "models/saving/saved_model.h"

namespace hotrow {

// The life of one checkpoint's directory, which its name tells:
//
//   step-000000001000.tmp   being written
//   step-000000001000       committed
//   step-000000001000.old   retired: what it names may go
//
// `dir` is the path under the name in the middle.

inline constexpr char kStepPrefix[] = "step-";
inline constexpr int kStepDigits = 12;
// None: a directory of this name is no committed checkpoint.
std::optional<int64_t> StepOfName(const std::string& name);
// Whether the name is one of an unfinished or a retired checkpoint.
bool IsLeftover(const std::string& name);

// A file that is written to see whether a directory can be, and removed.
inline constexpr char kProbe[] = "/probe.tmp";

std::string UnfinishedDir(const std::string& dir);
std::string RetiredDir(const std::string& dir);

// Phase one: makes the unfinished directory, with the dense file. model->dir is that directory.
absl::Status WriteUnfinished(Env& env, const std::string& dir,
                             const DenseArrays<const float>& dense, SavedModel* model);
// Phase two: the manifest and the name, the moment of commitment.
absl::Status CommitUnfinished(Env& env, const std::string& dir, const std::string& manifest);
// Takes a checkpoint's name away; the caller syncs the directory that it lies in. OK when it has
// none.
absl::Status RetireCheckpoint(Env& env, const std::string& dir);

// Removes a directory that has files only, as a checkpoint's has. OK when it is not there.
absl::Status RemoveFlatDir(Env& env, const std::string& dir);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_CHECKPOINT_DIR_IMPL_H_
