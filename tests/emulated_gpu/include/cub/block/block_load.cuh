#ifndef HOTROW_TESTS_EMULATED_GPU_CUB_BLOCK_LOAD_CUH_
#define HOTROW_TESTS_EMULATED_GPU_CUB_BLOCK_LOAD_CUH_

#include <cuda_runtime.h>

namespace cub {

enum BlockLoadAlgorithm { BLOCK_LOAD_DIRECT, BLOCK_LOAD_WARP_TRANSPOSE };

// Thread t has the items [t * kItems, (t + 1) * kItems).
template <typename T, int kThreads, int kItems, BlockLoadAlgorithm = BLOCK_LOAD_DIRECT>
class BlockLoad {
 public:
  struct TempStorage {
    T unused;
  };
  explicit BlockLoad(TempStorage&) {}

  void Load(const T* from, T (&items)[kItems], int valid, T otherwise) {
    for (int k = 0; k < kItems; ++k) {
      const int i = static_cast<int>(threadIdx.x) * kItems + k;
      items[k] = i < valid ? from[i] : otherwise;
    }
    __syncthreads();
  }
};

}  // namespace cub

#endif  // HOTROW_TESTS_EMULATED_GPU_CUB_BLOCK_LOAD_CUH_
