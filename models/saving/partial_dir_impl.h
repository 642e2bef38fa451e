#ifndef HOTROW_MODELS_SAVING_PARTIAL_DIR_IMPL_H_
#define HOTROW_MODELS_SAVING_PARTIAL_DIR_IMPL_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"

namespace hotrow {

// Removes a file, or a directory with all its contents.
absl::Status RemoveTree(Env& env, const std::string& path);

// OK if nothing or an empty directory has that name. FailedPrecondition otherwise.
absl::Status CheckIsFree(Env& env, const std::string& path);

// A directory that is being written, under a temporary name beside its own: where the path is a
// symbolic link, beside what it leads to. Commit renames it; the destructor removes it if it was
// not committed. One thread at a time. A lock keeps a second one of the same path out.
class PartialDir {
 public:
  // Removes what a killed process left of the same one. FailedPrecondition: it is being made.
  static absl::StatusOr<std::unique_ptr<PartialDir>> Create(Env& env, const std::string& path);
  ~PartialDir();
  PartialDir(const PartialDir&) = delete;
  PartialDir& operator=(const PartialDir&) = delete;

  const std::string& path() const { return path_; }

  // Everything in the directory must be durable but its own entries.
  absl::Status Commit();
  bool committed() const { return committed_; }
  // Removes the directory after Commit, if it must not exist without another one.
  void Revoke();

 private:
  PartialDir(Env& env, const std::string& path);

  Env& env_;
  const std::string final_path_;
  const std::string path_;
  std::unique_ptr<FileLock> lock_;
  bool committed_ = false;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_PARTIAL_DIR_IMPL_H_
