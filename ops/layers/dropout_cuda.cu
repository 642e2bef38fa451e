#include "ops/launch_impl.cuh"
#include "ops/layers/dropout_impl.h"

namespace hotrow::internal {
namespace {

// A thread a group.
// Bytes: 8 a number
__global__ void DropoutKernel(DropoutArgs args, uint32_t threshold) {
  const int64_t end = DropoutEndGroup(args);
  for (int64_t group = DropoutFirstGroup(args) + GridThread(); group < end;
       group += GridThreads()) {
    DropoutGroup(args, threshold, group);
  }
}

}  // namespace

absl::Status DropoutCuda(CudaStream stream, const DropoutArgs& args) {
  const int64_t groups = DropoutEndGroup(args) - DropoutFirstGroup(args);
  DropoutKernel<<<GridBlocks(groups, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(
      args, DropoutThreshold(args.rate));
  return LastLaunch("Dropout");
}

}  // namespace hotrow::internal
