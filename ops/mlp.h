#ifndef HOTROW_OPS_MLP_H_
#define HOTROW_OPS_MLP_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"

namespace hotrow {

struct MlpOptions {
  std::vector<int32_t> sizes;   // [L + 1]: input, hidden ..., output; each > 0
  bool relu_on_output = false;  // hidden layers always have ReLU
  float dropout = 0;            // after each hidden ReLU, in training, in [0, 1)
  uint64_t seed = 0;            // of dropout
  int32_t first_layer_id =
      0;  // layer number in dropout's counter, so that two MLPs of a model differ
  int64_t max_batch_size = 0;  // B at most; activations are kept for it

  absl::Status Validate() const;
};

// A multi-layer perceptron: y = x W^T + b for each layer, ReLU between (fused with the bias on the
// CPU, where oneDNN does the products). Keeps the activations of the last forward pass for the
// backward pass.
//
// Data:    activations row-major [B, size]; W_l row-major [sizes[l+1], sizes[l]], b_l [sizes[l+1]].
// Parameters
//          and gradients belong to the caller, as flat arrays of num_parameters floats: W_0, b_0,
//          W_1, b_1, ..., each block at ParameterOffset (64-byte aligned).
// Threads: one at a time. GEMMs use oneDNN's threads: results are equal bit for bit at one thread
// count.
class Mlp {
 public:
  static absl::StatusOr<std::unique_ptr<Mlp>> Create(const MlpOptions& options);
  ~Mlp();

  int32_t num_layers() const;
  int64_t num_parameters() const;  // padding between blocks included
  int64_t weight_offset(int32_t layer) const;
  int64_t bias_offset(int32_t layer) const;
  int32_t input_size() const;
  int32_t output_size() const;

  // W and b of each layer drawn as the reference DLRM does: W normal with standard deviation
  // sqrt(2 / (in + out)), b normal with sqrt(1 / out). Philox(seed, RandomPurpose::kDenseInit,
  // element, first_layer_id + layer). Padding is zero.
  void InitParameters(uint64_t seed, std::span<float> parameters) const;

  // y = MLP(x). x [B, input_size] with row stride x_stride, y [B, output_size] with y_stride
  // (floats). x is read again by Backward and must stay until then. training switches dropout on;
  // step goes into its counter.
  struct ForwardArgs {
    const float* parameters = nullptr;
    const float* x = nullptr;
    int64_t x_stride = 0;
    int64_t batch_size = 0;
    float* y = nullptr;
    int64_t y_stride = 0;
    bool training = false;
    uint32_t step = 0;
  };
  absl::Status Forward(const ExecContext& ctx, const ForwardArgs& args);

  // Gradients of the last Forward with training = true. dy [B, output_size] is overwritten as
  // scratch. dx may be null when the input needs no gradient. parameter_gradients is overwritten
  // (not added to).
  struct BackwardArgs {
    const float* parameters = nullptr;
    float* dy = nullptr;
    int64_t dy_stride = 0;
    float* dx = nullptr;
    int64_t dx_stride = 0;
    float* parameter_gradients = nullptr;
  };
  absl::Status Backward(const ExecContext& ctx, const BackwardArgs& args);

  int64_t activation_bytes() const;

 private:
  struct Impl;
  explicit Mlp(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotrow

#endif  // HOTROW_OPS_MLP_H_
