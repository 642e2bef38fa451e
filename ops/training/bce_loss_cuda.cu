#include <cfloat>

#include "base/math.h"
#include "base/status_macros.h"
#include "ops/launch_impl.cuh"
#include "ops/training/bce_loss_impl.h"

namespace hotrow::internal {
namespace {

constexpr int kThreads = static_cast<int>(kBceChunkSamples);  // of both kernels: one a sample
constexpr char kName[] = "BceWithLogits";

// values[0] + values[1] + ..., in this order, added to sum.
__device__ double AddInOrder(double sum, const double* values, int n) {
  for (int i = 0; i < n; ++i) sum += values[i];
  return sum;
}

// A block a chunk: its terms side by side, then one thread sums them in the order of samples.
// Bytes: 12 a sample: logit, label read, gradient written
__global__ void ChunkKernel(BceWithLogitsArgs args, double mean_over, int64_t chunks,
                            double* sums) {
  __shared__ double terms[kThreads];
  for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const int64_t begin = chunk * kBceChunkSamples;
    const auto n = static_cast<int>(min(args.batch_size - begin, kBceChunkSamples));
    if (threadIdx.x < n) {
      const int64_t i = begin + threadIdx.x;
      const double y = args.labels[i * args.stride];
      const BceTerm term = BceTermOf(args.logits[i * args.stride], y);
      terms[threadIdx.x] = BceLabelIsGood(y) ? term.loss : nan("");
      if (args.gradient != nullptr) {
        args.gradient[i * args.stride] =
            static_cast<float>(args.weight * ((term.sigmoid - y) / mean_over));
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) sums[chunk] = AddInOrder(0, terms, n);
    __syncthreads();  // terms is free again
  }
}

// One block: the mean, the chunks' sums added in their order.
// Bytes: 8 for each 256 samples
__global__ void MeanKernel(const double* sums, int64_t chunks, int64_t batch_size, double* loss,
                           uint32_t* lost) {
  __shared__ double part[kThreads];
  double sum = 0;  // of thread 0
  for (int64_t begin = 0; begin < chunks; begin += kThreads) {
    const auto n = static_cast<int>(min(chunks - begin, int64_t{kThreads}));
    if (threadIdx.x < n) part[threadIdx.x] = sums[begin + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) sum = AddInOrder(sum, part, n);
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  const double mean = batch_size == 0 ? 0 : sum / static_cast<double>(batch_size);
  *loss = mean;
  if (lost != nullptr && !(std::fabs(mean) <= DBL_MAX)) *lost = 1;
}

}  // namespace

absl::Status BceWithLogitsCuda(CudaStream stream, const BceWithLogitsArgs& args) {
  const int64_t chunks = CeilDiv(args.batch_size, kBceChunkSamples);
  auto* const sums = reinterpret_cast<double*>(args.workspace);
  if (chunks > 0) {
    ChunkKernel<<<GridBlocks(chunks, 1), kThreads, 0, stream>>>(args, BceMeanOver(args), chunks,
                                                                sums);
    HOTROW_RETURN_IF_ERROR(LastLaunch(kName));
  }
  MeanKernel<<<1, kThreads, 0, stream>>>(sums, chunks, args.batch_size, args.loss, args.lost);
  return LastLaunch(kName);
}

}  // namespace hotrow::internal
