#ifndef HOTROW_TESTS_EMULATED_GPU_CUB_BLOCK_STORE_CUH_
#define HOTROW_TESTS_EMULATED_GPU_CUB_BLOCK_STORE_CUH_

#include <cuda_runtime.h>

namespace cub {

enum BlockStoreAlgorithm { BLOCK_STORE_DIRECT, BLOCK_STORE_WARP_TRANSPOSE };

template <typename T, int kThreads, int kItems, BlockStoreAlgorithm = BLOCK_STORE_DIRECT>
class BlockStore {
 public:
  struct TempStorage {
    T unused;
  };
  explicit BlockStore(TempStorage&) {}

  void Store(T* to, T (&items)[kItems], int valid) {
    __syncthreads();
    for (int k = 0; k < kItems; ++k) {
      const int i = static_cast<int>(threadIdx.x) * kItems + k;
      if (i < valid) to[i] = items[k];
    }
  }
};

}  // namespace cub

#endif  // HOTROW_TESTS_EMULATED_GPU_CUB_BLOCK_STORE_CUH_
