#ifndef HOTROW_OPS_GRADIENT_SEGMENT_SUM_H_
#define HOTROW_OPS_GRADIENT_SEGMENT_SUM_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/jagged.h"

namespace hotrow {

// Dimensions: F features, B samples, N lookups, U unique rows.
struct GradientSegmentSumArgs {
  std::span<const JaggedFeature> features;  // [F]; data holds the gradient of the pooled output
  int64_t batch_size = 0;                   // B
  const int64_t* offsets = nullptr;         // [F*B + 1], as in PooledLookup
  const float* weights = nullptr;           // [N] or null
  const int64_t* row_offsets = nullptr;     // [U + 1]  from Partition(inverse); no row is empty
  const int32_t* lookup_order = nullptr;    // [N]      from Partition(inverse)
  int64_t num_rows = 0;                     // U
  float* const* gradients = nullptr;  // [U]: where the sum of each row goes (D floats, overwritten)
  std::byte* workspace = nullptr;     // GradientSegmentSumWorkspaceBytes(N), 64-byte aligned
  int64_t workspace_bytes = 0;

  absl::Status Validate() const;
};

int64_t GradientSegmentSumWorkspaceBytes(int64_t num_lookups);

// The backward of PooledLookup: gradients[u] = sum over the lookups j of row u, in (feature,
// sample, position) order, of weights[j] * scale * dY(feature, bag of j), where scale is 1/length
// for kMean and 1 otherwise. The order is that of lookup numbers because the batch is
// feature-major, so equal inputs give equal bits whatever the number of threads. All features that
// share a row must have its dim.
absl::Status GradientSegmentSum(const ExecContext& ctx, const GradientSegmentSumArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_GRADIENT_SEGMENT_SUM_H_
