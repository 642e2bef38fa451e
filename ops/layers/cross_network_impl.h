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

namespace hotrow::internal {

// Where the parameters of a layer lie.
struct CrossLayerShape {
  int64_t weight_offset = 0;  // of w, W or V
  int64_t u_offset = 0;       // of U; only with a rank
  int64_t bias_offset = 0;
  int64_t end = 0;  // padding included
};

struct CrossShape {
  CrossKind kind = CrossKind::kMatrix;
  int64_t width = 0;
  int64_t rank = 0;
  int64_t stride = 0;       // width, rounded up to whole cache lines
  int64_t rank_stride = 0;  // rank, rounded up in the same way
  std::vector<CrossLayerShape> layers;
  int64_t num_parameters = 0;
  int64_t max_batch_size = 0;

  bool low_rank() const { return rank > 0; }
  size_t last_layer() const { return layers.size() - 1; }
};
CrossShape ShapeOf(const CrossNetworkOptions& options);

// The memory and the passes of a CrossNetwork on one device. Arguments have been checked, and the
// order of calls too: `forward` is what the last Forward, in training, was given. A batch may be
// empty.
class CrossEngine {
 public:
  virtual ~CrossEngine() = default;
  virtual absl::Status Forward(const ExecContext& ctx, const CrossNetwork::ForwardArgs& args) = 0;
  virtual absl::Status BackwardInput(const ExecContext& ctx,
                                     const CrossNetwork::ForwardArgs& forward,
                                     const CrossNetwork::BackwardArgs& args) = 0;
  virtual absl::Status BackwardParameters(const ExecContext& ctx,
                                          const CrossNetwork::ForwardArgs& forward,
                                          const CrossNetwork::BackwardArgs& args) = 0;
  virtual int64_t bytes() const = 0;
};
// An engine of kFp32 or kBf16.
absl::StatusOr<std::unique_ptr<CrossEngine>> NewCrossCpu(const CrossShape& shape,
                                                         DensePrecision precision);
// On a GPU: the vectors of kVector, whose sums are fp32 with every precision; the matrices of
// kMatrix with factors of fp32 or tf32; those with factors of bf16 or fp16.
absl::StatusOr<std::unique_ptr<CrossEngine>> NewCrossVectorCuda(const CrossShape& shape,
                                                                CudaStream stream);
absl::StatusOr<std::unique_ptr<CrossEngine>> NewCrossMatrixCuda(const CrossShape& shape,
                                                                DensePrecision precision,
                                                                CudaStream stream);
absl::StatusOr<std::unique_ptr<CrossEngine>> NewCrossMatrixHalfCuda(const CrossShape& shape,
                                                                    DensePrecision precision,
                                                                    CudaStream stream);

// args.gradients_ready for a layer, where it is given.
absl::Status LayerReady(const CrossLayerShape& layer, const CrossNetwork::BackwardArgs& args);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_LAYERS_CROSS_NETWORK_IMPL_H_
