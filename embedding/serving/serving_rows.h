#ifndef HOTROW_EMBEDDING_SERVING_SERVING_ROWS_H_
#define HOTROW_EMBEDDING_SERVING_SERVING_ROWS_H_

#include "base/enum_words.h"

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

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_SERVING_SERVING_ROWS_H_
