#ifndef HOTROW_EMBEDDING_TIERS_ROW_INFLOW_IMPL_H_
#define HOTROW_EMBEDDING_TIERS_ROW_INFLOW_IMPL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/exec_context.h"
#include "base/row_key.h"
#include "embedding/tiers/cache_buffers_impl.h"
#include "embedding/tiers/device_index_impl.h"
#include "embedding/tiers/guarded_cache_impl.h"
#include "embedding/tiers/initial_rows_impl.h"
#include "embedding/tiers/shared_counts_impl.h"
#include "embedding/tiers/table_misses_impl.h"
#include "embedding/tiers/tiered_table.h"
#include "store/host/host_store.h"

namespace hotrow::internal {

// RowInflow brings the rows of misses to the ways that a step was given for them: those that the
// store has, and initial rows for the others.
//
// Staged:  rows are read into one of two areas of page-locked memory, or where they lie in a
//          HostStore, and travel on their own stream while the next are read into the other
//          area. Initial rows are made on the device, where they have the bits of the host there.
//          The rows of one step are on their way at a time. Those that the device has found by
//          itself (StepProbe's known ones) set out first, all of them; the host looks the others up
//          meanwhile.
// Threads: one at a time calls all but counts, misses and rows_read, which any thread may call.
class RowInflow {
 public:
  // Not owned: the pointers outlive this. in_place: null, or where the device reads rows itself;
  // index: then null, or what the device finds them with.
  static absl::StatusOr<std::unique_ptr<RowInflow>> Create(
      GuardedCache* cache, const InitialRows* initial_rows, HostStore* in_place, DeviceIndex* index,
      std::span<const TieredTableSpec> tables, const CacheBuffers& buffers, int64_t row_bytes);

  // The same as in TieredTable.
  absl::StatusOr<int64_t> NextMisses(StepRows* step, std::vector<RowKey>* keys,
                                     std::vector<std::byte*>* rows);
  absl::Status Fill(const ExecContext& ctx, StepRows* step, std::span<const uint8_t> found);
  absl::Status FillInPlace(const ExecContext& ctx, StepRows* step);
  // Waits for the step's rows that are on their way.
  absl::Status ArriveAll(StepRows* step);
  // Waits until what is enqueued is done. An error was or will be reported by a call with a status.
  void WaitForDevice() const { stream_.Wait().IgnoreError(); }

  TierCounts counts() const { return counts_.Get(); }    // of the store
  const TableMisses& misses() const { return misses_; }  // of the store
  int64_t rows_read() const { return rows_read_.load(std::memory_order_relaxed); }
  // The part of them that the device has found.
  int64_t known_rows_read() const { return known_rows_read_.load(std::memory_order_relaxed); }

 private:
  // Rows on their way in, staged: where from and where to.
  struct Area {
    SharedBuffer<std::byte> rows;        // [staging_rows_, row_bytes_]
    SharedBuffer<std::byte*> from;       // [staging_rows_]
    SharedBuffer<std::byte*> to;         // [staging_rows_]; null: made there
    SharedBuffer<uint64_t> made_keys;    // [staging_rows_] of rows that the device makes,
    SharedBuffer<std::byte*> made_rows;  // and where
    DeviceEvent arrived;
    size_t size = 0;  // so many are on their way
  };

  RowInflow(GuardedCache* cache, const InitialRows* initial_rows, HostStore* in_place,
            DeviceIndex* index, std::span<const TieredTableSpec> tables, int64_t row_bytes)
      : cache_(cache),
        initial_rows_(initial_rows),
        in_place_(in_place),
        index_(index),
        row_bytes_(row_bytes),
        misses_(tables) {}
  static absl::StatusOr<Area> CreateArea(Device device, int64_t rows, int64_t row_bytes);

  // Enqueues on stream_ the rows of the step's known keys.
  absl::Status SendKnown(const ExecContext& ctx, StepRows* step);
  // Waits for them.
  absl::Status ArriveKnown(StepRows* step);
  // From where rows lie to their ways, n of them: side by side first, so that the reads over the
  // bus are in flight together.
  absl::Status EnqueueMove(const ExecContext& here, std::byte* const* from, int64_t n,
                           std::byte* const* to);
  // Staged: the next misses, of which found[i] says whether the store has them. Sets area->to;
  // null, where the device makes the row. Writes the other initial rows to area->rows.
  absl::Status PrepareArea(const ExecContext& ctx, const StepRows& step,
                           std::span<const uint8_t> found, Area* area);
  // What PrepareArea has left to the device.
  absl::Status EnqueueMade(const ExecContext& ctx, const Area& area);
  // The rows of an area were enqueued on stream_.
  absl::Status Send(StepRows* step, std::span<const uint8_t> found, Area* area);
  // The next misses were sent on their way, or have their bytes: counts them.
  void Count(StepRows* step, std::span<const uint8_t> found);
  // The first n misses that are left have their bytes.
  absl::Status End(StepRows* step, size_t n);
  // Waits for what is on its way from an area, which is free then.
  absl::Status Arrive(StepRows* step, Area* area);

  GuardedCache* const cache_;
  const InitialRows* const initial_rows_;
  HostStore* const in_place_;
  DeviceIndex* const index_;
  const int64_t row_bytes_;

  SharedCounts<TierCounts> counts_;
  TableMisses misses_;
  std::atomic<int64_t> rows_read_{0};
  std::atomic<int64_t> known_rows_read_{0};
  // Scratch.
  std::vector<RowKey> absent_keys_;
  std::vector<std::byte*> absent_rows_;
  std::vector<int64_t> filled_slots_;
  // Staged.
  struct Run {
    uint32_t table;
    int64_t begin, end;  // of Area::made_keys
  };
  std::vector<Run> made_;  // of the area that is prepared
  int64_t staging_rows_ = 0;
  DeviceStream stream_;
  std::vector<Area> areas_;           // 2 that take turns
  size_t next_area_ = 0;              // whose turn it is: the one that was sent first
  DeviceMemory<std::byte> gathered_;  // [staging_rows_, row_bytes_], on the device
  // What there is with an index.
  DeviceMemory<std::byte*> known_to_;  // [staging_rows_] ways of known keys, on the device
  DeviceEvent known_arrived_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TIERS_ROW_INFLOW_IMPL_H_
