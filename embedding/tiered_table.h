#ifndef HOTROW_EMBEDDING_TIERED_TABLE_H_
#define HOTROW_EMBEDDING_TIERED_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/exec_context.h"
#include "base/row_key.h"
#include "cache/row_cache.h"
#include "ops/row_init.h"
#include "ops/row_layout.h"
#include "ops/sparse_optimizer.h"
#include "store/host_store.h"

namespace hotrow {

// How rows of one table look before their first update.
struct TieredTableSpec {
  uint32_t table = 0;  // in RowKey
  RowLayout layout;
  Initializer initializer;
  SparseOptimizerConfig optimizer;
};

struct TieredTableOptions {
  std::vector<TieredTableSpec> tables;  // all of one row_bytes
  uint64_t seed = 0;
  int64_t cache_bytes = 0;  // rows, marks, overflow and staging; 0: train in the store
  CachePolicy cache_policy = CachePolicy::kLru;
};

// The keys of one training step in one TieredTable, from MakeResident to Release. The owner keeps
// it; the table fills it. Reused from step to step, so that its memory is.
struct StepRows {
  std::vector<int64_t> slots;    // [n] with a cache: pinned slots
  int64_t probed = 0;            // keys counted in the tier statistics already
  std::vector<int64_t> missing;  // without a cache: positions of keys that the store does not have
  std::vector<std::byte> staging;  // without a cache: initial rows of those, [missing, row_bytes]
  bool resident = false;
};

// What passed through one tier; read by EmbeddingCollection::Stats.
struct TierCounts {
  int64_t unique_keys = 0;
  int64_t unique_hits = 0;
  int64_t lookups = 0;
  int64_t lookup_hits = 0;
};

// TieredTable is a row cache over a store for all tables of one row width: it makes the rows of a
// step resident, hands out their addresses, and sees that what falls out of the cache reaches the
// store. Without a cache it hands out the addresses of rows in the HostStore itself.
//
// Order:    a row is evicted to the store before any miss is read, so a miss never reads an older
//           row than was evicted.
// New rows: a key that the store does not have gets its initial row in the cache (or in staging),
//           clean. It joins the store only if an update makes it dirty; otherwise it is forgotten.
// Threads:  one call at a time; work inside spreads over ctx.pool.
// Errors:   what the store says. When the store refuses rows that the cache has already given up,
//           they wait in the staging area; every later call tries them again first and fails as
//           long as the store does. Nothing is lost.
class TieredTable {
 public:
  // `store` outlives the table. Errors: ResourceExhausted when cache_bytes is too small for any
  // cache.
  static absl::StatusOr<std::unique_ptr<TieredTable>> Create(const TieredTableOptions& options,
                                                             HostStore* store);

  // The smallest cache_bytes with which `rows` distinct rows fit at once, staging included.
  static int64_t MinCacheBytes(int64_t rows, int64_t row_bytes);

  // Makes keys (distinct) resident and pins them for this step. counts[i] is how many lookups
  // keys[i] has, for the statistics. False: they do not fit beside the rows pinned by other steps;
  // nothing stays pinned.
  absl::StatusOr<bool> MakeResident(const ExecContext& ctx, std::span<const RowKey> keys,
                                    std::span<const int32_t> counts, StepRows* step);

  // Sets rows[i] to where the row of keys[i] can be read until Release. Resident steps only.
  absl::Status ResolveForRead(const ExecContext& ctx, std::span<const RowKey> keys,
                              std::span<const int32_t> counts, StepRows* step,
                              std::span<std::byte*> rows);
  // After ResolveForRead: makes rows[i] the address where keys[i] may be updated. Without a cache
  // this is where new rows join the store, so here a full store is noticed, before any row has
  // changed.
  absl::Status ResolveForUpdate(std::span<const RowKey> keys, StepRows* step,
                                std::span<std::byte*> rows);
  // Takes back what ResolveForUpdate added to the store, when another width class could not be made
  // ready.
  absl::Status Withdraw(std::span<const RowKey> keys, const StepRows& step);
  // Ends the step for these rows. updated: they have changed.
  void Release(StepRows* step, bool updated);

  // Evaluation: sets rows[i] to where the present row of keys[i] can be read until the next call of
  // anything. Rows that are not resident are brought to `staging` (room for all keys); nothing else
  // changes. Keys distinct.
  absl::Status Read(const ExecContext& ctx, std::span<const RowKey> keys, std::byte* staging,
                    std::span<std::byte*> rows);

  // Writes dirty rows to the store.
  absl::Status Flush();

  bool has_cache() const { return cache_ != nullptr; }
  int64_t row_bytes() const { return row_bytes_; }
  int64_t cache_used_bytes() const;
  // What an error message and the statistics call the cache.
  int64_t cache_budget_bytes() const { return cache_budget_bytes_; }
  RowCacheStats cache_stats() const {
    return cache_ == nullptr ? RowCacheStats() : cache_->Stats();
  }
  const TierCounts& cache_counts() const { return cache_counts_; }
  const TierCounts& store_counts() const { return store_counts_; }
  int64_t rows_read() const { return rows_read_; }
  int64_t rows_written_back() const { return rows_written_back_; }

 private:
  TieredTable() = default;

  // Writes the initial row of keys[i] to rows[i]. Keys are grouped by table.
  absl::Status InitRowsOf(const ExecContext& ctx, std::span<const RowKey> keys,
                          std::span<std::byte* const> rows) const;
  // Fills found[i] and, where found, rows[i]; spread over the pool.
  absl::Status FindInStore(const ExecContext& ctx, std::span<const RowKey> keys,
                           std::span<std::byte* const> rows, std::span<uint8_t> found);
  // One staging area's worth of keys. Sets *no_room when some could not be placed.
  absl::Status MakeChunkResident(const ExecContext& ctx, std::span<const RowKey> keys,
                                 std::span<const int32_t> counts, int64_t first, StepRows* step,
                                 bool* no_room);
  absl::Status WriteBackPending();
  const TieredTableSpec& SpecOf(uint32_t table) const;

  std::vector<TieredTableSpec> tables_;
  uint64_t seed_ = 0;
  int64_t row_bytes_ = 0;
  HostStore* store_ = nullptr;
  std::unique_ptr<RowCache> cache_;  // null: train in the store
  int64_t cache_budget_bytes_ = 0;

  // Rows on their way down: staging_keys_[0, pending_) with staging_pointers_ into staging_.
  int64_t staging_rows_ = 0;
  HostBuffer<std::byte> staging_;
  std::vector<RowKey> pending_keys_;
  std::vector<const std::byte*> pending_rows_;
  // Scratch of one chunk.
  std::vector<Placement> placement_;
  std::vector<uint8_t> evicted_;
  std::vector<RowKey> evicted_keys_;
  std::vector<RowKey> miss_keys_;
  std::vector<std::byte*> miss_rows_;
  std::vector<int64_t> miss_slots_;
  std::vector<int32_t> miss_counts_;
  std::vector<uint8_t> found_;

  TierCounts cache_counts_;
  TierCounts store_counts_;
  int64_t rows_read_ = 0;
  int64_t rows_written_back_ = 0;
};

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_TIERED_TABLE_H_
