#ifndef HOTROW_OPS_SCAN_IMPL_H_
#define HOTROW_OPS_SCAN_IMPL_H_

#include <cstdint>

#include "base/math.h"

namespace hotrow::internal {

// The running sums of ops/scan_impl.cuh work tile by tile: the sums of the tiles, the running sums
// of those by one block, then the running sums inside each tile.
constexpr int kScanThreads = 256;
constexpr int kScanItemsPerThread = 16;
constexpr int64_t kScanTile = kScanThreads * kScanItemsPerThread;

// How many int32 of scratch the running sums of n numbers need.
HOTROW_HOST_DEVICE constexpr int64_t ScanScratchInts(int64_t n) { return CeilDiv(n, kScanTile); }

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_SCAN_IMPL_H_
