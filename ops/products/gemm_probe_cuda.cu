#include "base/hash.h"
#include "base/hopper.cuh"
#include "ops/launch_impl.cuh"
#include "ops/layers/dropout_impl.h"
#include "ops/layers/mlp_impl.h"
#include "ops/products/gemm_probe_impl.h"

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

// What FinishKernel needs of a product.
struct FinishArgs {
  GemmMatrix c;
  int64_t m = 0;
  int64_t n = 0;
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  const float* bias = nullptr;
  uint32_t* mask = nullptr;
  DropoutArgs dropout = {};
  uint32_t dropout_threshold = 0;
};

// Eight neighbours of a column, whose bits are a byte of the mask.
struct Eight {
  float x[8];
};
// `whole`: all eight are there and lie where 16 bytes can be loaded at a time.
__device__ Eight LoadEight(const GemmMatrix& c, int64_t at, int count, bool whole) {
  Eight out;
  if (!whole) {
#pragma unroll
    for (int i = 0; i < 8; ++i) out.x[i] = i < count ? LoadNumber(c, at + i) : 0.0f;
  } else if (c.numbers == GemmNumbers::kFloat) {
    const auto* const from =
        reinterpret_cast<const float4*>(static_cast<const float*>(c.data) + at);
    const float4 low = from[0];
    const float4 high = from[1];
    out = {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
  } else {
    const uint4 words = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(c.data) + at);
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair =
          c.numbers == GemmNumbers::kFp16 ? gpu::UnpackFp16(pairs[i]) : gpu::UnpackBf16(pairs[i]);
      out.x[2 * i] = pair.x;
      out.x[2 * i + 1] = pair.y;
    }
  }
  return out;
}
__device__ void StoreEight(const GemmMatrix& c, int64_t at, int count, bool whole,
                           const Eight& eight) {
  const float* const x = eight.x;
  if (!whole) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < count) StoreNumber(c, at + i, x[i]);
    }
  } else if (c.numbers == GemmNumbers::kFloat) {
    auto* const to = reinterpret_cast<float4*>(static_cast<float*>(c.data) + at);
    to[0] = make_float4(x[0], x[1], x[2], x[3]);
    to[1] = make_float4(x[4], x[5], x[6], x[7]);
  } else {
    const auto pack = [&c](float low, float high) {
      return c.numbers == GemmNumbers::kFp16 ? gpu::PackFp16(low, high) : gpu::PackBf16(low, high);
    };
    *reinterpret_cast<uint4*>(static_cast<uint16_t*>(c.data) + at) =
        make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
  }
}

// A thread eight numbers of a column of C, which is a sample's row, and their byte of the mask.
// `writes`: C changes. `vectors`: columns lie where 16 bytes can be loaded. kDrops: as it says.
// Bytes: of a number of e bytes 2 e and a bit; mask alone: e and a bit
template <bool kDrops>
__global__ void FinishKernel(FinishArgs args, bool writes, bool vectors) {
  constexpr int kInFlight = 2;
  const int64_t eights = CeilDiv(args.m, 8);
  const int64_t mask_stride = ReluMaskStride(args.m) * static_cast<int64_t>(sizeof(uint32_t));
  auto* const mask = reinterpret_cast<uint8_t*>(args.mask);
  const int64_t end = args.n * eights;
  for (int64_t first = GridThread(); first < end; first += kInFlight * GridThreads()) {
    Eight numbers[kInFlight];
    int64_t columns[kInFlight], rows[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int64_t at = first + k * GridThreads();
      if (at >= end) break;
      // The short division where it will do.
      columns[k] =
          end >> 32 == 0 ? static_cast<uint32_t>(at) / static_cast<uint32_t>(eights) : at / eights;
      rows[k] = (at - columns[k] * eights) * 8;
      const auto count = static_cast<int>(min(args.m - rows[k], int64_t{8}));
      numbers[k] =
          LoadEight(args.c, columns[k] * args.c.ld + rows[k], count, vectors && count == 8);
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (first + k * GridThreads() >= end) break;
      const auto count = static_cast<int>(min(args.m - rows[k], int64_t{8}));
      uint8_t* const byte =
          mask == nullptr ? nullptr : mask + columns[k] * mask_stride + rows[k] / 8;
      unsigned bits = args.epilogue == GemmEpilogue::kReluGrad ? *byte : 0;
      unsigned kept = 0xff;
      if (kDrops && args.epilogue == GemmEpilogue::kRelu) {
        kept = DropoutKeepsOfEight(args.dropout, args.dropout_threshold, columns[k], rows[k]);
      }
      const float kept_share = kDrops ? 1.0f - args.dropout.rate : 1.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& x = numbers[k].x[i];
        if (args.bias != nullptr && i < count) x += args.bias[rows[k] + i];
        if (args.epilogue == GemmEpilogue::kReluGrad) {
          const bool passes = (bits >> i & 1) != 0;
          if (kDrops) x = x / kept_share;
          if (!passes) x = 0;
        } else if (args.epilogue == GemmEpilogue::kRelu) {
          const bool keeps = (kept >> i & 1) != 0;
          if (i < count && keeps && PassesRelu(x)) bits |= 1u << i;
          x = Relu(x);
          if (kDrops) x = keeps ? x / kept_share : 0.0f;
        }
      }
      if (args.epilogue == GemmEpilogue::kRelu && byte != nullptr) {
        *byte = static_cast<uint8_t>(bits);
      }
      if (!writes) continue;
      StoreEight(args.c, columns[k] * args.c.ld + rows[k], count, vectors && count == 8,
                 numbers[k]);
    }
  }
}

// Matrices of one launch; a parameter of the kernel.
struct CopyTable {
  static constexpr int kMax = 4;
  CopyLinesArgs matrices[kMax];
  int64_t ends[kMax];  // the sum of lines up to and with this one
  int size = 0;
};

template <typename Number>
__device__ void CopyLine(const CopyLinesArgs& args, int64_t line) {
  const auto* const from = static_cast<const Number*>(args.from) + line * args.from_ld;
  auto* const to = static_cast<Number*>(args.to) + line * args.to_ld;
  const int64_t there = line < args.lines ? args.line : 0;
  GroupMove<kWarpThreads>(
      GroupLane(), args.to_line, [=](int64_t i) { return i < there ? from[i] : Number{0}; },
      [=](int64_t i, Number x) { to[i] = x; });
}

// A warp a line.
// Bytes: 2 e a number of e bytes
__global__ void CopyLinesKernel(CopyTable table) {
  const int64_t lines = table.ends[table.size - 1];
  for (int64_t place = GridGroup(); place < lines; place += GridGroups()) {
    int i = 0;
    while (table.ends[i] <= place) ++i;
    const CopyLinesArgs& args = table.matrices[i];
    const int64_t line = place - (i == 0 ? 0 : table.ends[i - 1]);
    if (args.halves) {
      CopyLine<uint16_t>(args, line);
    } else {
      CopyLine<float>(args, line);
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
__global__ void CompareWithSumsKernel(FinishArgs args, GemmMatrix sums, uint32_t* wrong) {
  for (int64_t at = GridThread(); at < args.m * args.n; at += GridThreads()) {
    const int64_t i = at % args.m;
    const int64_t j = at / args.m;
    float want = LoadNumber(sums, i + j * sums.ld);
    if (args.bias != nullptr) want += args.bias[i];
    if (args.epilogue == GemmEpilogue::kRelu) want = Relu(want);
    const float got = LoadNumber(args.c, i + j * args.c.ld);
    if (got != want && (got == got || want == want)) atomicAdd(wrong, 1u);
  }
}

// Bytes: once a shape
__global__ void CompareBitsKernel(int64_t m, int64_t n, GemmMatrix one, GemmMatrix other,
                                  uint32_t* wrong) {
  for (int64_t at = GridThread(); at < m * n; at += GridThreads()) {
    const int64_t i = at % m;
    const int64_t j = at / m;
    if (BitsOf(one, i + j * one.ld) != BitsOf(other, i + j * other.ld)) atomicAdd(wrong, 1u);
  }
}

FinishArgs ArgsOf(const ColumnMajorProduct& product, const GemmMatrix& c) {
  FinishArgs args = {.c = c,
                     .m = product.m,
                     .n = product.n,
                     .epilogue = product.epilogue,
                     .bias = product.bias,
                     .mask = product.mask};
  if (product.dropout != nullptr) {
    args.dropout = *product.dropout;
    args.dropout_threshold = DropoutThreshold(args.dropout.rate);
  }
  return args;
}

unsigned Blocks(int64_t threads) { return GridBlocks(threads, kThreadsPerBlock); }

}  // namespace

absl::Status FinishProductCuda(CudaStream stream, const ColumnMajorProduct& product,
                               GemmNumbers numbers, bool mask_only) {
  const int64_t bytes = numbers == GemmNumbers::kFloat ? 4 : 2;
  const bool vectors = AddressAlignment(product.c) == 16 && product.ldc * bytes % 16 == 0;
  const auto kernel = product.dropout == nullptr ? &FinishKernel<false> : &FinishKernel<true>;
  kernel<<<Blocks(product.n * CeilDiv(product.m, 8)), kThreadsPerBlock, 0, stream>>>(
      ArgsOf(product, {.data = product.c, .ld = product.ldc, .numbers = numbers}), !mask_only,
      vectors);
  return LastLaunch("FinishProduct");
}

absl::Status CopyLinesCuda(CudaStream stream, std::span<const CopyLinesArgs> matrices) {
  CopyTable table;
  int64_t lines = 0;
  for (const CopyLinesArgs& args : matrices) {
    lines += args.to_lines;
    table.matrices[table.size] = args;
    table.ends[table.size++] = lines;
  }
  CopyLinesKernel<<<GridBlocks(lines, kThreadsPerBlock / kWarpThreads), kThreadsPerBlock, 0,
                    stream>>>(table);
  return LastLaunch("CopyLines");
}

absl::Status FillProbeCuda(CudaStream stream, const ProbeNumbers& args) {
  FillProbeKernel<<<Blocks(args.count), kThreadsPerBlock, 0, stream>>>(args);
  return LastLaunch("FillProbe");
}

absl::Status CompareWithSumsCuda(CudaStream stream, const ColumnMajorProduct& product,
                                 const GemmMatrix& result, const GemmMatrix& sums,
                                 uint32_t* wrong) {
  CompareWithSumsKernel<<<Blocks(product.m * product.n), kThreadsPerBlock, 0, stream>>>(
      ArgsOf(product, result), sums, wrong);
  return LastLaunch("CompareWithSums");
}

absl::Status CompareBitsCuda(CudaStream stream, int64_t m, int64_t n, const GemmMatrix& one,
                             const GemmMatrix& other, uint32_t* wrong) {
  CompareBitsKernel<<<Blocks(m * n), kThreadsPerBlock, 0, stream>>>(m, n, one, other, wrong);
  return LastLaunch("CompareBits");
}

}  // namespace hotrow::internal
