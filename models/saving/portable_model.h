#ifndef HOTROW_MODELS_SAVING_PORTABLE_MODEL_H_
#define HOTROW_MODELS_SAVING_PORTABLE_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "embedding/store_kind.h"
#include "models/saving/portable_tables.h"
#include "models/saving/saved_model.h"

namespace hotrow {

// The portable form of a checkpoint: a directory of .npy arrays, a safetensors file and a manifest,
// for numpy and for moving models. docs/formats/portable.md has the layout.

struct ExportOptions {
  std::string checkpoint;                     // as ReadCheckpoint takes it
  std::string dir;                            // made; must not be there, or be empty
  int64_t shard_bytes = int64_t{1} << 30;     // of an array in one file, at most
  int64_t memory_bytes = int64_t{256} << 20;  // of buffers
  // Of the index of an ssd store; 0: no limit. The parts of several ranks are read one by one.
  int64_t store_bytes = 0;
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

// What was exported or imported.
struct PortableSummary {
  std::string from;
  std::string to;
  SavedModel model;                    // of the checkpoint
  std::vector<PortableDigest> tables;  // in the order of model.tables
  int64_t files = 0;                   // of arrays
  int64_t bytes = 0;                   // of rows, as the arrays hold them
};

// Both write into a directory of a temporary name beside the one they make, sync it and rename it,
// so that a kill or a power loss leaves nothing under the name, or the whole. What a kill left
// behind is removed by the next try. (With a store_path of its own an import renames the store
// before the checkpoint: a kill just between the two leaves the store alone there.) Files are read
// and written through buffers, so tables may be larger than memory; dense parameters are not.
//
// Errors: FailedPrecondition (the target is there; somebody else writes it; what ReadCheckpoint
// says), those of models/saving/portable_tables.h and of the stores. Nothing is made then.
absl::StatusOr<PortableSummary> ExportPortable(const ExportOptions& options);
absl::StatusOr<PortableSummary> ImportPortable(const ImportOptions& options);

// Reads all of a directory of the portable form and compares what can be compared.
absl::StatusOr<PortableSummary> VerifyPortable(Env& env, const std::string& dir,
                                               int64_t memory_bytes);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_PORTABLE_MODEL_H_
