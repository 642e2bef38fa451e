#include "ops/launch_impl.cuh"
#include "ops/training/ordered_sum_impl.h"

namespace hotrow::internal {
namespace {

__global__ void __launch_bounds__(kThreadsPerBlock) OrderedSumKernel(const OrderedSumArgs args) {
  for (int64_t i = GridThread(); i < args.size; i += GridThreads()) {
    args.sum[i] = SumOfElement(args, i);
  }
}

}  // namespace

absl::Status OrderedSumCuda(const OrderedSumArgs& args, CudaStream stream) {
  OrderedSumKernel<<<GridBlocks(args.size, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(args);
  return LastLaunch("OrderedSum");
}

}  // namespace hotrow::internal
