#ifndef HOTROW_EMBEDDING_TIERS_CACHED_STORE_H_
#define HOTROW_EMBEDDING_TIERS_CACHED_STORE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/row_key.h"
#include "cache/row_cache.h"
#include "store/row_store.h"

namespace hotrow {

// One row width of a CachedStore.
struct CachedStoreWidth {
  int64_t row_bytes = 0;
  int64_t cache_bytes = 0;  // budget of the rows of this width, all included: a hard limit
};

struct CachedStoreStats {
  int64_t budget_bytes = 0;
  int64_t used_bytes = 0;
  int64_t finds = 0;      // keys asked for
  int64_t hits = 0;       // of them, answered from memory
  int64_t evictions = 0;  // rows that left memory for others
};

// CachedStore is a store on a disk with the rows that were last written to it kept in host memory:
// the tier between a GPU's cache and an SSD.
//
// What:     a row comes in when it is written, which is when the tier above evicts it, and not when
//           it is read: then it goes up, and would lie here twice. What is read is not refreshed
//           either, so rows that live above grow old here and leave.
// Through:  every write goes to the store below at once, before the caches see it. So a row here is
//           never newer than the one below: durability, snapshots and errors are those of the store
//           below, and losing the caches loses nothing. The price is a write to the disk for each
//           eviction from above, also of rows that are soon wanted again.
// Threads:  as RowStore says. Batches that write take turns, here and in the store below, so that
//           both see them in one order.
// Errors:   those of the store below. A write that it refused leaves the caches as it left the
//           store: the rows of the batch are read from there again, or all caches are emptied where
//           they cannot be. ResourceExhausted from Create when a budget is too small; later a cache
//           that cannot be made is done without, and tried again by the next write.
class CachedStore final : public RowStore {
 public:
  // RowCache::Create, or in tests one that fails.
  using CacheFactory =
      std::function<absl::StatusOr<std::unique_ptr<RowCache>>(const RowCacheOptions&)>;

  // `store` is not owned and outlives this. `widths` are distinct and name every width of its
  // tables.
  static absl::StatusOr<std::unique_ptr<CachedStore>> Create(
      RowStore* store, std::span<const CachedStoreWidth> widths, CachePolicy policy,
      CacheFactory make_cache = RowCache::Create);

  // The smallest cache_bytes that Create takes for a width.
  static int64_t MinCacheBytes(int64_t row_bytes);

  absl::Status Find(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                    std::span<uint8_t> found) override;
  absl::Status InsertOrAssign(std::span<const RowKey> keys,
                              std::span<const std::byte* const> rows) override;
  absl::Status Erase(std::span<const RowKey> keys) override;  // empties the caches as well
  absl::Status Iterate(
      absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) override;
  absl::Status Flush() override;
  void TidyForSnapshot() override;
  using RowStore::PrepareSnapshot;
  absl::Status PrepareSnapshot(SnapshotId snapshot, absl::FunctionRef<void()> captured) override;
  absl::Status CommitSnapshot(SnapshotId snapshot) override;
  absl::Status DropSnapshot(SnapshotId snapshot) override;
  absl::StatusOr<std::vector<SnapshotId>> ListSnapshots() override;
  absl::StatusOr<SnapshotInfo> DescribeSnapshot(SnapshotId snapshot) override;
  RowStoreStats Stats() const override;  // of the store below
  std::span<const StoreTable> tables() const override;
  int64_t row_bytes(uint32_t table) const override;

  CachedStoreStats cache_stats() const;

 private:
  struct Cache {
    RowCacheOptions options;
    std::unique_ptr<RowCache> rows;  // null: there was no memory for it
  };

  CachedStore(RowStore* store, CacheFactory make_cache)
      : store_(store), make_cache_(std::move(make_cache)) {}
  // Under mutex_, alone.
  void DropCaches();
  absl::Status MakeMissingCaches();  // empty ones; makes what it can
  // The cache of a key's table; null where there is none.
  RowCache* CacheOf(RowKey key) const;
  // Gives those of the keys that are here the bytes that the store below has now; see Errors.
  void Refresh(std::span<const RowKey> keys);
  absl::Status RefreshSome(RowCache* cache, std::span<const RowKey> keys);
  absl::Status Keep(RowCache* cache, std::span<const RowKey> keys,
                    std::span<const std::byte* const> rows);

  RowStore* const store_;
  const CacheFactory make_cache_;
  std::vector<Cache> caches_;
  std::vector<int32_t> cache_of_table_;  // by RowKey::table; -1: none

  // Held by a writer from before it writes to the store below until the caches agree with that:
  // otherwise the last of two writers below might not be the last one here. Before mutex_.
  std::mutex write_mutex_;
  mutable std::shared_mutex mutex_;  // shared: reading the caches; alone: changing them
  std::atomic<int64_t> finds_{0};
  std::atomic<int64_t> hits_{0};
  // Of InsertOrAssign.
  std::vector<uint32_t> order_;
  std::vector<RowKey> keys_;
  std::vector<const std::byte*> rows_;
  std::vector<int64_t> slots_;
  std::vector<int64_t> filled_;
  std::vector<int64_t> pinned_;
  std::vector<Placement> placement_;
  std::vector<uint8_t> evicted_;
  std::vector<RowKey> evicted_keys_;
};

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_TIERS_CACHED_STORE_H_
