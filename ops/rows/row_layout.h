#ifndef HOTROW_OPS_ROWS_ROW_LAYOUT_H_
#define HOTROW_OPS_ROWS_ROW_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/row_line_fields.h"
#include "ops/rows/weights_precision.h"
#include "ops/update/sparse_optimizer_config.h"

namespace hotrow {

// The layout of a row: one piece of memory that moves between tiers as a whole.
//
//   [ weights: dim numbers | zero padding to 4 bytes | optimizer state: state_floats floats | last
//   step: uint32 | score: float, where the table keeps one | zero padding to 16 bytes ]
struct RowLayout {
  int32_t dim = 0;
  WeightsPrecision precision = WeightsPrecision::kFp32;
  int32_t state_floats = 0;   // SparseStateFloats(optimizer, dim)
  int64_t state_offset = 0;   // of the state, in bytes
  int64_t step_offset = 0;    // of the last step, in bytes
  int64_t score_offset = -1;  // of the score, in bytes; -1: there is none
  int64_t payload_bytes = 0;  // weights and state, covered by tables_hash
  int64_t row_bytes = 0;      // a multiple of 16

  static RowLayout For(int32_t dim, SparseOptimizerKind optimizer,
                       WeightsPrecision precision = WeightsPrecision::kFp32, bool scored = false);

  bool scored() const { return score_offset >= 0; }
  RowLineFields line_fields() const { return {step_offset, score_offset}; }
};

// Writes weights as they are stored, each rounded to the nearest. out: weights.size() *
// WeightBytes(precision) bytes.
void NarrowWeights(WeightsPrecision precision, std::span<const float> weights, std::byte* out);

}  // namespace hotrow

#endif  // HOTROW_OPS_ROWS_ROW_LAYOUT_H_
