#ifndef HOTROW_EMBEDDING_TIERS_STAGED_TABLE_IMPL_H_
#define HOTROW_EMBEDDING_TIERS_STAGED_TABLE_IMPL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/exec_context.h"
#include "base/row_key.h"
#include "embedding/tiers/cached_table_impl.h"
#include "embedding/tiers/row_outflow_impl.h"
#include "embedding/tiers/step_probe.h"
#include "embedding/tiers/tiered_table.h"
#include "store/host/host_store.h"
#include "store/row_store.h"

namespace hotrow::internal {

// A CachedTable whose cache lies on a device, or as if on one (see CachePlace). The store is the
// host's. Keys and slots of hits stay on the device (StepProbe): no loop of the host goes over
// them. With a DeviceIndex the same holds for misses whose rows it knows.
//
// Streams:  the cache's, on which it changes and rows leave, and the inflow's, so that both
//           directions run at once and beside what the caller computes on a third. Rows that leave
//           are written straight into page-locked staging; rows that come are read from there, or
//           from where a HostStore keeps them. Each way has two staging areas that take turns: the
//           host writes rows of one to the store, or reads rows into it, while the device is at the
//           other.
// Pins:     those of a step come off when the caller's work with it has ended, not in the order of
//           the cache's stream: so the misses of younger steps are placed beside that work.
// Waits:    the host waits for both streams only on the threads of the pipeline; the caller's calls
//           enqueue, but for those around snapshots and evaluation.
class StagedTable final : public CachedTable {
 public:
  StagedTable(const TieredTableOptions& options, RowStore* store, HostStore* in_place)
      : CachedTable(options, store, in_place) {}
  ~StagedTable() override { WaitForDevice(); }

  bool fills_in_place() const override { return in_place_ != nullptr; }
  absl::Status ResolveForRead(const ExecContext& ctx, StepRows* step,
                              std::span<std::byte*> rows) override;
  TieredTableStats Stats() const override;

 private:
  absl::Status Init(const TieredTableOptions& options) override;

  absl::Status TakeKeys(const ExecContext& ctx, std::span<const RowKey> keys,
                        std::span<const int32_t> counts, Placing* placing, StepRows* step) override;
  absl::Status EnqueueChunk(const ExecContext& ctx, int64_t size,
                            RowOutflow::Chunk* chunk) override;
  // The slots once more, for the device.
  absl::Status EndPlacing(StepRows* step) override;
  // Those of the keys that missed.
  std::span<const int64_t> SlotsOf(const StepRows& step) const override;
  void Unpin(const ExecContext& ctx, StepRows* step, bool updated) override;
  bool LetAllGo() override;
  // Leaves nothing to ReadMisses.
  absl::Status ReadCached(const ExecContext& ctx, std::span<const RowKey> keys, std::byte* staging,
                          std::span<std::byte*> rows) override;
  absl::Status OverwriteCached(const ExecContext& ctx, std::span<const RowKey> keys,
                               std::span<const std::byte* const> rows) override;

  // Lets the device pin what it finds of the keys, the first time that the step comes, and makes
  // the misses the keys of the step.
  absl::Status PinHits(const ExecContext& ctx, std::span<const RowKey> keys,
                       std::span<const int32_t> counts, StepRows* step);
  // Counts a step's keys at their first probe.
  void CountProbed(const StepProbe& probe);
  // The keys whose rows the device knows. Those that find no room become keys of the step.
  absl::Status PlaceKnown(const ExecContext& ctx, Placing* placing, StepRows* step);
  // With the cache's mutex: takes the pins off the steps whose work has ended, and off all up to
  // and with this one (null: those alone), which is waited for on the cache's stream.
  void LetGo(const StepRows* last);

  // A step that was released, whose pins come off once the caller's work has ended. Its slots stay
  // where they are until then.
  struct Leaving {
    DeviceEvent ended;
    const StepRows* step;
    std::span<const int64_t> hits, misses;
    bool dirty;
  };
  std::deque<Leaving> leaving_;  // in the order of Release
  std::vector<DeviceEvent> ended_events_;
  // Memory of the StepProbes and shared slots of all steps.
  std::atomic<int64_t> step_host_bytes_{0};
  std::atomic<int64_t> step_device_bytes_{0};
  SharedBuffer<std::byte*> read_rows_;  // [staging_rows], of Read, Erase and Write
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TIERS_STAGED_TABLE_IMPL_H_
