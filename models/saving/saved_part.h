#ifndef HOTROW_MODELS_SAVING_SAVED_PART_H_
#define HOTROW_MODELS_SAVING_SAVED_PART_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/saving/portable_tables.h"
#include "models/saving/saved_model.h"
#include "store/snapshot_reader.h"

namespace hotrow {

// The tables of a model, as the portable form describes them, without files.
absl::StatusOr<std::vector<PortableTable>> TablesOf(const SavedModel& model);

// Opens the part of one rank for reading and compares the widths of its tables with the manifest.
// memory_bytes as in SnapshotReaderOptions. Errors: those of store/snapshot_reader.h, DataLoss (the
// tables differ).
absl::StatusOr<std::unique_ptr<SnapshotReader>> OpenSavedPart(Env& env, const SavedModel& saved,
                                                              int32_t rank, int64_t memory_bytes);

// OK if a row found in the part of `rank` belongs to that rank, so that no row of parts that pass
// occurs twice. Otherwise DataLoss, naming the part's directory, table, key and both ranks.
absl::Status CheckRankOfRow(const SavedModel& saved, int32_t rank, const RowKey& key);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_SAVED_PART_H_
