#ifndef HOTROW_EMBEDDING_TIERS_SNAPSHOT_MARKS_IMPL_H_
#define HOTROW_EMBEDDING_TIERS_SNAPSHOT_MARKS_IMPL_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "base/exec_context.h"
#include "base/row_key.h"
#include "embedding/tiers/cache_buffers_impl.h"
#include "embedding/tiers/guarded_cache_impl.h"
#include "embedding/tiers/shared_counts_impl.h"
#include "embedding/tiers/tiered_table.h"

namespace hotrow::internal {

// SnapshotMarks follows the rows of a cache that were dirty when a snapshot began, which belong to
// it with the bytes they had then, until all of them have been written down. Such a row is marked.
// WritePart takes the marks off, part by part. An update that is about to change a marked row
// copies it to a ring first (KeepBeforeUpdate); from there WritePart takes it before others. A
// marked row that is evicted is the outflow's.
//
// Threads: Begin, End and pins with the cache's mutex; counts on any thread; KeepBeforeUpdate and
// WritePart take
//          it, from the caller's and the snapshot's thread. KeepBeforeUpdate waits for WritePart
//          while the ring is full.
class SnapshotMarks {
 public:
  using Write = absl::FunctionRef<absl::Status(std::span<const RowKey> keys,
                                               std::span<const std::byte* const> rows)>;

  // The cache outlives this.
  static absl::StatusOr<std::unique_ptr<SnapshotMarks>> Create(GuardedCache* cache,
                                                               const CacheBuffers& buffers,
                                                               int64_t row_bytes);

  // Marks the dirty rows. The snapshot before has ended.
  absl::Status Begin();
  // Those of the step's rows that are marked; `slots` are where the cache can read them.
  absl::Status KeepBeforeUpdate(const ExecContext& ctx, std::span<const int64_t> slots);
  // Takes part of the marked rows to `write`, without the lock. False: there are none left. On an
  // error of `write`, or what it throws, they are dirty, or wait in the ring. stay_dirty: as after
  // an error, for who only looks at them, and updates none meanwhile.
  absl::StatusOr<bool> WritePart(Write write, bool stay_dirty = false);
  // What is marked still is simply dirty again, and copies are dropped: their rows are dirty, or
  // held back and newer.
  void End();

  int64_t pins() const { return pins_; }  // rows that a WritePart under way has pinned
  SnapshotCounts counts() const { return counts_.Get(); }

 private:
  SnapshotMarks(GuardedCache* cache, int64_t row_bytes) : cache_(cache), row_bytes_(row_bytes) {}

  GuardedCache* const cache_;
  const int64_t row_bytes_;

  // The cache's mutex guards these.
  bool begun_ = false;
  bool marking_ = false;             // there may be marked rows, or copies of them
  std::condition_variable changed_;  // marking_, or the room for copies
  int64_t cursor_ = 0;               // slots before it have no marks
  int64_t pins_ = 0;
  // Old bytes of marked rows that were updated: a ring.
  SharedBuffer<RowKey> copy_keys_;
  SharedBuffer<std::byte> copies_;  // [copy_keys_.size(), row_bytes_]
  int64_t first_copy_ = 0;
  int64_t num_copies_ = 0;

  SharedCounts<SnapshotCounts> counts_;

  // What WritePart uses.
  int64_t part_rows_ = 0;
  SharedBuffer<std::byte> part_;       // [part_rows_, row_bytes_]
  SharedBuffer<RowKey> taken_keys_;    // [part_rows_]
  SharedBuffer<int64_t> taken_slots_;  // [part_rows_]
  std::vector<RowKey> part_keys_;
  std::vector<const std::byte*> part_pointers_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TIERS_SNAPSHOT_MARKS_IMPL_H_
