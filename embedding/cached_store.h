#ifndef HOTROW_EMBEDDING_CACHED_STORE_H_
#define HOTROW_EMBEDDING_CACHED_STORE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <span>
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
// Threads:  as RowStore says; batches that write take turns.
// Errors:   those of the store below. ResourceExhausted from Create when a budget is too small.
class CachedStore final : public RowStore {
 public:
  // `store` is not owned and outlives this. `widths` are distinct and name every width of its
  // tables.
  static absl::StatusOr<std::unique_ptr<CachedStore>> Create(
      RowStore* store, std::span<const CachedStoreWidth> widths, CachePolicy policy);

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
    std::unique_ptr<RowCache> rows;
  };

  explicit CachedStore(RowStore* store) : store_(store) {}
  absl::Status MakeCaches();  // empty ones
  // The cache of a key's table; null for a table that the store does not have.
  RowCache* CacheOf(RowKey key) const;
  absl::Status Keep(RowCache* cache, std::span<const RowKey> keys,
                    std::span<const std::byte* const> rows);

  RowStore* const store_;
  std::vector<Cache> caches_;
  std::vector<int32_t> cache_of_table_;  // by RowKey::table; -1: none

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

#endif  // HOTROW_EMBEDDING_CACHED_STORE_H_
