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

// What a saved model or a checkpoint is made of, and whether all of it is good.
struct CheckpointReport {
  SavedModel model;
  // Of the directory of checkpoints that the model lies in, by step; empty for a saved model.
  std::vector<std::string> checkpoints;

  struct File {
    std::string path;
    int64_t bytes = -1;  // -1: it is not there
  };
  // That belong to it alone: manifest, dense, the snapshots of memory stores, residuals.
  std::vector<File> files;

  std::vector<int64_t> part_rows;  // of each part, by rank; -1: not known
  // By table, of all parts, as their snapshots were counted; empty: not all of them were.
  std::vector<int64_t> table_rows;

  int64_t rows = -1;         // of all tables; -1: not known
  std::string rows_unknown;  // why
  // What verifying has counted, in the order of model.tables; empty: nothing was read.
  std::vector<PortableDigest> tables;
  // A line for each, beginning with the file or the directory of the part: what is damaged or not
  // there.
  std::vector<std::string> damage;
  // Of a directory of checkpoints: names of those before the newest that are damaged.
  std::vector<std::string> damaged_checkpoints;
};

// Reads the manifest of what ReadCheckpoint takes, looks whether the other parts are there, and
// counts rows as far as that needs no rows to be read. Nothing is written. store_bytes: memory for
// the index of an ssd store, one at a time, 0: no limit. Errors: those of ReadCheckpoint and of the
// files.
absl::StatusOr<CheckpointReport> InspectCheckpoint(Env& env, const std::string& path,
                                                   int64_t store_bytes);

// The same, and reads everything: the dense file, residuals, every row with its checksum (of an ssd
// store all that VerifySsdStore checks, present state and other snapshots included; of a rocksdb
// store what VerifyRocksSnapshot checks), and compares rows and hashes with the manifest where it
// knows them, and each row's part with the rank that it belongs to. Errors: those above,
// FailedPrecondition (the store is open in another process), what keeps it from reading on.
absl::StatusOr<CheckpointReport> VerifyCheckpoint(Env& env, const std::string& path,
                                                  int64_t store_bytes);

// The same for each checkpoint of a directory, by step. One that cannot be read has the error among
// its damage, and a model of which nothing but `dir` is known. A store that several of them share
// is verified once, and its damage is that of the first. Errors: that of the last one where none
// can be verified.
absl::StatusOr<std::vector<CheckpointReport>> VerifyCheckpoints(Env& env, const std::string& dir,
                                                                int64_t store_bytes);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_CHECKPOINT_CHECK_H_
