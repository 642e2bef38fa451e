#ifndef HOTROW_MODELS_SAVING_SAVED_SNAPSHOTS_IMPL_H_
#define HOTROW_MODELS_SAVING_SAVED_SNAPSHOTS_IMPL_H_

#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/saving/portable_tables.h"
#include "models/saving/saved_model.h"
#include "store/row_store.h"

namespace hotrow {

// Snapshots of stores, as saved models and checkpoints use them: their names, the files of those of
// memory stores, and what ranks tell each other about them.

// The order in which a collection gives its tables to a store: narrow rows first.
std::vector<StoreTable> StoreTablesOf(const std::vector<PortableTable>& tables);

// Names the snapshots of one owner, which is the directory of a saved model or of checkpoints.
// Several owners may keep snapshots in one store, and each removes only its own. The upper half of
// a name is a hash of the owner's path, the lower half counts up. An owner that moves keeps its
// names, so that it knows what a kill has left behind wherever that was.
class SnapshotNames {
 public:
  // exclusive: all snapshots in the store belong to this owner, with any names.
  SnapshotNames(const std::string& owner, bool exclusive);
  // Goes on with the names of this snapshot of the owner.
  void GoOnWith(SnapshotId id);
  // Whether the owner has this name, by the path where it lies now.
  bool owns(SnapshotId id) const;
  // A name above all names of this owner in `existing`, and above all that Next has returned.
  SnapshotId Next(const std::vector<SnapshotId>& existing);

 private:
  SnapshotId base_;
  SnapshotId base_of_path_;
  bool exclusive_;
  SnapshotId last_;
};

// Whether an owner that has moved since left this snapshot behind under the name that it had
// before: `named` are its snapshots in the store. It is older than one of these that has the same
// name, and was to be removed, or it was never committed. Newer ones may be of the original of a
// copy.
bool IsLeftBehind(const SnapshotInfo& info, std::span<const SnapshotId> named);

inline constexpr char kSnapshotSuffix[] = ".snapshot";
// A snapshot of a memory store is one file (docs/formats/host_snapshot.md).
std::string SnapshotFileName(SnapshotId id);
// nullopt: not the name of such a file.
std::optional<SnapshotId> SnapshotOfFileName(const std::string& name);
// The snapshots that have files in a directory.
absl::StatusOr<std::vector<SnapshotId>> ListSnapshotFiles(Env& env, const std::string& dir);
// A rank's message about its snapshot: identity and rows of each table, as a text.
std::string SnapshotInfoText(const SnapshotInfo& info);
// Fills these members of a part from the message. Errors: Internal (malformed).
absl::Status TakeSnapshotInfo(std::string_view text, SavedModel::Part* part);

// Removes the snapshots of memory stores below dir/tables, of any number of ranks, that no part in
// `named` names, and directories of ranks that become empty. Leaves alone the directories in_use
// (absolute paths): their stores clean up themselves.
absl::Status RemoveUnnamedSnapshots(Env& env, const std::string& dir,
                                    const std::vector<SavedModel::Part>& named,
                                    const std::set<std::string>& in_use);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_SAVED_SNAPSHOTS_IMPL_H_
