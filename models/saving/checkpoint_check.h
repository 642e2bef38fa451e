#ifndef HOTROW_MODELS_SAVING_CHECKPOINT_CHECK_H_
#define HOTROW_MODELS_SAVING_CHECKPOINT_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/saving/portable_tables.h"
#include "models/saving/saved_model.h"

namespace hotrow {

// The parts of a saved model or checkpoint, and their damage.
struct CheckpointReport {
  SavedModel model;
  // Names of all checkpoints in its directory of checkpoints, by step; empty for a saved model.
  std::vector<std::string> checkpoints;

  struct File {
    std::string path;
    int64_t bytes = -1;  // -1: it is not there
  };
  // Files that belong to it alone: manifest, dense file, snapshots of memory stores, residuals,
  // blobs.
  std::vector<File> files;

  std::vector<int64_t> part_rows;  // of each part, by rank; -1: not known
  // Rows by table, all parts together, as counted in their snapshots; empty: some were not counted.
  std::vector<int64_t> table_rows;

  int64_t rows = -1;         // of all tables; -1: not known
  std::string rows_unknown;  // why
  // What Verify counted, in the order of model.tables; empty: the rows were not all read.
  std::vector<PortableDigest> tables;
  // One line for each damaged or missing piece. It begins with the file or the part's directory.
  std::vector<std::string> damage;
  // Names of damaged checkpoints before the newest.
  std::vector<std::string> damaged_checkpoints;
};

// Reads the manifest (`path` as in ReadCheckpoint), checks that the other parts are there, and
// counts rows as far as it can without reading any. Writes nothing. store_bytes: memory for the
// index of one ssd store at a time; 0: no limit. Errors: those of ReadCheckpoint and of the files.
absl::StatusOr<CheckpointReport> InspectCheckpoint(Env& env, const std::string& path,
                                                   int64_t store_bytes);

// Does the same and reads everything: the dense file, residuals, and every row with its checksum.
// For an ssd store it checks what VerifySsdStore does, present state and other snapshots included;
// for a rocksdb store, what VerifyRocksSnapshot does. Compares rows and hashes with the manifest
// where it has them, and the part of each row with the rank that owns the row. Errors: those above,
// FailedPrecondition (another process has the store open, or a checkpoint `path` was removed
// meanwhile), and errors that end the reading.
absl::StatusOr<CheckpointReport> VerifyCheckpoint(Env& env, const std::string& path,
                                                  int64_t store_bytes);

// Does so for each checkpoint of a directory, by step. For one that cannot be read, the error is in
// `damage`, and only model.dir is known. A store that several checkpoints share is verified once,
// and its damage is reported with the first. Errors: if none can be verified, that of the last one.
absl::StatusOr<std::vector<CheckpointReport>> VerifyCheckpoints(Env& env, const std::string& dir,
                                                                int64_t store_bytes);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_CHECKPOINT_CHECK_H_
