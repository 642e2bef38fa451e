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

// Saves models into one directory, each replacing the one before. What a crash left behind is
// removed by the next Save. One writer for a directory at a time; one call at a time.
//
// Tables of an ssd or rocksdb store stay where they are: the model is a snapshot in the store, and
// the manifest names its directory. Those of a memory store are a file in tables_dir().
//
// Ranks:  each has a writer of its own for one directory that all of them see. Each prepares and
//         commits the snapshot of its own store; rank 0 writes everything else.
class SavedModelWriter {
 public:
  // Makes the directory if it is not there. One that holds a model is fine: it stays until the
  // first Save. Rank 0 holds the lock dir/LOCK as long as the writer lives. Not collective.
  // communicator: of the ranks that save together, not owned; null: alone. Errors:
  // FailedPrecondition (not a directory, not to be written, in use by another job, or what is there
  // is damaged or of a newer version), what the file system says.
  static absl::StatusOr<std::unique_ptr<SavedModelWriter>> Open(
      Env* env, const std::string& dir, Communicator* communicator = nullptr);
  ~SavedModelWriter();
  SavedModelWriter(const SavedModelWriter&) = delete;
  SavedModelWriter& operator=(const SavedModelWriter&) = delete;

  // Of this rank.
  std::string tables_dir() const;

  // `model` says everything but the other parts and the tables' rows and hashes. Its one part is
  // this rank's: store and tables_dir of the collection, where it keeps its snapshots. The snapshot
  // of a memory store whose snapshot_dir is not tables_dir() is copied there. Rows and hashes that
  // `model` does not say are those of tables.Digest(); either way they are those of all ranks
  // together. After OK the model survives power loss. After an error the directory holds the model
  // from before or, where only the last sync failed, perhaps the new one; either is whole, and Save
  // may be called again.
  // Collective: all ranks return the same. What one rank met, all of them say, with its number.
  absl::Status Save(SavedModel model, EmbeddingCollection& tables,
                    const DenseArrays<const float>& dense);

 private:
  struct Impl;
  explicit SavedModelWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_SAVED_MODEL_WRITER_H_
