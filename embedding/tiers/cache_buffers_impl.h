#ifndef HOTROW_EMBEDDING_TIERS_CACHE_BUFFERS_IMPL_H_
#define HOTROW_EMBEDDING_TIERS_CACHE_BUFFERS_IMPL_H_

#include <cstdint>

namespace hotrow::internal {

// Staged: staging areas of each direction, which take turns.
inline constexpr int64_t kStagingAreas = 2;
// The least a buffer of a snapshot holds.
inline constexpr int64_t kMinSnapshotRows = 8;

// How many rows the buffers of a cache have: how the budget of a CachedTable is divided between
// these and the RowCache.
struct CacheBuffers {
  int64_t staging_rows;  // evicted rows; staged also rows that come in
  int64_t part_rows;     // of a snapshot: rows taken to the store at a time,
  int64_t copy_rows;     // copies of rows that are updated,
  int64_t held_rows;     // evicted rows that are held back
  int64_t bytes;         // of the budget
  int64_t host_bytes;    // beside it, staged

  CacheBuffers(int64_t cache_bytes, int64_t row_bytes, bool staged);

  // The least budget that leaves so many bytes for the RowCache.
  static int64_t BudgetLeaving(int64_t row_cache_bytes, int64_t row_bytes, bool staged);
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TIERS_CACHE_BUFFERS_IMPL_H_
