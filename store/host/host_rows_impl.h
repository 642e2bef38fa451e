#ifndef HOTROW_STORE_HOST_HOST_ROWS_IMPL_H_
#define HOTROW_STORE_HOST_HOST_ROWS_IMPL_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/hash.h"
#include "base/row_key.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "store/host/host_chunk_impl.h"
#include "store/host/host_index_impl.h"
#include "store/host/host_lock_impl.h"
#include "store/host/host_memory_impl.h"
#include "store/host/host_store.h"

namespace hotrow::internal {

// The rows of a HostStore: shards with their locks, chunks of rows, and the index by key.
//
// Batches: the body is a template, so that what is done with each row is inlined into its loops.
// Threads: all methods may run concurrently, but Init and AddAlone, which come before any other.
//          Locks are taken in this order: the writers' gate, a shard, then those of arena and pool.
// Errors:  InvalidArgument (a table that the store does not have), ResourceExhausted (the budget).
class HostRows {
 public:
  static constexpr int64_t kRowBytesMax = int64_t{1} << 30;

  // `options` and `budget` outlive it.
  HostRows(const HostStoreOptions& options, MemoryBudget& budget);
  absl::Status Init();
  // What Init takes from the budget for this object's arrays; the owner reserves it, with itself.
  int64_t metadata_bytes() const;

  // Calls visit(i, row_bytes, row) for the keys in their order; row is null when it is missing.
  // Returns how many are there.
  template <typename Visit>
  absl::StatusOr<int64_t> FindBatch(std::span<const RowKey> keys, const Visit& visit);

  // Calls visit(i, row_bytes, row, is_new), adding missing rows, whose bytes are unspecified. Equal
  // keys are visited in their order, others by several threads of the pool at once (null: the
  // caller alone). Ends at the first error; *added and *visited count then too.
  template <typename Visit>
  absl::Status UpsertBatch(std::span<const RowKey> keys, const Visit& visit, int64_t* added,
                           int64_t* visited = nullptr, ThreadPool* pool = nullptr);

  // How many there were.
  absl::StatusOr<int64_t> EraseBatch(std::span<const RowKey> keys);

  // Where DropAged goes on.
  struct AgeCursor {
    int64_t shard = 0;
    int64_t chunk = 0;
  };
  // The same as RowStore::DropAged: looks at about `rows` slots. One call at a time.
  int64_t DropAged(std::span<const RowAgeLine> lines, int64_t rows, AgeCursor* cursor);

  // The same as RowStore::Iterate.
  using VisitRow = absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)>;
  absl::Status Iterate(VisitRow visit) const;
  // The same as HostStore::IterateParts.
  void IterateParts(ThreadPool* pool, HostStore::VisitPart visit) const;

  // The place of a row that is to be filled. Before anybody else knows of this object: takes no
  // lock. DataLoss when the key is there already.
  absl::StatusOr<std::byte*> AddAlone(const RowKey& key);

  // Batches that write wait while it is held, and all that began before are done.
  std::unique_lock<WriterFirstMutex> HoldWriters() { return std::unique_lock(writers_); }

  // How many rows each table has, and all of them, chunk by chunk, for who holds the writers. No
  // shard is locked: nobody writes, and finds only read.
  std::vector<int64_t> CountByTable() const;
  absl::Status ForEachChunk(
      absl::FunctionRef<absl::Status(uint32_t table_index, std::span<const HostRow> rows)> visit)
      const;

  int64_t rows() const { return rows_.load(std::memory_order_relaxed); }
  // What the arena holds and nothing was carved from yet.
  int64_t free_bytes() const { return arena_.extent_bytes() - arena_.carved_bytes(); }
  // Bytes of all slots of rows.
  int64_t row_space_bytes() const { return row_space_bytes_.load(std::memory_order_relaxed); }
  // What the arena carves at most until each table has its rows_max rows; of tables without one the
  // part that is provided all the same. At most the budget.
  int64_t BytesToProvide() const;
  const HostArena& arena() const { return arena_; }
  // 0 when there is no such table.
  int64_t row_bytes(uint32_t table) const {
    const uint32_t index = table_map_.Find(table);
    return index == HostTableMap::kNone ? 0 : tables_[index].row_bytes;
  }

 private:
  static constexpr int kChunkRows = HostStore::kChunkRows;
  static constexpr int64_t kShardsMax = HostStore::kParts;
  static constexpr uint32_t kNoOrdinal = UINT32_MAX;
  static constexpr int64_t kCacheLine = 64;
  // Hardware follows a row by itself after this many bytes.
  static constexpr int64_t kPrefetchRowBytesMax = 1024;
  // Finds take the locks of their shards for this many keys at a time. More than a lock costs, less
  // than a writer should have to wait: about 0.3 ms.
  static constexpr size_t kFindWindow = 2048;
  // Look-ups go through their stages in blocks whose buckets and keys stay in the nearest caches.
  static constexpr size_t kFindBlock = 256;
  // How many keys ahead a stage asks for memory. Tuned with bench/store_gather_bench.
  static constexpr size_t kRowsAhead = 24;
  static constexpr int64_t kUpsertAhead = 8;
  static constexpr int64_t kUpsertLanes = 32;  // a power of two above 2 * kUpsertAhead

  // The rows of one table in one shard. Free slots are a list that runs through their key words.
  struct TableSpace {
    uint32_t free_head = kNoOrdinal;
    uint32_t fresh_next = 0;  // [fresh_next, fresh_end) are slots that never held a row
    uint32_t fresh_end = 0;
    uint32_t num_slots = 0;
  };

  // A lock and the rows that it guards. The ordinal of a row is kChunkRows * (number of its chunk)
  // + slot; a chunk with fewer slots leaves the ordinals behind them unused. Index partitions are
  // more and smaller than shards, so that growing one stops a shard only briefly, while rows of
  // tables with few rows are not spread over many part-filled chunks.
  struct alignas(kCacheLine) Shard {
    mutable WriterFirstMutex mutex;
    BudgetedBuffer<HostChunk> chunks;
    int64_t num_chunks = 0;
    TableSpace* spaces = nullptr;  // [tables]
  };

  // The keys of a batch that writes, at most kUpsertBlock at a time, sorted by shard, so that each
  // lock is taken once. It lies on the stack: batches need no memory.
  static constexpr size_t kUpsertBlock = 8192;
  struct ShardOrder {
    std::array<uint16_t, kUpsertBlock> order;    // positions in the block; shard by shard
    std::array<uint16_t, kShardsMax + 1> begin;  // of each shard in order
  };

  // What the index asks about keys.
  struct KeyAccess {
    RowHash Hash(uint32_t ordinal) const { return HashRowKey(rows.KeyOf(shard, ordinal)); }
    void Prefetch(uint32_t ordinal) const {
      PrefetchRead(ChunkOf(shard, ordinal).key(ordinal % kChunkRows));
    }
    const HostRows& rows;
    const Shard& shard;
  };

  // --- Batches ---

  static int64_t ChooseNumPartitions(const HostStoreOptions& options);
  static int64_t ChooseNumShards(const HostStoreOptions& options, int64_t num_partitions);

  absl::Status IterateShard(int64_t s, const VisitRow& visit) const;
  // InvalidArgument when a table is unknown.
  absl::Status CheckTables(std::span<const RowKey> keys) const;
  // Sorts keys.size() <= kUpsertBlock keys by shard, stably.
  void SortByShard(std::span<const RowKey> keys, ShardOrder& sorted) const;
  // Calls body(shard, base, order) for each part of the batch that lies in one shard, under its
  // lock; the keys are keys[base + order[i]]. Several shards at once; begins none after an error.
  template <typename Body>
  absl::Status ForEachShard(std::span<const RowKey> keys, ThreadPool* pool, const Body& body);
  // One bit for each shard that the keys need.
  uint32_t ShardsOf(std::span<const RowKey> keys) const;
  // Looks up at most kFindBlock keys, calls visit(i, table, row) in their order, row null when it
  // is missing. Caller holds the locks of the shards. False, and no visit, when a table is unknown.
  template <typename Visit>
  bool FindBlock(std::span<const RowKey> keys, const Visit& visit) const;
  // The keys of one shard, adding missing rows: visit(order[i], table, row, added). Keys are
  // visited in their order, so the last of equal ones wins. Caller holds the shard's lock. Ends at
  // the first error; *added counts new rows then too.
  template <typename Visit>
  absl::Status Upsert(Shard& shard, const RowKey* keys, std::span<const uint16_t> order,
                      const Visit& visit, int64_t* added);

  // --- One shard; the caller holds its lock ---

  IndexPartition::Entry FindEntry(const Shard& shard, const RowHash& hash, uint64_t key,
                                  uint32_t table) const {
    return PartitionOf(hash).Find(hash, [&](uint32_t ordinal) {
      const HostChunk& chunk = ChunkOf(shard, ordinal);
      return *chunk.key(ordinal % kChunkRows) == key && chunk.table_index == table;
    });
  }
  // Adds a row that is not there; its bytes are unspecified.
  absl::StatusOr<uint32_t> InsertNew(Shard& shard, const RowHash& hash, uint64_t key,
                                     uint32_t table);
  absl::StatusOr<uint32_t> TakeSlot(Shard& shard, uint32_t table);
  void FreeSlot(Shard& shard, uint32_t ordinal);
  absl::Status AddChunk(Shard& shard, uint32_t table);

  static const HostChunk& ChunkOf(const Shard& shard, uint32_t ordinal) {
    return shard.chunks[ordinal / kChunkRows];
  }
  std::byte* RowOf(const Shard& shard, uint32_t ordinal) const {
    const HostChunk& chunk = ChunkOf(shard, ordinal);
    return chunk.rows + ordinal % kChunkRows * tables_[chunk.table_index].row_bytes;
  }
  RowKey KeyOf(const Shard& shard, uint32_t ordinal) const {
    const HostChunk& chunk = ChunkOf(shard, ordinal);
    return {*chunk.key(ordinal % kChunkRows), tables_[chunk.table_index].table};
  }
  // Asks for the key and the row, which are likely to be read soon.
  template <void (*kPrefetch)(const void*)>
  void PrefetchKeyAndRow(const Shard& shard, uint32_t ordinal) const {
    const HostChunk& chunk = ChunkOf(shard, ordinal);
    const int64_t row_bytes = tables_[chunk.table_index].row_bytes;
    kPrefetch(chunk.key(ordinal % kChunkRows));
    const std::byte* const row = chunk.rows + ordinal % kChunkRows * row_bytes;
    for (int64_t at = 0; at < std::min(row_bytes, kPrefetchRowBytesMax); at += kCacheLine) {
      kPrefetch(row + at);
    }
  }
  uint32_t PartitionIndex(const RowHash& hash) const {
    return hash.partition(static_cast<uint64_t>(num_partitions_));
  }
  IndexPartition& PartitionOf(const RowHash& hash) const {
    return partitions_[PartitionIndex(hash)];
  }
  uint32_t ShardOf(const RowHash& hash) const { return PartitionIndex(hash) >> shard_shift_; }

  bool KnowsAllRows() const;  // each table has a rows_max

  const HostStoreOptions& options_;
  const HostTableMap table_map_;
  std::vector<HostTable> tables_;

  MemoryBudget& budget_;
  HostArena arena_;
  IndexSegmentPool pool_;
  BudgetedBuffer<TableSpace> spaces_;        // [shards, tables]
  std::atomic<int64_t> row_space_bytes_{0};  // of all slots

  const int64_t num_partitions_;
  const int64_t num_shards_;
  const int shard_shift_;  // a shard's partitions are 2^shard_shift neighbours
  IndexSegment* empty_segment_ = nullptr;
  std::unique_ptr<IndexPartition[]> partitions_;
  std::unique_ptr<Shard[]> shards_;

  // Held shared by every batch that writes, exclusively by a snapshot: it sees whole batches.
  WriterFirstMutex writers_;
  std::atomic<int64_t> rows_{0};
};

// --- The bodies of batches -----------------------------------------------------------------------

template <typename Body>
absl::Status HostRows::ForEachShard(std::span<const RowKey> keys, ThreadPool* pool,
                                    const Body& body) {
  ShardOrder sorted;
  std::mutex mutex;
  absl::Status status;  // guarded by mutex
  std::atomic<bool> failed = false;
  for (size_t base = 0; base < keys.size() && !failed; base += kUpsertBlock) {
    const auto block = keys.subspan(base, std::min(kUpsertBlock, keys.size() - base));
    SortByShard(block, sorted);
    ParallelFor(pool, num_shards_, 1, [&](int64_t shard, int64_t) {
      const auto s = static_cast<size_t>(shard);
      const std::span<const uint16_t> order(sorted.order.data() + sorted.begin[s],
                                            sorted.order.data() + sorted.begin[s + 1]);
      if (order.empty() || failed.load(std::memory_order_relaxed)) return;
      absl::Status done;
      {
        const std::unique_lock lock(shards_[s].mutex);
        done = body(shards_[s], base, order);
      }
      if (done.ok()) return;
      failed.store(true, std::memory_order_relaxed);
      const std::lock_guard lock(mutex);
      status.Update(done);
    });
  }
  return status;
}

// A look-up waits for memory for its bucket, sometimes a second one, then its key, then its row.
// The loops below each do one step for all keys of the block: short loops, so that the processor
// has the misses of many keys under way at once. The keys are taken in the order of the batch,
// because the rows are then written in order too: in any other order (by shard, say) writing
// 512-byte rows costs as much as reading them.
template <typename Visit>
bool HostRows::FindBlock(std::span<const RowKey> keys, const Visit& visit) const {
  struct Lane {
    RowHash hash;
    const Shard* shard;
    const IndexBucket* bucket;
    uint32_t table;
    uint32_t ordinal;  // of the most likely row
  };
  std::array<Lane, kFindBlock> lanes;
  std::array<std::byte*, kFindBlock> rows;
  std::array<uint16_t, kFindBlock> second;  // those that need their second bucket
  const size_t n = keys.size();

  bool unknown_table = false;
  for (size_t i = 0; i < n; ++i) {
    Lane& lane = lanes[i];
    lane.hash = HashRowKey(keys[i]);
    lane.table = table_map_.Find(keys[i].table);
    unknown_table |= lane.table == HostTableMap::kNone;
    const uint32_t partition = PartitionIndex(lane.hash);
    lane.shard = &shards_[partition >> shard_shift_];
    lane.bucket = partitions_[partition].bucket1(lane.hash);
    PrefetchRead(lane.bucket);
  }
  if (unknown_table) return false;
  // Asks for the keys of all ways that match, and remembers the first one.
  const auto match = [](Lane& lane) {
    lane.ordinal = kNoOrdinal;
    for (uint32_t ways = lane.bucket->Match(lane.hash.tag()); ways != 0; ways &= ways - 1) {
      const uint32_t ordinal = lane.bucket->ordinal[std::countr_zero(ways)];
      if (lane.ordinal == kNoOrdinal) lane.ordinal = ordinal;
      PrefetchRead(ChunkOf(*lane.shard, ordinal).key(ordinal % kChunkRows));
    }
  };
  size_t num_second = 0;
  for (size_t i = 0; i < n; ++i) {
    Lane& lane = lanes[i];
    match(lane);
    if (lane.ordinal == kNoOrdinal && lane.bucket->overflowed != 0) {
      lane.bucket = PartitionOf(lane.hash).bucket2(lane.hash);
      PrefetchRead(lane.bucket);
      second[num_second++] = static_cast<uint16_t>(i);
    }
  }
  for (size_t s = 0; s < num_second; ++s) match(lanes[second[s]]);

  const auto prefetch_row = [&](size_t i) {
    if (rows[i] == nullptr) return;
    const int64_t bytes = std::min(tables_[lanes[i].table].row_bytes, kPrefetchRowBytesMax);
    for (int64_t at = 0; at < bytes; at += kCacheLine) PrefetchRow(rows[i] + at);
  };
  for (size_t i = 0; i < n; ++i) {
    const Lane& lane = lanes[i];
    rows[i] = nullptr;
    if (lane.ordinal == kNoOrdinal) continue;
    const HostChunk& chunk = ChunkOf(*lane.shard, lane.ordinal);
    const uint32_t slot = lane.ordinal % kChunkRows;
    if (*chunk.key(slot) == keys[i].key && chunk.table_index == lane.table) {
      rows[i] = chunk.rows + slot * tables_[lane.table].row_bytes;
    } else if (const auto entry = FindEntry(*lane.shard, lane.hash, keys[i].key, lane.table);
               entry.bucket != nullptr) {  // another key with the same tag stood before it
      rows[i] = RowOf(*lane.shard, entry.ordinal());
    }
  }
  for (size_t i = 0; i < std::min(n, kRowsAhead); ++i) prefetch_row(i);
  for (size_t i = 0; i < n; ++i) {
    if (i + kRowsAhead < n) prefetch_row(i + kRowsAhead);
    visit(i, lanes[i].table, rows[i]);
  }
  return true;
}

template <typename Visit>
absl::Status HostRows::Upsert(Shard& shard, const RowKey* keys, std::span<const uint16_t> order,
                              const Visit& visit, int64_t* added) {
  struct Lane {
    RowHash hash;
    uint32_t table;
  };
  std::array<Lane, kUpsertLanes> lanes;

  const auto n = static_cast<int64_t>(order.size());
  for (int64_t i = 0; i < n + 2 * kUpsertAhead; ++i) {
    if (i < n) {
      Lane& lane = lanes[i % kUpsertLanes];
      const RowKey& key = keys[order[static_cast<size_t>(i)]];
      lane.hash = HashRowKey(key);
      lane.table = table_map_.Find(key.table);
      const IndexPartition& partition = PartitionOf(lane.hash);
      PrefetchWrite(partition.bucket1(lane.hash));
      PrefetchWrite(partition.bucket2(lane.hash));
    }
    if (const int64_t j = i - kUpsertAhead; j >= 0 && j < n) {
      // The buckets are looked up again in each stage: an insert in between may have replaced them.
      const Lane& lane = lanes[j % kUpsertLanes];
      const IndexPartition& partition = PartitionOf(lane.hash);
      for (const IndexBucket* bucket :
           {partition.bucket1(lane.hash), partition.bucket2(lane.hash)}) {
        for (uint32_t ways = bucket->Match(lane.hash.tag()); ways != 0; ways &= ways - 1) {
          PrefetchKeyAndRow<PrefetchWrite>(shard, bucket->ordinal[std::countr_zero(ways)]);
        }
      }
    }
    if (const int64_t j = i - 2 * kUpsertAhead; j >= 0 && j < n) {
      const Lane& lane = lanes[j % kUpsertLanes];
      const size_t at = order[static_cast<size_t>(j)];
      const IndexPartition::Entry entry = FindEntry(shard, lane.hash, keys[at].key, lane.table);
      const bool is_new = entry.bucket == nullptr;
      uint32_t ordinal = kNoOrdinal;
      if (is_new) {
        HOTROW_ASSIGN_OR_RETURN(ordinal, InsertNew(shard, lane.hash, keys[at].key, lane.table));
        ++*added;
      } else {
        ordinal = entry.ordinal();
      }
      visit(at, lane.table, RowOf(shard, ordinal), is_new);
    }
  }
  return absl::OkStatus();
}

template <typename Visit>
absl::Status HostRows::UpsertBatch(std::span<const RowKey> keys, const Visit& visit, int64_t* added,
                                   int64_t* visited, ThreadPool* pool) {
  HOTROW_RETURN_IF_ERROR(CheckTables(keys));
  std::shared_lock gate(writers_);
  std::atomic<int64_t> all_added = 0;
  std::atomic<int64_t> all_visited = 0;
  const absl::Status status =
      ForEachShard(keys, pool, [&](Shard& shard, size_t base, std::span<const uint16_t> order) {
        int64_t its_added = 0;
        int64_t its_visited = 0;
        const absl::Status done = Upsert(
            shard, keys.data() + base, order,
            [&](size_t i, uint32_t table, std::byte* row, bool is_new) {
              visit(base + i, tables_[table].row_bytes, row, is_new);
              ++its_visited;
            },
            &its_added);
        all_added += its_added;
        all_visited += its_visited;
        return done;
      });
  *added += all_added;
  if (visited != nullptr) *visited += all_visited;
  rows_.fetch_add(all_added, std::memory_order_relaxed);
  return status;
}

template <typename Visit>
absl::StatusOr<int64_t> HostRows::FindBatch(std::span<const RowKey> keys, const Visit& visit) {
  int64_t hits = 0;
  for (size_t base = 0; base < keys.size(); base += kFindWindow) {
    const auto window = keys.subspan(base, std::min(kFindWindow, keys.size() - base));
    // Ascending, as every find takes them; a batch that writes holds only one: so nobody waits in a
    // circle.
    std::array<std::shared_lock<WriterFirstMutex>, kShardsMax> locks;
    for (uint32_t rest = ShardsOf(window); rest != 0; rest &= rest - 1) {
      const auto shard = static_cast<size_t>(std::countr_zero(rest));
      locks[shard] = std::shared_lock(shards_[shard].mutex);
    }
    for (size_t at = 0; at < window.size(); at += kFindBlock) {
      const auto block = window.subspan(at, std::min(kFindBlock, window.size() - at));
      const bool known = FindBlock(block, [&](size_t i, uint32_t table, std::byte* row) {
        hits += row != nullptr ? 1 : 0;
        visit(base + at + i, tables_[table].row_bytes, row);
      });
      if (!known) return CheckTables(keys);  // says which
    }
  }
  return hits;
}

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_HOST_HOST_ROWS_IMPL_H_
