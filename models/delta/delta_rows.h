#ifndef HOTROW_MODELS_DELTA_DELTA_ROWS_H_
#define HOTROW_MODELS_DELTA_DELTA_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/row_key.h"
#include "base/unique_id.h"
#include "ops/rows/row_codec.h"
#include "ops/rows/row_layout.h"
#include "ops/rows/weights_precision.h"
#include "ops/update/sparse_optimizer.h"

namespace hotrow {

// The rows and tombstones of one part of a delta, in one file (docs/formats/delta.md).

// What deltas have of a row besides its key, last step and score.
struct DeltaForm {
  ExchangeType precision = ExchangeType::kFp32;  // of the weights
  bool state = true;                             // of the optimizer

  // Whether rows come back bit for bit.
  bool lossless() const { return precision == ExchangeType::kFp32 && state; }
  friend bool operator==(const DeltaForm&, const DeltaForm&) = default;
};

struct DeltaTable {
  int32_t dim = 0;
  SparseOptimizerKind optimizer = SparseOptimizerKind::kSgd;
  WeightsPrecision weights_precision = WeightsPrecision::kFp32;
  bool scored = false;  // rows keep a score

  // The layout of rows that are written.
  RowLayout layout() const { return RowLayout::For(dim, optimizer, weights_precision, scored); }
  // The layout of rows that are read: without state they are those of an optimizer that keeps none.
  RowLayout layout_read(const DeltaForm& form) const {
    return RowLayout::For(dim, form.state ? optimizer : SparseOptimizerKind::kSgd,
                          weights_precision, scored);
  }
  friend bool operator==(const DeltaTable&, const DeltaTable&) = default;
};

// What a file says of its place, so that it is not taken for another.
struct DeltaFileId {
  UniqueId base;
  int64_t sequence = 0;
  int32_t part = 0;
  int32_t num_parts = 1;
  friend bool operator==(const DeltaFileId&, const DeltaFileId&) = default;
};

// A finished file.
struct DeltaPart {
  std::string file;  // its name
  int64_t bytes = 0;
  uint32_t crc = 0;             // CRC-32C of all of it
  std::vector<int64_t> rows;    // by table
  std::vector<int64_t> erased;  // tombstones, by table
  friend bool operator==(const DeltaPart&, const DeltaPart&) = default;
};

// The order of entries.
inline bool ComesBefore(const RowKey& a, const RowKey& b) {
  return a.table != b.table ? a.table < b.table : a.key < b.key;
}

// Writes one such file. Memory: blocks of 64 KiB, or of one row. One thread at a time.
class DeltaRowsWriter {
 public:
  // Makes dir/name. Errors: those of the file system.
  static absl::StatusOr<std::unique_ptr<DeltaRowsWriter>> Create(
      Env& env, const std::string& dir, const std::string& name, const DeltaFileId& id,
      const DeltaForm& form, const std::vector<DeltaTable>& tables);
  ~DeltaRowsWriter();

  // Keys come in ascending order, each once (InvalidArgument). A row is as tables[].layout() says.
  absl::Status Add(const RowKey& key, std::span<const std::byte> row);
  absl::Status AddErased(const RowKey& key);
  // Makes the bytes durable, but not the name. No other call may follow.
  absl::StatusOr<DeltaPart> Finish();

 private:
  struct Impl;
  explicit DeltaRowsWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Reads one such file from its first entry to its last. All checksums are compared on the way, that
// of the whole file at its end. Keeps no file open between two blocks, so that very many may be
// read at once. One thread at a time.
//
// Errors: DataLoss (the file is missing, damaged, or another than `part` describes),
// FailedPrecondition (of another chain, form, tables or version). All name the file.
class DeltaRowsReader {
 public:
  // Stands at the first entry.
  static absl::StatusOr<std::unique_ptr<DeltaRowsReader>> Open(
      Env& env, const std::string& dir, const DeltaPart& part, const DeltaFileId& id,
      const DeltaForm& form, const std::vector<DeltaTable>& tables);
  ~DeltaRowsReader();

  bool done() const;
  // What the present entry has; there is one unless done().
  const RowKey& key() const;
  bool erased() const;
  // The row as tables[].layout_read(form) says; not of a tombstone. Valid until Next.
  std::span<const std::byte> row() const;
  absl::Status Next();

  const std::string& path() const;

 private:
  struct Impl;
  explicit DeltaRowsReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DELTA_DELTA_ROWS_H_
