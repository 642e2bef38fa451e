#include <vector>

#include "absl/strings/str_cat.h"
#include "base/atomic_file.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "models/data/file_pattern.h"
#include "models/saving/partial_dir_impl.h"
#include "models/saving/store_paths_impl.h"

namespace hotrow {
namespace {

constexpr char kLockName[] = "hotrow-partial.lock";  // no name of a store

}  // namespace

absl::Status RemoveTree(Env& env, const std::string& path) {
  const absl::Status removed = env.Remove(path);
  if (removed.ok()) return removed;
  const absl::StatusOr<std::vector<std::string>> names = env.ListDir(path);
  if (!names.ok()) return removed;  // a file after all
  for (const std::string& name : *names) {
    HOTROW_RETURN_IF_ERROR(RemoveTree(env, absl::StrCat(path, "/", name)));
  }
  return env.RemoveDir(path);
}

absl::Status CheckIsFree(Env& env, const std::string& path) {
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) return absl::OkStatus();
  const absl::StatusOr<std::vector<std::string>> names = env.ListDir(path);
  if (names.ok() && names->empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      path, ": ",
      names.ok()
          ? "is there already and not empty"
          : absl::StrCat("is no directory that can be read (", names.status().message(), ")"),
      "; give the name of a directory that is not there yet"));
}

PartialDir::PartialDir(Env& env, const std::string& path)
    : env_(env), final_path_(path), path_(absl::StrCat(path, kPartialSuffix)) {}

absl::StatusOr<std::unique_ptr<PartialDir>> PartialDir::Create(Env& env, const std::string& path) {
  // A link stays: what it leads to is made, or replaced if it is empty.
  HOTROW_ASSIGN_OR_RETURN(const OutputPlace place, FindOutput(path));
  std::unique_ptr<PartialDir> out(new PartialDir(env, place.path));
  HOTROW_RETURN_IF_ERROR(CreateDirsDurably(env, ParentDir(place.path)));
  HOTROW_RETURN_IF_ERROR(env.CreateDirs(out->path_));
  // Two writers of the same directory would mix their files.
  const std::string lock = absl::StrCat(out->path_, "/", kLockName);
  HOTROW_ASSIGN_OR_RETURN(out->lock_, env.LockFile(lock, LockMode::kExclusive));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(out->path_));
  for (const std::string& name : names) {
    if (name == kLockName) continue;
    HOTROW_RETURN_IF_ERROR(RemoveTree(env, absl::StrCat(out->path_, "/", name)));
  }
  return out;
}

PartialDir::~PartialDir() {
  if (lock_ == nullptr || committed_) return;
  Caught("", [this] { return RemoveTree(env_, path_); }).IgnoreError();
}

absl::Status PartialDir::Commit() {
  HOTROW_RETURN_IF_ERROR(env_.SyncDir(path_));
  HOTROW_RETURN_IF_ERROR(env_.Rename(path_, final_path_));
  committed_ = true;
  // Not before: another one of this path would remove all that is here as left behind.
  const std::string lock = absl::StrCat(final_path_, "/", kLockName);
  HOTROW_ASSIGN_OR_RETURN(const bool has_lock, env_.Exists(lock));
  if (has_lock) {
    HOTROW_RETURN_IF_ERROR(env_.Remove(lock));
    HOTROW_RETURN_IF_ERROR(env_.SyncDir(final_path_));
  }
  return env_.SyncDir(ParentDir(final_path_));
}

void PartialDir::Revoke() {
  if (committed_) RemoveTree(env_, final_path_).IgnoreError();
}

}  // namespace hotrow
