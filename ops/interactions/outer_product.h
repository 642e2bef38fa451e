#ifndef HOTROW_OPS_INTERACTIONS_OUTER_PRODUCT_H_
#define HOTROW_OPS_INTERACTIONS_OUTER_PRODUCT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/device.h"
#include "base/exec_context.h"

// The outer product of the sum of a sample's vectors with itself (Qu et al. 2016, "Product-based
// Neural Networks for User Response Prediction").
//
// All pointers are memory of ctx.device. On a CUDA device work is enqueued on ctx.stream; nothing
// is allocated and nothing waited for. Every sum is made by one thread in the CPU's order, each
// product and each sum rounded: so the bits are those of the CPU. They depend neither on threads
// nor on the batch, and a NaN stays in its sample.

namespace hotrow {

// The largest D. On the CPU the columns of the output can still be counted in 32 bits; a GPU keeps
// what it knows of each column in the shared memory of a processor.
constexpr int32_t OuterProductDimMax(Device device) {
  return device == Device::kCpu ? 65'535 : 4096;
}

// Dimensions: B samples of F vectors (fields) of D columns.
struct OuterProductArgs {
  int64_t batch_size = 0;         // B
  int32_t num_fields = 0;         // F >= 1
  int32_t dim = 0;                // D in [1, OuterProductDimMax]
  const float* fields = nullptr;  // [B, F, D]
  int64_t fields_stride = 0;      // floats between samples, >= (F - 1) field_stride + D
  int64_t field_stride = 0;       // floats between fields, >= D; not read where F = 1
  float* output = nullptr;        // [B, D (D + 1) / 2]; must not overlap fields
  int64_t output_stride = 0;

  absl::Status Validate() const;
};

// The columns of the output.
constexpr int64_t OuterProductOutputSize(int32_t dim) { return int64_t{dim} * (dim + 1) / 2; }

// The lower triangle of s s^T with s = (v_0 + v_1) + v_2 + ..., row by row: s_0 s_0, s_1 s_0,
// s_1 s_1, s_2 s_0, ...
absl::Status OuterProduct(const ExecContext& ctx, const OuterProductArgs& args);

struct OuterProductGradArgs {
  OuterProductArgs forward;                // inputs of the forward pass; output is not read
  const float* output_gradient = nullptr;  // [B, D (D + 1) / 2], row stride forward.output_stride
  // [B, F, D], overwritten; must not overlap an input. Strides as those of the fields.
  float* fields_gradient = nullptr;
  int64_t fields_gradient_stride = 0;
  int64_t field_gradient_stride = 0;

  absl::Status Validate() const;
};
// The gradient of each field is that of s: d(loss)/d(s_i) = the sum over j, rising, of g_ij s_j,
// where g_ij = g_ji is the gradient of s_i s_j; the term of j = i is added twice.
absl::Status OuterProductGrad(const ExecContext& ctx, const OuterProductGradArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_INTERACTIONS_OUTER_PRODUCT_H_
