#ifndef HOTROW_STORE_SSD_SSD_ROOM_IMPL_H_
#define HOTROW_STORE_SSD_SSD_ROOM_IMPL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/row_key.h"
#include "store/ssd/ssd_index_impl.h"
#include "store/ssd/ssd_live_impl.h"
#include "store/ssd/ssd_log_impl.h"
#include "store/ssd/ssd_manifest_impl.h"
#include "store/ssd/ssd_store.h"
#include "store/ssd/ssd_tables_impl.h"

// What fits into the disk budget of an SsdStore: segments, rows, snapshots and manifests.
namespace hotrow::internal {

// The cleaner works when no more segments than the first can be opened, until there are as many as
// the second: two are reserved for it, one it may have taken, and two are for writers while a round
// runs.
inline constexpr int64_t kSsdLowWater = 4;
inline constexpr int64_t kSsdHighWater = 6;

// --- While opening -------------------------------------------------------------------------------

// What manifests need on disk when the present state and so many snapshots have all segments. More
// snapshots fit where the budget is no multiple of a segment, or states are smaller.
int64_t SsdManifestReserve(const SsdManifest& manifest, int64_t segments);
// Segments that the budget has room for. Errors: ResourceExhausted, when the store needs more, with
// what it needs.
absl::StatusOr<int64_t> SsdSegmentsMax(const SsdStoreOptions& options, const SsdManifest& manifest);

// --- While open ----------------------------------------------------------------------------------

// Threads: all methods may run concurrently. What they say may be outdated when they return.
// Locks:   those of the log and of the index, one after the other.
// Errors:  ResourceExhausted, saying what fills the disk and what would help.
class SsdRoom {
 public:
  // All outlive it.
  SsdRoom(const SsdStoreOptions& options, const SsdTables& tables, const SsdLog& log,
          const SsdLive& live)
      : options_(options), tables_(tables), log_(log), live_(live) {}

  // Refuses rows that are new when the log is as full as cleaning can live with.
  absl::Status CheckRows(const SsdIndex& index, std::span<const RowKey> index_keys) const;
  // The same of so many bytes of new rows.
  absl::Status CheckNew(int64_t need) const;
  // Rows that a cache writes before its next flush, in bytes of the log.
  struct Changes {
    int64_t log_bytes = 0;
    int64_t new_log_bytes = 0;  // of them, of rows that the store does not have
  };
  // Refuses them where snapshots hold so much that rows which are written again find no room beside
  // them: a cache that has changed such rows could neither be emptied, for a snapshot in the place
  // of those, nor rows be erased. snapshot: the one that stays; null: all stay.
  absl::Status CheckChanges(const Changes& changes,
                            const std::vector<SsdSegmentRef>* snapshot) const;
  // Whether they would be refused beside a snapshot of the present state, made small if it can be.
  bool LacksRoomAfterSnapshot(const Changes& changes) const;
  // ResourceExhausted: there is no room for `need` bytes more.
  absl::Status Full(int64_t need) const;
  // Whether fresh rows find no segment to begin, not even once all finds have ended.
  bool LacksFreshSegments() const { return log_.AvailableSoon() <= SsdLog::kReservedSegments; }

  // How many segments a snapshot of the present state should name, and how many it may.
  //
  // With all older snapshots gone, its segments beside all rows written again must leave what
  // cleaning needs: else a caller that drops the older ones to go on, as one with checkpoints does,
  // would find the store full for good. Where rows fill so much of the disk that this cannot be, a
  // snapshot holds at most twice what it needs.
  struct SnapshotBounds {
    int64_t wanted;
    int64_t most;
  };
  SnapshotBounds BoundSnapshot() const;
  absl::Status CheckSnapshot(int64_t segments) const;
  // Whether all manifests to come fit into what the segments leave of the disk budget: the present
  // state may come to name all of them.
  absl::Status CheckManifest(const SsdManifest& next) const;
  // Whether an image of the index fits beside the segments there are and those that opening may
  // make.
  bool HasRoomForImage(const SsdIndex& index, const SsdManifest& manifest) const;

  // Bytes of tombstones in the present state that this run has written.
  int64_t TombstoneBytes() const;
  // Bytes of segments that only snapshots hold.
  int64_t SnapshotOnlyBytes() const;

 private:
  // What live rows may take of the log.
  int64_t RowBytesMax() const;
  // What rows may take of so many segments that are not held by snapshots.
  int64_t LooseBytesMax(int64_t segments) const;
  // Segments that changed rows leave to tombstones.
  int64_t SegmentsForErasing() const;

  const SsdStoreOptions& options_;
  const SsdTables& tables_;
  const SsdLog& log_;
  const SsdLive& live_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_ROOM_IMPL_H_
