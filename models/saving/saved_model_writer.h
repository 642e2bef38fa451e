#ifndef HOTROW_MODELS_SAVING_SAVED_MODEL_WRITER_H_
#define HOTROW_MODELS_SAVING_SAVED_MODEL_WRITER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "embedding/embedding_collection.h"
#include "models/saving/dense_file.h"
#include "models/saving/saved_model.h"

namespace hotrow {

class Communicator;

// Saves models into one directory, each replacing the previous one. Save also removes what a crash
// left behind.
//
// Tables of an ssd or rocksdb store stay where they are: the model is a snapshot in the store, and
// the manifest names its directory. Tables of a memory store become a file in tables_dir().
//
// Ranks:   each has a writer for the same directory, which all of them see. Each prepares and
//          commits the snapshot of its own store; rank 0 writes everything else.
// Threads: one writer for a directory at a time; one call at a time.
class SavedModelWriter {
 public:
  // Makes the directory if it is missing. A model that it holds stays until the first Save. Rank 0
  // holds the lock dir/LOCK for the life of the writer. Not collective. communicator: of the ranks
  // that save together, not owned; null: a single process. Errors: FailedPrecondition (not a
  // directory, not writable, in use by another job, it holds checkpoints, or its model is damaged
  // or of a version that this build does not read), those of the file system.
  static absl::StatusOr<std::unique_ptr<SavedModelWriter>> Open(
      Env* env, const std::string& dir, Communicator* communicator = nullptr);
  ~SavedModelWriter();
  SavedModelWriter(const SavedModelWriter&) = delete;
  SavedModelWriter& operator=(const SavedModelWriter&) = delete;

  // The directory of this rank's tables.
  std::string tables_dir() const;

  // `model` has one part, this rank's: store and tables_dir of the collection, where it keeps its
  // snapshots. If that is a memory store whose snapshot_dir is not tables_dir(), the snapshot is
  // copied there. Rows and hashes of the tables are those of all ranks together; if `model` lacks
  // any, tables.Digest() counts them. After OK the model survives power loss. After an error the
  // directory holds the old model, or, only if the last sync failed, perhaps the new one. Either is
  // whole, and Save may be called again.
  // Collective: all ranks return the same. An error on any rank is returned by all, with its
  // number.
  absl::Status Save(SavedModel model, EmbeddingCollection& tables,
                    const DenseArrays<const float>& dense);

 private:
  struct Impl;
  explicit SavedModelWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_SAVED_MODEL_WRITER_H_
