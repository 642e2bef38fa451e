#ifndef HOTROW_OPS_LAYERS_CROSS_NETWORK_H_
#define HOTROW_OPS_LAYERS_CROSS_NETWORK_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "ops/layers/dense_network.h"
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
  // (CheckDensePrecision), and kInt8 refuses training. Layers' inputs and outputs are fp32 with
  // all. kBf16 rounds W, V, U, x_l, V x_l and the gradients of t = W_l x_l + b_l and of V x_l to
  // the nearest, on a GPU also b and t.
  DensePrecision precision = DensePrecision::kFp32;

  absl::Status Validate() const;
};

// Cross layers: each multiplies its input by the network's input x_0 and adds itself, so that L
// layers make products of up to L + 1 features. Contracts of data, threads, CUDA and errors:
// DenseNetwork; but what Forward kept is used up by one BackwardInput.
//
//   kVector:  x_{l+1} = x_0 (x_l . w_l) + b_l + x_l       (Wang et al. 2017, "Deep & Cross Network
//             for Ad Click Predictions")
//   kMatrix:  x_{l+1} = x_0 o (W_l x_l + b_l) + x_l, with W_l = U_l V_l where a rank is given
//             (Wang et al. 2021, "DCN V2"; there V is written transposed). o is element by element.
//
// x_l is row-major [B, W]. Parameters: for each layer the weights, then b [W]. The weights are w
// [W]; or W row-major [W, W]; or V [rank, W], then U [W, rank]. On a GPU kVector reads x and writes
// y once, and keeps 2 L + 1 numbers a sample.
class CrossNetwork : public DenseNetwork {
 public:
  // ctx says where it works; ctx.stream, in whose order GPU memory comes and goes, outlives it.
  static absl::StatusOr<std::unique_ptr<CrossNetwork>> Create(const CrossNetworkOptions& options,
                                                              const ExecContext& ctx = {});
  ~CrossNetwork() override;

  int32_t width() const;
  int32_t num_layers() const;
  int64_t weight_offset(int32_t layer) const;  // of w, W or V
  int64_t u_offset(int32_t layer) const;       // of U; only with a rank
  int64_t bias_offset(int32_t layer) const;

  // Weights normal with standard deviation sqrt(2 / (in + out)) (Glorot & Bengio 2010) for the W x
  // 1, W x W, W x rank or rank x W map that they are, biases zero. Elements count through w or W,
  // or through V, then U; element e takes normal number e % 4 of RandomBlock(seed, kDenseInit, e /
  // 4, first_layer_id + layer, 0).
  void InitParameters(uint64_t seed, std::span<float> parameters) const override;

 private:
  struct Impl;
  CrossNetwork(std::unique_ptr<Impl> impl, Device device,
               std::unique_ptr<internal::DenseEngine> engine);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotrow

#endif  // HOTROW_OPS_LAYERS_CROSS_NETWORK_H_
