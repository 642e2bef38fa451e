#ifndef HOTROW_MODELS_SAVING_CHECKPOINT_HISTORY_IMPL_H_
#define HOTROW_MODELS_SAVING_CHECKPOINT_HISTORY_IMPL_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/env.h"
#include "embedding/embedding_collection.h"
#include "models/saving/rank_group_impl.h"
#include "models/saving/saved_model.h"
#include "models/saving/saved_snapshots_impl.h"
#include "store/open.h"

namespace hotrow {

struct CommittedCheckpoint {
  int64_t step = 0;
  std::string dir;
  std::vector<SavedModel::Part> parts;  // with absolute paths
};

// The committed checkpoints of one directory, and their removal: names first, then what they hold
// in stores, so no manifest ever names a snapshot that is gone. It does not know the checkpoint
// that is being written.
//
// Ranks:   each rank has a history of the same directory; all list the same checkpoints. All ranks
//          make collective calls, which return the same on all.
// Threads: one call at a time, except that const calls may run concurrently.
// Errors:  those of the file system and the store, and of the communicator.
class CheckpointHistory {
 public:
  // dir: has no slash at its end. env outlives this.
  CheckpointHistory(Env& env, const std::string& dir, const RankGroup& group);

  // Where this rank's snapshots lie if its store is in memory.
  std::string tables_dir() const;

  // The same as CheckpointWriter::Attach; leaves at most `keep` checkpoints. Collective.
  absl::Status Attach(EmbeddingCollection* tables, StoreKind store, const std::string& tables_dir,
                      int64_t keep);

  // Checkpoints by step.
  const std::vector<CommittedCheckpoint>& committed() const { return committed_; }
  // The same as CheckpointWriter::notes.
  const std::vector<std::string>& notes() const { return notes_; }
  // Places by rank: store and absolute directory of the rank's collection.
  const std::vector<SavedModel::Part>& places() const { return places_; }
  const SavedModel::Part& own() const { return own_; }  // places()[rank]

  // A name for the next snapshot of this rank.
  SnapshotId NextSnapshot() { return names_->Next({}); }
  // Adds a checkpoint that was committed; no other has a higher step.
  void Add(const CommittedCheckpoint& checkpoint) { committed_.push_back(checkpoint); }
  void ForgetOldest(int64_t count);

  // Takes away the names of checkpoints, durably, on rank 0.
  absl::Status Retire(std::span<const CommittedCheckpoint> old) const;
  // On each rank, once all know that these are retired: drops what they hold in stores. Rank 0 also
  // removes their directories. Goes on after an error and returns the first one.
  absl::Status Release(std::span<const CommittedCheckpoint> old) const;
  // Retires, forgets and releases the oldest ones. Collective.
  absl::Status RemoveOldest(int64_t count);

 private:
  absl::Status GatherPlaces();
  absl::Status RemoveUnfinished();
  absl::Status CheckShared();
  bool IsOfOwnStore(const SavedModel::Part& part) const;
  absl::Status ReadCommitted();
  absl::Status AgreeOnDamaged();
  absl::Status DropUnnamed();
  bool MayBeOfDamaged(SnapshotId id) const;
  absl::Status DropIfThere(SnapshotId id) const;
  absl::Status ReleaseOne(const CommittedCheckpoint& checkpoint) const;

  Env& env_;
  const std::string dir_;
  const RankGroup group_;
  EmbeddingCollection* tables_ = nullptr;
  std::vector<SavedModel::Part> places_;
  SavedModel::Part own_;
  std::optional<SnapshotNames> names_;
  std::vector<CommittedCheckpoint> committed_;
  std::vector<std::string> damaged_;  // names of checkpoints that are not among them
  std::vector<std::string> notes_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_CHECKPOINT_HISTORY_IMPL_H_
