#ifndef HOTROW_TESTS_EMULATED_GPU_CUB_BLOCK_SCAN_CUH_
#define HOTROW_TESTS_EMULATED_GPU_CUB_BLOCK_SCAN_CUH_

#include <cuda_runtime.h>

namespace cub {

enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_WARP_SCANS };

// As much as kernels use. Each thread reads what all have brought, and does not wait for the others
// to have read it: who uses the storage again without a barrier, which CUB asks for, gets wrong
// sums.
template <typename T, int kThreads, BlockScanAlgorithm = BLOCK_SCAN_RAKING>
class BlockScan {
 public:
  struct TempStorage {
    T values[kThreads];
  };
  explicit BlockScan(TempStorage& shared) : shared_(shared) {}

  void ExclusiveSum(T value, T& before, T& total) {
    shared_.values[threadIdx.x] = value;
    __syncthreads();
    T sum = 0;
    for (int i = 0; i < kThreads; ++i) {
      if (i == static_cast<int>(threadIdx.x)) before = sum;
      sum += shared_.values[i];
    }
    total = sum;
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
