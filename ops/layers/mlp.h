#ifndef HOTROW_OPS_LAYERS_MLP_H_
#define HOTROW_OPS_LAYERS_MLP_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "ops/layers/dense_network.h"
#include "ops/products/dense_precision.h"

namespace hotrow {

struct MlpOptions {
  std::vector<int32_t> sizes;   // [L + 1]: input, hidden ..., output; each > 0
  bool relu_on_output = false;  // hidden layers always have ReLU
  float dropout = 0;            // after each hidden ReLU, in training, in [0, 1)
  uint64_t seed = 0;            // of dropout
  // Number of layer 0 in the counters of dropout and InitParameters; keeps MLPs of one model apart.
  int32_t first_layer_id = 0;
  int64_t max_batch_size = 0;  // B at most; activations are kept for it
  // The type of the factors of products; the device must have it (CheckDensePrecision), and kInt8
  // refuses training. kBf16 rounds x, W, dy and what lies between two layers to the nearest, on a
  // GPU also b, and before dropout once more; sums, y, dx and parameter_gradients are fp32.
  DensePrecision precision = DensePrecision::kFp32;

  absl::Status Validate() const;
};

// A multi-layer perceptron: y = x W^T + b for each layer, ReLU between. Contracts of data, threads,
// CUDA and errors: DenseNetwork. Parameters: W_0, b_0, W_1, b_1, ..., with W_l row-major
// [sizes[l+1], sizes[l]], b_l [sizes[l+1]]. Dropout's mask is the same on all devices.
class Mlp : public DenseNetwork {
 public:
  // ctx says where it works; ctx.stream, in whose order GPU memory comes and goes, outlives it.
  static absl::StatusOr<std::unique_ptr<Mlp>> Create(const MlpOptions& options,
                                                     const ExecContext& ctx = {});
  ~Mlp() override;

  const MlpOptions& options() const;  // those of Create
  int32_t num_layers() const;
  int64_t weight_offset(int32_t layer) const;
  int64_t bias_offset(int32_t layer) const;
  int32_t input_size() const;
  int32_t output_size() const;

  // W and b of each layer drawn as the reference DLRM does: W normal with standard deviation
  // sqrt(2 / (in + out)), b normal with sqrt(1 / out). Elements count through W, then b; element e
  // takes normal number e % 4 of RandomBlock(seed, kDenseInit, e / 4, first_layer_id + layer, 0).
  void InitParameters(uint64_t seed, std::span<float> parameters) const override;

 private:
  struct Impl;
  Mlp(std::unique_ptr<Impl> impl, Device device, std::unique_ptr<internal::DenseEngine> engine);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotrow

#endif  // HOTROW_OPS_LAYERS_MLP_H_
