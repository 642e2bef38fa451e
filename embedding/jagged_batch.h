#ifndef HOTROW_EMBEDDING_JAGGED_BATCH_H_
#define HOTROW_EMBEDDING_JAGGED_BATCH_H_

#include <cstdint>
#include <span>

namespace hotrow {

// The categorical part of one batch, as a view. Dimensions: F features, B samples, N lookups.
struct JaggedBatch {
  int64_t batch_size = 0;  // B
  std::span<const uint64_t>
      values;  // [N] keys, feature-major: all of feature 0, then all of feature 1, ...
  std::span<const int64_t>
      offsets;  // [F*B + 1]: bag (f, b) is values[offsets[f*B + b], offsets[f*B + b + 1])
  std::span<const float> weights;  // [N], or empty: every weight is 1
};

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_JAGGED_BATCH_H_
