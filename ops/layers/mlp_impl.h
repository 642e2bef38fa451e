#ifndef HOTROW_OPS_LAYERS_MLP_IMPL_H_
#define HOTROW_OPS_LAYERS_MLP_IMPL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/macros.h"
#include "ops/layers/dense_network_impl.h"
#include "ops/layers/dropout.h"
#include "ops/layers/mlp.h"
#include "ops/products/gemm_impl.h"

namespace hotrow::internal {

// Layer l reads its input x_l [B, in] and writes z_l = x_l W^T + b, then ReLU and dropout: y_l
// [B, out].
struct MlpLayer : LayerParameters {
  int64_t in = 0;
  int64_t out = 0;
  int64_t out_stride = 0;  // out, rounded up to whole cache lines
  bool relu = false;
  bool last = false;
  float dropout = 0;  // in training
  uint32_t id = 0;    // in dropout's counters
};

struct MlpShape {
  std::vector<MlpLayer> layers;
  int64_t max_batch_size = 0;
  uint64_t seed = 0;  // of dropout
};
MlpShape ShapeOf(const MlpOptions& options);

// Dropout of a layer's output, or of its gradient, in the pass of these args.
inline DropoutArgs MlpDropout(const MlpShape& shape, const MlpLayer& layer,
                              const DenseForward& args, const Matrix& data) {
  return {.data = data.data,
          .rows = args.batch_size,
          .columns = layer.out,
          .stride = data.stride,
          .rate = layer.dropout,
          .seed = shape.seed,
          .step = args.step,
          .device_step = args.device_step,
          .layer = layer.id,
          .first_row = args.first_row};
}

// What ReLU does to a number, and whether a gradient passes where its output is y: as Vec8::Relu
// and ReluGrad, so a NaN stays one.
HOTROW_HOST_DEVICE inline float Relu(float x) { return x < 0 ? 0.0f : x; }
HOTROW_HOST_DEVICE inline bool PassesRelu(float y) { return !(y <= 0); }

absl::StatusOr<std::unique_ptr<DenseEngine>> NewMlpCpu(const MlpShape& shape);
// Products of bf16, on the CPU.
absl::StatusOr<std::unique_ptr<DenseEngine>> NewMlpBf16(const MlpShape& shape);
// Products of int8, on the CPU; to score with.
absl::StatusOr<std::unique_ptr<DenseEngine>> NewMlpInt8(const MlpShape& shape);
// kFp32 or kTf32.
absl::StatusOr<std::unique_ptr<DenseEngine>> NewMlpCuda(const MlpShape& shape,
                                                        DensePrecision precision,
                                                        CudaStream stream);
// kBf16 or kFp16, on a GPU.
absl::StatusOr<std::unique_ptr<DenseEngine>> NewMlpHalfCuda(const MlpShape& shape,
                                                            DensePrecision precision,
                                                            CudaStream stream);

// --- what the engines of the CPU share ---

// The gradients of the biases, which are `sums` of each layer, chunk after chunk; and zeros for the
// padding after W and after b.
struct BiasSums {  // of one layer: a row for each chunk
  const float* data = nullptr;
  int64_t stride = 0;
};
void FinishBiasGradients(const MlpShape& shape, std::span<const BiasSums> sums, int64_t batch_size,
                         float* parameter_gradients);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_LAYERS_MLP_IMPL_H_
