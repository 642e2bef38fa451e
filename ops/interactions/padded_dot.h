#ifndef HOTROW_OPS_INTERACTIONS_PADDED_DOT_H_
#define HOTROW_OPS_INTERACTIONS_PADDED_DOT_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "base/exec_context.h"

namespace hotrow {

// What numbers are kept as, and what the factors of products are rounded to.
enum class DotPrecision : uint8_t {
  kFp32,  // kept as fp32, multiplied as fp32
  kTf32,  // kept as fp32; factors are rounded to ten bits of fraction, to nearest, ties away
  kBf16,  // kept as bf16
  kFp16,  // kept as fp16
};
std::string_view DotPrecisionName(DotPrecision precision);
int64_t DotElementBytes(DotPrecision precision);

// DotInteraction (dot_interaction.h) as matrix products want to read it: in four precisions, with
// output rows that are padded for them.
//
// Dimensions: B samples, F = 1 + S vectors of D columns each: the dense one first, then S sparse
// ones. Output columns: D (the dense vector, as it is), F (F-1) / 2 products of the lower triangle
// row by row, zeros, and as the last one the constant 1, whose weights are the bias of the layer
// that reads it. PaddedDotColumns is all of them, a multiple of 16.
struct PaddedDotArgs {
  DotPrecision precision = DotPrecision::kFp32;
  int64_t batch_size = 0;       // B
  int32_t num_sparse = 0;       // S >= 0
  int32_t dim = 0;              // D > 0
  const void* dense = nullptr;  // [B, D], row stride dense_stride; strides count elements
  int64_t dense_stride = 0;
  const void* sparse = nullptr;  // [B, S * D], row stride sparse_stride
  int64_t sparse_stride = 0;
  // Instead of sparse: where each sparse vector lies, [B, S], such as in the rows of a cache. Then
  // nothing of [B, S * D] need be written before. On a CUDA device the vectors are 16-byte aligned.
  const void* const* sparse_rows = nullptr;
  void* output = nullptr;  // [B, PaddedDotColumns], row stride output_stride
  int64_t output_stride = 0;

  absl::Status Validate() const;
};

// Products without the padding: D + F (F-1) / 2.
int64_t PaddedDotProducts(int32_t num_sparse, int32_t dim);
int64_t PaddedDotColumns(int32_t num_sparse, int32_t dim);

// All pairwise products of a sample's vectors. Products of bf16, fp16 and TF32 factors are exact,
// sums are of fp32, results are rounded once, to nearest even (beyond the largest: infinity). A NaN
// reaches the products of its vector and no other.
//
// On the CPU the order of sums is that of DotInteraction; kFp32 has its bits. On a CUDA device all
// pointers, here and below, are device memory, and
// - kFp32, and shapes that tensor cores do not take, have the CPU's bits;
// - up to 64 vectors of up to 512 columns, a multiple of 16, with all rows 16-byte aligned, go
//   through tensor cores: before the last rounding within 4 (D + 2) 2^-24 of the sum of the
//   magnitudes of the terms.
// Either way the bits of a sample depend on its vectors, S and D alone, not on the batch or timing.
absl::Status PaddedDot(const ExecContext& ctx, const PaddedDotArgs& args);

// gradient_i = (i == 0 ? gradient of the first D outputs : 0) + sum over j of pair(i, j) x_j, in
// fp32 and rounded once; the pair of a vector with itself counts as 0. Factors are rounded as in
// the forward pass. Gradients of the padding are not read.
struct PaddedDotGradArgs {
  PaddedDotArgs forward;                  // inputs of the forward pass; output is not read
  const void* output_gradient = nullptr;  // [B, PaddedDotColumns], row stride forward.output_stride
  void* dense_gradient = nullptr;         // [B, D], row stride dense_gradient_stride, overwritten
  int64_t dense_gradient_stride = 0;
  void* sparse_gradient = nullptr;  // [B, S * D], row stride sparse_gradient_stride, overwritten
  int64_t sparse_gradient_stride = 0;

  absl::Status Validate() const;
};
absl::Status PaddedDotGrad(const ExecContext& ctx, const PaddedDotGradArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_INTERACTIONS_PADDED_DOT_H_
