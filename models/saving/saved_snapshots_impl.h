#ifndef HOTROW_MODELS_SAVING_SAVED_SNAPSHOTS_IMPL_H_
#define HOTROW_MODELS_SAVING_SAVED_SNAPSHOTS_IMPL_H_

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/saving/saved_model.h"
#include "store/row_store.h"

namespace hotrow {

// The snapshots of stores that saved models and checkpoints name: their names, the files of those
// of memory stores, and what a rank tells the others of its own.

// Names of snapshots of one owner, a saved model's or checkpoints' directory: several may keep
// snapshots in one store, and each removes its own only. The upper half of the name is a hash of
// the owner's path, the lower half counts.
class SnapshotNames {
 public:
  // `exclusive`: all snapshots in the store are this owner's, whatever their names.
  SnapshotNames(const std::string& owner, bool exclusive);
  bool owns(SnapshotId id) const;
  // A name that is above all that `existing` has of this owner and that this returned before.
  SnapshotId Next(const std::vector<SnapshotId>& existing);

 private:
  SnapshotId base_;
  bool exclusive_;
  SnapshotId last_;
};

inline constexpr char kSnapshotSuffix[] = ".snapshot";
// A snapshot of a memory store is one file (docs/formats/host_snapshot.md).
std::string SnapshotFileName(SnapshotId id);
// None: the file has another kind of name.
std::optional<SnapshotId> SnapshotOfFileName(const std::string& name);
// The snapshots whose files lie in a directory.
absl::StatusOr<std::vector<SnapshotId>> ListSnapshotFiles(Env& env, const std::string& dir);
// What a rank tells the others of its snapshot: identity and rows of each table, as a text.
std::string SnapshotInfoText(const SnapshotInfo& info);
// Fills these members of a part from it. Errors: Internal (another rank's text makes no sense).
absl::Status TakeSnapshotInfo(std::string_view text, SavedModel::Part* part);

// Removes snapshots of memory stores of any number of ranks that lie below dir/tables and that none
// of `named` names, and what directories of ranks are empty then. The directories in_use, absolute
// paths, are left alone: their stores do that.
absl::Status RemoveUnnamedSnapshots(Env& env, const std::string& dir,
                                    const std::vector<SavedModel::Part>& named,
                                    const std::set<std::string>& in_use);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_SAVED_SNAPSHOTS_IMPL_H_
