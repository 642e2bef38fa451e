#ifndef HOTROW_EMBEDDING_TIERS_TIERED_TABLE_H_
#define HOTROW_EMBEDDING_TIERS_TIERED_TABLE_H_

#include <atomic>
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
#include "base/buffer.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/exec_context.h"
#include "base/row_key.h"
#include "cache/row_cache.h"
#include "embedding/tiers/held_rows.h"
#include "ops/row_init.h"
#include "ops/row_layout.h"
#include "ops/sparse_optimizer.h"
#include "store/host/host_store.h"
#include "store/row_store.h"

namespace hotrow {

// How rows of one table look before their first update.
struct TieredTableSpec {
  uint32_t table = 0;  // in RowKey
  RowLayout layout;
  Initializer initializer;
  SparseOptimizerConfig optimizer;
};

// Where a row cache lies.
struct CachePlace {
  Device device = Device::kCpu;
  // Rows pass through staging memory on their way in and out, as they must where the host does not
  // reach the cache: with kCuda always. With kCpu it is what a GPU would do, in host memory.
  bool staged = false;
};

struct TieredTableOptions {
  std::vector<TieredTableSpec> tables;  // all of one row_bytes
  uint64_t seed = 0;
  int64_t cache_bytes = 0;  // rows, marks, overflow, staging, buffers; 0: train in the store
  CachePolicy cache_policy = CachePolicy::kLru;
  // Staged: cache_bytes > 0 is memory of the device, and what rows pass through on their way to and
  // from the store is page-locked host memory beside it (host_bytes()).
  CachePlace place;
};

// The keys of one training step in one TieredTable, from Place to Release. The owner keeps it; the
// table fills it. Reused from step to step, so that its memory is.
struct StepRows {
  std::vector<int64_t> slots;          // [n] with a cache: pinned slots; -1: not placed yet
  int64_t probed = 0;                  // keys counted in the tier statistics already
  SharedBuffer<int64_t> shared_slots;  // staged: the slots once more, for the device
  // With a cache, between Place and the last Fill: rows that have a way and wait for their bytes.
  std::vector<RowKey> miss_keys;
  std::vector<std::byte*> miss_rows;        // where they lie, on the cache's device
  std::vector<int64_t> miss_positions;      // in the step's keys
  SharedBuffer<int64_t> shared_miss_slots;  // staged: their slots, for the device
  size_t sent = 0;    // so many misses have their bytes or, staged, these are on their way
  size_t filled = 0;  // so many have them
  std::vector<int64_t> missing;  // without a cache: positions of keys that the store does not have
  std::vector<std::byte> staging;  // without a cache: initial rows of those, [missing, row_bytes]
  bool resident = false;           // all placed and filled
};

// What passed through one tier; read by EmbeddingCollection::Stats.
struct TierCounts {
  int64_t unique_keys = 0;
  int64_t unique_hits = 0;
  int64_t lookups = 0;
  int64_t lookup_hits = 0;
};

struct SnapshotCounts {
  int64_t rows = 0;    // dirty rows written for snapshots
  int64_t copied = 0;  // of them, because an update was about to change them
  int64_t held = 0;    // evicted rows that were held back
  int64_t update_waits = 0;
  int64_t update_wait_ns = 0;
  int64_t evict_waits = 0;
  int64_t evict_wait_ns = 0;
};

// TieredTable is a row cache over a store for all tables of one row width: it makes the rows of a
// step resident, hands out their addresses, and sees that what falls out of the cache reaches the
// store. Without a cache it hands out the addresses of rows in a HostStore itself.
//
// A step:   Place gives its keys ways and writes what had to leave them down to the store; the
//           owner asks for NextMisses, reads them from the store, for all tables at once, and calls
//           Fill, until there are no more; then it sets StepRows::resident. Then ResolveForRead,
//           PrepareForUpdate, ResolveForUpdate, Release.
//           The next step may be placed before this one is filled; rows that both have count as
//           hits then, and are there once this one is filled.
// Order:    a row that was evicted reaches the store before any miss of its step or a later one is
//           read, so a miss never reads an older row than was evicted.
// New rows: a key that the store does not have gets its initial row in the cache (or in staging),
//           clean. It joins the store only if an update makes it dirty; otherwise it is forgotten.
// Snapshots: from BeginSnapshot on, the rows that were dirty then are marked and belong to the
//           snapshot with the bytes they had. WriteSnapshotPart takes them to the store, in parts.
//           An update that is about to change a marked row copies it first; a marked row that is
//           evicted goes to the store like any other; a row that was changed since and is evicted
//           is held back, and a miss on it served from there, until EndSnapshot.
// Devices:  the cache lies on one; the store is the host's. Staged, the table has two streams:
//           `place_`, on which the cache changes and rows leave, and `fill_`, on which rows come
//           in, so that both directions run at once and beside what the caller computes on a third.
//           Rows that leave are written straight into page-locked staging; rows that come are read
//           from there, or from where a HostStore keeps them. Each way has two staging areas that
//           take turns: the host writes rows of one to the store, or reads rows into it, while the
//           device is at the other. The host waits for place_ and fill_ only on the threads of the
//           pipeline; the caller's calls enqueue, but for those around snapshots and evaluation.
// Threads:  four at most. One (the pipeline's first) calls Place, FinishPlacing and GiveUp; one
// (its
//           second) NextMisses and Fill, and GiveUp while the first does nothing; one (the
//           caller's) all others but the snapshot calls; one the snapshot calls but BeginSnapshot,
//           which is the caller's. Read and Flush are called while the first two do nothing, Flush
//           also while no snapshot is being written. Inside, `mutex_` is held for at most a staging
//           area of keys and never while the store works. `order_mutex_` is held from before rows
//           are evicted until they are in the store: with two staging areas for up to a whole step.
// Errors:   what the store says. When the store refuses rows that the cache has already given up,
//           they wait in the staging areas; every later call tries them again first and fails as
//           long as the store does. Nothing is lost. What a GPU says, which no call survives, the
//           next call with a status returns.
class TieredTable {
 public:
  // `store` outlives the table; so does `in_place`, the same store where it can be trained in
  // place, needed when there is no cache. Errors: ResourceExhausted when cache_bytes is too small
  // for any cache.
  static absl::StatusOr<std::unique_ptr<TieredTable>> Create(const TieredTableOptions& options,
                                                             RowStore* store, HostStore* in_place);

  ~TieredTable() { WaitForDevice(); }
  TieredTable(const TieredTable&) = delete;
  TieredTable& operator=(const TieredTable&) = delete;

  // The smallest cache_bytes with which `rows` distinct rows fit at once, all buffers included.
  static int64_t MinCacheBytes(int64_t rows, int64_t row_bytes, CachePlace place = {});
  // The part of a budget that buffers take; the RowCache gets the rest.
  static int64_t BufferBytes(int64_t cache_bytes, int64_t row_bytes, CachePlace place = {});

  // --- Making rows resident

  enum class Placed {
    kAll,
    kNoRoom,                // some do not fit beside the rows that other steps have pinned
    kNoRoomBesideSnapshot,  // the same, and a snapshot had pinned rows as well
  };
  // Gives the keys (distinct) that have none yet a way, pinned for this step, and notes misses.
  // counts[i] is how many lookups keys[i] has, for the statistics. What has been placed keeps its
  // place also when others found no room: Fill it, then come again with the same keys.
  absl::StatusOr<Placed> Place(const ExecContext& ctx, std::span<const RowKey> keys,
                               std::span<const int32_t> counts, StepRows* step);
  // Appends the keys of the misses that the next Fill brings in, and where their rows are to be
  // written: all that are left, or as many as a staging area has room for. Returns how many; 0: all
  // have their bytes.
  absl::StatusOr<int64_t> NextMisses(StepRows* step, std::vector<RowKey>* keys,
                                     std::vector<std::byte*>* rows);
  // The store was asked for the keys of NextMisses: found[i] says whether row i was written to
  // its place. Others get their initial rows. Staged, the rows are then on their way: the next
  // NextMisses may be called, and its rows be read, beside that.
  absl::Status Fill(const ExecContext& ctx, std::span<const int32_t> counts, StepRows* step,
                    std::span<const uint8_t> found);
  // Instead of both, where the device reads the rows of the store itself: brings in all misses.
  bool fills_in_place() const { return staged_ && in_place_ != nullptr; }
  absl::Status FillInPlace(const ExecContext& ctx, std::span<const int32_t> counts, StepRows* step);
  // All keys of the step are placed.
  void FinishPlacing(const ExecContext& ctx);
  // Undoes Place; rows that were filled stay in the cache, unpinned. Steps that were placed since,
  // while this one was not filled, are given up before.
  void GiveUp(StepRows* step);

  // --- A resident step

  // Sets rows[i] to where the row of keys[i] can be read until Release.
  absl::Status ResolveForRead(const ExecContext& ctx, std::span<const RowKey> keys,
                              std::span<const int32_t> counts, StepRows* step,
                              std::span<std::byte*> rows);
  // The step's rows are about to change: keeps what a snapshot still needs of them. May wait for
  // the snapshot to take what was kept before.
  absl::Status PrepareForUpdate(const ExecContext& ctx, const StepRows& step);
  // After ResolveForRead: makes rows[i] the address where keys[i] may be updated. Without a cache
  // this is where new rows join the store, so here a full store is noticed, before any row has
  // changed.
  absl::Status ResolveForUpdate(std::span<const RowKey> keys, StepRows* step,
                                std::span<std::byte*> rows);
  // Takes back what ResolveForUpdate added to the store, when another width class could not be made
  // ready.
  absl::Status Withdraw(std::span<const RowKey> keys, const StepRows& step);
  // Ends the step for these rows. updated: they have changed, by what is enqueued on ctx.stream.
  void Release(const ExecContext& ctx, StepRows* step, bool updated);

  // --- All rows

  // Evaluation: sets rows[i] to where the present row of keys[i] can be read until the next call of
  // anything. Rows that are not resident are brought to `staging` (room for all keys, memory of
  // the cache's device); nothing else changes. Keys distinct.
  absl::Status Read(const ExecContext& ctx, std::span<const RowKey> keys, std::byte* staging,
                    std::span<std::byte*> rows);
  // Writes dirty rows to the store.
  absl::Status Flush();

  // --- Snapshots; with a cache only

  // Between two updates. On an error nothing has begun.
  absl::Status BeginSnapshot();
  // Takes part of the marked rows to the store. False: all of them are there.
  absl::StatusOr<bool> WriteSnapshotPart();
  // The store has captured the snapshot, or there will be none. In the second case, and after an
  // error of WriteSnapshotPart, what is still marked is simply dirty again.
  void EndSnapshot();

  // Until what the table has enqueued is done; for who lets go of StepRows for good.
  void WaitForDevice() const;
  bool has_cache() const { return cache_ != nullptr; }
  int64_t host_bytes() const { return host_bytes_; }  // see TieredTableOptions::place
  int64_t row_bytes() const { return row_bytes_; }
  int64_t cache_used_bytes() const;
  // What an error message and the statistics call the cache.
  int64_t cache_budget_bytes() const { return cache_budget_bytes_; }
  RowCacheStats cache_stats() const;
  TierCounts cache_counts() const;
  TierCounts store_counts() const;
  SnapshotCounts snapshot_counts() const;
  int64_t rows_read() const { return rows_read_.load(std::memory_order_relaxed); }
  int64_t rows_written_back() const { return rows_written_back_.load(std::memory_order_relaxed); }

 private:
  friend class TieredTablePeer;  // of the tests: breaks one

  // A part of a step's keys on its way into the cache, and the rows that it evicts.
  struct Chunk {
    std::vector<int64_t> positions;  // in the step's keys
    SharedBuffer<RowKey> keys;       // staging_rows_ of this and of what follows
    SharedBuffer<int64_t> slots;
    SharedBuffer<Placement> placement;
    SharedBuffer<uint8_t> evicted;
    SharedBuffer<RowKey> evicted_keys;
    SharedBuffer<std::byte> evicted_rows;  // [staging_rows_, row_bytes_]
    DeviceEvent placed;

    static absl::StatusOr<Chunk> Create(Device device, int64_t rows, int64_t row_bytes);
  };
  // Rows on their way in, staged: where from and where to.
  struct Inflow {
    SharedBuffer<std::byte> rows;   // [staging_rows_, row_bytes_]
    SharedBuffer<std::byte*> from;  // [staging_rows_]
    SharedBuffer<std::byte*> to;    // [staging_rows_]
    DeviceEvent arrived;
    size_t size = 0;  // so many are on their way

    static absl::StatusOr<Inflow> Create(Device device, int64_t rows, int64_t row_bytes);
  };

  TieredTable() = default;

  // Runs `call` with slots where the cache can read them. Under mutex_; staged it waits.
  absl::Status WithSlots(
      std::span<const int64_t> slots,
      absl::FunctionRef<absl::Status(const ExecContext& ctx, std::span<const int64_t> slots)> call);
  // Read, staged; under both mutexes.
  absl::Status ReadStaged(const ExecContext& ctx, std::span<const RowKey> keys, std::byte* staging,
                          std::span<std::byte*> rows);
  absl::Status ReadMisses(const ExecContext& ctx);
  // Under mutex_: remembers what a call that returns nothing has met.
  void Note(const absl::Status& status) { broken_.Update(status); }
  // Without mutex_: what Note has kept. Every call with a status asks first: bytes and marks of the
  // cache may be anything.
  absl::Status Broken() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return broken_;
  }
  // Under mutex_: puts a row of the host into a way.
  absl::Status CopyIn(int64_t slot, const std::byte* row);
  // Staged: the rows of an area were enqueued on fill_.
  absl::Status Send(std::span<const int32_t> counts, StepRows* step, std::span<const uint8_t> found,
                    Inflow* inflow);
  // The next misses were sent on their way, or have their bytes: counts them.
  void CountFill(std::span<const int32_t> counts, StepRows* step, std::span<const uint8_t> found);
  // The first n misses that are left have their bytes.
  absl::Status EndFill(StepRows* step, size_t n);
  // Staged: waits for what is on its way from an area, which is free then.
  absl::Status Arrive(StepRows* step, Inflow* inflow);
  absl::Status ArriveAll(StepRows* step);

  // Writes the initial row of keys[i] to rows[i], host memory. Keys are grouped by table.
  absl::Status InitRowsOf(const ExecContext& ctx, std::span<const RowKey> keys,
                          std::span<std::byte* const> rows) const;
  // Under order_mutex_: evicted rows, and rows that were held back.
  absl::Status WriteBackPending(TraceRecorder* trace = nullptr);
  absl::Status WriteBackHeld();
  // Under both mutexes: sends the unplaced keys from *cursor on, up to `most` of them, to the
  // cache; then, once that is done, notes what became of them.
  absl::Status SendChunk(const ExecContext& ctx, std::span<const RowKey> keys, int64_t most,
                         int64_t* cursor, const StepRows& step, Chunk* chunk);
  absl::Status EndChunk(std::span<const int32_t> counts, StepRows* step, const Chunk& chunk,
                        bool* no_room);
  // After Place has noted all it will: the slots for the device.
  absl::Status ShareSlots(StepRows* step) const;
  absl::Status AppendRows(std::span<const RowKey> keys, std::span<const std::byte* const> rows);
  const TieredTableSpec& SpecOf(uint32_t table) const;

  std::vector<TieredTableSpec> tables_;
  uint64_t seed_ = 0;
  int64_t row_bytes_ = 0;
  Device device_ = Device::kCpu;
  bool staged_ = false;
  RowStore* store_ = nullptr;
  HostStore* in_place_ = nullptr;
  int64_t cache_budget_bytes_ = 0;
  int64_t buffer_bytes_ = 0;  // of the budget, beside the cache itself
  int64_t host_bytes_ = 0;    // staged: beside the budget

  // Taken before mutex_. Guards what is on its way down, and held_ together with mutex_: changing
  // it takes both, reading it takes one.
  std::mutex order_mutex_;
  int64_t staging_rows_ = 0;
  std::vector<Chunk> chunks_;  // 1; staged 2
  std::vector<RowKey> pending_keys_;
  std::vector<const std::byte*> pending_rows_;  // into chunks_
  internal::HeldRows held_;

  mutable std::mutex mutex_;                  // guards what follows, and the metadata of the cache
  std::unique_ptr<RowCache> cache_;           // null: train in the store
  DeviceStream place_;                        // what changes the cache
  absl::Status broken_;                       // see Note
  bool holding_ = false;                      // a snapshot was begun and is not captured yet
  bool marking_ = false;                      // there may be marked rows, or copies of them
  std::condition_variable snapshot_changed_;  // holding_, marking_ or the room for copies
  int64_t snapshot_cursor_ = 0;               // slots before it have no marks
  int64_t snapshot_pins_ = 0;                 // rows that WriteSnapshotPart has pinned
  // Old bytes of marked rows that were updated: a ring.
  SharedBuffer<RowKey> copy_keys_;
  SharedBuffer<std::byte> copies_;  // [copy_keys_.size(), row_bytes_]
  int64_t first_copy_ = 0;
  int64_t num_copies_ = 0;
  TierCounts cache_counts_;
  TierCounts store_counts_;
  SnapshotCounts snapshot_counts_;

  SharedBuffer<std::byte*> read_rows_;  // of Read, staged: [staging_rows_]
  SharedBuffer<int64_t> call_slots_;    // of WithSlots: [staging_rows_]
  // Of Fill.
  std::vector<RowKey> absent_keys_;
  std::vector<std::byte*> absent_rows_;
  std::vector<int64_t> filled_slots_;
  // Of Fill, staged.
  DeviceStream fill_;
  std::vector<Inflow> inflows_;            // 2 that take turns
  size_t next_inflow_ = 0;                 // whose turn it is: the one that was sent first
  DeviceMemory<std::byte> fill_gathered_;  // [staging_rows_, row_bytes_], on the device
  // Of GiveUp.
  std::vector<int64_t> abandoned_slots_;
  // Of the caller's calls.
  std::vector<RowKey> miss_keys_;
  std::vector<std::byte*> miss_rows_;
  std::vector<uint8_t> found_;
  // Of the snapshot's.
  int64_t part_rows_ = 0;
  SharedBuffer<std::byte> part_;       // [part_rows_, row_bytes_]
  SharedBuffer<RowKey> taken_keys_;    // [part_rows_]
  SharedBuffer<int64_t> taken_slots_;  // [part_rows_]
  std::vector<RowKey> part_keys_;
  std::vector<const std::byte*> part_pointers_;

  std::atomic<int64_t> rows_read_{0};
  std::atomic<int64_t> rows_written_back_{0};
};

// Looks keys up in `store`; spread over ctx.pool where the store leaves that to its callers.
absl::Status FindInStore(const ExecContext& ctx, RowStore* store, bool spread,
                         std::span<const RowKey> keys, std::span<std::byte* const> rows,
                         std::span<uint8_t> found);

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_TIERS_TIERED_TABLE_H_
