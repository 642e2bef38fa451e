#ifndef HOTROW_OPS_UPDATE_GRADIENT_SEGMENT_SUM_H_
#define HOTROW_OPS_UPDATE_GRADIENT_SEGMENT_SUM_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/jagged.h"

namespace hotrow {

// Dimensions: F features, B samples, N lookups, U unique rows.
//
// On a CUDA device offsets, weights, row_offsets, lookup_order, gradients, the rows that
// `gradients` points to, JaggedFeature::data and workspace are memory that the device reaches;
// their contents are not checked. `features` itself is host memory, read before the call returns.
struct GradientSegmentSumArgs {
  std::span<const JaggedFeature> features;  // [F]; data holds the gradient of the pooled output
  int64_t batch_size = 0;                   // B
  const int64_t* offsets = nullptr;         // [F*B + 1], as in PooledLookup
  const float* weights = nullptr;           // [N] or null
  const int64_t* row_offsets = nullptr;     // [U + 1]  from Partition(inverse); no row is empty
  const int32_t* lookup_order = nullptr;    // [N]      from Partition(inverse)
  int64_t num_rows = 0;                     // U
  float* const* gradients = nullptr;  // [U]: where the sum of each row goes (D floats, overwritten)
  // N, or an upper bound of it. For CUDA, where `offsets` is out of the host's reach; the CPU
  // ignores it.
  int64_t num_lookups = 0;
  std::byte* workspace = nullptr;  // GradientSegmentSumWorkspaceBytes(...), 64-byte aligned
  int64_t workspace_bytes = 0;

  absl::Status Validate() const;
};

// dim_max, the widest dim of the features, matters on a CUDA device only.
int64_t GradientSegmentSumWorkspaceBytes(int64_t num_lookups, Device device = Device::kCpu,
                                         int32_t dim_max = 0);

// The backward of PooledLookup: gradients[u] = sum over the lookups j of row u, in (feature,
// sample, position) order, of weights[j] * scale * dY(feature, bag of j), where scale is 1/length
// for kMean and 1 otherwise. The order is that of lookup numbers because the batch is
// feature-major, so equal inputs give equal bits with any number of threads. All features that
// share a row must have its dim.
//
// A CUDA device gives the CPU's bits for rows of fewer than 512 lookups. The lookups of a hotter
// row are cut, in order, into runs of 256 (the last one has up to 511); each run is summed in
// order, then the sums of the runs are: an order that follows from the number of lookups alone.
absl::Status GradientSegmentSum(const ExecContext& ctx, const GradientSegmentSumArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_UPDATE_GRADIENT_SEGMENT_SUM_H_
