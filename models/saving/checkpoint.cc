#include "models/saving/checkpoint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "models/saving/checkpoint_dir_impl.h"
#include "models/saving/manifest.h"
#include "models/saving/portable_manifest.h"
#include "models/saving/store_paths_impl.h"

namespace hotrow {
namespace {

// The portable form is for programs of others: its rows lie in no store.
absl::Status CheckIsNotPortable(Env& env, const std::string& path) {
  const absl::StatusOr<bool> is_portable = IsPortableModel(env, path);
  if (!is_portable.ok() || !*is_portable) return absl::OkStatus();  // ReadSavedModel says why
  HOTROW_ASSIGN_OR_RETURN(const PortableModel portable,
                          ReadPortableManifest(env, path, /*edited=*/false));
  HOTROW_RETURN_IF_ERROR(CheckHasWeights(path, portable));
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint: ", path, " is a model in the portable form; make a checkpoint of ",
                   "it with `hotrow import ", path, " CHECKPOINT`, and give that"));
}

}  // namespace

std::string CheckpointName(int64_t step, int64_t again) {
  const std::string first = absl::StrFormat("%s%0*d", kStepPrefix, kStepDigits, step);
  return again == 0 ? first : absl::StrCat(first, "-", again);
}

absl::StatusOr<std::vector<std::string>> ListCheckpoints(Env& env, const std::string& dir) {
  std::vector<std::string> out;
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(dir));
  if (!exists) return out;
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(dir));
  for (const std::string& name : names) {
    if (StepOfName(name).has_value()) out.push_back(name);
  }
  std::sort(out.begin(), out.end(), [](const std::string& a, const std::string& b) {
    return *StepOfName(a) < *StepOfName(b);
  });
  return out;
}

absl::StatusOr<SavedModel> ReadCheckpoint(Env& env, const std::string& given_path) {
  const std::string path = WithoutEndingSlashes(given_path);
  HOTROW_ASSIGN_OR_RETURN(const bool has_manifest, env.Exists(ManifestPath(path)));
  if (has_manifest) {
    HOTROW_RETURN_IF_ERROR(CheckIsNotPortable(env, path));
    return ReadSavedModel(env, path);
  }
  const absl::StatusOr<std::vector<std::string>> names = ListCheckpoints(env, path);
  if (!names.ok() || names->empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "checkpoint: there is no ", ManifestPath(path), " and no ", path, "/", kStepPrefix,
        "...: give a directory that --checkpoint_dir or --save_dir has "
        "written"));
  }
  const std::string newest_path = absl::StrCat(path, "/", names->back());
  absl::StatusOr<SavedModel> newest = ReadSavedModel(env, newest_path);
  if (newest.ok() || names->size() < 2) return newest;
  std::string before = "; no other checkpoint there has a good manifest";
  for (auto name = names->rbegin() + 1; name != names->rend(); ++name) {
    const std::string older = absl::StrCat(path, "/", *name);
    if (!ReadSavedModel(env, older).ok()) continue;
    before = absl::StrCat("; without ", newest_path, " it would be ", older);
    break;
  }
  return absl::Status(newest.status().code(), absl::StrCat(newest.status().message(), before));
}

absl::StatusOr<std::string> WriteCheckpoint(Env& env, const std::string& checkpoint_dir,
                                            SavedModel model,
                                            const DenseArrays<const float>& dense) {
  const std::string final_dir =
      absl::StrCat(WithoutEndingSlashes(checkpoint_dir), "/", CheckpointName(model.step));
  HOTROW_RETURN_IF_ERROR(CreateDirsDurably(env, ParentDir(final_dir)));
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(final_dir));
  if (exists) {
    return absl::AlreadyExistsError(absl::StrCat("checkpoint: ", final_dir,
                                                 " is there already; remove it, or choose another "
                                                 "directory"));
  }
  model.is_checkpoint = true;
  HOTROW_RETURN_IF_ERROR(WriteUnfinished(env, final_dir, dense, &model));
  HOTROW_RETURN_IF_ERROR(CommitUnfinished(env, final_dir, SavedModelManifest(model)));
  return final_dir;
}

}  // namespace hotrow
