#ifndef HOTROW_OPS_LAYERS_MLP_H_
#define HOTROW_OPS_LAYERS_MLP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
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
  // The type of the factors of products; the device must have it (CheckDensePrecision). kBf16
  // rounds x, W, dy and what lies between two layers to the nearest, on a GPU also b, and before
  // dropout once more; sums, y, dx and parameter_gradients are fp32.
  DensePrecision precision = DensePrecision::kFp32;

  absl::Status Validate() const;
};

// A multi-layer perceptron: y = x W^T + b for each layer, ReLU between. Keeps the activations of
// the last forward pass for the backward pass. It works on the device of its context: the calls
// take contexts of the same one.
//
// Data:    activations row-major [B, size]; W_l row-major [sizes[l+1], sizes[l]], b_l [sizes[l+1]].
//          Parameters and gradients belong to the caller, as flat arrays of num_parameters floats:
//          W_0, b_0, W_1, b_1, ..., each block padded to 64 bytes.
// Threads: one call at a time. Work is split over ctx.pool (null = the calling thread alone) in
//          pieces that depend on the shapes only; within a piece oneDNN multiplies on one thread.
//          So results are equal bit for bit with any number of threads.
// CUDA:    x, y, dy, dx, parameters and their gradients are device memory, and the calls enqueue
//          work on ctx.stream, one stream at a time; gradients of parameters are made on a second
//          one, from BackwardInput to BackwardParameters, behind which ctx.stream has them. The
//          first pass with a batch size asks cublasLt for algorithms and tries them, for which it
//          waits, and loads kernels; later ones allocate nothing, wait for nothing and can be
//          captured in a CUDA graph. Results repeat bit for bit on one kind of
//          GPU and differ from the CPU's by the rounding of sums; dropout's mask is the same.
// Errors:  InvalidArgument (names the field), FailedPrecondition (Backward without Forward, no
//          usable GPU, no bf16), ResourceExhausted (no memory), Unimplemented (a build without
//          CUDA), Internal (what cublasLt or oneDNN says).
class Mlp {
 public:
  // ctx says where it works. Its memory on a GPU is taken and given back in the order of
  // ctx.stream, which must outlive it.
  static absl::StatusOr<std::unique_ptr<Mlp>> Create(const MlpOptions& options,
                                                     const ExecContext& ctx = {});
  ~Mlp();

  const MlpOptions& options() const;  // those of Create
  int32_t num_layers() const;
  int64_t num_parameters() const;  // padding between blocks included
  int64_t weight_offset(int32_t layer) const;
  int64_t bias_offset(int32_t layer) const;
  int32_t input_size() const;
  int32_t output_size() const;

  // W and b of each layer drawn as the reference DLRM does: W normal with standard deviation
  // sqrt(2 / (in + out)), b normal with sqrt(1 / out). Elements count through W, then b; element e
  // takes normal number e % 4 of RandomBlock(seed, kDenseInit, e / 4, first_layer_id + layer, 0).
  // Padding is zero. parameters has num_parameters elements, in host memory on every device.
  void InitParameters(uint64_t seed, std::span<float> parameters) const;

  // y = MLP(x). x [B, input_size] with row stride x_stride, y [B, output_size] with y_stride
  // (floats). x is read again by Backward and must stay until then; y need not. training switches
  // dropout on and makes Backward possible; step goes into dropout's counter, and so does first_row
  // >= 0, the number of row 0 in a larger batch of which x is a slice.
  struct ForwardArgs {
    const float* parameters = nullptr;
    const float* x = nullptr;
    int64_t x_stride = 0;
    int64_t batch_size = 0;
    float* y = nullptr;
    int64_t y_stride = 0;
    bool training = false;
    uint32_t step = 0;
    const uint32_t* device_step = nullptr;  // DropoutArgs
    int64_t first_row = 0;
  };
  absl::Status Forward(const ExecContext& ctx, const ForwardArgs& args);

  // Gradients of the last Forward, which must have had training = true. dy [B, output_size] is
  // overwritten as scratch. dx may be null when the input needs no gradient. parameter_gradients is
  // overwritten (not added to), its padding with zeros. parameters must be those of that Forward.
  struct BackwardArgs {
    const float* parameters = nullptr;
    float* dy = nullptr;
    int64_t dy_stride = 0;
    float* dx = nullptr;
    int64_t dx_stride = 0;
    // Columns of dx that may be written, where these are more than input_size: a GPU then needs no
    // copy where input_size is no multiple of 8.
    int64_t dx_columns = 0;
    float* parameter_gradients = nullptr;
    // Null, or told when parameter_gradients[begin, end) are final: W and b of one layer with their
    // padding, the last layer first, on the calling thread while others go on with the layers
    // below. Also for B = 0. The first error it returns is Backward's error, and no call follows.
    // On CUDA they are final for what is enqueued on ctx.stream from then on.
    std::function<absl::Status(int64_t begin, int64_t end)> gradients_ready;
  };
  absl::Status Backward(const ExecContext& ctx, const BackwardArgs& args);

  // Backward in two halves: first dx, then parameter_gradients, so that the caller can pass dx on
  // in between. Both take the same args. Until the second half dy must stay as the first left it,
  // and on a GPU parameter_gradients are being written. The second without the first is
  // FailedPrecondition.
  absl::Status BackwardInput(const ExecContext& ctx, const BackwardArgs& args);
  absl::Status BackwardParameters(const ExecContext& ctx, const BackwardArgs& args);

  // All memory this object keeps: activations, their gradients and what products work with; not
  // the 32 MiB of workspaces that all networks on one stream of a GPU share, and its padded copies.
  int64_t activation_bytes() const;

 private:
  struct Impl;
  explicit Mlp(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotrow

#endif  // HOTROW_OPS_LAYERS_MLP_H_
