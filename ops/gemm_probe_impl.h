#ifndef HOTROW_OPS_GEMM_PROBE_IMPL_H_
#define HOTROW_OPS_GEMM_PROBE_IMPL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/gemm_cuda_impl.h"

// What is done to sums of products by kernels of ours, and what tells whether cublasLt does the
// same in the product.
namespace hotrow::internal {

enum class GemmNumbers : uint8_t { kFloat, kBf16, kFp16 };

// A matrix as ColumnMajorProduct has them.
struct GemmMatrix {
  void* data = nullptr;
  int64_t ld = 0;
  GemmNumbers numbers = GemmNumbers::kFloat;
};

// Does to C = op(A) op(B) what `product` says of bias, ReLU and mask.
absl::Status FinishProductCuda(CudaStream stream, const ColumnMajorProduct& product,
                               GemmNumbers numbers);

// Fills `count` numbers of an operand. Whole ones from -2 to 2, of which sums are exact in any
// order, and their roundings the same; or fractions in [-1, 1), whose sums depend on the order.
// nan_at: a place that becomes NaN, or -1.
struct ProbeNumbers {
  void* data = nullptr;
  int64_t count = 0;
  GemmNumbers numbers = GemmNumbers::kFloat;
  bool whole = true;
  uint64_t seed = 0;
  int64_t nan_at = -1;
};
absl::Status FillProbeCuda(CudaStream stream, const ProbeNumbers& args);
absl::Status FillProbeMaskCuda(CudaStream stream, uint32_t* mask, int64_t words, uint64_t seed);

// Adds to *wrong how many numbers of product.c, and bits of product.mask where kRelu wrote it, are
// not what bias and ReLU make of `sums`. Zeros of either sign are equal. A bit of the mask where
// the sum is zero may be either: there is no gradient at that point.
absl::Status CompareWithSumsCuda(CudaStream stream, const ColumnMajorProduct& product,
                                 const GemmMatrix& result, const GemmMatrix& sums, uint32_t* wrong);

// Adds to *wrong how many numbers of [m, n], and bits of the masks unless these are null, differ.
absl::Status CompareBitsCuda(CudaStream stream, int64_t m, int64_t n, const GemmMatrix& one,
                             const GemmMatrix& other, const uint32_t* one_mask,
                             const uint32_t* other_mask, uint32_t* wrong);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_GEMM_PROBE_IMPL_H_
