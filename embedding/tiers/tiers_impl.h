#ifndef HOTROW_EMBEDDING_TIERS_TIERS_IMPL_H_
#define HOTROW_EMBEDDING_TIERS_TIERS_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "base/row_key.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/open_store_impl.h"
#include "embedding/options.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/stats.h"
#include "embedding/tiers/cached_store.h"
#include "embedding/tiers/snapshot_rows_impl.h"
#include "embedding/tiers/tiered_table.h"
#include "store/disk_room.h"

namespace hotrow::internal {

// The distinct keys of a step, table by table in the order of the plan, where the caches read them:
// staged that is their device. The owner's.
struct StepKeys {
  const RowKey* keys = nullptr;            // [U]
  const int32_t* counts = nullptr;         // [U] how often each is looked up
  std::span<const int64_t> table_offsets;  // [T + 1], memory of the host

  int64_t size() const { return table_offsets.empty() ? 0 : table_offsets.back(); }
};

// A step in the tiers, from Place to Release. The owner keeps it, and the keys as they are. Reused
// from step to step, so that its memory is.
struct TierStep {
  StepKeys keys;                 // whose rows it needs; set by the owner before Place
  std::vector<StepRows> widths;  // one for each width class
  // Rows of each width class that it may change, over a store on a disk, while it is resident.
  std::vector<int64_t> to_change;
};

// Tiers is all rows that a collection keeps on this rank: a TieredTable for each width class, host
// memory between those and a disk where there is some, and the store.
//
// A step:  Place, Fetch and Place again where some keys found no room, MakeResident; then Resolve,
//          ResolveForUpdate, PrepareForUpdate, Release. GiveUp instead of Release where it has not
//          become resident. Rows are in the order of the step's keys.
// Threads: as TieredTable: Place, FinishPlacing and GiveUp are calls of the pipeline's first
//          thread; Fetch and MakeResident of its second, or of its first while the second does
//          nothing; snapshot calls but BeginSnapshot are the snapshot's; all others are the
//          caller's, and Resolve of a staged step is whoever's makes it resident.
// Errors:  those of TieredTable and of the store.
class Tiers final : public SnapshotRows {
 public:
  // Opens the store that the options name. pool: threads for that, and for Flush; null: the
  // caller's alone. It outlives the tiers.
  // ResourceExhausted when a cache budget is too small.
  static absl::StatusOr<std::unique_ptr<Tiers>> Create(const EmbeddingCollectionOptions& options,
                                                       const Plan& plan, CachePlace place,
                                                       ThreadPool* pool);
  Tiers(const Tiers&) = delete;
  Tiers& operator=(const Tiers&) = delete;

  // --- Making rows resident

  // kAll: all keys have a way. Otherwise those that do keep theirs; see TieredTable.
  absl::StatusOr<TieredTable::Placed> Place(const ExecContext& ctx, TierStep* step);
  // All keys of a step are placed.
  void FinishPlacing(const ExecContext& ctx);
  // Brings in the rows of what has been placed.
  absl::Status Fetch(const ExecContext& ctx, TierStep* step);
  // Fetch, once all keys are placed.
  absl::Status MakeResident(const ExecContext& ctx, TierStep* step);
  // Where it finds no memory, Break.
  void GiveUp(TierStep* step);
  // A call has thrown this, so rows may lack their bytes, or some have changed of those that change
  // together. Broken says so from then on, and so does TieredTable::Break of all. Any thread.
  void Break(const absl::Status& thrown);
  absl::Status Broken() const override;

  // --- A resident step

  // Where rows can be read until Release. Staged it enqueues that on ctx.stream, and `rows` is
  // memory of the device; wait for it before the step ends.
  absl::Status Resolve(const ExecContext& ctx, TierStep* step, std::span<std::byte*> rows);
  // The same rows, now where they may be updated. trained: as in StepRows. After an error nothing
  // has changed.
  absl::Status ResolveForUpdate(TierStep* step, std::span<const uint8_t> trained,
                                std::span<std::byte*> rows);
  // Keeps what a snapshot still needs of the rows. May wait for the snapshot.
  absl::Status PrepareForUpdate(const ExecContext& ctx, const TierStep& step);
  void Release(const ExecContext& ctx, TierStep* step, bool updated);

  // --- All rows

  // Evaluation: where the present rows can be read until the next call of anything. Those that are
  // not resident are brought to `staging`, which has room for all of them.
  absl::Status Read(const ExecContext& ctx, const TableKeys& keys, std::byte* staging,
                    std::vector<std::byte*>* rows);
  // Writes dirty rows to the store, and makes that durable.
  absl::Status Flush();
  // Calls visit for each row, in no order, after a Flush. Rows that the store has no room for are
  // read where they are; that takes 16 bytes for each of them.
  absl::Status ForEachRow(
      absl::FunctionRef<absl::Status(const RowKey& key, std::span<const std::byte> row)> visit);
  // TieredTable::Erase of a table, a position in the plan.
  absl::Status Erase(const ExecContext& ctx, int32_t table, std::span<const RowKey> keys);
  // TieredTable::Write of a table, a position in the plan.
  absl::Status Write(const ExecContext& ctx, int32_t table, std::span<const RowKey> keys,
                     std::span<const std::byte* const> rows);
  // Ends the store in good order. Nothing may follow but the destructor.
  absl::Status Close();

  // --- Snapshots, see TieredTable

  bool has_caches() const override { return widths_[0].table->has_cache(); }
  absl::Status BeginSnapshot() override;
  // A part of each width class in turn: an update may be waiting for any of them.
  absl::StatusOr<bool> WriteSnapshotPart() override;
  void EndSnapshot() override;
  absl::Status WriteHeld() override;
  bool HasRoomBesideSnapshot() override;

  // Waits until what is enqueued is done; for who lets go of TierSteps for good.
  void WaitForDevice() const;
  // The caches are out of the host's reach, or are to behave as if they were.
  bool staged() const { return place_.staged; }
  RowStore* store() const override { return store_.store.get(); }
  HostStore* host_store() const { return store_.host; }  // the same, where it is in memory, or null
  // ResourceExhausted: what a step has that finds no room though it is alone. `alone`: of one rank.
  absl::Status NoRoomError(const StepKeys& keys, int64_t batch_size, bool alone) const;
  // Adds the tiers, and what they count of the rest. The tables are there, in the order of the
  // options.
  void AddTo(EmbeddingStats* stats) const;

 private:
  // Rows since the caches were written last; some may have been written or evicted since.
  struct Unwritten {
    int64_t made = 0;
    int64_t changed = 0;
  };
  struct Width {
    int32_t first_table = 0;  // in the plan
    int32_t last_table = 0;   // one past
    std::unique_ptr<TieredTable> table;
    std::vector<int32_t> trained;  // tables in the plan that change
    int64_t cache_rows = 0;        // at most
    // Rows over a store on a disk.
    Unwritten unwritten = {};
    Unwritten of_snapshot = {};  // of them, those that the snapshot being written writes
    int64_t in_steps = 0;        // rows of resident steps
    int64_t step_rows_max = 0;
  };

  Tiers() = default;

  // These refuse rows that the store would have no room for, before the cache has made or changed
  // them: it could never write them, and with them neither checkpoint nor erase. Those that Fetch
  // did not find, and those of a step.
  absl::Status CheckMade();
  absl::Status CheckStep(TierStep* step);
  // The step is over.
  void CountOut(TierStep* step, bool updated);
  // What the caches have yet to write, with room_mutex_.
  std::vector<RowsToCome> ToCome() const;
  // Writes what the caches have, beside the pipeline's Fetch.
  absl::Status FlushCaches();

  // The part of a step's array that is of one width class. Keys: with table_offsets.
  template <typename Keys, typename T>
  static std::span<T> PartOf(const Width& width, const Keys& keys, T* array) {
    const int64_t begin = keys.table_offsets[width.first_table];
    const int64_t end = keys.table_offsets[width.last_table];
    return {array + begin, static_cast<size_t>(end - begin)};
  }

  CachePlace place_;
  std::string cache_option_;  // what errors call the budget of the cache
  TierStats cache_;           // its name and budget
  TierStats disk_;            // the store's name
  OpenedStore store_;
  std::unique_ptr<CachedStore> host_cache_;  // staged over a disk, or null
  RowStore* below_ = nullptr;                // what the tables read from: host_cache_, or the store
  std::vector<Width> widths_;
  mutable std::mutex broken_mutex_;
  absl::Status broken_;       // under broken_mutex_
  std::mutex room_mutex_;     // of what Width counts over a disk
  bool in_snapshot_ = false;  // under room_mutex_: rows are being written for one
  std::vector<bool> frozen_;  // by the number of a table: no row of it is ever written

  // What Fetch uses.
  std::vector<RowKey> fetch_keys_;
  std::vector<std::byte*> fetch_rows_;
  std::vector<int64_t> fetch_sizes_;  // [width classes]
  std::vector<uint8_t> fetch_found_;
  // What a snapshot still has to write.
  std::vector<TieredTable*> unfinished_;  // have marked rows
  size_t next_unfinished_ = 0;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TIERS_TIERS_IMPL_H_
