#ifndef HOTROW_MODELS_SAVING_SAVED_PART_H_
#define HOTROW_MODELS_SAVING_SAVED_PART_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/row_key.h"
#include "base/row_line_fields.h"
#include "base/row_lines.h"
#include "embedding/embedding_collection.h"
#include "models/saving/portable_tables.h"
#include "models/saving/saved_model.h"
#include "store/snapshot_reader.h"

namespace hotrow {

// The tables of a model, as the portable form describes them, without files.
absl::StatusOr<std::vector<PortableTable>> TablesOf(const SavedModel& model);

// Opens the part of one rank for reading and compares the widths of its tables with the manifest.
// memory_bytes as in SnapshotReaderOptions, with what errors call it. Errors: those of
// store/snapshot_reader.h, DataLoss (the tables differ).
absl::StatusOr<std::unique_ptr<SnapshotReader>> OpenSavedPart(
    Env& env, const SavedModel& saved, int32_t rank, int64_t memory_bytes,
    const char* memory_option = "--store_bytes");

// The lines for StartOptions::age_lines.
std::vector<RowLines> AgeLinesOf(const SavedModel& saved);

// Gives the tables the counters of lookups of all ranks' files, if they keep any; before the first
// step. Errors: DataLoss, ResourceExhausted; they name the file.
absl::Status LoadSavedCounters(Env& env, const SavedModel& saved, EmbeddingCollection* tables);

// Whether a row of any part of the model has aged, so that it is as if it were not there.
class AgedRows {
 public:
  // InvalidArgument: an optimizer that this build does not know.
  static absl::StatusOr<AgedRows> Of(const SavedModel& saved);
  bool Has(const RowKey& key, std::span<const std::byte> row) const {
    const Table& table = tables_[key.table];
    return table.fields.HasAged(table.lines, row.data());
  }

 private:
  struct Table {
    RowLines lines;
    RowLineFields fields;
  };
  std::vector<Table> tables_;
};

// OK if a row found in the part of `rank` belongs to that rank, so that no row of parts that pass
// occurs twice. Otherwise DataLoss, naming the part's directory, table, key and both ranks.
absl::Status CheckRankOfRow(const SavedModel& saved, int32_t rank, const RowKey& key);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_SAVED_PART_H_
