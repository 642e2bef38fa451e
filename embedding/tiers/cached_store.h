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
  int64_t cache_bytes = 0;  // hard limit of all memory for rows of this width
};

struct CachedStoreStats {
  int64_t budget_bytes = 0;
  int64_t used_bytes = 0;
  int64_t finds = 0;      // keys asked for
  int64_t hits = 0;       // of them, found in memory
  int64_t evictions = 0;  // rows evicted from memory
};

// CachedStore keeps the rows last written to a store on a disk in host memory: the tier between a
// GPU's cache and an SSD.
//
// Contents: written rows, which are those that the tier above evicts. Reads add no rows, since a
//           row that is read moves up and would be in memory twice. Nor do they refresh rows, so
//           rows that live above grow old here and are evicted.
// Writes:   go through to the store below before the caches change. So a cached row is never newer
//           than the stored one: durability, snapshots and errors are those of the store below, and
//           losing the caches loses nothing. It costs a disk write for each eviction from above.
// Threads:  as RowStore. Writes take turns, here and in the store below, so that both see them in
//           one order.
// Errors:   those of the store below. After a refused write the rows of the batch are read from the
//           store again; if that fails, all caches are emptied. ResourceExhausted from Create when
//           a budget is too small. Later, if memory for a cache is missing, calls go on without it
//           and the next write tries again.
class CachedStore final : public RowStore {
 public:
  // RowCache::Create; tests pass one that fails.
  using CacheFactory =
      std::function<absl::StatusOr<std::unique_ptr<RowCache>>(const RowCacheOptions&)>;

  // `store` is not owned and outlives this. `widths` are distinct and name every width of its
  // tables.
  static absl::StatusOr<std::unique_ptr<CachedStore>> Create(
      RowStore* store, std::span<const CachedStoreWidth> widths, CachePolicy policy,
      CacheFactory make_cache = RowCache::Create);

  // The smallest legal cache_bytes of a width.
  static int64_t MinCacheBytes(int64_t row_bytes);

  absl::Status Find(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                    std::span<uint8_t> found) override;
  absl::Status InsertOrAssign(std::span<const RowKey> keys,
                              std::span<const std::byte* const> rows) override;
  // Empties the caches as well, if they have a row of these.
  absl::Status Erase(std::span<const RowKey> keys) override;
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
  // Those of the store below; what is cached of aged rows is as good as gone.
  void SetAgeLines(std::span<const RowAgeLine> lines) override { store_->SetAgeLines(lines); }
  absl::StatusOr<int64_t> DropAged(int64_t rows) override { return store_->DropAged(rows); }

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
  bool HasAnyOf(std::span<const RowKey> keys) const;
  // Before mutex_ is given back: the caches may have changed.
  void Publish();
  // Updates the cached ones of these keys from the store below; see Errors.
  void Refresh(std::span<const RowKey> keys);
  absl::Status RefreshSome(RowCache* cache, std::span<const RowKey> keys);
  // InsertOrAssign, after the store below has said `written`.
  absl::Status KeepAll(const absl::Status& written, std::span<const RowKey> keys,
                       std::span<const std::byte* const> rows);
  absl::Status Keep(RowCache* cache, std::span<const RowKey> keys,
                    std::span<const std::byte* const> rows);

  RowStore* const store_;
  const CacheFactory make_cache_;
  std::vector<Cache> caches_;
  std::vector<int32_t> cache_of_table_;  // by RowKey::table; -1: none

  // A writer holds it from before its write to the store below until the caches agree, so that two
  // writers change both in the same order. Taken before mutex_.
  std::mutex write_mutex_;
  mutable std::shared_mutex mutex_;  // shared: reading the caches; alone: changing them
  std::atomic<int64_t> finds_{0};
  std::atomic<int64_t> hits_{0};
  int64_t budget_bytes_ = 0;
  std::atomic<int64_t> used_bytes_{0};
  std::atomic<int64_t> evictions_{0};
  // What InsertOrAssign uses.
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
