#ifndef HOTROW_OPS_INTERACTIONS_PADDED_DOT_CUDA_IMPL_H_
#define HOTROW_OPS_INTERACTIONS_PADDED_DOT_CUDA_IMPL_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "ops/interactions/padded_dot_impl.h"

namespace hotrow::internal {

// The columns of an output row: the dense vector where it is copied, then the products, then zeros
// and as the last one 1, if there are more.
struct DotColumns {
  int32_t first_product = 0;  // D, or 0 where the dense vector is not copied
  int64_t all = 0;
};

// What PaddedDot does where tensor cores do not, and DotInteraction: sums in the CPU's order.
absl::Status DotByPairs(CudaStream stream, const PaddedDotArgs& args, const DotColumns& columns);
absl::Status DotGradByPairs(CudaStream stream, const PaddedDotGradArgs& args,
                            const DotColumns& columns);

// The same by tiles of pairs in registers (padded_dot_fp32_cuda.cu). False, with nothing enqueued,
// where they do not take the precision, the shape or the alignment of vectors.
absl::StatusOr<bool> DotInFp32(CudaStream stream, const PaddedDotArgs& args,
                               const DotColumns& columns);
absl::StatusOr<bool> DotGradInFp32(CudaStream stream, const PaddedDotGradArgs& args,
                                   const DotColumns& columns);

// Products on tensor cores (padded_dot_tiles_cuda.cu). False, with nothing enqueued, where they do
// not take the precision, the shape or the alignment of rows.
absl::StatusOr<bool> PaddedDotOnTiles(CudaStream stream, const PaddedDotArgs& args);
absl::StatusOr<bool> PaddedDotGradOnTiles(CudaStream stream, const PaddedDotGradArgs& args);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_INTERACTIONS_PADDED_DOT_CUDA_IMPL_H_
