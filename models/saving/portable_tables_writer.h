#ifndef HOTROW_MODELS_SAVING_PORTABLE_TABLES_WRITER_H_
#define HOTROW_MODELS_SAVING_PORTABLE_TABLES_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/row_key.h"
#include "models/saving/portable_tables.h"

namespace hotrow {

// Writes the arrays of all tables side by side, as the rows come.
//
// Files:   below DIR/tables, a directory for each table. A file holds at most shard_bytes of array,
//          but at least one row, and 128 bytes of header; the arrays of a table are cut at the same
//          rows. Names are final once Finish has said OK.
// Threads: one at a time.
// Errors:  ResourceExhausted (memory_bytes does not hold a row of each table; the disk is full),
//          InvalidArgument (a row of an unknown table, or of another width), what the files say.
//          After an error only the destructor may follow.
class PortableTablesWriter {
 public:
  // options.dir exists. `tables` says name, dim, optimizer, precision and codes of each table, in
  // the order of their numbers.
  static absl::StatusOr<std::unique_ptr<PortableTablesWriter>> Create(
      const PortableTablesOptions& options, int64_t shard_bytes,
      const std::vector<PortableTable>& tables);
  ~PortableTablesWriter();

  // A row as RowLayout lays it out, or its codes. No key twice.
  absl::Status Add(const RowKey& key, std::span<const std::byte> row);
  // Makes everything durable. The tables as they are now: with rows, hash and files.
  absl::StatusOr<std::vector<PortableTable>> Finish();

 private:
  struct Impl;
  explicit PortableTablesWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_PORTABLE_TABLES_WRITER_H_
