#ifndef HOTROW_OPS_LAYERS_CROSS_NETWORK_H_
#define HOTROW_OPS_LAYERS_CROSS_NETWORK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "ops/products/dense_precision.h"

namespace hotrow {

enum class CrossKind {
  kVector,  // DCN: a weight vector for each layer
  kMatrix,  // DCN V2: a matrix for each layer, or two thin ones
};

struct CrossNetworkOptions {
  CrossKind kind = CrossKind::kMatrix;
  int32_t width = 0;       // W > 0: columns of input and output
  int32_t num_layers = 0;  // > 0
  int32_t rank = 0;        // of the matrices, in [0, W]; 0: full. kMatrix only
  // Number of layer 0 in the counters of InitParameters; keeps networks of one model apart.
  int32_t first_layer_id = 0;
  int64_t max_batch_size = 0;  // B at most; activations are kept for it
  // The type of the factors of products, of kMatrix only; the device must have it
  // (CheckDensePrecision). Layers' inputs and outputs are fp32 with all of them. kBf16 rounds W, V,
  // U, x_l, V x_l and the gradients of t = W_l x_l + b_l and of V x_l to the nearest, on a GPU also
  // b and t.
  DensePrecision precision = DensePrecision::kFp32;

  absl::Status Validate() const;
};

// Cross layers: each multiplies its input by the network's input x_0 and adds itself, so that L
// layers make products of up to L + 1 features. Keeps what the backward pass needs of the last
// forward pass. It works on the device of its context: the calls take contexts of the same one.
//
//   kVector:  x_{l+1} = x_0 (x_l . w_l) + b_l + x_l       (Wang et al. 2017, "Deep & Cross Network
//             for Ad Click Predictions")
//   kMatrix:  x_{l+1} = x_0 o (W_l x_l + b_l) + x_l, with W_l = U_l V_l where a rank is given
//             (Wang et al. 2021, "DCN V2"; there V is written transposed). o is element by element.
//
// Data:    x_l row-major [B, W]. Parameters and gradients belong to the caller, as flat arrays of
//          num_parameters floats. For each layer the weights, then b [W], each block padded to 64
//          bytes. The weights are w [W]; or W row-major [W, W]; or V [rank, W], then U [W, rank].
// Threads: one call at a time. Work is split over ctx.pool (null = the calling thread alone) in
//          pieces that depend on the shapes only, and sums over the batch run in a fixed order. So
//          results are equal bit for bit with any number of threads.
// CUDA:    x, y, dy, dx, parameters and their gradients are device memory, and the calls enqueue
//          work on ctx.stream, one stream at a time. As with Mlp (ops/layers/mlp.h) the first pass
//          with a batch size chooses algorithms on the host; later ones allocate nothing, wait for
//          nothing and can be captured in a CUDA graph. Results repeat bit for bit on one kind of
//          GPU and differ from the CPU's by the rounding of sums. kVector reads x and writes y
//          once, and keeps 2 L + 1 numbers a sample.
// Errors:  InvalidArgument (names the field), FailedPrecondition (Backward without Forward, no
//          usable GPU, no bf16), ResourceExhausted (no memory), Unimplemented (a build without
//          CUDA), Internal (what cublasLt or oneDNN says).
class CrossNetwork {
 public:
  // ctx says where it works. Its memory on a GPU is taken and given back in the order of
  // ctx.stream, which must outlive it.
  static absl::StatusOr<std::unique_ptr<CrossNetwork>> Create(const CrossNetworkOptions& options,
                                                              const ExecContext& ctx = {});
  ~CrossNetwork();

  int32_t width() const;
  int32_t num_layers() const;
  int64_t num_parameters() const;              // padding between blocks included
  int64_t weight_offset(int32_t layer) const;  // of w, W or V
  int64_t u_offset(int32_t layer) const;       // of U; only with a rank
  int64_t bias_offset(int32_t layer) const;

  // Weights normal with standard deviation sqrt(2 / (in + out)) (Glorot & Bengio 2010) for the W x
  // 1, W x W, W x rank or rank x W map that they are, biases zero. Elements count through w or W,
  // or through V, then U; element e takes normal number e % 4 of RandomBlock(seed, kDenseInit, e /
  // 4, first_layer_id + layer, 0). Padding is zero. parameters has num_parameters elements, in host
  // memory on every device.
  void InitParameters(uint64_t seed, std::span<float> parameters) const;

  // y = x_L for x = x_0. x [B, W] with row stride x_stride, y [B, W] with y_stride (floats); they
  // must not overlap. x is read again by Backward and must stay until then; y need not. training
  // makes Backward possible.
  struct ForwardArgs {
    const float* parameters = nullptr;
    const float* x = nullptr;
    int64_t x_stride = 0;
    int64_t batch_size = 0;
    float* y = nullptr;
    int64_t y_stride = 0;
    bool training = false;
  };
  absl::Status Forward(const ExecContext& ctx, const ForwardArgs& args);

  // Gradients of the last Forward, which must have had training = true; once for each Forward,
  // since the kept activations are used up. dy [B, W] is overwritten as scratch. dx [B, W] may be
  // null when the input needs no gradient. parameter_gradients is overwritten (not added to), its
  // padding with zeros. parameters must be those of that Forward.
  struct BackwardArgs {
    const float* parameters = nullptr;
    float* dy = nullptr;
    int64_t dy_stride = 0;
    float* dx = nullptr;
    int64_t dx_stride = 0;
    float* parameter_gradients = nullptr;
    // Null, or called when parameter_gradients[begin, end) are final: layer by layer, padding
    // included, the last layer first, on the calling thread while other threads go on. Also for
    // B = 0. Its first error ends the calls and is Backward's error. On CUDA they are final for
    // what is enqueued on ctx.stream from then on.
    std::function<absl::Status(int64_t begin, int64_t end)> gradients_ready;
  };
  absl::Status Backward(const ExecContext& ctx, const BackwardArgs& args);

  // Backward in two halves: first dx, then parameter_gradients, so that the caller can pass dx on
  // in between. Both take the same args; the second does not read dy, and on a GPU
  // parameter_gradients are being written until it has been called. The second without the first is
  // FailedPrecondition.
  absl::Status BackwardInput(const ExecContext& ctx, const BackwardArgs& args);
  absl::Status BackwardParameters(const ExecContext& ctx, const BackwardArgs& args);

  // All memory this object keeps: activations, column sums and what products work with; not what
  // all networks on one stream of a GPU share (Mlp::activation_bytes).
  int64_t activation_bytes() const;

 private:
  struct Impl;
  explicit CrossNetwork(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotrow

#endif  // HOTROW_OPS_LAYERS_CROSS_NETWORK_H_
