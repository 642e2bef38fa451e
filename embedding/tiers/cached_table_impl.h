#ifndef HOTROW_EMBEDDING_TIERS_CACHED_TABLE_IMPL_H_
#define HOTROW_EMBEDDING_TIERS_CACHED_TABLE_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
// takes evicted rows down, SnapshotMarks follows the rows of a snapshot. What differs between a
// cache in the host's memory and a staged one lies in HostCachedTable and StagedTable.
//
// Order:    a row that was evicted reaches the store before any miss of its step or a later one is
//           read, so a miss never reads an older row than was evicted.
// Snapshots: from BeginSnapshot on, the rows that were dirty then are marked and belong to the
//           snapshot with the bytes they had. WriteSnapshotPart takes them to the store, in parts.
//           An update that is about to change a marked row copies it first; a marked row that is
//           evicted goes to the store like any other; a row that was changed since and is evicted
//           is held back, and a miss on it served from there, until EndSnapshot; then WriteHeld,
//           or the next step, writes it to the store.
// Locks:    the outflow's, then the cache's mutex, each as its class says.
class CachedTable : public TieredTable {
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
  bool fills_in_place() const override { return false; }
  absl::Status FillInPlace(const ExecContext& ctx, StepRows* step) override {
    return inflow_->FillInPlace(ctx, step);
  }
  void FinishPlacing(const ExecContext& ctx) override;
  void GiveUp(StepRows* step) override;
  void Break(const absl::Status& why) override;

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

 protected:
  CachedTable(const TieredTableOptions& options, RowStore* store, HostStore* in_place);
  virtual absl::Status Init(const TieredTableOptions& options);

  // A call of Place.
  struct Placing {
    std::unique_lock<std::mutex> order;  // the outflow's lock
    size_t turn = 0;                     // of the chunks
    bool no_room = false;                // a key found none
  };
  using SendFn = absl::FunctionRef<absl::StatusOr<int64_t>(int64_t most, int64_t* done,
                                                           RowOutflow::Chunk* chunk)>;
  using EndFn = absl::FunctionRef<absl::Status(const RowOutflow::Chunk& chunk, int64_t size)>;
  // Gives n keys ways, chunk by chunk, until *end_early. With the cache's mutex too: send enqueues
  // at most so many keys, adds to `done` those that need no more, and returns how many the chunk
  // has; end comes when that is done and the rows that they evicted are noted.
  absl::Status PlaceChunks(const ExecContext& ctx, int64_t n, const bool* end_early, SendFn send,
                           EndFn end, Placing* placing);

  // --- What depends on where the cache lies

  // Sets the keys of the step to those that SendChunk is to find, or give ways.
  virtual absl::Status TakeKeys(const ExecContext& ctx, std::span<const RowKey> keys,
                                std::span<const int32_t> counts, Placing* placing,
                                StepRows* step) = 0;
  // With both locks: enqueues that the first `size` keys of the chunk are found or get ways.
  virtual absl::Status EnqueueChunk(const ExecContext& ctx, int64_t size,
                                    RowOutflow::Chunk* chunk) = 0;
  // After the chunks of a Place, without the cache's mutex.
  virtual absl::Status EndPlacing(StepRows* step) = 0;
  // The step's slots where the cache can read them.
  virtual std::span<const int64_t> SlotsOf(const StepRows& step) const = 0;
  // With the cache's mutex: ends a resident step. updated: as in Release.
  virtual void Unpin(const ExecContext& ctx, StepRows* step, bool updated) = 0;
  // With the cache's mutex: takes the pins off that Unpin has left. False if there were none.
  virtual bool LetAllGo() = 0;
  // With both locks: Read, but for the rows that it leaves to ReadMisses.
  virtual absl::Status ReadCached(const ExecContext& ctx, std::span<const RowKey> keys,
                                  std::byte* staging, std::span<std::byte*> rows) = 0;
  // With both locks: writes `rows` over the resident ones of these keys; empty: initial rows.
  virtual absl::Status OverwriteCached(const ExecContext& ctx, std::span<const RowKey> keys,
                                       std::span<const std::byte* const> rows) = 0;

  // Copies one of these two in host memory to miss_rows_: miss_values_, or the initial rows of
  // miss_keys_.
  absl::Status CopyToMissRows(const ExecContext& ctx, bool initial);
  // The rows of miss_keys_ from the store, or their initial rows, to miss_rows_.
  absl::Status ReadMisses(const ExecContext& ctx);

  const CacheBuffers buffers_;
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
  // What Read, Erase and Write use.
  std::vector<RowKey> miss_keys_;
  std::vector<std::byte*> miss_rows_;
  std::vector<const std::byte*> miss_values_;

 private:
  friend class hotrow::TieredTablePeer;  // of the tests: breaks one

  // Place, with the outflow's lock.
  absl::StatusOr<Placed> PlaceInOrder(const ExecContext& ctx, std::span<const RowKey> keys,
                                      std::span<const int32_t> counts, Placing* placing,
                                      StepRows* step);
  // With both locks: the keys of the step that have no way yet, from *cursor on, as PlaceChunks
  // asks.
  absl::StatusOr<int64_t> SendChunk(const ExecContext& ctx, const StepRows& step, int64_t most,
                                    int64_t* cursor, RowOutflow::Chunk* chunk);
  absl::Status EndChunk(StepRows* step, const RowOutflow::Chunk& chunk, bool* no_room);
  // With the cache's mutex: takes back the ways and pins of a step that is given up.
  void Unplace(StepRows* step);

  ThreadPool* const pool_;                // of Flush
  std::vector<int64_t> abandoned_slots_;  // what GiveUp leaves
  std::vector<uint8_t> found_;            // of ReadMisses
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TIERS_CACHED_TABLE_IMPL_H_
