#ifndef HOTROW_MODELS_SAVING_STORE_PATHS_IMPL_H_
#define HOTROW_MODELS_SAVING_STORE_PATHS_IMPL_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/saving/store_paths.h"

namespace hotrow {

std::string ManifestPath(const std::string& dir);
std::string ParentDir(const std::string& path);  // "." of a name, "/" of what lies there
std::string WithoutEndingSlashes(std::string path);
// Without "." and ".."; links are not followed.
std::string AbsolutePath(const std::string& path);
// An absolute path as it is, others from `dir`.
std::string JoinPath(const std::string& dir, const std::string& path);

// "tables": of a saved model, or of a directory of checkpoints, where rows of memory stores lie.
inline constexpr char kTablesName[] = "tables";
// Whether RankDir gives a directory of this name: "rank-00002-of-00004".
bool IsRankDirName(const std::string& name);

// The file that LockJobDir locks.
std::string JobLockPath(const std::string& dir);
// Takes the lock of a directory that one job at a time writes, the file dir/LOCK, which is made if
// it is missing and stays. Readers do not need it. Null where the file system has no locks.
// flag: that names the directory, as "checkpoint_dir". Errors: FailedPrecondition (another job, in
// this process or another, has it; names both).
absl::StatusOr<std::unique_ptr<FileLock>> LockJobDir(Env& env, std::string_view flag,
                                                     const std::string& dir);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_STORE_PATHS_IMPL_H_
