#ifndef HOTROW_OPS_PRODUCTS_GEMM_PROBE_IMPL_H_
#define HOTROW_OPS_PRODUCTS_GEMM_PROBE_IMPL_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/products/gemm_cuda_impl.h"

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

// Does to C = op(A) op(B) what `product` says of bias, ReLU, mask and dropout. mask_only: C is
// ReLU's output and stays as it is.
absl::Status FinishProductCuda(CudaStream stream, const ColumnMajorProduct& product,
                               GemmNumbers numbers, bool mask_only = false);

// Copies lines of numbers of 2 or 4 bytes, with zeros behind each and behind the last.
struct CopyLinesArgs {
  const void* from = nullptr;
  int64_t from_ld = 0;
  int64_t line = 0;
  int64_t lines = 0;
  void* to = nullptr;
  int64_t to_ld = 0;
  int64_t to_line = 0;
  int64_t to_lines = 0;
  bool halves = false;
};
// Copies lines of several matrices in one launch, four at most.
absl::Status CopyLinesCuda(CudaStream stream, std::span<const CopyLinesArgs> matrices);

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

// Adds to *wrong how many numbers of product.c are not what bias and ReLU make of `sums`. Zeros of
// either sign are equal.
absl::Status CompareWithSumsCuda(CudaStream stream, const ColumnMajorProduct& product,
                                 const GemmMatrix& result, const GemmMatrix& sums, uint32_t* wrong);

// Adds to *wrong how many numbers of [m, n] have other bits.
absl::Status CompareBitsCuda(CudaStream stream, int64_t m, int64_t n, const GemmMatrix& one,
                             const GemmMatrix& other, uint32_t* wrong);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_PRODUCTS_GEMM_PROBE_IMPL_H_
