#ifndef HOTROW_EMBEDDING_TIERS_SNAPSHOT_ROWS_IMPL_H_
#define HOTROW_EMBEDDING_TIERS_SNAPSHOT_ROWS_IMPL_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/row_store.h"

namespace hotrow::internal {

// Rows of which Snapshots takes snapshots: a store, and caches above it where there are some.
//
// Threads: BeginSnapshot is the caller's; the others are called by the thread of the snapshot.
class SnapshotRows {
 public:
  virtual ~SnapshotRows() = default;

  virtual RowStore* store() const = 0;
  // Whether there are caches; without them only the store is asked.
  virtual bool has_caches() const = 0;

  // Why no snapshot may be taken of them any more, or OK.
  virtual absl::Status Broken() const = 0;
  // Begins a snapshot; on an error none has begun.
  virtual absl::Status BeginSnapshot() = 0;
  // Writes some of the rows that were dirty then to the store. False: all are there.
  virtual absl::StatusOr<bool> WriteSnapshotPart() = 0;
  // The store has captured the snapshot, or there will be none.
  virtual void EndSnapshot() = 0;
  // After EndSnapshot: writes what was held back until then. On an error it stays held back, and
  // the next step or snapshot tries again and reports it.
  virtual absl::Status WriteHeld() = 0;
  // Whether rows that change while a snapshot is being written find room in the store after it.
  virtual bool HasRoomBesideSnapshot() = 0;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TIERS_SNAPSHOT_ROWS_IMPL_H_
