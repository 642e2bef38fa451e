#ifndef HOTROW_MODELS_SAVING_CHECKPOINT_DIR_IMPL_H_
#define HOTROW_MODELS_SAVING_CHECKPOINT_DIR_IMPL_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/env.h"
#include "models/saving/dense_file.h"
#include "models/saving/saved_model.h"

namespace hotrow {

// One checkpoint's directory. Its name tells its state:
//
//   step-000000001000.tmp   being written
//   step-000000001000       committed
//   step-000000001000.old   retired: what it names may be removed
//
// A further checkpoint of the same step, of rows that were erased or written meanwhile, has a
// number behind it: step-000000001000-1.
//
// Arguments `dir` are the path of the committed checkpoint.

inline constexpr char kStepPrefix[] = "step-";
inline constexpr int kStepDigits = 12;
struct StepName {
  int64_t step = 0;
  int64_t again = 0;  // how many checkpoints of the step came before
  auto operator<=>(const StepName&) const = default;
};
// nullopt: not the name of a committed checkpoint.
std::optional<StepName> StepOfName(const std::string& name);
// Whether it is the name of an unfinished or a retired checkpoint.
bool IsLeftover(const std::string& name);

// A file that is written and removed to see whether a directory is writable.
inline constexpr char kProbe[] = "/probe.tmp";

std::string UnfinishedDir(const std::string& dir);
std::string RetiredDir(const std::string& dir);

// First phase: makes the unfinished directory with the dense file, the vocabulary and the
// blobs. Sets model->dir to it.
absl::Status WriteUnfinished(Env& env, const std::string& dir,
                             const DenseArrays<const float>& dense, SavedModel* model);
// Second phase: writes the manifest and renames the directory, which commits it.
absl::Status CommitUnfinished(Env& env, const std::string& dir, const std::string& manifest);
// Takes away a checkpoint's name. The caller syncs the parent directory. OK if there is none.
absl::Status RetireCheckpoint(Env& env, const std::string& dir);

// Removes a directory that contains only files, as a checkpoint's does. OK if there is none.
absl::Status RemoveFlatDir(Env& env, const std::string& dir);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_CHECKPOINT_DIR_IMPL_H_
