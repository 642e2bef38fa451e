#ifndef HOTROW_MODELS_SAVING_PORTABLE_TABLES_H_
#define HOTROW_MODELS_SAVING_PORTABLE_TABLES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/hash.h"
#include "base/row_key.h"
#include "ops/row_layout.h"
#include "ops/sparse_optimizer.h"
#include "ops/weights_precision.h"
#include "store/row_store.h"

namespace hotrow {

// Rows as plain arrays that numpy reads, and back: the tables of the portable form
// (docs/formats/portable.md), without its manifest. Rows go through buffers of a stated size, so
// that tables may be larger than memory. Row i of a table is row i of each of its arrays.

// One file of an array.
struct PortableFile {
  std::string name;             // relative to the directory
  std::optional<uint32_t> crc;  // CRC-32C of the whole file; none: not known, or not to be compared
};

// One column of a table: the files one behind the other.
struct PortableArray {
  std::string name;     // "keys", "weights", "momentum1", "momentum2", "last_step"
  std::string dtype;    // "<u8", "<f4", "<u4"
  int64_t columns = 0;  // the shape is [rows, columns]; 0: [rows]
  std::vector<PortableFile> files;
};

struct PortableTable {
  std::string name;
  int32_t dim = 0;
  SparseOptimizerKind optimizer = SparseOptimizerKind::kRowWiseAdagrad;
  // Of the rows. Files have floats in any case: those of 16 bits are widened on their way out,
  // which loses nothing, and rounded to the nearest on their way in, which brings the same bits
  // back.
  WeightsPrecision weights_precision = WeightsPrecision::kFp32;
  std::optional<int64_t> rows;  // none: as many as the files have
  // As TableDigest::hash; none: not known, or not to be compared.
  std::optional<Hash128> hash;
  std::vector<PortableArray> arrays;  // those of PortableArraysOf

  RowLayout layout() const { return RowLayout::For(dim, optimizer, weights_precision); }
};

// The arrays of a table, without files: keys, weights, the state of the optimizer under the names
// momentum1 and momentum2 (of FTRL z and n), and the last step.
std::vector<PortableArray> PortableArraysOf(int32_t dim, SparseOptimizerKind optimizer);

struct PortableTablesOptions {
  std::string dir;                           // required
  int64_t memory_bytes = int64_t{64} << 20;  // of buffers; a hard limit
  Env* env = nullptr;                        // not owned; null: the real file system
};

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
  // options.dir exists. `tables` says name, dim, optimizer and precision of each table, in the
  // order of their numbers.
  static absl::StatusOr<std::unique_ptr<PortableTablesWriter>> Create(
      const PortableTablesOptions& options, int64_t shard_bytes,
      const std::vector<PortableTable>& tables);
  ~PortableTablesWriter();

  // A row as RowLayout lays it out. No key twice.
  absl::Status Add(const RowKey& key, std::span<const std::byte> row);
  // Makes everything durable. The tables as they are now: with rows, hash and files.
  absl::StatusOr<std::vector<PortableTable>> Finish();

 private:
  struct Impl;
  explicit PortableTablesWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Looks at what can be told without reading arrays: that all files are there, have the size, dtype
// and shape that they should have, and the arrays of a table equally many rows. Returns the rows of
// each table. Errors: DataLoss (a file is not there, or too short), InvalidArgument (anything else
// that is wrong); they name the file, what was found and what was expected.
absl::StatusOr<std::vector<int64_t>> CheckPortableTables(const PortableTablesOptions& options,
                                                         const std::vector<PortableTable>& tables);

// Some rows of one table, consecutive ones.
struct PortableRows {
  std::span<const RowKey> keys;
  std::span<const std::byte* const> rows;  // as RowLayout lays them out
  int64_t first_row = 0;                   // of the table
};

// What a table has been found to hold.
struct PortableDigest {
  int64_t rows = 0;
  Hash128 hash;  // as TableDigest::hash
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

#endif  // HOTROW_MODELS_SAVING_PORTABLE_TABLES_H_
