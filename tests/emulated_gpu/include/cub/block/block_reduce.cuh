#ifndef HOTROW_TESTS_EMULATED_GPU_CUB_BLOCK_REDUCE_CUH_
#define HOTROW_TESTS_EMULATED_GPU_CUB_BLOCK_REDUCE_CUH_

#include <cub/block/block_scan.cuh>

namespace cub {

template <typename T, int kThreads>
class BlockReduce {
 public:
  using TempStorage = typename BlockScan<T, kThreads>::TempStorage;
  explicit BlockReduce(TempStorage& shared) : scan_(shared) {}

  // Of value to the first thread only, as CUB promises no more.
  T Sum(T value) {
    T before = 0;
    T total = 0;
    scan_.ExclusiveSum(value, before, total);
    return threadIdx.x == 0 ? total : static_cast<T>(0x5a5a5a5a);
  }

 private:
  BlockScan<T, kThreads> scan_;
};

}  // namespace cub

#endif  // HOTROW_TESTS_EMULATED_GPU_CUB_BLOCK_REDUCE_CUH_
