#ifndef HOTROW_EMBEDDING_SNAPSHOTS_H_
#define HOTROW_EMBEDDING_SNAPSHOTS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/snapshot.h"

namespace hotrow {

// EmbeddingSnapshots takes two-phase snapshots of all rows of a collection on this rank:
// EmbeddingCollection::snapshots(). The caller chooses the name (a trainer uses the step), makes
// the tables durable under it, makes its own manifest durable, and then commits.
//
// Threads: Commit, Drop, List and Describe may run beside all calls of the collection, the others
//          are calls of it.
class EmbeddingSnapshots {
 public:
  virtual ~EmbeddingSnapshots() = default;

  // Says that a snapshot will be begun before long, some hundred steps ahead say. A thread then
  // does what can be done before: an ssd store moves rows out of segments that are mostly garbage,
  // which a snapshot would hold on to. Without it that is done between begin and capture, and
  // training may have to wait for it. Returns at once; does nothing while a snapshot is being
  // written.
  virtual void Announce() = 0;
  // Takes the tables as they are after the last Update. Returns after a pause of milliseconds: it
  // only marks the dirty rows. A thread writes them to the store while training goes on; an Update
  // that is about to change a marked row copies it first, and a row that was changed since and is
  // evicted waits in a buffer of the cache's budget until the store has captured the snapshot.
  // Over a disk that is so full that such rows might find no room, the call waits for the capture.
  // Steps may be in flight. One snapshot at a time. Without a cache there is nothing to copy from:
  // rows are trained where the store keeps them, and the pause is the whole write.
  // Errors: FailedPrecondition (no snapshot_dir; a name that is 0 or used; another snapshot is
  // being written), and without a cache those of the file system.
  virtual absl::Status Begin(SnapshotId snapshot) = 0;
  // Whether the snapshot that was begun last is durable under its name. An error says that it
  // failed: it does not exist, the tables are as if it had never been begun, and the next may
  // begin. FailedPrecondition when none was begun.
  virtual absl::StatusOr<bool> Prepared() = 0;
  // Waits until it is, or has failed; the same errors.
  virtual absl::Status Wait() = 0;
  // Begin, then Wait.
  virtual absl::Status Prepare(SnapshotId snapshot) = 0;

  virtual absl::Status Commit(SnapshotId snapshot) = 0;
  virtual absl::Status Drop(SnapshotId snapshot) = 0;
  // Prepared and committed ones, ascending, with those that were there before.
  virtual absl::StatusOr<std::vector<SnapshotId>> List() = 0;
  // Once it is prepared. Errors: FailedPrecondition (there is none).
  virtual absl::StatusOr<SnapshotInfo> Describe(SnapshotId snapshot) = 0;
};

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_SNAPSHOTS_H_
