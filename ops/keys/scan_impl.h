#ifndef HOTROW_OPS_KEYS_SCAN_IMPL_H_
#define HOTROW_OPS_KEYS_SCAN_IMPL_H_

#include <cstdint>

#include "base/macros.h"
#include "base/math.h"
#include "ops/launch_impl.h"

namespace hotrow::internal {

// The running sums of ops/keys/scan_impl.cuh: a block takes a tile of so many items, each of its
// warps a run of them.
constexpr int kScanRounds = 8;
constexpr int64_t kScanTile = int64_t{kThreadsPerBlock} * kScanRounds;

// How many tiles n items are, and how many uint64 of scratch their running sums need.
HOTROW_HOST_DEVICE constexpr int64_t ScanTiles(int64_t n) { return CeilDiv(n, kScanTile); }
HOTROW_HOST_DEVICE constexpr int64_t ScanWords(int64_t n) { return ScanTiles(n) + 1; }

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_KEYS_SCAN_IMPL_H_
