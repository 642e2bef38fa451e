#include "base/status_macros.h"
#include "ops/interactions/padded_dot_cuda_impl.h"
#include "ops/launch_impl.cuh"

// Shapes that other kernels do not take (padded_dot_tiles_cuda.cu, padded_dot_fp32_cuda.cu): a
// block a sample, whose vectors stay in the L1 cache, in the order of the CPU's sums.
namespace hotrow::internal {
namespace {

// The CPU sums a product in eight lanes and then across them; here they are eight threads.
constexpr int kDotLanes = 8;

template <typename Stored>
__device__ const Stored* VectorOf(const PaddedDotArgs& args, int64_t sample, int64_t i) {
  if (i == 0) return static_cast<const Stored*>(args.dense) + sample * args.dense_stride;
  if (args.sparse_rows != nullptr) {
    return static_cast<const Stored*>(args.sparse_rows[sample * args.num_sparse + i - 1]);
  }
  return static_cast<const Stored*>(args.sparse) + sample * args.sparse_stride + (i - 1) * args.dim;
}

// Eight threads a product.
// Bytes: e (F D + columns) a sample
template <DotPrecision kPrecision>
__global__ void DotPairsKernel(PaddedDotArgs args, DotColumns columns) {
  using Element = DotElement<kPrecision>;
  using Stored = typename Element::Stored;
  const int64_t vectors = int64_t{args.num_sparse} + 1;
  const int64_t pairs = PairPlace(vectors, 0);
  const int lane = GroupLane<kDotLanes>();
  const int group = static_cast<int>(threadIdx.x) / kDotLanes;
  const int groups = static_cast<int>(blockDim.x) / kDotLanes;
  const unsigned lanes = 0xffu << (threadIdx.x % kWarpThreads / kDotLanes * kDotLanes);
  for (int64_t sample = blockIdx.x; sample < args.batch_size; sample += gridDim.x) {
    const Stored* const dense = VectorOf<Stored>(args, sample, 0);
    Stored* const output = static_cast<Stored*>(args.output) + sample * args.output_stride;
    Stored* const products = output + columns.first_product;
    for (int64_t d = threadIdx.x; d < columns.first_product; d += blockDim.x) output[d] = dense[d];
    for (int64_t c = columns.first_product + pairs + threadIdx.x; c < columns.all;
         c += blockDim.x) {
      output[c] = Element::Narrow(c == columns.all - 1 ? 1.0f : 0.0f);
    }
    PairWalk pair;
    for (int64_t place = group; place < pairs; place += groups) {
      pair.MoveTo(place);
      const Stored* const a = VectorOf<Stored>(args, sample, pair.i);
      const Stored* const b = VectorOf<Stored>(args, sample, pair.j);
      float sum = 0;
      for (int32_t first = 0; first < args.dim; first += kDotLanes) {
        // Lanes behind the end add a product of zeros, as on the CPU.
        const int64_t d = int64_t{first} + lane;
        const bool in = d < args.dim;
        sum = fmaf(in ? Element::Factor(a[d]) : 0.0f, in ? Element::Factor(b[d]) : 0.0f, sum);
      }
      sum = SumOfEight(lanes, sum);
      if (lane == 0) products[place] = Element::Narrow(sum);
    }
  }
}

// A thread a number: start + sum over j, rising, of pair(i, j) x_j[d]. The pair of a vector with
// itself counts as zero.
// Bytes: e (2 F D + columns) a sample
template <DotPrecision kPrecision>
__global__ void DotPairsGradKernel(PaddedDotGradArgs args, DotColumns columns) {
  using Element = DotElement<kPrecision>;
  using Stored = typename Element::Stored;
  const PaddedDotArgs& forward = args.forward;
  const int64_t vectors = int64_t{forward.num_sparse} + 1;
  const int64_t numbers = vectors * forward.dim;
  for (int64_t sample = blockIdx.x; sample < forward.batch_size; sample += gridDim.x) {
    const Stored* const output_gradient =
        static_cast<const Stored*>(args.output_gradient) + sample * forward.output_stride;
    const Stored* const pairs = output_gradient + columns.first_product;
    for (int64_t number = threadIdx.x; number < numbers; number += blockDim.x) {
      const int64_t i = number / forward.dim;
      const int64_t d = number % forward.dim;
      // Where the first outputs are the dense vector itself, its gradient starts from theirs.
      float sum = number < columns.first_product ? Element::Widen(output_gradient[d]) : 0.0f;
      for (int64_t j = 0; j < vectors; ++j) {
        float pair = 0;
        if (j < i) pair = Element::Factor(pairs[PairPlace(i, j)]);
        if (j > i) pair = Element::Factor(pairs[PairPlace(j, i)]);
        sum = fmaf(pair, Element::Factor(VectorOf<Stored>(forward, sample, j)[d]), sum);
      }
      Stored* const gradient =
          i == 0 ? static_cast<Stored*>(args.dense_gradient) + sample * args.dense_gradient_stride
                 : static_cast<Stored*>(args.sparse_gradient) +
                       sample * args.sparse_gradient_stride + (i - 1) * forward.dim;
      gradient[d] = Element::Narrow(sum);
    }
  }
}

}  // namespace

absl::Status DotByPairs(CudaStream stream, const PaddedDotArgs& args, const DotColumns& columns) {
  HOTROW_ASSIGN_OR_RETURN(const bool done, DotInFp32(stream, args, columns));
  if (done) return absl::OkStatus();
  return WithDotPrecision(args.precision, [&](auto precision) {
    constexpr DotPrecision kPrecision = decltype(precision)::value;
    DotPairsKernel<kPrecision>
        <<<GridBlocks(args.batch_size, 1), kThreadsPerBlock, 0, stream>>>(args, columns);
    return LastLaunch("PaddedDot");
  });
}

absl::Status DotGradByPairs(CudaStream stream, const PaddedDotGradArgs& args,
                            const DotColumns& columns) {
  HOTROW_ASSIGN_OR_RETURN(const bool done, DotGradInFp32(stream, args, columns));
  if (done) return absl::OkStatus();
  return WithDotPrecision(args.forward.precision, [&](auto precision) {
    constexpr DotPrecision kPrecision = decltype(precision)::value;
    DotPairsGradKernel<kPrecision>
        <<<GridBlocks(args.forward.batch_size, 1), kThreadsPerBlock, 0, stream>>>(args, columns);
    return LastLaunch("PaddedDotGrad");
  });
}

absl::Status PaddedDotCuda(CudaStream stream, const PaddedDotArgs& args) {
  HOTROW_ASSIGN_OR_RETURN(const bool done, PaddedDotOnTiles(stream, args));
  if (done) return absl::OkStatus();
  return DotByPairs(
      stream, args,
      {.first_product = args.dim, .all = PaddedDotColumns(args.num_sparse, args.dim)});
}

absl::Status PaddedDotGradCuda(CudaStream stream, const PaddedDotGradArgs& args) {
  HOTROW_ASSIGN_OR_RETURN(const bool done, PaddedDotGradOnTiles(stream, args));
  if (done) return absl::OkStatus();
  return DotGradByPairs(stream, args, {.first_product = args.forward.dim});
}

}  // namespace hotrow::internal
