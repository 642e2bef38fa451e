#ifndef HOTROW_OPS_PRODUCTS_HALF_PAIRS_IMPL_CUH_
#define HOTROW_OPS_PRODUCTS_HALF_PAIRS_IMPL_CUH_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/device_memory.h"
#include "base/exec_context.h"
#include "base/hopper.cuh"
#include "base/math.h"
#include "base/non_finite.h"
#include "ops/launch_impl.cuh"
#include "ops/products/dense_precision.h"
#include "ops/products/gemm_cuda_impl.h"
#include "ops/products/gemm_impl.h"

// Matrices of bf16 or fp16 as the products of networks read them (Mlp, CrossNetwork). Rows are
// padded to kPairsAlignment numbers, whole 16-byte loads for the products. What a map with a bias
// reads has a column more, of ones, and the bias is a column of its weights: so products add biases
// and sum their gradients, in the order that makes products repeat. What is padded is zero on one
// side and finite on the other, or is not read at all.
namespace hotrow::internal {

inline constexpr int64_t kPairsAlignment = 16;

// Numbers from one row to the next, without and with a column of ones.
constexpr int64_t PairsStride(int64_t columns) { return RoundUp(columns, kPairsAlignment); }
// Where the ones stand: behind what products write.
constexpr int64_t OnesColumn(int64_t columns) { return PaddedLine(columns); }
constexpr int64_t PairsStrideWithOnes(int64_t columns) {
  return PairsStride(OnesColumn(columns) + 1);
}

enum class HalfFormat { kBf16, kFp16 };
inline HalfFormat HalfFormatOf(DensePrecision precision) {
  return precision == DensePrecision::kFp16 ? HalfFormat::kFp16 : HalfFormat::kBf16;
}
inline NumbersView::Type TypeOf(HalfFormat format) {
  return format == HalfFormat::kFp16 ? NumbersView::Type::kFp16 : NumbersView::Type::kBf16;
}
inline GemmPrecision GemmPrecisionOf(HalfFormat format) {
  return format == HalfFormat::kFp16 ? GemmPrecision::kFp16 : GemmPrecision::kBf16;
}

// Rows of 16-bit numbers, two a word, the first in the low half. All threads take the same branch
// on the format, beside loads and stores that cost more.
struct Pairs {
  uint32_t* data = nullptr;
  int64_t stride = 0;  // words
  HalfFormat format = HalfFormat::kBf16;

  __device__ uint32_t* row(int64_t r) const { return data + r * stride; }
  // Rounds to the nearest; beyond the largest number to infinity.
  __device__ uint32_t Pack(float low, float high) const {
    return format == HalfFormat::kFp16 ? gpu::PackFp16(low, high) : gpu::PackBf16(low, high);
  }
  __device__ float2 Unpack(uint32_t pair) const {
    return format == HalfFormat::kFp16 ? gpu::UnpackFp16(pair) : gpu::UnpackBf16(pair);
  }
};
// Rows of `stride` numbers.
inline Pairs PairsOf(DeviceBuffer<uint32_t>& buffer, int64_t stride, HalfFormat format) {
  return {buffer.data(), stride / 2, format};
}
inline absl::StatusOr<DeviceBuffer<uint32_t>> NewPairs(int64_t rows, int64_t stride,
                                                       CudaStream stream) {
  return DeviceBuffer<uint32_t>::Create(rows * stride / 2, stream);
}

// Calls body(row, word) for all words below `words` of all rows, a warp a row.
template <typename Body>
__device__ void ForEachWord(int64_t rows, int64_t words, Body&& body) {
  for (int64_t r = GridGroup(); r < rows; r += GridGroups()) {
    for (int64_t w = GroupLane(); w < words; w += kWarpThreads) body(r, w);
  }
}
inline unsigned BlocksOfRows(int64_t rows) {
  return GridBlocks(rows, kThreadsPerBlock / kWarpThreads);
}

struct PackRowsArgs {
  ConstMatrix from = {nullptr, 0};
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t zero_rows = 0;  // behind the rows
  // What stands in OnesColumn, where there is room: behind[r], or ones. All else is zero.
  const float* behind = nullptr;
  Pairs to;
};
// Rounds rows to the nearest, of several matrices in one launch.
absl::Status PackRowsCuda(CudaStream stream, std::span<const PackRowsArgs> matrices);
inline absl::Status PackRowsCuda(CudaStream stream, const PackRowsArgs& args) {
  return PackRowsCuda(stream, std::span<const PackRowsArgs>(&args, 1));
}

// Ones in a column, zeros elsewhere: what products leave as it is behind the columns they write.
absl::Status OnesPairsCuda(CudaStream stream, int64_t rows, int64_t column, const Pairs& to);

// A gradient of weights with those of the biases in OnesColumn, to where parameters lie:
// from [out, OnesColumn(in) + 1] -> weights [out, in], biases [out], and zeros behind each.
struct UnpackGradientArgs {
  ConstMatrix from = {nullptr, 0};
  int64_t in = 0;
  int64_t out = 0;
  float* weights = nullptr;
  float* biases = nullptr;
  int64_t weights_end = 0;  // floats, padding included
  int64_t biases_end = 0;
};
absl::Status UnpackGradientCuda(CudaStream stream, const UnpackGradientArgs& args);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_PRODUCTS_HALF_PAIRS_IMPL_CUH_
