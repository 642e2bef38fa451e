#include <cstdint>
#include <cuda/atomic>

#include "ops/keys/tell_host_impl.h"
#include "ops/launch_impl.cuh"

namespace hotrow::internal {
namespace {

// One block. Each thread's numbers are out of the GPU before it meets the others, and the kernels
// before have ended; the fence covers what they wrote as well.
__global__ void __launch_bounds__(kThreadsPerBlock) TellHostKernel(const TellHostArgs args) {
  for (int64_t i = threadIdx.x; i < args.num_numbers; i += blockDim.x) args.to[i] = args.from[i];
  cuda::atomic_thread_fence(cuda::std::memory_order_seq_cst, cuda::thread_scope_system);
  __syncthreads();
  if (threadIdx.x == 0) {
    cuda::atomic_ref<uint64_t, cuda::thread_scope_system>(*args.flag)
        .store(args.flag_value, cuda::std::memory_order_release);
  }
}

}  // namespace

absl::Status TellHostCuda(const TellHostArgs& args, CudaStream stream) {
  TellHostKernel<<<1, kThreadsPerBlock, 0, stream>>>(args);
  return LastLaunch("TellHost");
}

}  // namespace hotrow::internal
