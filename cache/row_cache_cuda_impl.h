#ifndef HOTROW_CACHE_ROW_CACHE_CUDA_IMPL_H_
#define HOTROW_CACHE_ROW_CACHE_CUDA_IMPL_H_

#include <algorithm>
#include <cstdint>

#include "base/hash.h"
#include "base/macros.h"
#include "base/math.h"
#include "cache/bucket.h"
#include "cache/row_cache_impl.h"

// The arithmetic of the CUDA container: no CUDA in it, so that it is tested without a GPU.

namespace hotrow::cache {

// Each part of the device allocation begins at a multiple of this, what the driver aligns
// allocations to at least.
inline constexpr int64_t kDeviceAlignment = 256;

// Where things lie in the one device allocation of a cache.
struct CudaLayout {
  int64_t rows = 0;        // offsets in bytes
  int64_t buckets = 0;     // [total_buckets] Bucket
  int64_t partitions = 0;  // [partitions] PartitionState
  int64_t counters = 0;    // [1] CudaCounters
  int64_t bytes = 0;       // of all

  CudaLayout(const Geometry& geometry, int64_t row_bytes);
};

// Counters of the whole cache.
struct alignas(64) CudaCounters {
  uint64_t filling =
      0;                // rows that wait for their bytes: while there are none, Find reads no state
  uint64_t result = 0;  // what a call that waits counts
};

// The page-locked host memory beside a cache, for the calls that wait.
struct CudaStaging {
  int64_t rows = 0;        // that a batch of ForEachDirty has at most
  int64_t mask_words = 0;  // a bit a slot: what a scan found
  int64_t list = 0;        // chosen slots of one launch
  int64_t bytes = 0;

  explicit CudaStaging(int64_t row_bytes);
};

// Where the buckets of a partition begin, worked out rather than read: a probe then waits for one
// load less. `first_bucket` of PartitionState says the same.
struct PartitionMap {
  int64_t partitions = 0;
  int64_t larger = 0;          // the first so many partitions have one bucket more
  int64_t buckets = 0;         // of the others
  int64_t larger_stride = 0;   // buckets with overflow, of the larger
  int64_t smaller_stride = 0;  // of the others

  PartitionMap() = default;
  explicit PartitionMap(const Geometry& geometry)
      : partitions(geometry.partitions),
        larger(geometry.buckets % geometry.partitions),
        buckets(geometry.buckets / geometry.partitions),
        larger_stride(buckets + 1 + Geometry::OverflowBuckets(buckets + 1)),
        smaller_stride(buckets + Geometry::OverflowBuckets(buckets)) {}

  HOTROW_HOST_DEVICE int64_t FirstBucket(int64_t p) const {
    return p < larger ? p * larger_stride : larger * larger_stride + (p - larger) * smaller_stride;
  }
  HOTROW_HOST_DEVICE int64_t Buckets(int64_t p) const { return buckets + (p < larger ? 1 : 0); }
  // The partition of a bucket, overflow buckets included.
  HOTROW_HOST_DEVICE int64_t PartitionOfBucket(int64_t bucket) const {
    const int64_t of_larger = larger * larger_stride;
    return bucket < of_larger ? bucket / larger_stride
                              : larger + (bucket - of_larger) / smaller_stride;
  }
};

// Where a key may live: the numbers of its two buckets and what tells it apart there.
struct Home {
  int64_t partition;
  int64_t bucket1;
  int64_t bucket2;
  uint16_t tag;
};

HOTROW_HOST_DEVICE inline Home HomeOf(const PartitionMap& map, uint64_t key, uint32_t table) {
  const RowHash hash = HashRowKey(key, table);
  const int64_t p = hash.partition(static_cast<uint64_t>(map.partitions));
  const int64_t first = map.FirstBucket(p);
  const auto n = static_cast<uint64_t>(map.Buckets(p));
  return {p, first + hash.bucket1(n), first + hash.bucket2(n), TagOf(hash)};
}

// How a kernel is launched in which a warp takes a run of `items` of a batch at a time.
inline constexpr int kBlockThreads = 256;
inline constexpr int kWarpThreads = 32;
inline constexpr int kBlockWarps = kBlockThreads / kWarpThreads;
// Blocks stride over what is left, so that no batch is too large for a grid.
inline constexpr int64_t kMaxBlocks = int64_t{1} << 22;

struct WarpRuns {
  int keys_per_run = 0;
  int64_t runs = 0;
  int blocks = 0;  // of kBlockThreads; each warp takes every (blocks * kBlockWarps)-th run
};
// A lane a key, or, where warps look for the few keys that they work on, some keys a lane.
inline constexpr int kMaxRunKeys = 4 * kWarpThreads;
// Warps of a GPU are busy, or wait for memory, so many for each of its processors.
inline constexpr int kProcessorWarps = 64;
// Runs are shorter than `most` in batches that would leave some of the GPU's warps idle otherwise.
WarpRuns RunsFor(int64_t n, int64_t gpu_warps, int most = kWarpThreads);

// Blocks of kBlockThreads for n threads that stride, at least one.
int BlocksFor(int64_t n);

// The same for passes over all buckets whose threads end with an atomic addition: few enough that
// those cost nothing, enough for a whole GPU.
int ScanBlocksFor(int64_t n, int64_t gpu_warps);

// How a warp copies rows of `chunks` times 16 bytes: lanes_per_row neighbouring lanes (a power of
// two up to 32) copy one row together, kWarpThreads / lanes_per_row rows at a time.
HOTROW_HOST_DEVICE inline int LanesPerRow(int64_t chunks) {
  int lanes = 1;
  while (lanes < kWarpThreads && lanes < chunks) lanes *= 2;
  return lanes;
}

}  // namespace hotrow::cache

#endif  // HOTROW_CACHE_ROW_CACHE_CUDA_IMPL_H_
