#ifndef HOTROW_OPS_PRODUCTS_BF16_GEMM_IMPL_H_
#define HOTROW_OPS_PRODUCTS_BF16_GEMM_IMPL_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "base/buffer.h"
#include "base/thread_pool.h"
#include "ops/products/bf16_rows_impl.h"
#include "ops/products/gemm_impl.h"
#include "ops/products/panel_products_impl.h"

// What networks of linear maps share where their products are of bf16, with sums in fp32.
namespace hotrow::internal {

// CheckDensePrecision(kBf16), for a processor that has what these say. `processor` and `option` are
// for the error.
absl::Status CheckBf16(bool onednn_supports, bool rows_supported, const std::string& processor,
                       const std::string& option);

// y = x W^T (+ b) for W row-major [out, in], and its gradients. Chunks of rows are kGemmChunkRows
// high, in passes for training always all of them; rows behind the batch are zero in dy, and in x
// those of a network that reads zeros.
// Threads: the calls for different chunks and blocks may run at a time, Prepare alone.
class Bf16Linear {
 public:
  // max_batch_size is that of training.
  absl::Status Init(int64_t in, int64_t out, int64_t max_batch_size);

  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  int64_t in_padded() const { return in_padded_; }
  int64_t out_padded() const { return out_padded_; }
  int64_t bytes() const;

  // Rounds the weights for the passes over a batch. bias may be null: there is none.
  void Prepare(ThreadPool* pool, const float* weights, const float* bias, int64_t batch_size,
               bool training);

  // y [rows, out_padded] = x [rows, in_padded] W^T (+ b). y is Bf16 or float, as float_result says.
  absl::Status Forward(PanelProducts* products, const Bf16* x, int64_t rows, bool float_result,
                       void* y, ProductScratch* scratch) const;
  // dx [kGemmChunkRows, in_padded] = dy [kGemmChunkRows, out_padded] W; dx is Bf16 or float, too.
  absl::Status InputGradient(PanelProducts* products, const Bf16* dy, bool float_result, void* dx,
                             ProductScratch* scratch) const;
  // What WeightGradient reads: a chunk of x and of dy, whose first row is `begin`.
  void KeepInput(const Bf16* x, int64_t begin);
  void KeepGradient(const Bf16* dy, int64_t begin);
  // A block of dW [out, in] over the whole batch, as one product.
  absl::Status WeightGradient(PanelProducts* products, const WeightBlock& block, float* dw,
                              ProductScratch* scratch) const;

 private:
  int64_t in_ = 0;
  int64_t out_ = 0;
  int64_t in_padded_ = 0;
  int64_t out_padded_ = 0;
  int64_t batch_padded_ = 0;  // of the last Prepare
  bool has_bias_ = false;
  HostBuffer<Bf16> transposed_;  // W^T in panels
  HostBuffer<Bf16> weights_;     // W in panels, for training
  HostBuffer<float> bias_;       // [out_padded]
  HostBuffer<Bf16> inputs_;      // x in panels
  HostBuffer<Bf16> gradients_;   // dy^T, dense
};

// The blocks of weight gradients of such maps.
WeightBlocks CutWeights(std::span<const Bf16Linear* const> linears);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_PRODUCTS_BF16_GEMM_IMPL_H_
