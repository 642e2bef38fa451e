#ifndef HOTROW_MODELS_SAVING_PARTIAL_DIR_IMPL_H_
#define HOTROW_MODELS_SAVING_PARTIAL_DIR_IMPL_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"

namespace hotrow {

// OK when there is nothing of that name, or an empty directory. FailedPrecondition otherwise.
absl::Status CheckIsFree(Env& env, const std::string& path);

// A directory in the making, under a temporary name beside its own. Destroying it before Commit
// removes it. One thread at a time; a second one of the same path waits for nothing and fails.
class PartialDir {
 public:
  // Removes what a kill left behind of another one. FailedPrecondition: somebody makes it already.
  static absl::StatusOr<std::unique_ptr<PartialDir>> Create(Env& env, const std::string& path);
  ~PartialDir();
  PartialDir(const PartialDir&) = delete;
  PartialDir& operator=(const PartialDir&) = delete;

  const std::string& path() const { return path_; }

  // Everything in it is durable but its own entries.
  absl::Status Commit();
  bool committed() const { return committed_; }
  // Takes a Commit back, for one that must not be there alone.
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
