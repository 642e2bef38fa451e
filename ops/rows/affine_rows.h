#ifndef HOTROW_OPS_ROWS_AFFINE_ROWS_H_
#define HOTROW_OPS_ROWS_AFFINE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace hotrow {

// Rows in 8 or 4 bits a column, to be read and never updated, in host memory:
//
//   [ scale: bf16 | offset: bf16 | codes q: 8 bits each, or two columns in a byte, the first in the
//   lower half ]       w = offset + scale * q, two operations of floats
//
// Both numbers are bf16, the offset rounded down and the scale up, so that codes reach from the
// least to the largest weight of the row. Codes are chosen for the rounded numbers, so a decoded
// weight is within half a scale of the weight, but for the rounding of these two operations.
enum class AffineCode { kInt8, kInt4 };

// Bytes of a row of `dim` columns: 4 + D, or 4 + D / 2 rounded up.
int64_t AffineRowBytes(AffineCode code, int32_t dim);

// Writes AffineRowBytes bytes to row; false, and nothing is written, for weights that are not
// finite, or so far apart that their distance is not.
bool EncodeAffineRow(AffineCode code, std::span<const float> weights, std::byte* row);

// Reads what EncodeAffineRow wrote; any other bytes decode to some weights, too.
void DecodeAffineRow(AffineCode code, const std::byte* row, std::span<float> weights);

}  // namespace hotrow

#endif  // HOTROW_OPS_ROWS_AFFINE_ROWS_H_
