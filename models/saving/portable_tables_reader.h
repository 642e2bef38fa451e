#ifndef HOTROW_MODELS_SAVING_PORTABLE_TABLES_READER_H_
#define HOTROW_MODELS_SAVING_PORTABLE_TABLES_READER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/row_key.h"
#include "models/saving/portable_tables.h"
#include "store/row_store.h"

namespace hotrow {

// Looks at what can be told without reading arrays: that all files are there, have the size, dtype
// and shape that they should have, and the arrays of a table equally many rows. Returns the rows of
// each table. Errors: DataLoss (a file is not there, or too short), InvalidArgument (anything else
// that is wrong); they name the file, what was found and what was expected.
absl::StatusOr<std::vector<int64_t>> CheckPortableTables(const PortableTablesOptions& options,
                                                         const std::vector<PortableTable>& tables);

// Some rows of one table, consecutive ones.
struct PortableRows {
  std::span<const RowKey> keys;
  std::span<const std::byte* const> rows;  // as RowLayout lays them out, or their codes
  int64_t first_row = 0;                   // of the table
};

// Checks as above, then calls visit for all rows, table by table; checksums and hashes that are
// known are compared on the way. Errors: those above, DataLoss (a checksum or hash differs; names
// the file or table), that of visit, which ends the reading.
absl::StatusOr<std::vector<PortableDigest>> ReadPortableTables(
    const PortableTablesOptions& options, const std::vector<PortableTable>& tables,
    absl::FunctionRef<absl::Status(const PortableRows&)> visit);

// Puts all rows into a store that has none of them, which needs no more memory for it than its own.
// Errors: those above, InvalidArgument (a key occurs twice; names key and place), what the store
// says.
absl::StatusOr<std::vector<PortableDigest>> LoadPortableTables(
    const PortableTablesOptions& options, const std::vector<PortableTable>& tables,
    RowStore& store);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_PORTABLE_TABLES_READER_H_
