#include <algorithm>

#include "cache/row_cache_cuda_impl.h"

namespace hotrow::cache {
namespace {

// Staged rows: enough that a copy over PCIe takes longer than starting it, and a small part of any
// machine's memory.
constexpr int64_t kStagingBytes = int64_t{4} << 20;

}  // namespace

CudaLayout::CudaLayout(const Geometry& geometry, int64_t row_bytes) {
  const int64_t total = geometry.TotalBuckets();
  const auto add = [this](int64_t size) {
    const int64_t at = bytes;
    bytes = RoundUp(bytes + size, kDeviceAlignment);
    return at;
  };
  rows = add(total * Bucket::kWays * row_bytes);
  buckets = add(total * static_cast<int64_t>(sizeof(Bucket)));
  partitions = add(geometry.partitions * static_cast<int64_t>(sizeof(PartitionState)));
  counters = add(static_cast<int64_t>(sizeof(CudaCounters)));
}

CudaStaging::CudaStaging(int64_t row_bytes)
    : rows(std::clamp<int64_t>(kStagingBytes / row_bytes, 1, kDirtyBatchRows)),
      mask_words(kMarkedScanSlots / 32),
      list(mask_words),
      bytes(rows * (row_bytes + static_cast<int64_t>(sizeof(RowKey))) +
            mask_words * static_cast<int64_t>(sizeof(uint32_t)) +
            list * static_cast<int64_t>(sizeof(int64_t)) +
            static_cast<int64_t>(sizeof(PartitionState))) {}

WarpRuns RunsFor(int64_t n, int64_t gpu_warps, int most) {
  WarpRuns runs;
  runs.keys_per_run = static_cast<int>(std::clamp<int64_t>(CeilDiv(n, gpu_warps), 1, most));
  runs.runs = CeilDiv(n, runs.keys_per_run);
  runs.blocks =
      static_cast<int>(std::clamp<int64_t>(CeilDiv(runs.runs, kBlockWarps), 1, kMaxBlocks));
  return runs;
}

int BlocksFor(int64_t n) {
  return static_cast<int>(std::clamp<int64_t>(CeilDiv(n, kBlockThreads), 1, kMaxBlocks));
}

int ScanBlocksFor(int64_t n, int64_t gpu_warps) {
  return static_cast<int>(std::min<int64_t>(BlocksFor(n), gpu_warps / kBlockWarps));
}

}  // namespace hotrow::cache
