#ifndef HOTROW_EMBEDDING_TIERS_TIERED_TABLE_H_
#define HOTROW_EMBEDDING_TIERS_TIERED_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"
#include "base/device_memory.h"
#include "base/exec_context.h"
#include "base/row_key.h"
#include "cache/row_cache.h"
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
  // [n] distinct keys, and how many lookups each has. Set by Place; the caller's, who keeps them.
  std::span<const RowKey> keys;
  std::span<const int32_t> counts;
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

  void ForgetMisses();
};

// What passed through one tier.
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

struct SnapshotCounts {
  int64_t rows = 0;    // dirty rows written for snapshots
  int64_t copied = 0;  // of them, because an update was about to change them
  int64_t held = 0;    // evicted rows that were held back
  int64_t update_waits = 0;
  int64_t update_wait_ns = 0;
  int64_t evict_waits = 0;
  int64_t evict_wait_ns = 0;
};

struct TieredTableStats {
  RowCacheStats cache;           // zeros without one, as all that follows of it
  int64_t cache_used_bytes = 0;  // of the budget, buffers included
  int64_t host_bytes = 0;        // staged: page-locked, beside the budget
  TierCounts cache_counts;
  TierCounts store_counts;
  SnapshotCounts snapshot;
  int64_t rows_read = 0;  // from the store and to it
  int64_t rows_written = 0;
};

// TieredTable is the rows of all tables of one row width, as training steps need them. With a cache
// (internal::CachedTable) it makes the rows of a step resident, hands out their addresses, and sees
// that what falls out of the cache reaches the store. Without one (internal::InPlaceTable) it hands
// out the addresses of rows in a HostStore itself.
//
// A step:   Place gives its keys ways and writes what had to leave them down to the store; the
//           owner asks for NextMisses, reads them from the store, for all tables at once, and calls
//           Fill, until there are no more; then it sets StepRows::resident. Then ResolveForRead,
//           PrepareForUpdate, ResolveForUpdate, Release.
//           The next step may be placed before this one is filled; rows that both have count as
//           hits then, and are there once this one is filled.
// New rows: a key that the store does not have gets its initial row in the cache (or in staging),
//           clean. It joins the store only if an update makes it dirty; otherwise it is forgotten.
// Threads:  four at most. The pipeline's first calls Place, FinishPlacing and GiveUp; its second
//           NextMisses, Fill and FillInPlace, and GiveUp while the first does nothing; the
//           caller's all others but the snapshot calls; the snapshot's the snapshot calls but
//           BeginSnapshot, which is the caller's. Read and Flush are called while the first two do
//           nothing, Flush also while no snapshot is being written.
// Errors:   those of the store. When the store refuses rows that the cache has already given up,
//           they wait in staging; every later call tries them again first and fails as long as the
//           store does. Nothing is lost. Errors of a GPU are sticky; the next call that returns a
//           status reports them.
class TieredTable {
 public:
  // `store` outlives the table; so does `in_place`, the same store where it can be trained in
  // place, needed when there is no cache. Errors: ResourceExhausted when cache_bytes is too small
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
  // Release or GiveUp. Keys that were placed keep their place when others found no room: Fill
  // them, then come again with the same keys.
  virtual absl::StatusOr<Placed> Place(const ExecContext& ctx, std::span<const RowKey> keys,
                                       std::span<const int32_t> counts, StepRows* step) = 0;
  // Appends the keys of the misses that the next Fill brings in, and where their rows are to be
  // written: all that are left, or as many as a staging area has room for. Returns how many; 0: all
  // have their bytes.
  virtual absl::StatusOr<int64_t> NextMisses(StepRows* step, std::vector<RowKey>* keys,
                                             std::vector<std::byte*>* rows) = 0;
  // The store was asked for the keys of NextMisses: found[i] says whether row i was written to
  // its place. Others get their initial rows. Staged, the rows are then on their way: the next
  // NextMisses may be called, and its rows be read, beside that.
  virtual absl::Status Fill(const ExecContext& ctx, StepRows* step,
                            std::span<const uint8_t> found) = 0;
  // Instead of both, where the device reads the rows of the store itself: brings in all misses.
  virtual bool fills_in_place() const = 0;
  virtual absl::Status FillInPlace(const ExecContext& ctx, StepRows* step) = 0;
  // All keys of the step are placed.
  virtual void FinishPlacing(const ExecContext& ctx) = 0;
  // Undoes Place; rows that were filled stay in the cache, unpinned. Steps that were placed since,
  // while this one was not filled, are given up before.
  virtual void GiveUp(StepRows* step) = 0;

  // --- A resident step

  // Sets rows[i] to where the row of the step's key i can be read until Release.
  virtual absl::Status ResolveForRead(const ExecContext& ctx, StepRows* step,
                                      std::span<std::byte*> rows) = 0;
  // The step's rows are about to change: keeps what a snapshot still needs of them. May wait for
  // the snapshot to take what was kept before.
  virtual absl::Status PrepareForUpdate(const ExecContext& ctx, const StepRows& step) = 0;
  // After ResolveForRead: makes rows[i] the address where key i may be updated. Without a cache
  // this is where new rows join the store, so here a full store is noticed, before any row has
  // changed.
  virtual absl::Status ResolveForUpdate(StepRows* step, std::span<std::byte*> rows) = 0;
  // Takes back what ResolveForUpdate added to the store, when another width class could not be made
  // ready.
  virtual absl::Status Withdraw(const StepRows& step) = 0;
  // Ends the step for these rows. updated: they have changed, by what is enqueued on ctx.stream.
  virtual void Release(const ExecContext& ctx, StepRows* step, bool updated) = 0;

  // --- All rows

  // Evaluation: sets rows[i] to where the present row of keys[i] can be read until the next call of
  // anything. Rows that are not resident are brought to `staging` (room for all keys, memory of
  // the cache's device); nothing else changes. Keys distinct.
  virtual absl::Status Read(const ExecContext& ctx, std::span<const RowKey> keys,
                            std::byte* staging, std::span<std::byte*> rows) = 0;
  // Writes dirty rows to the store.
  virtual absl::Status Flush() = 0;

  // --- Snapshots; with a cache only

  // Between two updates. On an error nothing has begun.
  virtual absl::Status BeginSnapshot() = 0;
  // Takes part of the marked rows to the store. False: all of them are there.
  virtual absl::StatusOr<bool> WriteSnapshotPart() = 0;
  // The store has captured the snapshot, or there will be none. In the second case, and after an
  // error of WriteSnapshotPart, what is still marked is simply dirty again.
  virtual void EndSnapshot() = 0;

  // Until what the table has enqueued is done; for who lets go of StepRows for good.
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
