#ifndef HOTROW_EMBEDDING_TIERS_CACHED_TABLE_IMPL_H_
#define HOTROW_EMBEDDING_TIERS_CACHED_TABLE_IMPL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
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
#include "embedding/tiers/row_inflow_impl.h"
#include "embedding/tiers/row_outflow_impl.h"
#include "embedding/tiers/shared_counts_impl.h"
#include "embedding/tiers/snapshot_marks_impl.h"
#include "embedding/tiers/table_misses_impl.h"
#include "embedding/tiers/tiered_table.h"
#include "store/host/host_store.h"
#include "store/row_store.h"

namespace hotrow {
class TieredTablePeer;
}  // namespace hotrow

namespace hotrow::internal {

// A TieredTable with a row cache over a store: the steps. RowInflow brings misses in, RowOutflow
// takes evicted rows down, SnapshotMarks follows the rows of a snapshot.
//
// Order:    a row that was evicted reaches the store before any miss of its step or a later one is
//           read, so a miss never reads an older row than was evicted.
// Snapshots: from BeginSnapshot on, the rows that were dirty then are marked and belong to the
//           snapshot with the bytes they had. WriteSnapshotPart takes them to the store, in parts.
//           An update that is about to change a marked row copies it first; a marked row that is
//           evicted goes to the store like any other; a row that was changed since and is evicted
//           is held back, and a miss on it served from there, until EndSnapshot; then WriteHeld,
//           or the next step, writes it to the store.
// Devices:  the cache lies on one; the store is the host's. Staged, there are two streams: the
//           cache's, on which it changes and rows leave, and the inflow's, so that both directions
//           run at once and beside what the caller computes on a third. Rows that leave are written
//           straight into page-locked staging; rows that come are read from there, or from where a
//           HostStore keeps them. Each way has two staging areas that take turns: the host writes
//           rows of one to the store, or reads rows into it, while the device is at the other. The
//           A step's pins come off when the caller's work with it has ended, not in the order of
//           the cache's stream: so the misses of younger steps are placed beside that work.
//           The host waits for both streams only on the threads of the pipeline; the caller's calls
//           enqueue, but for those around snapshots and evaluation. Staged, keys and slots of hits
//           stay on the device (StepProbe); no loop of the host goes over them. With a DeviceIndex
//           the same holds for misses whose rows it knows.
// Locks:    the outflow's, then the cache's mutex, each as its class says.
class CachedTable final : public TieredTable {
 public:
  static absl::StatusOr<std::unique_ptr<TieredTable>> Create(const TieredTableOptions& options,
                                                             RowStore* store, HostStore* in_place);
  ~CachedTable() override { WaitForDevice(); }

  absl::StatusOr<Placed> Place(const ExecContext& ctx, std::span<const RowKey> keys,
                               std::span<const int32_t> counts, StepRows* step) override;
  absl::StatusOr<int64_t> NextMisses(StepRows* step, std::vector<RowKey>* keys,
                                     std::vector<std::byte*>* rows) override {
    return inflow_->NextMisses(step, keys, rows);
  }
  absl::Status Fill(const ExecContext& ctx, StepRows* step,
                    std::span<const uint8_t> found) override {
    return inflow_->Fill(ctx, step, found);
  }
  bool fills_in_place() const override { return cache_->staged() && in_place_ != nullptr; }
  absl::Status FillInPlace(const ExecContext& ctx, StepRows* step) override {
    return inflow_->FillInPlace(ctx, step);
  }
  void FinishPlacing(const ExecContext& ctx) override;
  void GiveUp(StepRows* step) override;

  absl::Status ResolveForRead(const ExecContext& ctx, StepRows* step,
                              std::span<std::byte*> rows) override;
  absl::Status PrepareForUpdate(const ExecContext& ctx, const StepRows& step) override;
  // A row of the cache is updated where it is read.
  absl::Status ResolveForUpdate(StepRows* step, std::span<std::byte*> rows) override;
  absl::Status Withdraw(const StepRows& step) override;
  void Release(const ExecContext& ctx, StepRows* step, bool updated) override;

  absl::Status Read(const ExecContext& ctx, std::span<const RowKey> keys, std::byte* staging,
                    std::span<std::byte*> rows) override;
  absl::Status Flush() override;
  absl::Status ForEachUnwritten(RowsFn visit) override;
  absl::Status Erase(const ExecContext& ctx, std::span<const RowKey> keys) override;
  absl::Status Write(const ExecContext& ctx, std::span<const RowKey> keys,
                     std::span<const std::byte* const> rows) override;

  absl::Status BeginSnapshot() override;
  absl::StatusOr<bool> WriteSnapshotPart() override;
  void EndSnapshot() override;
  absl::Status WriteHeld() override;

  void WaitForDevice() const override;
  bool has_cache() const override { return true; }
  TieredTableStats Stats() const override;

 private:
  friend class hotrow::TieredTablePeer;  // of the tests: breaks one

  CachedTable(const TieredTableOptions& options, const CacheBuffers& buffers, RowStore* store,
              HostStore* in_place);

  // Staged, with the outflow's lock: lets the device pin what it finds of the keys, the first time
  // that the step comes, and makes the misses the keys of the step.
  absl::Status PinHits(const ExecContext& ctx, std::span<const RowKey> keys,
                       std::span<const int32_t> counts, StepRows* step);
  // Counts a step's keys at their first probe.
  void CountProbed(const StepProbe& probe);
  // With the outflow's lock: gives n keys ways, chunk by chunk, until *end_early. With the cache's
  // mutex too: send(most, &done, &chunk) enqueues at most so many keys, adds to `done` those that
  // need no more, and returns how many the chunk has; end(chunk, size) comes when that is done and
  // the rows that they evicted are noted. *turn: of the chunks of a Place.
  template <typename Send, typename End>
  absl::Status PlaceChunks(const ExecContext& ctx, std::unique_lock<std::mutex>* order, int64_t n,
                           size_t* turn, const bool* end_early, const Send& send, const End& end);
  // Staged: the keys whose rows the device knows. Those that find no room become keys of the step.
  absl::Status PlaceKnown(const ExecContext& ctx, std::unique_lock<std::mutex>* order, size_t* turn,
                          StepRows* step, bool* no_room);
  // The keys of the step that have no way yet, from *cursor on, as PlaceChunks asks.
  absl::StatusOr<int64_t> SendChunk(const ExecContext& ctx, const StepRows& step, int64_t most,
                                    int64_t* cursor, RowOutflow::Chunk* chunk);
  absl::Status EndChunk(StepRows* step, const RowOutflow::Chunk& chunk, bool* no_room);
  // After Place has noted all it will: the slots for the device.
  absl::Status ShareSlots(StepRows* step);
  // The step's slots where the cache can read them; staged those of the keys that missed.
  std::span<const int64_t> SlotsOf(const StepRows& step) const;
  // Staged, with the cache's mutex: takes a pin off each hit of the step.
  void UnpinHits(const ExecContext& ctx, StepRows* step, bool dirty);
  // Staged, with the cache's mutex: what Release leaves to others, see `leaving_`. Steps whose work
  // has ended, and all up to and with this one (null: those alone), which is waited for on the
  // cache's stream.
  void LetGo(const StepRows* last);
  void LetAllGo() { LetGo(leaving_.empty() ? nullptr : leaving_.back().step); }
  // Read, staged; with both locks.
  absl::Status ReadStaged(const ExecContext& ctx, std::span<const RowKey> keys, std::byte* staging,
                          std::span<std::byte*> rows);
  // With both locks: writes `rows` over the resident ones of these keys; empty: initial rows.
  absl::Status OverwriteRows(const ExecContext& ctx, std::span<const RowKey> keys,
                             std::span<const std::byte* const> rows);
  absl::Status OverwriteStaged(const ExecContext& ctx, std::span<const RowKey> keys,
                               std::span<const std::byte* const> rows);
  // Copies one of these two in host memory to miss_rows_: miss_values_, or the initial rows of
  // miss_keys_.
  absl::Status CopyToMissRows(const ExecContext& ctx, bool initial);
  // The rows of miss_keys_ from the store, or their initial rows, to miss_rows_.
  absl::Status ReadMisses(const ExecContext& ctx);

  const CacheBuffers buffers_;
  ThreadPool* const pool_;  // of Flush
  // What Release uses.
  std::vector<int64_t> clean_slots_;
  std::vector<int64_t> dirty_slots_;
  // Staged: a step that was released, whose pins come off once the caller's work has ended. Its
  // slots stay where they are until then.
  struct Leaving {
    DeviceEvent ended;
    const StepRows* step;
    std::span<const int64_t> hits, misses;
    bool dirty;
  };
  std::deque<Leaving> leaving_;  // in the order of Release
  std::vector<DeviceEvent> ended_events_;
  const InitialRows initial_rows_;
  RowStore* const store_;
  HostStore* const in_place_;
  std::unique_ptr<GuardedCache> cache_;
  std::unique_ptr<DeviceIndex> index_;  // or null
  std::unique_ptr<RowOutflow> outflow_;
  std::unique_ptr<RowInflow> inflow_;
  std::unique_ptr<SnapshotMarks> marks_;

  std::vector<uint32_t> tables_;     // TieredTableSpec::table of each
  SharedCounts<TierCounts> counts_;  // of the cache
  TableMisses misses_;               // of the cache
  // Memory of the StepProbes and shared slots of all steps.
  std::atomic<int64_t> step_host_bytes_{0};
  std::atomic<int64_t> step_device_bytes_{0};
  // What GiveUp leaves.
  std::vector<int64_t> abandoned_slots_;
  // What Read, Erase and Write use.
  std::vector<RowKey> miss_keys_;
  std::vector<std::byte*> miss_rows_;
  std::vector<const std::byte*> miss_values_;
  std::vector<uint8_t> found_;
  SharedBuffer<std::byte*> read_rows_;  // staged: [staging_rows]
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TIERS_CACHED_TABLE_IMPL_H_
