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

// The committed checkpoints of one directory, as a rank of those that write it sees them, and their
// end: names first, then what they hold in stores, so that no manifest ever names a snapshot that
// is gone. It knows nothing of the checkpoint that is being written.
//
// Ranks:   each has one, of the same directory. All list the same checkpoints. Calls marked
//          collective are made by all of them and return the same on all.
// Threads: one call at a time, but for the const ones, which may run beside one another.
class CheckpointHistory {
 public:
  // dir: without slashes at its end. env outlives this.
  CheckpointHistory(Env& env, const std::string& dir, const RankGroup& group);

  // Where this rank's snapshots of a store in memory lie.
  std::string tables_dir() const;

  // CheckpointWriter::Attach, with no more than `keep` checkpoints left. Collective.
  absl::Status Attach(EmbeddingCollection* tables, StoreKind store, const std::string& tables_dir,
                      int64_t keep);

  // By step.
  const std::vector<CommittedCheckpoint>& committed() const { return committed_; }
  // A line for each checkpoint that was found damaged.
  const std::vector<std::string>& notes() const { return notes_; }
  // Of all ranks, by rank: where the collections keep their snapshots; absolute.
  const std::vector<SavedModel::Part>& places() const { return places_; }
  const SavedModel::Part& own() const { return own_; }  // places()[rank]

  // A name for the next snapshot of this rank.
  SnapshotId NextSnapshot() { return names_->Next({}); }
  // There is one checkpoint more, of the highest step.
  void Add(const CommittedCheckpoint& checkpoint) { committed_.push_back(checkpoint); }
  void ForgetOldest(int64_t count);

  // Of rank 0: takes the names of checkpoints away, durably.
  absl::Status Retire(std::span<const CommittedCheckpoint> old) const;
  // Of each rank, once all know that they are retired: lets go of what they hold. Rank 0 removes
  // their directories. Goes on after an error; the first one is returned.
  absl::Status Release(std::span<const CommittedCheckpoint> old) const;
  // All three, for the oldest ones. Collective.
  absl::Status RemoveOldest(int64_t count);

 private:
  absl::Status GatherPlaces();
  absl::Status RemoveUnfinished();
  absl::Status CheckShared();
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
