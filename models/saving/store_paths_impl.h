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
std::string ParentDir(const std::string& path);  // "." for "a", "/" for "/a"
std::string WithoutEndingSlashes(std::string path);
// The path without "." and ".."; links are not followed.
std::string AbsolutePath(const std::string& path);
// `path` if it is absolute, otherwise dir/path.
std::string JoinPath(const std::string& dir, const std::string& path);

// Below a saved model or a directory of checkpoints: snapshots of memory stores.
inline constexpr char kTablesName[] = "tables";
// Whether this is a name that RankDir gives: "rank-00002-of-00004".
bool IsRankDirName(const std::string& name);

// The file that LockJobDir locks.
std::string JobLockPath(const std::string& dir);
// Locks a directory that one job at a time may write. The lock is the file dir/LOCK, which is made
// if it is missing, and stays. Readers do not need it. Null if the file system has no locks. flag:
// the one that names the directory, such as "checkpoint_dir". Errors: FailedPrecondition (another
// job, in this process or another, holds the lock; names flag, directory and lock).
absl::StatusOr<std::unique_ptr<FileLock>> LockJobDir(Env& env, std::string_view flag,
                                                     const std::string& dir);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_STORE_PATHS_IMPL_H_
