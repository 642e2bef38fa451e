#include "tools/plan/tier_bytes.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/math.h"
#include "cache/row_cache.h"
#include "embedding/tiers/cached_store.h"
#include "embedding/tiers/tiered_table.h"

namespace hotrow {
namespace {

// --- store/host/host_rows.cc, store/host/host_index_impl.h, store/host/host_memory_impl.h
// -----------------------

constexpr double kChunkRows = 256;
constexpr double kChunkBytesTarget = 128 << 10;
constexpr double kChunkSlotsMin = 4;
constexpr double kPartitionRows = 1 << 17;
constexpr double kPartitionsMax = 1 << 16;
constexpr double kShardsMax = 32;
constexpr double kMetadataBytesAbout = 14;
constexpr double kBucketWays = 12;
constexpr double kSegmentBuckets = 128;
constexpr double kSegmentBytes = kSegmentBuckets * 64;
// The load at which an index partition of so many ways grows, with entries moved to make room.
constexpr double kIndexLoadMax = 0.95;
constexpr double kChunkHeadBytes = 32;   // live bits
constexpr double kChunkEntryBytes = 16;  // in a shard's list of chunks
constexpr double kExtentBytesMin = 64 << 10;
constexpr double kExtentBytesMax = 32 << 20;
constexpr double kHugePageBytes = 2 << 20;
constexpr double kPageBytes = 4096;
constexpr double kPartitionBytes = 64;
constexpr double kEmptyStoreBytes = 16 << 10;

// Segments of a partition that has had to hold `rows`: 1, 2, 3, ... each a quarter more.
double SegmentsFor(double rows) {
  double segments = 1;
  while (segments * kSegmentBuckets * kBucketWays * kIndexLoadMax < rows) {
    segments += std::max(1.0, std::floor(segments / 4));
  }
  return segments;
}

// The mean over partitions whose rows vary as chance has it, about sqrt(rows) to each side.
double MeanSegments(double rows) {
  double sum = 0;
  double weights = 0;
  for (double z = -2; z <= 2.01; z += 0.25) {
    const double weight = std::exp(-z * z / 2);
    sum += weight * SegmentsFor(rows + z * std::sqrt(rows));
    weights += weight;
  }
  return sum / weights;
}

// --- store/ssd/ssd_store.cc, store/ssd/ssd_index.cc, store/ssd/ssd_format_impl.h
// -------------------------------

constexpr int64_t kSsdRecordHeaderBytes = 24;
constexpr int64_t kSsdRecordAlignment = 8;
constexpr int64_t kSsdFooterEntryBytes = 16;
constexpr double kSsdUnitBytes = 512;
constexpr double kSsdChunkBytes = 1 << 20;
constexpr double kSsdFooterTrailerBytes = 64;
constexpr double kSsdChunkBuffers = 6 + 4;  // of writers and of the cleaner
constexpr double kSsdFindArenaBytes = 8 << 20;
constexpr double kSsdFindContexts = 2;
constexpr double kSsdFindKeys = 16'384;  // that are sorted at a time
constexpr double kSsdMergedReadBytes = 16 << 10;
constexpr double kSsdIndexBucketBits = 1008;
constexpr double kSsdIndexBucketBytes = 128;
constexpr double kSsdIndexWaysMax = 16;
constexpr double kSsdIndexPartitionRows = 65'536;
// Between two growths by a sixteenth a partition is filled from 0.92 to 0.98.
constexpr double kSsdIndexFill = 0.95;

CacheBytes SizeBeside(int64_t buffer_bytes, int64_t budget_bytes, int64_t row_bytes) {
  CacheBytes size;
  size.buffer_bytes = buffer_bytes;
  const RowCacheStats cache = RowCache::SizeForBudget(budget_bytes - size.buffer_bytes, row_bytes);
  if (cache.ways == 0) return {};
  constexpr int64_t kWayMetadataBytes = 16;
  size.ways = cache.ways;
  size.rows_bytes = cache.ways * row_bytes;
  size.overflow_bytes = cache.overflow_ways * (row_bytes + kWayMetadataBytes);
  size.metadata_bytes = cache.used_bytes - size.rows_bytes - size.overflow_bytes;
  return size;
}

}  // namespace

CacheBytes SizeOfCache(int64_t budget_bytes, int64_t row_bytes) {
  return SizeBeside(TieredTable::BufferBytes(budget_bytes, row_bytes), budget_bytes, row_bytes);
}

CacheBytes SizeOfHostCache(int64_t budget_bytes, int64_t row_bytes) {
  const int64_t scratch =
      CachedStore::MinCacheBytes(row_bytes) - RowCache::BudgetForRows(1, row_bytes);
  return SizeBeside(scratch, budget_bytes, row_bytes);
}

int64_t CacheBudgetForWays(int64_t ways, int64_t row_bytes) {
  int64_t too_small = 0;
  int64_t enough = 4096;
  while (SizeOfCache(enough, row_bytes).ways < ways) enough *= 2;
  while (enough - too_small > 1) {
    const int64_t middle = too_small + (enough - too_small) / 2;
    (SizeOfCache(middle, row_bytes).ways < ways ? too_small : enough) = middle;
  }
  return enough;
}

double HostStoreExtentBytes(double budget_bytes, double used_bytes) {
  const double extent =
      std::clamp(std::max(budget_bytes / 256, used_bytes / 8), kExtentBytesMin, kExtentBytesMax);
  return extent >= kHugePageBytes ? std::floor(extent / kHugePageBytes) * kHugePageBytes : extent;
}

HostStoreBytes SizeOfHostStore(std::span<const TierRows> tables, double budget_bytes) {
  HostStoreBytes size;
  double rows = 0;
  double row_bytes_least = 1e18;
  double smallest_chunks = 0;
  for (const TierRows& table : tables) {
    rows += table.rows;
    size.row_bytes += table.rows * static_cast<double>(table.row_bytes);
    row_bytes_least = std::min(row_bytes_least, static_cast<double>(table.row_bytes));
    smallest_chunks += 64 + kChunkSlotsMin * (static_cast<double>(table.row_bytes) + 8);
  }
  if (rows == 0) return size;
  if (budget_bytes == 0) {
    budget_bytes = (size.row_bytes + rows * kMetadataBytesAbout) * 9 / 8;
  }
  const double rows_max = budget_bytes / (row_bytes_least + kMetadataBytesAbout);
  const double partitions = std::min(
      kPartitionsMax, static_cast<double>(std::bit_floor(
                          static_cast<uint64_t>(std::max(1.0, rows_max / kPartitionRows)))));
  double shards = std::min(partitions, kShardsMax);
  while (shards > 1 && shards * smallest_chunks > budget_bytes / 64) shards /= 2;

  // Each partition's segments, what the last growth gave back (four fifths), and lists of segments.
  const double segments = MeanSegments(rows / partitions);
  size.index_bytes = (partitions + 0.8) * segments * kSegmentBytes;

  double chunk_tables = 0;
  for (const TierRows& table : tables) {
    const auto row_bytes = static_cast<double>(table.row_bytes);
    const double slots_max = std::clamp(std::floor(kChunkBytesTarget / row_bytes), 1.0, kChunkRows);
    // A shard's chunks of this table: the next one is an eighth of what is there, so on average
    // half of that, or of the largest chunk, is free.
    const double in_shard = table.rows / shards;
    const double last_chunk =
        std::clamp(in_shard / 8, std::min(kChunkSlotsMin, slots_max), slots_max);
    const double slots = table.rows + shards * last_chunk / 2;
    const double chunks = std::max(shards, slots / slots_max);
    const double head = RoundUp(static_cast<int64_t>(8 * slots / chunks + kChunkHeadBytes), 64);
    size.key_bytes += table.rows * 8 + chunks * (head - 8 * slots / chunks);
    size.slack_bytes += (slots - table.rows) * (row_bytes + 8);
    chunk_tables += chunks * kChunkEntryBytes * 17 / 16;  // grown by an eighth
  }
  const double carved = size.row_bytes + size.key_bytes + size.index_bytes + size.slack_bytes;
  // Extents until all is carved.
  double extents = 0;
  while (extents < carved) {
    const double extent = HostStoreExtentBytes(budget_bytes, extents);
    // Beyond this all extents are equal.
    if (extent == kExtentBytesMax) {
      extents += std::ceil((carved - extents) / extent) * extent;
    } else {
      extents += extent;
    }
  }
  // Lists lie outside of the extents and take whole pages.
  const auto pages = [](double bytes) { return std::ceil(bytes / kPageBytes) * kPageBytes; };
  size.index_bytes += partitions * (pages(segments * 8) + kPartitionBytes);
  size.slack_bytes += extents - carved + shards * pages(chunk_tables / shards) + kEmptyStoreBytes;
  return size;
}

int64_t SsdBytesPerRow(int64_t row_bytes) {
  return RoundUp(kSsdRecordHeaderBytes + row_bytes, kSsdRecordAlignment) + kSsdFooterEntryBytes;
}

double SsdReadBytesPerRow(int64_t row_bytes) {
  // A record of b bytes that begins anywhere (in steps of 8 bytes) touches 1 + (b - 8) / 512
  // blocks.
  const auto record = static_cast<double>(SsdBytesPerRow(row_bytes) - kSsdFooterEntryBytes);
  return kSsdUnitBytes + record - kSsdRecordAlignment;
}

double SsdChunkBytes(double memory_budget_bytes) {
  constexpr double kShareOfMemory = 64;
  constexpr double kLeast = 16 << 10;
  if (memory_budget_bytes <= 0) return kSsdChunkBytes;
  const double wanted = std::exp2(std::floor(std::log2(memory_budget_bytes / kShareOfMemory)));
  return std::clamp(wanted, kLeast, kSsdChunkBytes);
}

double SsdReads(double rows, double record_bytes, double log_bytes) {
  if (rows <= 1 || log_bytes <= 0) return rows;
  // A read takes what begins behind its first row and ends within its length.
  const double density = std::min(rows, kSsdFindKeys) / log_bytes;
  return rows / (1 + density * std::max(0.0, kSsdMergedReadBytes - record_bytes));
}

SsdStoreBytes SizeOfSsdStore(std::span<const TierRows> tables, double disk_limit_bytes) {
  SsdStoreBytes size;
  double rows = 0;
  for (const TierRows& table : tables) {
    rows += table.rows;
    size.live_bytes += table.rows * static_cast<double>(SsdBytesPerRow(table.row_bytes));
  }
  // A chunk's trailer, and on average half a row that no longer fits.
  size.live_bytes *= 1 + kSsdFooterTrailerBytes / kSsdChunkBytes;
  size.disk_bytes =
      std::clamp(disk_limit_bytes, size.live_bytes / kSsdFillMax, size.live_bytes / kSsdFillMin);
  if (rows == 0) return size;

  const double partitions = std::max(2.0, static_cast<double>(std::bit_ceil(static_cast<uint64_t>(
                                              std::ceil(rows / kSsdIndexPartitionRows)))));
  const double location_bits =
      std::bit_width(static_cast<uint64_t>(size.disk_bytes / kSsdUnitBytes));
  const double table_bits = std::bit_width(static_cast<uint64_t>(tables.size() - 1));
  // Buckets and ways depend on each other: a few rounds.
  double ways = 12;
  double buckets = 1;
  for (int round = 0; round < 8; ++round) {
    buckets = std::max(1.0, rows / partitions / (ways * kSsdIndexFill));
    const double d_bits = std::ceil(64 - std::log2(partitions) - std::log2(buckets) - 1e-9);
    const double slot_bits = d_bits + location_bits + table_bits + 1;
    ways = std::min(kSsdIndexWaysMax, std::floor(kSsdIndexBucketBits / slot_bits));
  }
  size.index_bytes = partitions * buckets * kSsdIndexBucketBytes;
  size.buffer_bytes = kSsdChunkBuffers * kSsdChunkBytes + kSsdFindContexts * kSsdFindArenaBytes;
  return size;
}

}  // namespace hotrow
