#ifndef HOTROW_EMBEDDING_TIERS_ROW_OUTFLOW_IMPL_H_
#define HOTROW_EMBEDDING_TIERS_ROW_OUTFLOW_IMPL_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/exec_context.h"
#include "base/row_key.h"
#include "cache/row_cache.h"
#include "embedding/tiers/cache_buffers_impl.h"
#include "embedding/tiers/device_index_impl.h"
#include "embedding/tiers/guarded_cache_impl.h"
#include "embedding/tiers/held_rows_impl.h"
#include "embedding/tiers/initial_rows_impl.h"
#include "embedding/tiers/shared_counts_impl.h"
#include "embedding/tiers/tiered_table.h"
#include "store/host/host_store.h"
#include "store/row_store.h"

namespace hotrow::internal {

// RowOutflow takes rows that leave a cache down to the store: those that a chunk of keys evicts
// wait in the chunk until they are written.
//
// Order:   who evicts rows holds Lock() from before that until they are in the store, with several
//          chunks for up to a whole step, and so does who reads around the cache. So nobody reads
//          an older row than was evicted. The cache's mutex is taken after it.
// Refusals: rows that the store refuses stay in their chunk, or held back, and the next WriteBack
//          tries them again.
// Hold:    between Hold and LetGo the store must not get rows that are dirty: they have changed
//          since a snapshot began which the store has not captured yet. They go to a buffer, where
//          they can be found, and MakeRoom waits for LetGo when that is full. Hold comes at any
//          moment: what a chunk evicts that was sent before belongs to the snapshot.
// Erasure: a row of the cache whose key is erased becomes an initial row, and stays dirty if it
//          was. So dirty rows that no step has changed since are not written.
// Threads: as the calls say: with Lock(), with the cache's mutex, or on any thread.
class RowOutflow {
 public:
  // A part of a step's keys on its way into the cache, and the rows that leave for it.
  struct Chunk {
    std::vector<int64_t> positions;  // in the step's keys
    SharedBuffer<RowKey> keys;       // staging_rows of this and of what follows
    SharedBuffer<int64_t> slots;
    SharedBuffer<Placement> placement;
    SharedBuffer<uint8_t> evicted;
    SharedBuffer<RowKey> evicted_keys;
    SharedBuffer<std::byte> evicted_rows;  // [staging_rows, row_bytes]
    DeviceEvent placed;
    int64_t hold = 0;  // RowOutflow::hold when the keys were sent

    // For the first n keys.
    RowCache::InsertResult Result(int64_t n) {
      return {.slots = slots.first(n),
              .placement = placement.first(n),
              .evicted = evicted.first(n),
              .evicted_keys = evicted_keys.first(n),
              .evicted_rows = evicted_rows.data()};
    }
  };

  // Not owned: all outlive this. in_place: null, or the store, whose rows several threads write at
  // once. index: null, or what is to know where it keeps them.
  static absl::StatusOr<std::unique_ptr<RowOutflow>> Create(GuardedCache* cache, RowStore* store,
                                                            HostStore* in_place, DeviceIndex* index,
                                                            const InitialRows* initial_rows,
                                                            const CacheBuffers& buffers,
                                                            int64_t row_bytes);

  std::unique_lock<std::mutex> Lock() { return std::unique_lock<std::mutex>(mutex_); }

  // --- With Lock()

  // What was evicted, over ctx.pool; before rows that were held back, which are newer.
  absl::Status WriteBack(const ExecContext& ctx = {});
  absl::Status WriteBackHeld();
  // How many of the next `keys` keys may be sent to the cache: there is room for all that they
  // may evict. Returns with *lock, of the cache's mutex, taken. May give *order up for a moment,
  // and waits without it for a snapshot.
  absl::StatusOr<int64_t> MakeRoom(const ExecContext& ctx, int64_t keys,
                                   std::unique_lock<std::mutex>* order,
                                   std::unique_lock<std::mutex>* lock);
  // Staged there are several, which take turns: one is at work while the rows of the other are
  // written. Rows of one that is to be used again have been written.
  Chunk& chunk(size_t turn) { return chunks_[turn % chunks_.size()]; }
  bool single_chunk() const { return chunks_.size() == 1; }
  // One whose rows nobody waits for, until rows are evicted. While the store refuses rows, which
  // keep their chunks, a small one is made beside them and the budget, and stays.
  absl::StatusOr<Chunk*> FreeChunk();
  // Calls visit with the rows that WriteBack and WriteBackHeld would write, each once.
  absl::Status ForEachUnwritten(TieredTable::RowsFn visit);

  // --- With Lock() and the cache's mutex

  // What the first n keys of a chunk have evicted.
  void Take(const Chunk& chunk, int64_t n);
  // A row that is held back; null when there is none of this key. Good until the next call.
  const std::byte* FindHeld(const RowKey& key) const { return held_.Find(key); }
  // The same, and of a row that the store has refused.
  const std::byte* FindUnwritten(const RowKey& key) const;
  void RemoveHeld(const RowKey& key) { held_.Remove(key); }
  // These keys are erased from the store or written there, and nothing is on its way there: drops
  // what is held back of them. Before rows of the cache become what the store has.
  void Erase(std::span<const RowKey> keys);

  // --- With the cache's mutex

  void Hold() {  // nothing is held back then
    holding_ = true;
    ++holds_;
  }
  void LetGo();
  int64_t hold() const { return holding_ ? holds_ : 0; }  // the number of the Hold; 0: let go
  bool has_held() const { return held_.size() > 0; }

  // --- Any thread

  SnapshotCounts snapshot_counts() const { return counts_.Get(); }  // those of evicted rows
  // Passes rows on to visit, but for those that are initial rows since their keys were erased.
  absl::Status PassOn(std::span<const RowKey> keys, std::span<const std::byte* const> rows,
                      TieredTable::RowsFn visit) const;
  // Appends rows over `pool`, or null.
  absl::Status Append(std::span<const RowKey> keys, std::span<const std::byte* const> rows,
                      ThreadPool* pool = nullptr);
  int64_t rows_written() const { return rows_written_.load(std::memory_order_relaxed); }

 private:
  RowOutflow(GuardedCache* cache, RowStore* store, HostStore* in_place, DeviceIndex* index,
             const InitialRows* initial_rows, int64_t row_bytes)
      : cache_(cache),
        store_(store),
        in_place_(in_place),
        index_(index),
        initial_rows_(initial_rows),
        row_bytes_(row_bytes) {}

  GuardedCache* const cache_;
  RowStore* const store_;
  HostStore* const in_place_;
  DeviceIndex* const index_;
  const InitialRows* const initial_rows_;
  const int64_t row_bytes_;

  // Guards the chunks, what is on its way from them, and held_ together with the cache's mutex:
  // changing it takes both, reading it takes one.
  std::mutex mutex_;
  int64_t staging_rows_ = 0;
  std::vector<Chunk> chunks_;  // 1; staged 2
  Chunk spare_;                // of FreeChunk; without memory until it is wanted
  std::vector<RowKey> pending_keys_;
  std::vector<const std::byte*> pending_rows_;  // into chunks_
  HeldRows held_;

  // The cache's mutex guards these.
  bool holding_ = false;
  int64_t holds_ = 0;  // so far
  std::condition_variable let_go_;

  std::atomic<bool> has_erased_{false};
  SharedCounts<SnapshotCounts> counts_;
  std::atomic<int64_t> rows_written_{0};
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TIERS_ROW_OUTFLOW_IMPL_H_
