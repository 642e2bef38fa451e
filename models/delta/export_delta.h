#ifndef HOTROW_MODELS_DELTA_EXPORT_DELTA_H_
#define HOTROW_MODELS_DELTA_EXPORT_DELTA_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/delta/delta_manifest.h"
#include "models/delta/delta_rows.h"

namespace hotrow {

struct ExportDeltaOptions {
  std::string since;       // the parent, as ReadCheckpoint takes it
  std::string checkpoint;  // what the delta leads to
  // The directory of a chain. Made, with the parent as its base, if it is not there or empty.
  // Otherwise its head must be of the parent.
  std::string chain;
  std::optional<DeltaForm> form;           // none: that of the chain, of a new one fp32 with state
  int64_t shard_bytes = int64_t{1} << 30;  // of an array of the base in one file, at most
  int64_t memory_bytes = int64_t{256} << 20;  // of buffers, and of the parent's keys
  int64_t store_bytes = 0;                    // as in ExportOptions
  const char* store_option = "--store_bytes";
  Env* env = nullptr;  // not owned; null: the real file system
};

struct DeltaSummary {
  std::string from;  // the checkpoint's directory
  std::string to;    // the delta's
  bool made_chain = false;
  DeltaManifest delta;
  int64_t rows = 0;    // that changed
  int64_t erased = 0;  // tombstones
  int64_t bytes = 0;   // of the files of rows
};

// Writes what changed from one checkpoint to another as the next delta of a chain. A store that
// keeps the order of its writes (OpenSnapshotChanges) tells what it has written since the parent;
// rows that it only moved may be among them. Otherwise rows are compared by a 128-bit hash of all
// their bytes, so it does not matter what changed them; both checkpoints are then read whole,
// several times where memory does not hold the parent's keys (40 bytes a row). Only then are the
// tables' hashes known. The delta is whole or absent.
//
// Errors: FailedPrecondition (the chain's head is not of `since`, the form is not the chain's,
// tables differ, rows that have missed steps), those of ReadCheckpoint, ReadChain and
// OpenSavedPart.
absl::StatusOr<DeltaSummary> ExportDelta(const ExportDeltaOptions& options);

}  // namespace hotrow

#endif  // HOTROW_MODELS_DELTA_EXPORT_DELTA_H_
