#ifndef HOTROW_MODELS_SAVING_PORTABLE_MODEL_H_
#define HOTROW_MODELS_SAVING_PORTABLE_MODEL_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/saving/dense_file.h"
#include "models/saving/portable_manifest.h"
#include "models/saving/portable_tables.h"
#include "models/saving/saved_model.h"
#include "store/open.h"

namespace hotrow {

// The portable form of a checkpoint: a directory of .npy arrays, a safetensors file and a manifest,
// for numpy and for moving models. docs/formats/portable.md has the layout.

struct ExportOptions {
  std::string checkpoint;                     // as ReadCheckpoint takes it
  std::string dir;                            // made; must not be there, or be empty
  int64_t shard_bytes = int64_t{1} << 30;     // of an array in one file, at most
  int64_t memory_bytes = int64_t{256} << 20;  // of buffers
  // The limit of the index of an ssd store; 0: none. The parts of several ranks are read one by
  // one.
  int64_t store_bytes = 0;
  const char* store_option = "--store_bytes";  // what errors call it
  // Keys whose rows are left out, ascending, by the name of their table.
  std::map<std::string, std::vector<uint64_t>> without;
  Env* env = nullptr;  // not owned; null: the real file system
};

struct ImportOptions {
  std::string dir;
  // Made; must not be there, or be empty. It becomes a directory of checkpoints with one in it.
  std::string checkpoint;
  bool edited = false;  // see ReadPortableManifest
  StoreKind store = StoreKind::kMemory;
  // ssd, rocksdb: the directory of the store; must not be there, or be empty. Empty: `store` below
  // the checkpoint.
  std::string store_path;
  int64_t store_bytes = 0;                    // required; memory of the store
  int64_t disk_bytes = 0;                     // of the store; 0: three times its rows
  int64_t memory_bytes = int64_t{256} << 20;  // of buffers
  Env* env = nullptr;                         // of all files, but RocksDB's
};

// The result of an export, an import or a check.
struct PortableSummary {
  std::string from;
  std::string to;
  SavedModel model;                               // of the checkpoint
  std::vector<PortableDigest> tables;             // in the order of model.tables
  int64_t files = 0;                              // of arrays
  int64_t bytes = 0;                              // of rows, as the arrays hold them
  int64_t rows_left_out = 0;                      // for ExportOptions::without
  std::vector<std::optional<ServingRows>> codes;  // by table: PortableTable::codes
};

// Both write a directory of a temporary name beside the target, sync it and rename it, so a kill or
// a power loss leaves either nothing under the target's name or all of it. The next try removes
// what a kill left behind. (An import with its own store_path renames the store before the
// checkpoint: a kill between the two leaves only the store.) Tables go through buffers, so they may
// be larger than memory; dense parameters may not.
//
// Errors: FailedPrecondition (the target exists, or another process makes it; those of
// ReadCheckpoint), those of models/saving/portable_tables_writer.h and portable_tables_reader.h and
// of the stores. Nothing is made then.
absl::StatusOr<PortableSummary> ExportPortable(const ExportOptions& options);
absl::StatusOr<PortableSummary> ImportPortable(const ImportOptions& options);

// A checkpoint without some rows: `from` is exported without them into CHECKPOINT.erasing, which is
// imported and removed. from.dir and to.dir are not read. Errors: those of both; NotFound
// (`without` has a table that the checkpoint lacks; names those that it has).
absl::StatusOr<PortableSummary> CopyWithout(ExportOptions from, ImportOptions to);

// The dense parameters of a directory of the portable form, whose manifest is `portable`. Errors:
// DataLoss, InvalidArgument; they name the file.
absl::StatusOr<DenseVectors> ReadPortableDense(Env& env, const std::string& dir,
                                               const PortableModel& portable);

// Reads all of a directory of the portable form and checks it against its manifest.
absl::StatusOr<PortableSummary> VerifyPortable(Env& env, const std::string& dir,
                                               int64_t memory_bytes);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_PORTABLE_MODEL_H_
