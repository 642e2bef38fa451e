#ifndef HOTROW_OPS_ROWS_POOLED_LOOKUP_H_
#define HOTROW_OPS_ROWS_POOLED_LOOKUP_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/jagged.h"

namespace hotrow {

// Dimensions: F features, B samples, N lookups, U unique rows.
//
// On a CUDA device offsets, weights, inverse, rows, the rows that `rows` points to and
// JaggedFeature::data are memory that the device reaches; their contents are not checked.
// `features` itself is host memory, read before the call returns.
struct PooledLookupArgs {
  std::span<const JaggedFeature> features;  // [F]; their data must not overlap
  int64_t batch_size = 0;                   // B
  const int64_t* offsets = nullptr;         // [F*B + 1], offsets[0] = 0, non-decreasing, last = N
  const float* weights = nullptr;           // [N] or null (every weight 1)
  const int32_t* inverse = nullptr;         // [N], each in [0, U)
  // [U]: the weights of each unique row, at least D of them, stored as JaggedFeature::precision of
  // the features that look it up.
  const std::byte* const* rows = nullptr;
  // Sums go on from what the output has, the sum of earlier lookups of the same bags: long bags can
  // be pooled in parts. With Pooling::kSum, on the CPU.
  bool adds = false;

  absl::Status Validate() const;
};

// feature f, bag b: output = pool over j in the bag of weights[j] * rows[inverse[j]][0..D), in
// float for rows of any precision. An empty bag gives zeros. kNone: output row (j - offsets[f*B]) =
// weights[j] * row. Sums run in lookup order per column, so equal inputs give equal bits for any
// number of threads, and on a CUDA device.
absl::Status PooledLookup(const ExecContext& ctx, const PooledLookupArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_ROWS_POOLED_LOOKUP_H_
