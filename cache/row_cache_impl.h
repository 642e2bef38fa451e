#ifndef HOTROW_CACHE_ROW_CACHE_IMPL_H_
#define HOTROW_CACHE_ROW_CACHE_IMPL_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/macros.h"
#include "base/math.h"
#include "cache/bucket.h"
#include "cache/cache_policy_impl.h"
#include "cache/row_cache.h"

// What the containers of both devices share: where partitions lie, what memory they take, and when
// scores age.

namespace hotrow::cache {

// A partition is the unit of work of a thread. 2,048 buckets are 65,536 rows: enough that chance
// leaves partitions within 2 % of even, small enough that a few GB of cache feed all threads.
inline constexpr int64_t kPartitionBucketsMin = 2048;
// One overflow bucket for so many buckets of a partition, and at least one.
inline constexpr int64_t kBucketsPerOverflowBucket = 64;

// What TakeMarked looks at in one call: 16,384 buckets, at some 30 ns each on the CPU when nothing
// is marked.
inline constexpr int64_t kMarkedScanSlots = int64_t{1} << 19;

// Batches handed out by ForEachDirty.
inline constexpr int64_t kDirtyBatchRows = 4096;

// What is known and counted of a partition. In the buffer of buckets, a partition's buckets are
// followed by its overflow buckets, then by the next partition. On the CPU a thread owns it while
// it works there; on CUDA the counters are changed atomically, of the two `since_ageing` the one
// that the policy ages by, and those behind them in any partition: only their sums count.
struct alignas(64) PartitionState {
  int64_t first_bucket = 0;
  int32_t buckets = 0;
  int32_t overflow_buckets = 0;
  int32_t overflow_used = 0;  // rows in the overflow buckets
  int32_t overflow_span =
      0;  // rows lie in the first so many overflow buckets; 0 when there are none
  int64_t placed_since_ageing = 0;
  int64_t touched_since_ageing = 0;
  int64_t used_ways = 0;
  int64_t evictions = 0;
  int64_t dirty_evictions = 0;
  int64_t overflow_inserts = 0;
  int64_t no_room = 0;
};
static_assert(sizeof(PartitionState) == 128);

// How many buckets there are and how they are dealt out to partitions: sizes differ by one at most,
// the larger ones first. Trivially copyable, so that kernels take it by value.
struct Geometry {
  int64_t buckets = 0;  // overflow not counted
  int64_t partitions = 0;

  static Geometry ForBuckets(int64_t buckets) {
    return {buckets, std::max<int64_t>(1, buckets / kPartitionBucketsMin)};
  }
  // The most buckets whose Bytes() stay within the budget; 0 buckets when it is too small for one.
  static Geometry ForBudget(int64_t budget_bytes, int64_t row_bytes, Device device = Device::kCpu);

  HOTROW_HOST_DEVICE static int64_t OverflowBuckets(int64_t partition_buckets) {
    const int64_t overflow = partition_buckets / kBucketsPerOverflowBucket;
    return overflow > 1 ? overflow : 1;
  }
  HOTROW_HOST_DEVICE int64_t PartitionBuckets(int64_t p) const {
    return buckets / partitions + (p < buckets % partitions ? 1 : 0);
  }
  int64_t TotalOverflowBuckets() const {
    const int64_t larger = buckets % partitions;
    return larger * OverflowBuckets(buckets / partitions + 1) +
           (partitions - larger) * OverflowBuckets(buckets / partitions);
  }
  int64_t TotalBuckets() const { return buckets + TotalOverflowBuckets(); }
  // Bytes of the budget: metadata, rows and partition states. They do not shrink when `buckets`
  // grows.
  int64_t Bytes(int64_t row_bytes, Device device = Device::kCpu) const;
};

// The partition state of a partition without rows.
PartitionState EmptyPartition(const Geometry& geometry, int64_t p, int64_t first_bucket);

// What never changes in the Stats of a cache.
RowCacheStats SizeOf(const Geometry& geometry, int64_t row_bytes, Device device);

// Adds what a partition has counted to the counters of Stats.
inline void AddCounts(const PartitionState& partition, RowCacheStats* stats) {
  stats->used_ways += partition.used_ways;
  stats->evictions += partition.evictions;
  stats->dirty_evictions += partition.dirty_evictions;
  stats->overflow_inserts += partition.overflow_inserts;
  stats->no_room += partition.no_room;
}

// The preconditions of calls, the same on all devices.
inline void CheckPinResult(std::span<const RowKey> keys, const RowCache::InsertResult& result) {
  HOTROW_CHECK(result.slots.size() == keys.size() && result.placement.size() == keys.size());
  HOTROW_CHECK(result.evicted.size() == keys.size());
}
inline void CheckInsertResult(std::span<const RowKey> keys, const RowCache::InsertResult& result) {
  CheckPinResult(keys, result);
  HOTROW_CHECK(result.evicted_keys.size() == keys.size());
}
inline void CheckFindRows(std::span<const RowKey> keys, const std::byte* out, int64_t out_stride,
                          std::span<const uint8_t> found, int64_t row_bytes) {
  HOTROW_CHECK(found.size() == keys.size());
  HOTROW_CHECK(out_stride >= row_bytes && out_stride % 16 == 0);
  HOTROW_CHECK(reinterpret_cast<uintptr_t>(out) % 16 == 0);
}

// What tells the keys of a bucket apart: 16 bits of the hash that choose neither shard, partition
// nor bucket. Never 0, the tag of empty ways.
HOTROW_HOST_DEVICE inline uint16_t TagOf(const RowHash& hash) {
  const auto bits = static_cast<uint16_t>((hash.hi >> 56) << 8 | (hash.hi & 0xff));
  return bits == 0 ? 1 : bits;
}

// Whether the scores of a partition are to age at the end of a step.
template <typename Policy>
HOTROW_HOST_DEVICE bool AgeingDue(const PartitionState& partition) {
  return Policy::AgeingDue(partition.placed_since_ageing, partition.touched_since_ageing,
                           int64_t{partition.buckets} * Bucket::kWays);
}

// The containers. `options` were validated.
absl::StatusOr<std::unique_ptr<RowCache>> CreateCpuRowCache(const RowCacheOptions& options);
absl::StatusOr<std::unique_ptr<RowCache>> CreateCudaRowCache(const RowCacheOptions& options);

}  // namespace hotrow::cache

#endif  // HOTROW_CACHE_ROW_CACHE_IMPL_H_
