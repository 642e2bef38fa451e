#ifndef HOTROW_OPS_LAYERS_CROSS_NETWORK_IMPL_H_
#define HOTROW_OPS_LAYERS_CROSS_NETWORK_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "ops/layers/cross_network.h"
#include "ops/layers/dense_network_impl.h"

namespace hotrow::internal {

struct CrossLayerShape : LayerParameters {  // weight_offset: of w, W or V
  int64_t u_offset = 0;                     // of U; only with a rank
};

struct CrossShape {
  CrossKind kind = CrossKind::kMatrix;
  int64_t width = 0;
  int64_t rank = 0;
  int64_t stride = 0;       // width, rounded up to whole cache lines
  int64_t rank_stride = 0;  // rank, rounded up in the same way
  std::vector<CrossLayerShape> layers;
  int64_t max_batch_size = 0;

  bool low_rank() const { return rank > 0; }
  size_t last_layer() const { return layers.size() - 1; }
};
CrossShape ShapeOf(const CrossNetworkOptions& options);

// An engine of kFp32 or kBf16; of kVector with every precision.
absl::StatusOr<std::unique_ptr<DenseEngine>> NewCrossCpu(const CrossShape& shape,
                                                         DensePrecision precision);
// The matrices of kMatrix with products of int8, on the CPU; to score with.
absl::StatusOr<std::unique_ptr<DenseEngine>> NewCrossInt8(const CrossShape& shape);
// On a GPU: the vectors of kVector, whose sums are fp32 with every precision; the matrices of
// kMatrix with factors of fp32 or tf32; those with factors of bf16 or fp16.
absl::StatusOr<std::unique_ptr<DenseEngine>> NewCrossVectorCuda(const CrossShape& shape,
                                                                CudaStream stream);
absl::StatusOr<std::unique_ptr<DenseEngine>> NewCrossMatrixCuda(const CrossShape& shape,
                                                                DensePrecision precision,
                                                                CudaStream stream);
absl::StatusOr<std::unique_ptr<DenseEngine>> NewCrossMatrixHalfCuda(const CrossShape& shape,
                                                                    DensePrecision precision,
                                                                    CudaStream stream);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_LAYERS_CROSS_NETWORK_IMPL_H_
