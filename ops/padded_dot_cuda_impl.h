#ifndef HOTROW_OPS_PADDED_DOT_CUDA_IMPL_H_
#define HOTROW_OPS_PADDED_DOT_CUDA_IMPL_H_

#include "absl/status/statusor.h"
#include "ops/padded_dot_impl.h"

namespace hotrow::internal {

// On tensor cores (padded_dot_tiles_cuda.cu). False, with nothing enqueued, where they do not take
// the precision, the shape or the alignment of rows.
absl::StatusOr<bool> PaddedDotOnTiles(CudaStream stream, const PaddedDotArgs& args);
absl::StatusOr<bool> PaddedDotGradOnTiles(CudaStream stream, const PaddedDotGradArgs& args);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_PADDED_DOT_CUDA_IMPL_H_
