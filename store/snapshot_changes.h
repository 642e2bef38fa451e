#ifndef HOTROW_STORE_SNAPSHOT_CHANGES_H_
#define HOTROW_STORE_SNAPSHOT_CHANGES_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "store/row_store.h"

namespace hotrow {

// What a snapshot has that an earlier one of the same store, the parent, has not: for deltas. A
// store that keeps the order of its writes finds it by reading what was written since, not the
// tables. OpenSnapshotChanges (store/open.h) opens them.
//
// Contract: applied to the rows of the parent, rows and tombstones give the rows of the snapshot.
//           Rows that have not changed, and tombstones of keys that the parent has not, may be
//           among them: a store that moves rows need not know which.
// Lock, threads, errors: those of SnapshotReader.
class SnapshotChanges {
 public:
  virtual ~SnapshotChanges() = default;

  // The tables in the order in which the store has them.
  virtual std::span<const StoreTable> tables() const = 0;
  // The store's record of the snapshot.
  virtual const SnapshotInfo& info() const = 0;
  // Calls visit for each row and erased for each tombstone, each key once, in no particular order.
  virtual absl::Status Iterate(
      absl::FunctionRef<absl::Status(const RowKey& key, std::span<const std::byte> row)> visit,
      absl::FunctionRef<absl::Status(const RowKey& key)> erased) = 0;
  // Bytes of rows, and of what had to be read with them, so far. Lists of records are not counted.
  virtual int64_t bytes_read() const = 0;
};

// The parent.
struct ParentSnapshot {
  SnapshotId snapshot = 0;
  UniqueId identity;  // if known, the parent must have it (FailedPrecondition)
};

}  // namespace hotrow

#endif  // HOTROW_STORE_SNAPSHOT_CHANGES_H_
