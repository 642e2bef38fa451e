#ifndef HOTROW_MODELS_SAVING_PORTABLE_TABLES_H_
#define HOTROW_MODELS_SAVING_PORTABLE_TABLES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/hash.h"
#include "embedding/serving/row_coding.h"
#include "embedding/serving/serving_rows.h"
#include "ops/rows/row_layout.h"
#include "ops/rows/weights_precision.h"
#include "ops/update/sparse_optimizer.h"

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
  std::string name;     // "keys", "weights", "momentum1", "momentum2", "last_step", "score"
  std::string dtype;    // "<u8", "<f4", "<u4"
  int64_t columns = 0;  // the shape is [rows, columns]; 0: [rows]
  std::vector<PortableFile> files;
};

struct PortableTable {
  std::string name;
  int32_t dim = 0;
  SparseOptimizerKind optimizer = SparseOptimizerKind::kRowWiseAdagrad;
  // The precision of the rows. Files have floats in any case: those of 16 bits are widened on their
  // way out, which loses nothing, and rounded to the nearest on their way in, which brings the same
  // bits back.
  WeightsPrecision weights_precision = WeightsPrecision::kFp32;
  bool scored = false;          // rows keep a score
  std::optional<int64_t> rows;  // none: as many as the files have
  // As TableDigest::hash; none: not known, or not to be compared.
  std::optional<Hash128> hash;
  std::vector<PortableArray> arrays;  // those of PortableArraysOf
  // The codes of a model to score with: only what is kept of each row for serving, and no state to
  // train on. The fields above say what it was trained as. None: whole rows.
  std::optional<ServingRows> codes;

  // The layout of rows in training.
  RowLayout layout() const { return RowLayout::For(dim, optimizer, weights_precision, scored); }
  // Bytes of what a row is here: in that layout, or of codes.
  int64_t row_bytes() const {
    return codes.has_value() ? ServingRowBytes(*codes, layout()) : layout().row_bytes;
  }
};

// The arrays of a table of whole rows, without files: keys, weights, the state of the optimizer
// under the names momentum1 and momentum2 (of FTRL z and n), the last step, and the score where
// rows keep one. One of codes has keys and codes.
std::vector<PortableArray> PortableArraysOf(int32_t dim, SparseOptimizerKind optimizer,
                                            bool scored = false);

struct PortableTablesOptions {
  std::string dir;                           // required
  int64_t memory_bytes = int64_t{64} << 20;  // of buffers; a hard limit
  Env* env = nullptr;                        // not owned; null: the real file system
};

// What a table has been found to hold.
struct PortableDigest {
  int64_t rows = 0;
  Hash128 hash;  // as TableDigest::hash
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_PORTABLE_TABLES_H_
