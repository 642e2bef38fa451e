#ifndef HOTROW_STORE_ROCKS_ROCKS_SNAPSHOTS_IMPL_H_
#define HOTROW_STORE_ROCKS_ROCKS_SNAPSHOTS_IMPL_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/rocks/rocks_store.h"
#include "store/row_store.h"

namespace hotrow::internal {

class RocksDisk;
class RocksEngine;

// The snapshots of a RocksStore: checkpoints of its database in snapshots/<id>, each with the list
// of what it consists of. They share table files with the present state.
//
// Threads: all methods may run concurrently; those that make, commit, drop or describe take turns.
// Errors:  FailedPrecondition (no such snapshot, or one that is there already), those of the files
//          and of RocksDB.
class RocksSnapshots {
 public:
  // All outlive it.
  RocksSnapshots(const RocksStoreOptions& options, RocksEngine& engine, RocksDisk& disk)
      : options_(options), engine_(engine), disk_(disk) {}

  // The same as in RowStore. rows_at_open: of the store, for a database that was not written to
  // since and so has no count itself.
  absl::Status Prepare(SnapshotId snapshot, int64_t rows_at_open,
                       absl::FunctionRef<void()> captured);
  absl::Status Commit(SnapshotId snapshot);
  absl::Status Drop(SnapshotId snapshot);
  absl::StatusOr<std::vector<SnapshotId>> List() const;
  absl::StatusOr<SnapshotInfo> Describe(SnapshotId snapshot);

 private:
  std::string Dir() const;
  absl::Status CheckExists(SnapshotId snapshot) const;
  absl::Status WriteList(SnapshotId snapshot, const std::string& dir, uint64_t last,
                         int64_t rows_at_open) const;

  const RocksStoreOptions& options_;
  RocksEngine& engine_;
  RocksDisk& disk_;
  std::mutex mutex_;  // one snapshot is made, committed or dropped at a time
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_ROCKS_ROCKS_SNAPSHOTS_IMPL_H_
