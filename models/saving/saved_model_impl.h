#ifndef HOTROW_MODELS_SAVING_SAVED_MODEL_IMPL_H_
#define HOTROW_MODELS_SAVING_SAVED_MODEL_IMPL_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/saving/saved_model.h"
#include "store/row_store.h"

// Names and paths that saved models and checkpoints share.
namespace hotrow {

inline constexpr char kManifestName[] = "manifest.json";
inline constexpr char kMemory[] = "memory";  // StoreKindName
// In `requires` of manifests, the portable form's too: tables have a weights_precision.
inline constexpr char kRequiresWeightsPrecision[] = "weights_precision";

// A row's floats are counted in int32; no store takes rows of this size.
inline constexpr int64_t kTableDimMax = int64_t{1} << 26;

// Whether ReadSavedModel would take a manifest of this length. ResourceExhausted, naming the limit.
absl::Status CheckManifestBytes(int64_t bytes);

std::string ManifestPath(const std::string& dir);
std::string ParentDir(const std::string& path);  // "." of a name, "/" of what lies there
std::string WithoutEndingSlashes(std::string path);
// Without "." and ".."; links are not followed.
std::string AbsolutePath(const std::string& path);
// An absolute path as it is, others from `dir`.
std::string JoinPath(const std::string& dir, const std::string& path);

// The file that LockJobDir locks.
std::string JobLockPath(const std::string& dir);
// Takes the lock of a directory that one job at a time writes, the file dir/LOCK, which is made if
// it is missing and stays. Readers do not need it. Null where the file system has no locks.
// flag: that names the directory, as "checkpoint_dir". Errors: FailedPrecondition (another job, in
// this process or another, has it; names both).
absl::StatusOr<std::unique_ptr<FileLock>> LockJobDir(Env& env, std::string_view flag,
                                                     const std::string& dir);

// A snapshot of a memory store is one file (docs/formats/host_snapshot.md).
std::string SnapshotFileName(SnapshotId id);
// The snapshots whose files lie in a directory.
absl::StatusOr<std::vector<SnapshotId>> ListSnapshotFiles(Env& env, const std::string& dir);
// What a rank tells the others of its snapshot: identity and rows of each table, as a text.
std::string SnapshotInfoText(const SnapshotInfo& info);
// Fills these members of a part from it. Errors: Internal (another rank's text makes no sense).
absl::Status TakeSnapshotInfo(std::string_view text, SavedModel::Part* part);

// What a message about all rows of a table names: their one directory, or that of the manifest.
std::string TablesPlace(const SavedModel& model);

// Removes snapshots of memory stores of any number of ranks that lie below dir/tables and that none
// of `named` names, and what directories of ranks are empty then. The directories in_use, absolute
// paths, are left alone: their stores do that.
absl::Status RemoveUnnamedSnapshots(Env& env, const std::string& dir,
                                    const std::vector<SavedModel::Part>& named,
                                    const std::set<std::string>& in_use);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_SAVED_MODEL_IMPL_H_
