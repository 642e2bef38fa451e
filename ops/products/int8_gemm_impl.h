#ifndef HOTROW_OPS_PRODUCTS_INT8_GEMM_IMPL_H_
#define HOTROW_OPS_PRODUCTS_INT8_GEMM_IMPL_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/buffer.h"
#include "base/thread_pool.h"
#include "ops/products/gemm_impl.h"
#include "ops/products/int8_rows_impl.h"
#include "ops/products/panel_products_impl.h"

// Linear maps of networks that score with products of int8.
namespace hotrow::internal {

// CheckDensePrecision(kInt8), for a processor that has what these say. `processor` and `option` are
// for the error.
absl::Status CheckInt8(bool onednn_supports, bool rows_supported, const std::string& processor,
                       const std::string& option);

// y = x W^T (+ b), then ReLU if asked for, with W row-major [out, in].
//
// Codes:   W in [-127, 127] with a scale for each output, the largest |w| / 127; x in [0, 255] with
//          a scale and a zero for each row (EncodeInt8Row). Their product is exact in 32 bits, so a
//          row of y depends on no other row, on no thread and on no way in which oneDNN sums. With
//          scales s of x and c of W, |y - x W^T - b| <= sum over k of |x| c / 2 + |w| s / 2 +
//          s c / 4, and the rounding of floats. An output whose weights are not all finite is a
//          NaN, and so is all of y of such a row of x.
// Narrow:  maps of at most kFewInputs inputs or kFewOutputs outputs stay in fp32: they cost little,
//          and have the ends of networks, where rounding shows most: dense features as they come,
//          and logits.
// Threads: Forward for different rows at a time, Prepare alone.
class Int8Linear {
 public:
  // InvalidArgument where a sum might not have room in 32 bits.
  absl::Status Init(int64_t in, int64_t out);
  // Makes the codes that Forward reads.
  void Prepare(ThreadPool* pool, const float* weights);
  // At most kGemmChunkRows rows. weights: those of Prepare. bias may be null, y may be x. Needs a
  // ProductScope. Errors: those of PanelProducts::Run.
  absl::Status Forward(PanelProducts* products, const ConstMatrix& x, int64_t rows,
                       const float* weights, const float* bias, bool relu, const Matrix& y,
                       ProductScratch* scratch) const;
  int64_t bytes() const;

 private:
  bool few_outputs() const { return out_ <= kFewOutputs; }
  bool few_inputs() const { return in_ <= kFewInputs; }
  void EncodeOutput(const float* weights, int64_t output);

  int64_t in_ = 0;
  int64_t out_ = 0;
  int64_t in_padded_ = 0;
  int64_t out_padded_ = 0;
  HostBuffer<float> transposed_;  // with few inputs: W^T [in, padded out]
  // W^T in panels as those of bf16 (bf16_rows_impl.h), with quads of rows in the place of pairs.
  HostBuffer<int8_t> codes_;
  HostBuffer<float> scales_;       // [padded out]
  HostBuffer<int32_t> code_sums_;  // of the codes of each output
};

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_PRODUCTS_INT8_GEMM_IMPL_H_
