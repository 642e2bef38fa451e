#ifndef HOTROW_OPS_SCAN_IMPL_CUH_
#define HOTROW_OPS_SCAN_IMPL_CUH_

#include <cstdint>
#include <cub/block/block_load.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_store.cuh>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/status_macros.h"
#include "ops/launch_impl.cuh"
#include "ops/scan_impl.h"

namespace hotrow::internal {

// Blocks rather than CUB's device-wide scan, whose need of scratch only a GPU can tell: workspace
// sizes of ops follow from their arguments.

constexpr int kOneBlockThreads = 1024;

template <int kThreads, int kItems>
__global__ void __launch_bounds__(kThreads)
    TileSumsKernel(const int32_t* data, int64_t n, int32_t* sums) {
  constexpr int64_t kTile = int64_t{kThreads} * kItems;
  using Reduce = cub::BlockReduce<int32_t, kThreads>;
  __shared__ typename Reduce::TempStorage shared;
  for (int64_t tile = blockIdx.x; tile * kTile < n; tile += gridDim.x) {
    int32_t sum = 0;
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int64_t i = tile * kTile + k * kThreads + threadIdx.x;
      if (i < n) sum += data[i];
    }
    sum = Reduce(shared).Sum(sum);
    if (threadIdx.x == 0) sums[tile] = sum;
    __syncthreads();  // before the next tile uses `shared`
  }
}

// data[i] becomes the sum of those before it. One block.
template <typename T, int kThreads>
__global__ void __launch_bounds__(kThreads) ScanInOneBlockKernel(T* data, int64_t n) {
  using Scan = cub::BlockScan<T, kThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ typename Scan::TempStorage shared;
  T before = 0;
  for (int64_t begin = 0; begin < n; begin += kThreads) {
    const int64_t i = begin + threadIdx.x;
    T value = i < n ? data[i] : 0;
    T sum = 0;
    Scan(shared).ExclusiveSum(value, value, sum);
    if (i < n) data[i] = before + value;
    before += sum;
    __syncthreads();  // before the next round uses `shared`
  }
}

template <int kThreads, int kItems>
__global__ void __launch_bounds__(kThreads)
    ScanTilesKernel(int32_t* data, int64_t n, const int32_t* sums) {
  constexpr int64_t kTile = int64_t{kThreads} * kItems;
  using Load = cub::BlockLoad<int32_t, kThreads, kItems, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
  using Scan = cub::BlockScan<int32_t, kThreads>;
  using Store = cub::BlockStore<int32_t, kThreads, kItems, cub::BLOCK_STORE_WARP_TRANSPOSE>;
  __shared__ union {
    typename Load::TempStorage load;
    typename Scan::TempStorage scan;
    typename Store::TempStorage store;
  } shared;
  for (int64_t tile = blockIdx.x; tile * kTile < n; tile += gridDim.x) {
    int32_t* const in_tile = data + tile * kTile;
    const int64_t left = n - tile * kTile;
    const int size = static_cast<int>(left < kTile ? left : kTile);
    int32_t values[kItems];
    Load(shared.load).Load(in_tile, values, size, 0);
    __syncthreads();
    Scan(shared.scan).ExclusiveSum(values, values);
    __syncthreads();
    const int32_t before = sums[tile];
#pragma unroll
    for (int32_t& value : values) value += before;
    Store(shared.store).Store(in_tile, values, size);
    __syncthreads();
  }
}

// data[i] becomes the sum of those before it, i in [0, n). Few numbers: tables, not lookups.
template <typename T>
absl::Status ScanSmall(const char* op, T* data, int64_t n, CudaStream stream) {
  ScanInOneBlockKernel<T, kOneBlockThreads><<<1, kOneBlockThreads, 0, stream>>>(data, n);
  return LastLaunch(op);
}

// The same for many; no sum may exceed 2^31 - 1. scratch: ScanScratchInts(n).
inline absl::Status Scan(const char* op, int32_t* data, int64_t n, int32_t* scratch,
                         CudaStream stream) {
  const unsigned blocks = GridBlocks(n, kScanTile);
  TileSumsKernel<kScanThreads, kScanItemsPerThread>
      <<<blocks, kScanThreads, 0, stream>>>(data, n, scratch);
  HOTROW_RETURN_IF_ERROR(LastLaunch(op));
  HOTROW_RETURN_IF_ERROR(ScanSmall(op, scratch, ScanScratchInts(n), stream));
  ScanTilesKernel<kScanThreads, kScanItemsPerThread>
      <<<blocks, kScanThreads, 0, stream>>>(data, n, scratch);
  return LastLaunch(op);
}

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_SCAN_IMPL_CUH_
