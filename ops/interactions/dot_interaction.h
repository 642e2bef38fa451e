#ifndef HOTROW_OPS_INTERACTIONS_DOT_INTERACTION_H_
#define HOTROW_OPS_INTERACTIONS_DOT_INTERACTION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"

namespace hotrow {

// Dimensions: B samples, F = 1 + S vectors of D columns each: the dense one first, then S sparse
// ones. Output columns: D (the dense vector itself), then F (F-1) / 2 products of the lower
// triangle, row by row: (1,0), (2,0), (2,1), (3,0), ...
struct DotInteractionArgs {
  int64_t batch_size = 0;        // B
  int32_t num_sparse = 0;        // S >= 0
  int32_t dim = 0;               // D > 0
  const float* dense = nullptr;  // [B, D], row stride dense_stride
  int64_t dense_stride = 0;
  const float* sparse = nullptr;  // [B, S * D], row stride sparse_stride
  int64_t sparse_stride = 0;
  float* output = nullptr;  // [B, DotInteractionOutputSize], row stride output_stride
  int64_t output_stride = 0;
  // false: output has the products alone, so that it and its gradient are D columns narrower.
  bool copies_dense = true;

  absl::Status Validate() const;
};

int64_t DotInteractionOutputSize(int32_t num_sparse, int32_t dim, bool copies_dense = true);

// The interaction of DLRM (Naumov et al. 2019): all pairwise dot products of a sample's vectors.
// Here and below outputs must not overlap inputs. The order of sums depends on D and F alone, so
// results depend neither on threads nor on the batch.
//
// On a CUDA device all pointers, here and below, are device memory. Sums run in the CPU's order, so
// results are the same bit for bit.
absl::Status DotInteraction(const ExecContext& ctx, const DotInteractionArgs& args);

struct DotInteractionGradArgs {
  DotInteractionArgs forward;              // inputs of the forward pass; output is not read
  const float* output_gradient = nullptr;  // [B, output size], row stride forward.output_stride
  float* dense_gradient = nullptr;         // [B, D], row stride dense_gradient_stride, overwritten
  int64_t dense_gradient_stride = 0;
  float* sparse_gradient = nullptr;  // [B, S * D], row stride sparse_gradient_stride, overwritten
  int64_t sparse_gradient_stride = 0;

  absl::Status Validate() const;
};
absl::Status DotInteractionGrad(const ExecContext& ctx, const DotInteractionGradArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_INTERACTIONS_DOT_INTERACTION_H_
