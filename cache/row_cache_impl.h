#ifndef HOTROW_CACHE_ROW_CACHE_IMPL_H_
#define HOTROW_CACHE_ROW_CACHE_IMPL_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/hash.h"
#include "base/math.h"
#include "cache/bucket.h"
#include "cache/row_cache.h"

namespace hotrow {
namespace cache {

// A partition is the unit of work of a thread. 2,048 buckets are 65,536 rows: enough that chance
// leaves partitions within 2 % of even, small enough that a few GB of cache feed all threads.
inline constexpr int64_t kPartitionBucketsMin = 2048;
// One overflow bucket for so many buckets of a partition, and at least one.
inline constexpr int64_t kBucketsPerOverflowBucket = 64;

// What a thread needs to work on its partition and what it counts there. In the buffer of buckets,
// a partition's buckets are followed by its overflow buckets, then by the next partition.
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
// the larger ones first.
struct Geometry {
  int64_t buckets = 0;  // overflow not counted
  int64_t partitions = 0;

  static Geometry ForBuckets(int64_t buckets) {
    return {buckets, std::max<int64_t>(1, buckets / kPartitionBucketsMin)};
  }
  // The most buckets whose Bytes() stay within the budget; 0 buckets when it is too small for one.
  static Geometry ForBudget(int64_t budget_bytes, int64_t row_bytes);

  static int64_t OverflowBuckets(int64_t partition_buckets) {
    return std::max<int64_t>(1, partition_buckets / kBucketsPerOverflowBucket);
  }
  int64_t PartitionBuckets(int64_t p) const {
    return buckets / partitions + (p < buckets % partitions ? 1 : 0);
  }
  int64_t TotalOverflowBuckets() const {
    const int64_t larger = buckets % partitions;
    return larger * OverflowBuckets(buckets / partitions + 1) +
           (partitions - larger) * OverflowBuckets(buckets / partitions);
  }
  int64_t TotalBuckets() const { return buckets + TotalOverflowBuckets(); }
  // Memory taken by metadata, rows and partition states. Does not shrink when `buckets` grows.
  int64_t Bytes(int64_t row_bytes) const;
};

// A key on its way through a batch: 16 bytes of scratch.
struct Probe {
  uint32_t bucket1;  // within the partition
  uint32_t bucket2;
  uint32_t index;  // position in the batch
  uint32_t tag;
};
static_assert(sizeof(Probe) == 16);

}  // namespace cache

struct RowCache::Impl {
  RowCacheOptions options;
  cache::ScoreRule rule;
  cache::Geometry geometry;
  HostBuffer<cache::Bucket> buckets;  // of all partitions, overflow included
  HostBuffer<std::byte> slab;         // 32 rows a bucket
  HostBuffer<cache::PartitionState> partitions;

  // Scratch of FindOrInsert; grows to the largest batch.
  std::vector<cache::Probe> probes;        // sorted by partition, batch order within one
  std::vector<int64_t> partition_begin;    // [partitions + 1] into probes
  std::vector<uint32_t> chunk_partitions;  // [chunks, partitions] counts, then offsets

  std::byte* Row(int64_t slot) { return slab.data() + slot * options.row_bytes; }
  const std::byte* Row(int64_t slot) const { return slab.data() + slot * options.row_bytes; }
  // The state byte of a slot that a caller named.
  uint8_t& State(int64_t slot);
  uint8_t& Mark(int64_t slot) {
    return buckets[slot / cache::Bucket::kWays].mark[slot % cache::Bucket::kWays];
  }

  int64_t PartitionOf(const RowHash& hash) const {
    return hash.partition(static_cast<uint64_t>(geometry.partitions));
  }
  cache::Probe MakeProbe(const RowHash& hash, const cache::PartitionState& partition,
                         int64_t index) const;
  // The slot of a key, -1 when it is not resident.
  int64_t FindSlot(const cache::PartitionState& partition, const cache::Probe& probe,
                   RowKey key) const;

  void FindChunk(std::span<const RowKey> keys, std::span<std::byte*> rows, int64_t begin,
                 int64_t end) const;
  void SortByPartition(const ExecContext& ctx, std::span<const RowKey> keys);
  int64_t PinHits(cache::PartitionState& partition, std::span<const RowKey> keys,
                  std::span<cache::Probe> probes, const InsertResult& result);
  void PlaceMisses(cache::PartitionState& partition, std::span<const RowKey> keys,
                   std::span<const cache::Probe> probes, const InsertResult& result);
  int64_t PickSlot(cache::PartitionState& partition, const cache::Probe& probe);
  int64_t PickOverflowSlot(cache::PartitionState& partition);
  void Evict(cache::PartitionState& partition, int64_t slot, int64_t index,
             const InsertResult& result);
};

}  // namespace hotrow

#endif  // HOTROW_CACHE_ROW_CACHE_IMPL_H_
