#ifndef HOTROW_TESTS_EMULATED_GPU_CUB_BLOCK_SCAN_CUH_
#define HOTROW_TESTS_EMULATED_GPU_CUB_BLOCK_SCAN_CUH_

#include <cuda_runtime.h>

namespace cub {

enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_WARP_SCANS };

// As much as kernels use; one thread adds for all.
template <typename T, int kThreads, BlockScanAlgorithm = BLOCK_SCAN_RAKING>
class BlockScan {
 public:
  struct TempStorage {
    T sums[kThreads];
    T total;
  };
  explicit BlockScan(TempStorage& shared) : shared_(shared) {}

  void ExclusiveSum(T value, T& before, T& total) {
    shared_.sums[threadIdx.x] = value;
    __syncthreads();
    if (threadIdx.x == 0) {
      T sum = 0;
      for (T& term : shared_.sums) {
        const T own = term;
        term = sum;
        sum += own;
      }
      shared_.total = sum;
    }
    __syncthreads();
    before = shared_.sums[threadIdx.x];
    total = shared_.total;
  }
  template <int kItems>
  void ExclusiveSum(const T (&values)[kItems], T (&before)[kItems]) {
    T own[kItems];
    T sum = 0;
    for (int k = 0; k < kItems; ++k) {
      own[k] = sum;
      sum += values[k];
    }
    T start = 0;
    T total = 0;
    ExclusiveSum(sum, start, total);
    for (int k = 0; k < kItems; ++k) before[k] = start + own[k];
  }

 private:
  TempStorage& shared_;
};

}  // namespace cub

#endif  // HOTROW_TESTS_EMULATED_GPU_CUB_BLOCK_SCAN_CUH_
