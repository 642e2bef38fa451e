#ifndef HOTROW_MODELS_SAVING_CHECKPOINT_WRITER_H_
#define HOTROW_MODELS_SAVING_CHECKPOINT_WRITER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "embedding/embedding_collection.h"
#include "models/saving/saved_model.h"

namespace hotrow {

class Communicator;
class Env;
class TraceRecorder;

struct CheckpointWriterOptions {
  std::string dir;
  int64_t keep = 2;  // checkpoints that stay; at least 1
  // false: all work runs inside the calls, in one order, for tests that fail each file call in turn
  bool background = true;
  Env* env = nullptr;              // of all files; not owned; null: the real file system
  TraceRecorder* trace = nullptr;  // spans "checkpoint_begin", "checkpoint_commit"

  // Connects the ranks of this run. Each has its own rows and writer; all see the same `dir`.
  Communicator* communicator = nullptr;  // not owned; null: alone
};

// Sums and maxima over the checkpoints of this writer; times in nanoseconds. `count` and `early`
// are the same on all ranks, everything else is this rank's.
struct CheckpointStats {
  int64_t count = 0;     // committed
  int64_t early = 0;     // of these, taken early to free disk space
  int64_t bytes = 0;     // written: dense files, manifests, residuals and dirty rows
  int64_t pause_ns = 0;  // time in Begin, while training stands still
  int64_t pause_ns_max = 0;
  int64_t pause_ns_last = 0;
  int64_t commit_ns = 0;  // from Begin to the commit
  int64_t commit_ns_max = 0;
  int64_t commit_ns_last = 0;
};

// Takes the checkpoints of one run, one at a time. Begin copies the small parts and begins a
// snapshot of the tables. Once the snapshot is durable, one rename commits manifest and dense file.
// Then the oldest checkpoints beyond `keep` are removed, manifests before snapshots, so no manifest
// ever names a snapshot that is gone. The previous checkpoint stays until the new one is committed.
//
// Ranks:   each rank prepares, commits and drops the snapshots of its own store, and writes its
//          residuals, if it keeps any (EmbeddingCollection::keeps_residuals; a copy of them lives
//          until they are written). Only rank 0 makes and removes checkpoint directories. All ranks
//          make collective calls at the same point of the run, and the calls return the same on
//          all. They exchange a few numbers and wait for nothing but the other ranks' calls: each
//          exchange is answered within milliseconds, however long files take. Const calls return
//          the same on all ranks.
// Threads: one call at a time, on the thread that calls the collection. File work runs on a thread
//          of the writer's own. That thread also commits and drops snapshots of the collection,
//          while other calls of the collection go on.
// Errors:  those of the file system and the store. A checkpoint that failed does not exist; only if
//          the last sync failed, it may. Earlier checkpoints stay. After ResourceExhausted the next
//          one may begin. An error on any rank is returned by all, with that rank's number in front
//          of the message; if several ranks fail, ResourceExhausted wins, since it has a remedy.
//          After an error of the communicator only the destructor may be called.
class CheckpointWriter {
 public:
  // Makes the directory if it is missing. In an existing one it changes only the file LOCK, which
  // rank 0 holds for the life of the writer. Not collective. Errors: FailedPrecondition (not a
  // directory, not writable, in use by another job).
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Open(
      const CheckpointWriterOptions& options);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // The snapshot_dir of this rank's collection in memory.
  std::string tables_dir() const;

  // Ties the writer to this rank's collection, which keeps its snapshots in tables_dir of a store
  // of this kind, and removes what a crash left: unfinished directories, snapshots of this
  // directory that no checkpoint names, and checkpoints beyond `keep`. Checkpoints of another
  // number of ranks count like any other; when they go, their rows in ssd or rocksdb stores of
  // other runs stay. Damaged checkpoints other than the newest are left alone, with all snapshots
  // that may be theirs: see notes(). Collective. Errors: DataLoss (the newest checkpoint is
  // damaged), FailedPrecondition (a rank does not see what rank 0 writes into `dir`; two ranks have
  // the same tables_dir; the newest checkpoint is of a version that this build does not read).
  absl::Status Attach(EmbeddingCollection* tables, StoreKind store, const std::string& tables_dir);

  // One line for each checkpoint that Attach found damaged, with the remedy. A rank's lines differ
  // from other ranks' only for damage that it found itself.
  const std::vector<std::string>& notes() const;

  bool busy() const;
  // The step of the newest checkpoint that is committed; -1: none.
  int64_t newest_step() const;
  int64_t num_committed() const;
  // Directory of the newest one.
  std::string newest_dir() const;

  // Begins a checkpoint of one step on all ranks; not while busy(). `model` has everything but the
  // parts, and blob_bytes that pass CheckBlobs; rank 0's `model` and `dense` count. early: the
  // checkpoint is taken to free disk space, and all earlier ones go when it is committed, with any
  // `keep`. One of the step of the newest comes beside it, with its own name: rows may have
  // been erased or written since. FailedPrecondition if there is one of a later step. Exchanges
  // nothing: with several ranks, Poll or Wait return what kept this rank from beginning.
  absl::Status Begin(SavedModel model, const DenseArrays<const float>& dense, bool early = false);
  // Advances the checkpoint as far as possible without waiting. True if it has just been committed.
  // Collective while busy(); otherwise it exchanges nothing.
  absl::StatusOr<bool> Poll();
  // Waits until the checkpoint is committed; OK if there is none. Collective. It keeps exchanging
  // numbers meanwhile, so no timeout of the communicator limits how long writing may take.
  absl::Status Wait();
  // Removes all checkpoints but the newest. False if there is only one. Not while busy().
  // Collective.
  absl::StatusOr<bool> KeepNewestOnly();

  const CheckpointStats& stats() const;

 private:
  struct Impl;
  explicit CheckpointWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_CHECKPOINT_WRITER_H_
