#ifndef HOTROW_EMBEDDING_SERVING_ROW_CODING_H_
#define HOTROW_EMBEDDING_SERVING_ROW_CODING_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "embedding/serving/serving_rows.h"
#include "ops/rows/row_layout.h"

namespace hotrow {

// Bytes of weights or codes of a row; layout: of the row in training.
int64_t ServingRowBytes(ServingRows rows, const RowLayout& layout);

// How a table may be kept that is asked for in `asked`, the narrowest first, the last as it was
// trained. A form that takes no less than one that loses less is passed over: int8 of few columns.
std::vector<ServingRows> ServingForms(ServingRows asked, const RowLayout& layout);
// The first of them: what all that keeps, reads or writes rows in `asked` has them in.
ServingRows ServingForm(ServingRows asked, const RowLayout& layout);

// Writes the ServingRowBytes of a trained row to kept, and its weights, [D], as floats.
// InvalidArgument: they have no code, since some are not finite, or too far apart.
absl::Status EncodeServingRow(ServingRows rows, const RowLayout& layout, const std::byte* row,
                              std::span<float> weights, std::byte* kept);
// The weights that a lookup reads of them.
absl::Status DecodeServingRow(ServingRows rows, const RowLayout& layout, const std::byte* kept,
                              std::span<float> weights);

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_SERVING_ROW_CODING_H_
