#ifndef HOTROW_TOOLS_PLAN_TIER_BYTES_H_
#define HOTROW_TOOLS_PLAN_TIER_BYTES_H_

#include <cstdint>
#include <span>

// Predicts the memory and disk of tiers for given rows, without making them. Uses the engine's own
// functions where there are some; the others follow the growth rules of the code they name, and
// tests/tools/tier_bytes_test.cc compares them with live stores.
namespace hotrow {

// The rows of one table in one rank.
struct TierRows {
  double rows = 0;
  int64_t row_bytes = 0;
};

// A cache of `budget_bytes` for one row width, as TieredTable divides it: buffers for rows on their
// way and for a snapshot that is being written, the rest a RowCache.
struct CacheBytes {
  int64_t ways = 0;            // 0: the budget is too small
  int64_t rows_bytes = 0;      // ways * row_bytes
  int64_t metadata_bytes = 0;  // keys, tables, scores, states, partitions
  int64_t overflow_bytes = 0;
  int64_t buffer_bytes = 0;
  int64_t total() const { return rows_bytes + metadata_bytes + overflow_bytes + buffer_bytes; }
};
CacheBytes SizeOfCache(int64_t budget_bytes, int64_t row_bytes);
// The same for a CachedStore (embedding/tiers/cached_store.h), whose caches lie in host memory.
CacheBytes SizeOfHostCache(int64_t budget_bytes, int64_t row_bytes);
// The least budget with at least so many ways.
int64_t CacheBudgetForWays(int64_t ways, int64_t row_bytes);

// A HostStore that holds these rows (store/host/host_store.h).
struct HostStoreBytes {
  double row_bytes = 0;
  double key_bytes = 0;    // keys and live bits of the chunks
  double index_bytes = 0;  // 12-way buckets at their loads between two growths
  double slack_bytes = 0;  // free slots, chunk tables, the unused part of the last extent
  double total() const { return row_bytes + key_bytes + index_bytes + slack_bytes; }
};
// Memory is taken in extents of an eighth of the total, at most 32 MiB, so a small store may be off
// by one extent. `budget_bytes` sets the number of partitions; 0: an eighth more than the rows
// need.
HostStoreBytes SizeOfHostStore(std::span<const TierRows> tables, double budget_bytes);

// By how much a store of so many bytes grows next.
double HostStoreExtentBytes(double budget_bytes, double used_bytes);

// An SsdStore that holds these rows (store/ssd/ssd_store.h).
struct SsdStoreBytes {
  double index_bytes = 0;   // in memory
  double buffer_bytes = 0;  // in memory
  double live_bytes = 0;    // on disk: records and footers of the live rows
  double disk_bytes = 0;    // on disk, with the room that cleaning needs
  double memory() const { return index_bytes + buffer_bytes; }
};
// Recommended fill of a log: the cleaner works in the rest, and moves more rows in a fuller log.
//                            Half,
// if the disk has room.
inline constexpr double kSsdFillMin = 0.5;
inline constexpr double kSsdFillMax = 0.8;
// With a disk budget as large as `disk_limit_bytes` allows, between live_bytes / kSsdFillMin and
// live_bytes / kSsdFillMax.
SsdStoreBytes SizeOfSsdStore(std::span<const TierRows> tables, double disk_limit_bytes);
// Log bytes of one row: its record and the footer's entry.
int64_t SsdBytesPerRow(int64_t row_bytes);
// Reads of a batch of so many rows, anywhere in so many bytes of log: neighbours within 16 KiB
// share a read.
double SsdReads(double rows, double record_bytes, double log_bytes);
// Size of the log's writes, with so much memory for the store; 0: plenty.
double SsdChunkBytes(double memory_budget_bytes);
// Bytes that reading one row moves: whole blocks of 512 bytes around the record.
double SsdReadBytesPerRow(int64_t row_bytes);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_TIER_BYTES_H_
