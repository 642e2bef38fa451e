#include <algorithm>

#include "base/math.h"
#include "embedding/tiers/cache_buffers_impl.h"
#include "embedding/tiers/held_rows_impl.h"

namespace hotrow::internal {
namespace {

// Rows are given ways and written back a chunk at a time: the lock is held for a chunk (under a
// millisecond), and a chunk's worth of evicted rows is staged. Few enough that staging stays a
// small part of a cache of ordinary size.
constexpr int64_t kMaxStagingRows = 4096;
constexpr int64_t kMinStagingRows = 32;
// A GPU is asked for a chunk in tens of microseconds; 32,768 rows of 512 bytes cross the bus in
// some 300, so that asking is cheap and a step has several chunks, which overlap.
constexpr int64_t kMaxStagingRowsGpu = 32768;
// Rows that are held back must bridge the time until a snapshot is captured; the other buffers of
// the snapshot only need to feed the store.
constexpr int64_t kMaxCopyRows = 4 * kMaxStagingRows;
constexpr int64_t kMaxHeldBytes = int64_t{64} << 20;
// Shares of a cache's budget, in 1/64.
constexpr int64_t kStagingShare = 4;
constexpr int64_t kPartShare = 2;
constexpr int64_t kCopyShare = 1;
constexpr int64_t kHeldShare = 2;
constexpr int64_t kShares = 64;
constexpr int64_t kAllShares = kStagingShare + kPartShare + kCopyShare + kHeldShare;
// Keys, marks and pointers beside each staged row (the scratch vectors of a CachedTable and
// RowCache's 16 bytes).
constexpr int64_t kScratchBytesPerStagingRow = 96;
constexpr int64_t kScratchBytesPerPartRow = 32;
constexpr int64_t kScratchBytesPerCopyRow = 16;

int64_t StagingRowBytes(int64_t row_bytes) { return row_bytes + kScratchBytesPerStagingRow; }
int64_t PartRowBytes(int64_t row_bytes) { return row_bytes + kScratchBytesPerPartRow; }
int64_t CopyRowBytes(int64_t row_bytes) { return row_bytes + kScratchBytesPerCopyRow; }
int64_t HeldRowBytes(int64_t row_bytes) {
  return HeldRows::BytesPerRow(row_bytes) + static_cast<int64_t>(sizeof(void*));
}

int64_t ShareRows(int64_t cache_bytes, int64_t share, int64_t bytes_per_row, int64_t least,
                  int64_t most) {
  return std::clamp(cache_bytes / kShares * share / bytes_per_row, least, most);
}

}  // namespace

CacheBuffers::CacheBuffers(int64_t cache_bytes, int64_t row_bytes, bool staged)
    : staging_rows(ShareRows(cache_bytes, kStagingShare, StagingRowBytes(row_bytes),
                             kMinStagingRows, staged ? kMaxStagingRowsGpu : kMaxStagingRows)),
      part_rows(ShareRows(cache_bytes, kPartShare, PartRowBytes(row_bytes), kMinSnapshotRows,
                          kMaxStagingRows)),
      copy_rows(ShareRows(cache_bytes, kCopyShare, CopyRowBytes(row_bytes), kMinSnapshotRows,
                          kMaxCopyRows)),
      held_rows(ShareRows(cache_bytes, kHeldShare, HeldRowBytes(row_bytes), kMinSnapshotRows,
                          std::max(kMinSnapshotRows, kMaxHeldBytes / HeldRowBytes(row_bytes)))),
      bytes(staging_rows * StagingRowBytes(row_bytes) + part_rows * PartRowBytes(row_bytes) +
            copy_rows * CopyRowBytes(row_bytes) + held_rows * HeldRowBytes(row_bytes)),
      host_bytes(0) {
  if (!staged) return;
  // On the device there is only what GatherRows puts side by side.
  host_bytes = bytes + (2 * kStagingAreas - 1) * staging_rows * StagingRowBytes(row_bytes);
  bytes = staging_rows * row_bytes;
}

int64_t CacheBuffers::BudgetLeaving(int64_t row_cache_bytes, int64_t row_bytes, bool staged) {
  // The buffers of a budget B take at most the greater of their shares of B and of their least
  // sizes, so at most the sum of both.
  const int64_t least = row_cache_bytes + CacheBuffers(0, row_bytes, staged).bytes;
  return CeilDiv(least, kShares - kAllShares) * kShares;
}

}  // namespace hotrow::internal
