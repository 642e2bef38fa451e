#ifndef HOTROW_MODELS_SAVING_PORTABLE_TABLES_IMPL_H_
#define HOTROW_MODELS_SAVING_PORTABLE_TABLES_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/env.h"
#include "models/saving/portable_tables.h"
#include "ops/rows/row_layout.h"
#include "ops/rows/weights_precision.h"
#include "ops/update/sparse_optimizer.h"

namespace hotrow {

// What the writer and the reader of portable tables share: where the columns of the arrays lie in a
// row, and how a row's part of one becomes that in a file.

inline constexpr char kPortableKeys[] = "keys";

Env& EnvOf(const PortableTablesOptions& options);

// A column and its place in a row.
struct PortableColumn {
  PortableArray array;
  int64_t row_offset = -1;  // -1: the key, which is no part of a row
  int64_t bytes = 0;        // of one row, in a file
  // Storage type in a row; a file always has floats.
  WeightsPrecision precision = WeightsPrecision::kFp32;
};

// Those of PortableArraysOf, in their order: keys first.
std::vector<PortableColumn> PortableColumnsOf(const RowLayout& layout,
                                              SparseOptimizerKind optimizer);
// The same of a table, which may be one of codes.
std::vector<PortableColumn> PortableColumnsOf(const PortableTable& table);
// Bytes of a row that its hash is of.
int64_t HashedBytesOf(const PortableTable& table);
// Bytes of a row, in all files together.
int64_t PackedBytes(const std::vector<PortableColumn>& columns);

// One row's part of a column, from the row to the file ...
absl::Status ToFile(const PortableColumn& column, const std::byte* in_row, std::byte* in_file);
// ... and back, to the nearest.
absl::Status ToRow(const PortableColumn& column, const std::byte* in_file, std::byte* in_row);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_PORTABLE_TABLES_IMPL_H_
