#ifndef HOTROW_STORE_OPEN_H_
#define HOTROW_STORE_OPEN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/host/host_store.h"
#include "store/rocks/rocks_store.h"
#include "store/row_store.h"
#include "store/snapshot_changes.h"
#include "store/snapshot_reader.h"
#include "store/ssd/ssd_store.h"
#include "store/store_kind.h"

// The kinds of store and the operations on a store by its kind. Only this header and its source
// know all kinds; store/README.md says what a new kind touches.
namespace hotrow {

class Env;

// --- Opening -------------------------------------------------------------------------------------

// The options of a store of some kind, in the order of StoreKind.
using StoreOptions = std::variant<HostStoreOptions, SsdStoreOptions, RocksStoreOptions>;

inline StoreKind KindOf(const StoreOptions& options) {
  return static_cast<StoreKind>(options.index());
}

// Options that all kinds share. The other options of a kind keep their defaults, except that
// RocksStore estimates its number of rows: exact counts cost a read of each written key.
struct CommonStoreOptions {
  // The directory of the store. kMemory: that of its snapshots; empty: no snapshots.
  std::string path;
  std::vector<std::string> more_paths;  // of kinds that are striped: further directories
  std::vector<StoreTable> tables;
  int64_t memory_budget_bytes = 0;
  int64_t disk_budget_bytes = 0;  // kMemory ignores it
  // What errors call the two budgets.
  std::string memory_option = "CommonStoreOptions.memory_budget_bytes";
  std::string disk_option = "CommonStoreOptions.disk_budget_bytes";
  // Opens this snapshot, which must have this identity if one is given; 0: see each kind.
  SnapshotId open_at = 0;
  UniqueId open_at_identity;
  Env* env = nullptr;  // not owned, outlives the store; null, and always kRocksDb: the real one
};
StoreOptions MakeStoreOptions(StoreKind kind, const CommonStoreOptions& common);

// Errors: those of HostStore::Open, SsdStore::Open and OpenRocksStore.
absl::StatusOr<std::unique_ptr<RowStore>> OpenStore(const StoreOptions& options);

// --- Looking at a store that is not open ---------------------------------------------------------

// What a directory already holds.
struct StoreContents {
  bool has_rows = false;  // in the present state
  std::vector<SnapshotId> snapshots;
  bool has_commits = false;  // at least one of the snapshots is committed
};
// Changes nothing. A directory without a store is no error. kMemory: always empty, since a memory
// store opens empty next to snapshots of others. Errors: FailedPrecondition (it is open, here or in
// another process), those of the files.
absl::StatusOr<StoreContents> PeekStore(StoreKind kind, const std::string& path,
                                        Env* env = nullptr);

// Opens a snapshot for reading from end to end. Errors: see store/snapshot_reader.h.
absl::StatusOr<std::unique_ptr<SnapshotReader>> OpenSnapshot(StoreKind kind,
                                                             const SnapshotReaderOptions& options);

// What the snapshot has that an earlier one of the same store has not. Null where only comparing
// both tells: of kinds that keep no order of writes (all but kSsd), and where the store says so
// (see OpenSsdChanges). Errors: see store/snapshot_changes.h.
absl::StatusOr<std::unique_ptr<SnapshotChanges>> OpenSnapshotChanges(
    StoreKind kind, const SnapshotReaderOptions& options, const ParentSnapshot& parent);

// Checks that the snapshot exists and has the identity, as far as that is quick: kMemory reads the
// header of its file, kSsd the manifest, kRocksDb the list of the snapshot. Needs no lock.
absl::Status CheckSnapshot(StoreKind kind, const SnapshotReaderOptions& options);

// What VerifySnapshot has found.
struct SnapshotVerdict {
  std::vector<std::string> damage;  // a line with the place of each fault
  // The damage is of the whole store, so of any snapshot.
  bool of_whole_store = false;
};
// Checks the parts of a snapshot that reading its rows (OpenSnapshot) does not. kSsd:
// VerifySsdStore, and the segments of the snapshot alone while the store is open; kRocksDb:
// VerifyRocksSnapshot; kMemory: nothing is left to check. Errors: those of these functions,
// FailedPrecondition (the snapshot was dropped meanwhile).
absl::StatusOr<SnapshotVerdict> VerifySnapshot(StoreKind kind,
                                               const SnapshotReaderOptions& options);

}  // namespace hotrow

#endif  // HOTROW_STORE_OPEN_H_
