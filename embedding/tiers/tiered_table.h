#ifndef HOTROW_EMBEDDING_TIERS_TIERED_TABLE_H_
#define HOTROW_EMBEDDING_TIERS_TIERED_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"
#include "base/device_memory.h"
#include "base/exec_context.h"
#include "base/row_key.h"
#include "cache/address_index.h"
#include "cache/row_cache.h"
#include "embedding/tiers/step_probe.h"
#include "ops/rows/row_init.h"
#include "ops/rows/row_layout.h"
#include "ops/update/sparse_optimizer.h"
#include "store/host/host_store.h"
#include "store/row_store.h"

namespace hotrow {

// The rows of one table: layout, initial values, optimizer.
struct TieredTableSpec {
  uint32_t table = 0;  // in RowKey
  RowLayout layout;
  Initializer initializer;
  SparseOptimizerConfig optimizer;
};

// Where a row cache lies.
struct CachePlace {
  Device device = Device::kCpu;
  // Rows pass through staging memory in both directions: always with kCuda, where the host does not
  // reach the cache. With kCpu it emulates a GPU in host memory.
  bool staged = false;
};

struct TieredTableOptions {
  std::vector<TieredTableSpec> tables;  // all of one row_bytes
  uint64_t seed = 0;
  int64_t cache_bytes = 0;  // rows, marks, overflow, staging, buffers; 0: train in the store
  CachePolicy cache_policy = CachePolicy::kLru;
  // Staged: cache_bytes > 0 is device memory; staging between cache and store is page-locked host
  // memory in addition (host_bytes).
  CachePlace place;
  // Staged, over a HostStore: memory of the device, beside cache_bytes, that finds rows of the
  // store; 0: the host finds them all.
  int64_t index_bytes = 0;
  ThreadPool* pool = nullptr;  // of Flush; null: the caller's thread alone. Outlives the table
};

// The keys of one training step in one TieredTable, from Place to Release. The owner keeps it, the
// table fills it. Reused from step to step, to keep its memory.
struct StepRows {
  // [n] the keys that the host places, and how many lookups each has. Set by Place: all of them,
  // the caller's, who keeps them; staged those that the device has not found.
  std::span<const RowKey> keys;
  std::span<const int32_t> counts;
  internal::StepProbe probe;           // staged: the hits
  std::vector<int64_t> slots;          // [n] with a cache: pinned slots; -1: not placed yet
  int64_t probed = 0;                  // keys counted in the tier statistics already
  SharedBuffer<int64_t> shared_slots;  // staged: the slots once more, for the device
  // Rows that have a way and wait for their bytes, with a cache, between Place and the last Fill.
  std::vector<RowKey> miss_keys;
  std::vector<std::byte*> miss_rows;        // where they lie, on the cache's device
  std::vector<int64_t> miss_positions;      // in the step's keys
  SharedBuffer<int64_t> shared_miss_slots;  // staged: their slots, for the device
  size_t sent = 0;    // misses that have their bytes or, staged, whose bytes are on their way
  size_t filled = 0;  // misses that have their bytes
  std::vector<int64_t> missing;  // without a cache: positions of keys that the store does not have
  std::vector<std::byte> staging;  // without a cache: initial rows of those, [missing, row_bytes]
  bool resident = false;           // all placed and filled
  // [n] which rows change with the step, from ResolveForUpdate on; empty: all. The others stay
  // clean, and those that are not in the store yet do not join it. Not staged. The caller's.
  std::span<const uint8_t> trained;

  void ForgetMisses();
};

// Lookups in one tier.
struct TierCounts {
  int64_t unique_keys = 0;
  int64_t unique_hits = 0;
  int64_t lookups = 0;
  int64_t lookup_hits = 0;

  // One distinct key with so many lookups.
  void Add(bool hit, int32_t key_lookups) {
    unique_keys += 1;
    unique_hits += hit ? 1 : 0;
    lookups += key_lookups;
    lookup_hits += hit ? key_lookups : 0;
  }
  void Add(const TierCounts& more) {
    unique_keys += more.unique_keys;
    unique_hits += more.unique_hits;
    lookups += more.lookups;
    lookup_hits += more.lookup_hits;
  }
};

// Misses in one table: distinct keys that a tier did not have, and their lookups.
struct MissCounts {
  int64_t unique_keys = 0;
  int64_t lookups = 0;
};

struct SnapshotCounts {
  int64_t rows = 0;    // dirty rows written for snapshots
  int64_t copied = 0;  // of them, because an update was about to change them
  int64_t held = 0;    // evicted rows that were held back
  int64_t update_waits = 0;
  int64_t update_wait_ns = 0;
  int64_t evict_waits = 0;
  int64_t evict_wait_ns = 0;

  void Add(const SnapshotCounts& more) {
    rows += more.rows;
    copied += more.copied;
    held += more.held;
    update_waits += more.update_waits;
    update_wait_ns += more.update_wait_ns;
    evict_waits += more.evict_waits;
    evict_wait_ns += more.evict_wait_ns;
  }
};

struct TieredTableStats {
  RowCacheStats cache;           // zeros without one, as all that follows of it
  int64_t cache_used_bytes = 0;  // of the budget, buffers included
  int64_t host_bytes = 0;        // staged: page-locked, beside the budget
  int64_t device_bytes = 0;      // staged: of steps, beside the budget
  AddressIndexStats index;       // with index_bytes
  TierCounts cache_counts;
  TierCounts store_counts;
  // The counts of each of TieredTableOptions::tables, in their order.
  struct Table {
    uint32_t table = 0;
    MissCounts cache;
    MissCounts store;
  };
  std::vector<Table> tables;
  SnapshotCounts snapshot;
  int64_t known_rows_read = 0;  // from the store, found by the index
  int64_t rows_read = 0;        // from the store, these among them, and to it
  int64_t rows_written = 0;
};

// TieredTable manages the rows of all tables of one row width for training steps. With a cache
// (internal::CachedTable) it makes the rows of a step resident, hands out their addresses, and
// writes evicted rows to the store. Without one (internal::InPlaceTable) it hands out the addresses
// of rows in a HostStore.
//
// A step:   Place gives its keys ways and writes evicted rows to the store. Then the owner repeats
//           NextMisses, a read from the store for all tables at once, and Fill until there are no
//           more misses, and sets StepRows::resident. Then ResolveForRead, PrepareForUpdate,
//           ResolveForUpdate, Release.
//           The next step may be placed before this one is filled. Rows of both then count as hits
//           and are there once this one is filled.
// New rows: a key that the store does not have gets its initial row in the cache (or in staging),
//           clean. It joins the store only if an update makes it dirty; otherwise it is forgotten.
// Threads:  at most four. The pipeline's first thread calls Place, FinishPlacing and GiveUp. Its
//           second calls NextMisses, Fill and FillInPlace, and GiveUp while the first is idle. The
//           snapshot's thread calls WriteSnapshotPart and EndSnapshot. The caller's thread calls
//           all others; Read, ForEachUnwritten and Erase while both threads of the pipeline are
//           idle, Flush, ForEachUnwritten and Erase while no snapshot is being written. Stats waits
//           for nobody.
// Errors:   those of the store. Evicted rows that the store refuses wait in staging; every later
//           call first tries them again, and fails as long as the store does. Nothing is lost.
//           Errors of a GPU are sticky, and so is Break; the next call that returns a status
//           reports them.
class TieredTable {
 public:
  // Takes rows in host memory, valid until it returns.
  using RowsFn = absl::FunctionRef<absl::Status(std::span<const RowKey> keys,
                                                std::span<const std::byte* const> rows)>;

  // `store` outlives the table. So does `in_place`: the same store if it can be trained in place,
  // else null; required without a cache. Errors: ResourceExhausted when cache_bytes is too small
  // for any cache.
  static absl::StatusOr<std::unique_ptr<TieredTable>> Create(const TieredTableOptions& options,
                                                             RowStore* store, HostStore* in_place);

  virtual ~TieredTable() = default;
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
  // counts[i] is how many lookups keys[i] has, for the statistics. Both stay as they are until
  // Release or GiveUp; staged they are memory of the cache's device. Keys that were placed keep
  // their place when others found no room: Fill them, then come again with the same keys.
  virtual absl::StatusOr<Placed> Place(const ExecContext& ctx, std::span<const RowKey> keys,
                                       std::span<const int32_t> counts, StepRows* step) = 0;
  // Appends the keys of the misses of the next Fill, and the addresses to write their rows to: all
  // that are left, or as many as fit into a staging area. Returns their number; 0: all misses have
  // their bytes.
  virtual absl::StatusOr<int64_t> NextMisses(StepRows* step, std::vector<RowKey>* keys,
                                             std::vector<std::byte*>* rows) = 0;
  // After reading the keys of NextMisses: found[i] tells whether row i was written to its address.
  // The others get their initial rows. Staged, the rows then travel to the device while the next
  // NextMisses is called and its rows are read.
  virtual absl::Status Fill(const ExecContext& ctx, StepRows* step,
                            std::span<const uint8_t> found) = 0;
  // Replaces NextMisses and Fill if the device reads the store's rows itself: brings in all misses.
  virtual bool fills_in_place() const = 0;
  virtual absl::Status FillInPlace(const ExecContext& ctx, StepRows* step) = 0;
  // Call when all keys of the step are placed.
  virtual void FinishPlacing(const ExecContext& ctx) = 0;
  // Undoes Place; filled rows stay in the cache, unpinned. Steps that were placed while this one
  // was not filled must be given up before.
  virtual void GiveUp(StepRows* step) = 0;
  // A call has ended by an exception, so a cache may have rows without their bytes: later calls
  // that return a status return this one. Without a cache it is for who calls the table to make
  // none.
  virtual void Break(const absl::Status& /*why*/) {}

  // --- A resident step

  // Sets rows[i] to the address of the row of the step's key i, readable until Release. Staged it
  // enqueues that on ctx.stream, and `rows` is memory of the cache's device; wait for it before the
  // step ends.
  virtual absl::Status ResolveForRead(const ExecContext& ctx, StepRows* step,
                                      std::span<std::byte*> rows) = 0;
  // Call before the step's rows change: keeps copies that a snapshot still needs. May wait until
  // the snapshot has taken earlier copies.
  virtual absl::Status PrepareForUpdate(const ExecContext& ctx, const StepRows& step) = 0;
  // After ResolveForRead: sets rows[i] to the address where key i may be updated. Without a cache
  // new rows join the store here, so a full store is an error of this call, before any row has
  // changed.
  virtual absl::Status ResolveForUpdate(StepRows* step, std::span<std::byte*> rows) = 0;
  // Removes the rows that ResolveForUpdate added to the store, when another width class failed.
  virtual absl::Status Withdraw(const StepRows& step) = 0;
  // Ends the step. updated: its rows were changed, by work that is enqueued on ctx.stream.
  virtual void Release(const ExecContext& ctx, StepRows* step, bool updated) = 0;

  // --- All rows

  // Evaluation: sets rows[i] to the address of the present row of keys[i], readable until the next
  // call. Rows that are not resident are copied to `staging` (memory of the cache's device, with
  // room for all keys); nothing else changes. Keys are distinct.
  virtual absl::Status Read(const ExecContext& ctx, std::span<const RowKey> keys,
                            std::byte* staging, std::span<std::byte*> rows) = 0;
  // Writes dirty rows to the store.
  virtual absl::Status Flush() = 0;
  // Calls visit with the rows that Flush would write, each once; they stay as they are. May come
  // when Flush may.
  virtual absl::Status ForEachUnwritten(RowsFn visit) = 0;
  // Removes the rows of these keys, distinct ones, from the store and everything above it: from
  // here on the keys are new. Steps may have been placed, and have initial rows then; none may have
  // been resolved. After an error each of the keys may be there or not, or go later; call it again.
  virtual absl::Status Erase(const ExecContext& ctx, std::span<const RowKey> keys) = 0;
  // Gives these keys, distinct ones, the rows, which are in host memory: in the store and
  // everything above it. No step has been placed. After an error each of the keys may have its row
  // from before or the new one.
  virtual absl::Status Write(const ExecContext& ctx, std::span<const RowKey> keys,
                             std::span<const std::byte* const> rows) = 0;

  // --- Snapshots; with a cache only

  // Call between two updates. On an error nothing has begun. Waits for no write to the store unless
  // rows of the previous snapshot are still held.
  virtual absl::Status BeginSnapshot() = 0;
  // Writes some of the marked rows to the store. False: all are written.
  virtual absl::StatusOr<bool> WriteSnapshotPart() = 0;
  // Call when the store has captured the snapshot, or when there will be none. Rows that are still
  // marked become dirty again.
  virtual void EndSnapshot() = 0;
  // Call after EndSnapshot, on any thread: writes the held rows to the store, so that the next
  // BeginSnapshot need not. On an error they stay held.
  virtual absl::Status WriteHeld() = 0;

  // Waits for all work that the table has enqueued. Call before destroying StepRows.
  virtual void WaitForDevice() const = 0;
  virtual bool has_cache() const = 0;
  virtual TieredTableStats Stats() const = 0;
  int64_t row_bytes() const { return row_bytes_; }

 protected:
  explicit TieredTable(int64_t row_bytes) : row_bytes_(row_bytes) {}

 private:
  const int64_t row_bytes_;
};

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_TIERS_TIERED_TABLE_H_
