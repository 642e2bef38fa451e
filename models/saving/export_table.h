#ifndef HOTROW_MODELS_SAVING_EXPORT_TABLE_H_
#define HOTROW_MODELS_SAVING_EXPORT_TABLE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "embedding/table_policies.h"

namespace hotrow {

enum class TableFormat {
  kNpy,          // DIR/keys.npy, weights.npy and so on
  kSafetensors,  // DIR/table.safetensors, with tensors of these names
};
// "npy", "safetensors". Errors: InvalidArgument.
absl::StatusOr<TableFormat> ParseTableFormat(std::string_view name);

struct ExportTableOptions {
  std::string model;             // as ReadCheckpoint takes it, or the portable form
  std::string table;             // its name
  std::string dir;               // made; must not be there, or be empty
  int64_t max_rows = 0;          // 0: all
  RowOrder by = RowOrder::kAge;  // which ones: those that were trained last, or the highest scores
  bool state = false;  // also the optimizer's, the last step, and the score where rows keep one
  TableFormat format = TableFormat::kNpy;
  int64_t memory_bytes = int64_t{256} << 20;  // of buffers, beside 16 bytes a row of the table
  int64_t store_bytes = 0;                    // as in ExportOptions
  Env* env = nullptr;                         // not owned; null: the real file system
};

struct ExportTableSummary {
  std::string from;
  std::string to;
  int64_t rows = 0;        // that were written
  int64_t rows_found = 0;  // of the table
  int64_t bytes = 0;       // of the files
};

// Writes the rows of one table, sorted by key: keys (uint64, [rows]), weights (float32, [rows,
// dim]), and with `state` the arrays of the portable form (momentum1, momentum2, last_step, score).
// Rows that have aged are left out. Where max_rows cuts, rows of later last steps stay, or those of
// higher scores, of one score those of later steps; of one step those of smaller keys. The model is
// read once for the keys, and once for each memory_bytes of rows. Whole or absent, as
// ExportPortable.
//
// Errors: those of ExportPortable, NotFound (no such table, naming those that there are),
// FailedPrecondition (dir; by score of a table that keeps none), InvalidArgument (max_rows is
// negative).
absl::StatusOr<ExportTableSummary> ExportTable(const ExportTableOptions& options);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_EXPORT_TABLE_H_
