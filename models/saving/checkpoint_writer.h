#ifndef HOTROW_MODELS_SAVING_CHECKPOINT_WRITER_H_
#define HOTROW_MODELS_SAVING_CHECKPOINT_WRITER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "embedding/embedding_collection.h"
#include "models/saving/dense_file.h"
#include "models/saving/saved_model.h"

namespace hotrow {

class Communicator;
class TraceRecorder;

struct CheckpointWriterOptions {
  std::string dir;
  int64_t keep = 2;  // how many stay; at least 1
  // false: everything runs inside the calls, in one order, for tests that walk over file calls.
  bool background = true;
  Env* env = nullptr;              // required
  TraceRecorder* trace = nullptr;  // spans "checkpoint_begin", "checkpoint_commit"

  // This process among those that train together, each with rows and a writer of its own; `dir` is
  // one directory that all of them see.
  Communicator* communicator = nullptr;  // not owned; null: alone
};

// Nanoseconds; sums and maxima over the checkpoints of this writer. `count` and `early` are the
// same on all ranks, the others this rank's.
struct CheckpointStats {
  int64_t count = 0;     // committed
  int64_t early = 0;     // of them, taken to free disk space
  int64_t bytes = 0;     // written for them: dense files, manifests, residuals and dirty rows
  int64_t pause_ns = 0;  // training stood still: the time of Begin
  int64_t pause_ns_max = 0;
  int64_t pause_ns_last = 0;
  int64_t commit_ns = 0;  // from the beginning to the commit
  int64_t commit_ns_max = 0;
  int64_t commit_ns_last = 0;
};

// Takes the checkpoints of one run, one at a time, in two phases: Begin copies what is small and
// begins the snapshot of the tables; when that is durable, manifest and dense file are committed by
// one rename; then the oldest checkpoints beyond `keep` are removed, their manifests before their
// snapshots, so that no manifest ever names a snapshot that is gone. Until then the one before
// stays.
//
// Ranks:   each prepares, commits and drops the snapshots of its own store; rank 0 alone makes and
//          removes checkpoints' directories, into which each writes its residuals, if there are any
//          (EmbeddingCollection::keeps_residuals; a copy of them lives until they are written).
//          Calls marked collective are made by all ranks at the same point of the run, and return
//          the same on all; they exchange a few numbers and wait for other ranks only to come to
//          the same call. However long files take, each exchange is answered within milliseconds.
//          What the const calls say is the same on all ranks.
// Threads: one call at a time, on the thread that calls the collection. File work runs on a thread
//          of the writer's own, which also tells the collection to commit and drop snapshots, while
//          other calls of it go on.
// Errors:  what file system and store say. A checkpoint that failed does not exist, or, where only
//          the last sync failed, perhaps; those before it are there. After ResourceExhausted the
//          next may begin. What one rank met, all ranks return: its status with its number before
//          the message; of several ranks ResourceExhausted goes first, as it has a remedy. After an
//          error of the communicator only the destructor may follow.
class CheckpointWriter {
 public:
  // Makes the directory if it is missing. Changes nothing in one that is there, but for the file
  // LOCK, which rank 0 holds locked as long as the writer lives. Not collective. Errors:
  // FailedPrecondition (not a directory, not to be written, in use by another job).
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Open(
      const CheckpointWriterOptions& options);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // The snapshot_dir of this rank's collection in memory.
  std::string tables_dir() const;

  // Collective. Ties the writer to this rank's collection, whose snapshots lie in tables_dir of a
  // store of this kind, and removes what a crash left: directories without a name, snapshots of
  // this directory that no checkpoint names, and checkpoints beyond `keep`. Checkpoints of another
  // number of ranks are like any other; rows that they hold in ssd or rocksdb stores which are not
  // of this run stay there when they go. Damaged checkpoints but for the newest are left alone,
  // with all snapshots that may be theirs: see notes(). Errors: FailedPrecondition (a rank does not
  // see what rank 0 writes into `dir`; two ranks with one tables_dir).
  absl::Status Attach(EmbeddingCollection* tables, StoreKind store, const std::string& tables_dir);

  // A line for each checkpoint that Attach found damaged: what it is, and the remedy. The same on
  // all ranks but for what each found itself.
  const std::vector<std::string>& notes() const;

  bool busy() const;
  // The step of the newest checkpoint that is committed; -1: none.
  int64_t newest_step() const;
  int64_t num_committed() const;
  // Directory of the newest one.
  std::string newest_dir() const;

  // Begins a checkpoint, on all ranks, of the same step; not while busy(). `model` says everything
  // but the parts; what rank 0 says counts, and its dense parameters. early: it is taken to free
  // disk space; those before it go when it is committed, whatever `keep` says. FailedPrecondition
  // when there is one of that step. It exchanges nothing: with several ranks, what keeps this one
  // from beginning is said by Poll or Wait.
  absl::Status Begin(SavedModel model, const DenseArrays<const float>& dense, bool early = false);
  // Carries the checkpoint on as far as it goes without waiting. True when it has just been
  // committed. Collective while busy(), and exchanges nothing otherwise.
  absl::StatusOr<bool> Poll();
  // Waits until it is committed; OK when there is none. Collective. It goes on exchanging numbers
  // all the while, so that no timeout of the communicator bounds how long writing may take.
  absl::Status Wait();
  // Removes all but the newest one. False when there is but one. Not while busy(). Collective.
  absl::StatusOr<bool> KeepNewestOnly();

  const CheckpointStats& stats() const;

 private:
  struct Impl;
  explicit CheckpointWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_CHECKPOINT_WRITER_H_
