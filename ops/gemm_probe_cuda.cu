#include "base/hash.h"
#include "base/hopper.cuh"
#include "ops/gemm_probe_impl.h"
#include "ops/launch_impl.cuh"
#include "ops/mlp_impl.h"

namespace hotrow::internal {
namespace {

// All threads take the same branch on the kind of numbers.
__device__ float LoadNumber(const GemmMatrix& matrix, int64_t at) {
  if (matrix.numbers == GemmNumbers::kFloat) return static_cast<const float*>(matrix.data)[at];
  const uint32_t half = static_cast<const uint16_t*>(matrix.data)[at];
  return matrix.numbers == GemmNumbers::kFp16 ? gpu::UnpackFp16(half).x : gpu::UnpackBf16(half).x;
}
__device__ void StoreNumber(const GemmMatrix& matrix, int64_t at, float x) {
  if (matrix.numbers == GemmNumbers::kFloat) {
    static_cast<float*>(matrix.data)[at] = x;
    return;
  }
  const uint32_t pair =
      matrix.numbers == GemmNumbers::kFp16 ? gpu::PackFp16(x, 0.0f) : gpu::PackBf16(x, 0.0f);
  static_cast<uint16_t*>(matrix.data)[at] = static_cast<uint16_t>(pair);
}
__device__ uint32_t BitsOf(const GemmMatrix& matrix, int64_t at) {
  if (matrix.numbers == GemmNumbers::kFloat) return static_cast<const uint32_t*>(matrix.data)[at];
  return static_cast<const uint16_t*>(matrix.data)[at];
}

__device__ bool MaskBit(const uint32_t* words, int64_t row) {
  return (words[row / 32] >> (row % 32) & 1) != 0;
}
// As Relu and ReluGrad: a NaN passes.
__device__ bool PassesRelu(float sum) { return !(sum <= 0); }

// What FinishKernel needs of a product.
struct FinishArgs {
  GemmMatrix c;
  int64_t m = 0;
  int64_t n = 0;
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  const float* bias = nullptr;
  uint32_t* mask = nullptr;
};

// A warp a column of C, which is a sample's row; a lane each 32nd number. kWords words of the mask
// at a time, whose numbers are all read before the first is written.
// Bytes: of a number of e bytes 2 e and a bit; gradient: a bit, and e where it is 0
__global__ void FinishKernel(FinishArgs args) {
  constexpr int kWords = 4;
  const int64_t mask_stride = ReluMaskStride(args.m);
  for (int64_t j = GridGroup(); j < args.n; j += GridGroups()) {
    uint32_t* const mask = args.mask == nullptr ? nullptr : args.mask + j * mask_stride;
    const int64_t column = j * args.c.ld;
    for (int64_t begin = 0; begin < args.m; begin += kWords * kWarpThreads) {
      float sums[kWords];
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const int64_t i = begin + w * kWarpThreads + GroupLane();
        if (i >= args.m) continue;
        sums[w] = LoadNumber(args.c, column + i);
        if (args.bias != nullptr) sums[w] += args.bias[i];
      }
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const int64_t first = begin + w * kWarpThreads;
        if (first >= args.m) break;  // the same for all lanes
        const int64_t i = first + GroupLane();
        const bool exists = i < args.m;
        if (args.epilogue == GemmEpilogue::kReluGrad) {
          if (exists && !MaskBit(mask, i)) StoreNumber(args.c, column + i, 0.0f);
          continue;
        }
        const bool passes = exists && PassesRelu(sums[w]);
        if (exists) {
          StoreNumber(args.c, column + i,
                      args.epilogue == GemmEpilogue::kRelu ? Relu(sums[w]) : sums[w]);
        }
        if (args.epilogue != GemmEpilogue::kRelu || mask == nullptr) continue;
        const unsigned bits = __ballot_sync(kAllLanes, passes ? 1 : 0);
        if (GroupLane() == 0) mask[first / kWarpThreads] = bits;
      }
    }
  }
}

// Bytes: once a shape
__global__ void FillProbeKernel(ProbeNumbers args) {
  const GemmMatrix to = {.data = args.data, .numbers = args.numbers};
  for (int64_t i = GridThread(); i < args.count; i += GridThreads()) {
    const uint64_t random = Mix64(args.seed + static_cast<uint64_t>(i));
    float x = args.whole ? static_cast<float>(static_cast<int>(random % 5) - 2)
                         : static_cast<float>(random >> 40) * 0x1p-23f - 1.0f;
    if (i == args.nan_at) x = __int_as_float(0x7fc00000);
    StoreNumber(to, i, x);
  }
}

// Bytes: once a shape
__global__ void FillProbeMaskKernel(uint32_t* mask, int64_t words, uint64_t seed) {
  for (int64_t i = GridThread(); i < words; i += GridThreads()) {
    mask[i] = static_cast<uint32_t>(Mix64(seed + static_cast<uint64_t>(i)));
  }
}

// Bytes: once a shape
__global__ void CompareWithSumsKernel(FinishArgs args, GemmMatrix sums, uint32_t* wrong) {
  const int64_t mask_stride = ReluMaskStride(args.m);
  for (int64_t at = GridThread(); at < args.m * args.n; at += GridThreads()) {
    const int64_t i = at % args.m;
    const int64_t j = at / args.m;
    float want = LoadNumber(sums, i + j * sums.ld);
    if (args.bias != nullptr) want += args.bias[i];
    bool bad = false;
    if (args.epilogue == GemmEpilogue::kRelu) {
      bad = args.mask != nullptr && want != 0 &&
            MaskBit(args.mask + j * mask_stride, i) != PassesRelu(want);
      want = Relu(want);
    } else if (args.epilogue == GemmEpilogue::kReluGrad) {
      want = MaskBit(args.mask + j * mask_stride, i) ? want : 0.0f;
    }
    const float got = LoadNumber(args.c, i + j * args.c.ld);
    const bool equal = got == want || (got != got && want != want);
    if (bad || !equal) atomicAdd(wrong, 1u);
  }
}

// Bytes: once a shape
__global__ void CompareBitsKernel(int64_t m, int64_t n, GemmMatrix one, GemmMatrix other,
                                  const uint32_t* one_mask, const uint32_t* other_mask,
                                  uint32_t* wrong) {
  const int64_t mask_stride = ReluMaskStride(m);
  for (int64_t at = GridThread(); at < m * n; at += GridThreads()) {
    const int64_t i = at % m;
    const int64_t j = at / m;
    bool equal = BitsOf(one, i + j * one.ld) == BitsOf(other, i + j * other.ld);
    if (one_mask != nullptr) {
      equal = equal &&
              MaskBit(one_mask + j * mask_stride, i) == MaskBit(other_mask + j * mask_stride, i);
    }
    if (!equal) atomicAdd(wrong, 1u);
  }
}

FinishArgs ArgsOf(const ColumnMajorProduct& product, const GemmMatrix& c) {
  return {.c = c,
          .m = product.m,
          .n = product.n,
          .epilogue = product.epilogue,
          .bias = product.bias,
          .mask = product.mask};
}

unsigned Blocks(int64_t threads) { return GridBlocks(threads, kThreadsPerBlock); }

}  // namespace

absl::Status FinishProductCuda(CudaStream stream, const ColumnMajorProduct& product,
                               GemmNumbers numbers) {
  FinishKernel<<<GridBlocks(product.n, kThreadsPerBlock / kWarpThreads), kThreadsPerBlock, 0,
                 stream>>>(
      ArgsOf(product, {.data = product.c, .ld = product.ldc, .numbers = numbers}));
  return LastLaunch("FinishProduct");
}

absl::Status FillProbeCuda(CudaStream stream, const ProbeNumbers& args) {
  FillProbeKernel<<<Blocks(args.count), kThreadsPerBlock, 0, stream>>>(args);
  return LastLaunch("FillProbe");
}

absl::Status FillProbeMaskCuda(CudaStream stream, uint32_t* mask, int64_t words, uint64_t seed) {
  FillProbeMaskKernel<<<Blocks(words), kThreadsPerBlock, 0, stream>>>(mask, words, seed);
  return LastLaunch("FillProbeMask");
}

absl::Status CompareWithSumsCuda(CudaStream stream, const ColumnMajorProduct& product,
                                 const GemmMatrix& result, const GemmMatrix& sums,
                                 uint32_t* wrong) {
  CompareWithSumsKernel<<<Blocks(product.m * product.n), kThreadsPerBlock, 0, stream>>>(
      ArgsOf(product, result), sums, wrong);
  return LastLaunch("CompareWithSums");
}

absl::Status CompareBitsCuda(CudaStream stream, int64_t m, int64_t n, const GemmMatrix& one,
                             const GemmMatrix& other, const uint32_t* one_mask,
                             const uint32_t* other_mask, uint32_t* wrong) {
  CompareBitsKernel<<<Blocks(m * n), kThreadsPerBlock, 0, stream>>>(m, n, one, other, one_mask,
                                                                    other_mask, wrong);
  return LastLaunch("CompareBits");
}

}  // namespace hotrow::internal
