#ifndef HOTROW_EMBEDDING_SERVING_SERVING_ROWS_H_
#define HOTROW_EMBEDDING_SERVING_SERVING_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/enum_words.h"
#include "ops/rows/row_layout.h"

namespace hotrow {

// How a table is kept for serving.
enum class ServingRows {
  kAsTrained,  // weights with their bits
  kFp16,       // rounded to the nearest; finite ones beyond the largest become that
  kBf16,
  kInt8,  // ops/rows/affine_rows.h
  kInt4,
};
inline constexpr EnumWord<ServingRows> kServingRowsWords[] = {
    {"as_trained", ServingRows::kAsTrained},
    {"fp16", ServingRows::kFp16},
    {"bf16", ServingRows::kBf16},
    {"int8", ServingRows::kInt8},
    {"int4", ServingRows::kInt4}};

// Bytes of weights or codes of a row; layout: of the row in training.
int64_t ServingRowBytes(ServingRows rows, const RowLayout& layout);

// Writes the ServingRowBytes of a trained row to kept, and its weights, [D], as floats.
// InvalidArgument: they have no code, since some are not finite, or too far apart.
absl::Status EncodeServingRow(ServingRows rows, const RowLayout& layout, const std::byte* row,
                              std::span<float> weights, std::byte* kept);
// The weights that a lookup reads of them.
absl::Status DecodeServingRow(ServingRows rows, const RowLayout& layout, const std::byte* kept,
                              std::span<float> weights);

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_SERVING_SERVING_ROWS_H_
