#include "store/host/host_store.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/env.h"
#include "base/hash.h"
#include "base/math.h"
#include "base/metrics.h"
#include "base/status_macros.h"
#include "store/host/host_index_impl.h"
#include "store/host/host_lock_impl.h"
#include "store/host/host_memory_impl.h"
#include "store/host/host_snapshot_impl.h"

namespace hotrow {
namespace {

using internal::BudgetedBuffer;
using internal::HostArena;
using internal::IndexBucket;
using internal::IndexPartition;
using internal::IndexSegment;
using internal::IndexSegmentPool;
using internal::MemoryBudget;
using internal::PrefetchRead;
using internal::PrefetchRow;
using internal::PrefetchWrite;
using internal::WriterFirstMutex;

constexpr int64_t kRowBytesMax = int64_t{1} << 30;
// A chunk of wide rows has fewer of them, so that it stays near this size.
constexpr int64_t kChunkBytesTarget = int64_t{128} << 10;
constexpr int64_t kChunkSlotsMin = 4;
constexpr int64_t kPartitionRows = int64_t{1} << 17;  // an index partition is rebuilt in about 5 ms
constexpr int64_t kPartitionsMax = int64_t{1} << 16;
constexpr int64_t kShardsMax = 32;
constexpr uint32_t kNoOrdinal = UINT32_MAX;
constexpr int64_t kCacheLine = 64;
// Hardware follows a row by itself after this many bytes.
constexpr int64_t kPrefetchRowBytesMax = 1024;

// One table as the store sees it.
struct Table {
  uint32_t table = 0;
  int64_t slots_max = 0;  // of a chunk
  int64_t row_bytes = 0;
};

// Table numbers are any 32-bit numbers; inside, tables count from 0. Open addressing, at most a
// quarter full, so that a look-up is one probe almost always.
class TableMap {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit TableMap(std::span<const StoreTable> tables)
      : entries_(std::bit_ceil(4 * tables.size())), shift_(32 - std::countr_zero(entries_.size())) {
    for (uint32_t i = 0; i < tables.size(); ++i) {
      size_t at = Home(tables[i].table);
      while (entries_[at].index != kNone) at = (at + 1) & (entries_.size() - 1);
      entries_[at] = {tables[i].table, i};
    }
  }

  // kNone when there is no such table.
  uint32_t Find(uint32_t table) const {
    size_t at = Home(table);
    while (entries_[at].index != kNone && entries_[at].table != table) {
      at = (at + 1) & (entries_.size() - 1);
    }
    return entries_[at].index;
  }

  int64_t bytes() const { return static_cast<int64_t>(entries_.size() * sizeof(Entry)); }

 private:
  struct Entry {
    uint32_t table = 0;
    uint32_t index = kNone;
  };
  // Fibonacci hashing (Knuth, TAOCP vol. 3, 6.4).
  size_t Home(uint32_t table) const { return (table * 0x9e3779b1u) >> shift_; }

  std::vector<Entry> entries_;
  int shift_;
};

// Up to kChunkRows rows of one table. Slot j's row is at rows + j * row_bytes. Before the rows, at
// fixed distances whatever the number of slots: kLiveWords words with a bit for each slot that
// holds a row, and before those the keys, slot 0's last.
struct Chunk {
  static constexpr int64_t kLiveWords = HostStore::kChunkRows / 64;

  std::byte* rows = nullptr;  // 64-byte aligned
  uint32_t table_index = 0;
  uint32_t num_slots = 0;

  uint64_t* live() const { return reinterpret_cast<uint64_t*>(rows) - kLiveWords; }
  uint64_t* key(uint32_t slot) const { return live() - 1 - slot; }
  void SetLive(uint32_t slot) const { live()[slot / 64] |= uint64_t{1} << (slot % 64); }
  void ClearLive(uint32_t slot) const { live()[slot / 64] &= ~(uint64_t{1} << (slot % 64)); }

  int64_t CountLive() const {
    int64_t count = 0;
    for (uint32_t base = 0; base < num_slots; base += 64) count += std::popcount(live()[base / 64]);
    return count;
  }

  // Calls body(slot) for each row until it returns an error.
  template <typename Body>
  absl::Status ForEachLive(const Body& body) const {
    for (uint32_t base = 0; base < num_slots; base += 64) {
      for (uint64_t rest = live()[base / 64]; rest != 0; rest &= rest - 1) {
        HOTROW_RETURN_IF_ERROR(body(base + static_cast<uint32_t>(std::countr_zero(rest))));
      }
    }
    return absl::OkStatus();
  }

  // What stands before the rows, and all of it, with the rows.
  static int64_t HeadBytes(int64_t slots) {
    return RoundUp(8 * (slots + kLiveWords), kBufferAlignment);
  }
  static int64_t Bytes(int64_t row_bytes, int64_t slots) {
    return HeadBytes(slots) + RoundUp(row_bytes * slots, kBufferAlignment);
  }
};
static_assert(sizeof(Chunk) == 16);

// The rows of one table in one shard. Free slots are a list that runs through their key words.
struct TableSpace {
  uint32_t free_head = kNoOrdinal;
  uint32_t fresh_next = 0;  // [fresh_next, fresh_end) are slots that never held a row
  uint32_t fresh_end = 0;
  uint32_t num_slots = 0;
};

// A lock and the rows that it guards. The ordinal of a row is kChunkRows * (number of its chunk) +
// slot; a chunk with fewer slots leaves the ordinals behind them unused. Index partitions are more
// and smaller than shards, so that growing one stops a shard only briefly, while rows of tables
// with few rows are not spread over many part-filled chunks.
struct alignas(kCacheLine) Shard {
  mutable WriterFirstMutex mutex;
  BudgetedBuffer<Chunk> chunks;
  int64_t num_chunks = 0;
  TableSpace* spaces = nullptr;  // [tables]
};

// Finds take the locks of their shards for this many keys at a time. More than a lock costs, less
// than a writer should have to wait: about 0.3 ms.
constexpr size_t kFindWindow = 2048;
// Look-ups go through their stages in blocks whose buckets and keys stay in the nearest caches.
constexpr size_t kFindBlock = 256;
// How many keys ahead a stage asks for memory. Tuned with bench/store_gather_bench.
constexpr size_t kRowsAhead = 24;
constexpr int64_t kUpsertAhead = 8;
constexpr int64_t kUpsertLanes = 32;  // a power of two above 2 * kUpsertAhead

// The keys of a batch that writes, at most kUpsertBlock at a time, sorted by shard, so that each
// lock is taken once. It lies on the stack: batches need no memory.
constexpr size_t kUpsertBlock = 8192;
struct ShardOrder {
  std::array<uint16_t, kUpsertBlock> order;    // positions in the block; shard by shard
  std::array<uint16_t, kShardsMax + 1> begin;  // of each shard in order
};

int64_t ChooseNumPartitions(const HostStoreOptions& options) {
  int64_t row_bytes_min = kRowBytesMax;
  for (const StoreTable& table : options.tables) {
    row_bytes_min = std::min(row_bytes_min, table.row_bytes);
  }
  constexpr int64_t kMetadataBytes = 14;  // about, for each row
  const int64_t rows_max = options.budget_bytes / (row_bytes_min + kMetadataBytes);
  const auto wanted = static_cast<uint64_t>(std::max<int64_t>(1, rows_max / kPartitionRows));
  return std::min(kPartitionsMax, static_cast<int64_t>(std::bit_floor(wanted)));
}

int64_t ChunkSlotsMax(int64_t row_bytes) {
  return std::clamp<int64_t>(kChunkBytesTarget / row_bytes, 1, HostStore::kChunkRows);
}

// A table's next chunk is an eighth of what the shard holds of it, so that no more than about that
// is unused. The smallest chunks, which every table may need in every shard, may cost 1/64 of the
// budget together.
int64_t ChooseNumShards(const HostStoreOptions& options, int64_t num_partitions) {
  int64_t smallest_bytes = 0;
  for (const StoreTable& table : options.tables) {
    smallest_bytes +=
        Chunk::Bytes(table.row_bytes, std::min(kChunkSlotsMin, ChunkSlotsMax(table.row_bytes)));
  }
  int64_t num_shards = std::min(num_partitions, kShardsMax);
  while (num_shards > 1 && num_shards * smallest_bytes > options.budget_bytes / 64) num_shards /= 2;
  return num_shards;
}

// The buffer that snapshots are written and read through: 1 MiB, less in a small store.
int64_t StagingBytes(const HostStoreOptions& options) {
  if (options.snapshot_dir.empty() && options.open_at == 0) return 0;
  return std::clamp(options.budget_bytes / 512 / 4096 * 4096, int64_t{4096}, int64_t{1} << 20);
}

absl::Status NoSnapshotError(absl::string_view verb, SnapshotId snapshot, const std::string& dir) {
  return absl::FailedPreconditionError(absl::StrCat("host store: cannot ", verb, " snapshot ",
                                                    snapshot, ": there is none in '", dir, "'"));
}

}  // namespace

absl::Status HostStoreOptions::Validate() const {
  if (tables.empty()) {
    return absl::InvalidArgumentError("HostStoreOptions.tables: at least one is needed");
  }
  std::map<uint32_t, size_t> seen;
  for (size_t i = 0; i < tables.size(); ++i) {
    const StoreTable& table = tables[i];
    if (table.row_bytes < 1 || table.row_bytes > kRowBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("HostStoreOptions.tables[", i, "]: row_bytes of table ", table.table,
                       " must lie in [1, ", kRowBytesMax, "], it is ", table.row_bytes));
    }
    if (!seen.emplace(table.table, i).second) {
      return absl::InvalidArgumentError(absl::StrCat("HostStoreOptions.tables[", i, "]: table ",
                                                     table.table, " is there already, at [",
                                                     seen[table.table], "]"));
    }
  }
  if (budget_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("HostStoreOptions.budget_bytes must be at least 1, it is ", budget_bytes));
  }
  if (open_at != 0 && snapshot_dir.empty() && open_dir.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("HostStoreOptions.open_at is ", open_at,
                                                   ", but snapshot_dir is empty, and so is "
                                                   "open_dir"));
  }
  return absl::OkStatus();
}

// Locks are taken in this order: snapshot_mutex, writers, a shard, then those of arena and pool.
struct HostStore::Impl {
  explicit Impl(const HostStoreOptions& options)
      : options(options),
        env(options.env == nullptr ? PosixEnv() : *options.env),
        table_map(options.tables),
        budget(options.budget_bytes),
        arena(budget, options.huge_pages, options.device),
        pool(arena),
        num_partitions(ChooseNumPartitions(options)),
        num_shards(ChooseNumShards(options, num_partitions)),
        shard_shift(std::countr_zero(static_cast<uint64_t>(num_partitions / num_shards))) {}

  absl::Status Init();

  // --- Batches ---

  // InvalidArgument when a table is unknown.
  absl::Status CheckTables(std::span<const RowKey> keys) const;
  // Sorts keys.size() <= kUpsertBlock keys by shard, stably.
  void SortByShard(std::span<const RowKey> keys, ShardOrder& sorted) const;
  // Calls body(shard, base, order) for each part of the batch that lies in one shard, under its
  // lock; the keys are keys[base + order[i]]. Ends at the first error.
  template <typename Body>
  absl::Status ForEachShard(std::span<const RowKey> keys, const Body& body);

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
  template <typename Visit>
  absl::Status UpsertBatch(std::span<const RowKey> keys, const Visit& visit, int64_t* added);
  template <typename Visit>
  absl::Status FindBatch(std::span<const RowKey> keys, const Visit& visit);
  absl::Status EraseBatch(std::span<const RowKey> keys);

  // --- One shard; the caller holds its lock ---

  IndexPartition::Entry FindEntry(const Shard& shard, const RowHash& hash, uint64_t key,
                                  uint32_t table) const {
    return PartitionOf(hash).Find(hash, [&](uint32_t ordinal) {
      const Chunk& chunk = ChunkOf(shard, ordinal);
      return *chunk.key(ordinal % kChunkRows) == key && chunk.table_index == table;
    });
  }
  struct KeyAccess;
  // Adds a row that is not there; its bytes are unspecified.
  absl::StatusOr<uint32_t> InsertNew(Shard& shard, const RowHash& hash, uint64_t key,
                                     uint32_t table);
  absl::StatusOr<uint32_t> TakeSlot(Shard& shard, uint32_t table);
  void FreeSlot(Shard& shard, uint32_t ordinal);
  absl::Status AddChunk(Shard& shard, uint32_t table);

  static const Chunk& ChunkOf(const Shard& shard, uint32_t ordinal) {
    return shard.chunks[ordinal / kChunkRows];
  }
  std::byte* RowOf(const Shard& shard, uint32_t ordinal) const {
    const Chunk& chunk = ChunkOf(shard, ordinal);
    return chunk.rows + ordinal % kChunkRows * tables[chunk.table_index].row_bytes;
  }
  RowKey KeyOf(const Shard& shard, uint32_t ordinal) const {
    const Chunk& chunk = ChunkOf(shard, ordinal);
    return {*chunk.key(ordinal % kChunkRows), tables[chunk.table_index].table};
  }
  // Asks for the key and the row, which are likely to be read soon.
  template <void (*kPrefetch)(const void*)>
  void PrefetchKeyAndRow(const Shard& shard, uint32_t ordinal) const {
    const Chunk& chunk = ChunkOf(shard, ordinal);
    const int64_t row_bytes = tables[chunk.table_index].row_bytes;
    kPrefetch(chunk.key(ordinal % kChunkRows));
    const std::byte* const row = chunk.rows + ordinal % kChunkRows * row_bytes;
    for (int64_t at = 0; at < std::min(row_bytes, kPrefetchRowBytesMax); at += kCacheLine) {
      kPrefetch(row + at);
    }
  }
  uint32_t PartitionIndex(const RowHash& hash) const {
    return hash.partition(static_cast<uint64_t>(num_partitions));
  }
  IndexPartition& PartitionOf(const RowHash& hash) const {
    return partitions[PartitionIndex(hash)];
  }
  uint32_t ShardOf(const RowHash& hash) const { return PartitionIndex(hash) >> shard_shift; }

  // --- Snapshots ---

  struct SnapshotFile {
    int64_t bytes = 0;
    std::optional<SnapshotInfo> info;  // none: of an earlier run, and not read
  };

  std::string SnapshotPath(SnapshotId snapshot) const {
    return options.snapshot_dir + "/" + internal::SnapshotFileName(snapshot);
  }
  absl::Status OpenSnapshotDir();
  absl::Status Load(SnapshotId snapshot);
  absl::StatusOr<SnapshotFile> WriteSnapshot(SnapshotId snapshot, const std::string& path);
  absl::Status CheckSnapshotExists(SnapshotId snapshot, absl::string_view verb) const;

  const HostStoreOptions options;
  Env& env;
  const TableMap table_map;
  std::vector<Table> tables;

  MemoryBudget budget;  // outlives everything that is counted in it
  HostArena arena;
  IndexSegmentPool pool;
  BudgetedBuffer<TableSpace> spaces;        // [shards, tables]
  BudgetedBuffer<std::byte> staging;        // for snapshots; guarded by snapshot_mutex
  std::atomic<int64_t> row_space_bytes{0};  // of all slots

  const int64_t num_partitions;
  const int64_t num_shards;
  const int shard_shift;  // a shard's partitions are 2^shard_shift neighbours
  IndexSegment* empty_segment = nullptr;
  std::unique_ptr<IndexPartition[]> partitions;
  std::unique_ptr<Shard[]> shards;

  // Held shared by every batch that writes, exclusively by a snapshot: it sees whole batches.
  WriterFirstMutex writers;
  std::mutex snapshot_mutex;
  std::map<SnapshotId, SnapshotFile> snapshots;  // guarded by snapshot_mutex

  std::atomic<int64_t> rows{0};
  std::atomic<int64_t> snapshot_bytes{0};
  Counter finds;
  Counter found;
  Counter rows_written;
  Counter rows_erased;
  Counter ios;
  Counter bytes_read;
  Counter bytes_written;
};

absl::Status HostStore::Impl::Init() {
  const auto num_tables = static_cast<int64_t>(options.tables.size());
  HOTROW_RETURN_IF_ERROR(
      budget.Reserve(static_cast<int64_t>(sizeof(Impl)) + table_map.bytes() +
                     num_tables * static_cast<int64_t>(sizeof(StoreTable) + sizeof(Table)) +
                     num_partitions * static_cast<int64_t>(sizeof(IndexPartition)) +
                     num_shards * static_cast<int64_t>(sizeof(Shard))));
  tables.reserve(options.tables.size());
  for (const StoreTable& table : options.tables) {
    tables.push_back({table.table, ChunkSlotsMax(table.row_bytes), table.row_bytes});
  }
  HOTROW_ASSIGN_OR_RETURN(empty_segment, pool.Take());
  partitions = std::make_unique<IndexPartition[]>(static_cast<size_t>(num_partitions));
  for (int64_t i = 0; i < num_partitions; ++i)
    partitions[static_cast<size_t>(i)].Init(&empty_segment);
  HOTROW_ASSIGN_OR_RETURN(spaces,
                          BudgetedBuffer<TableSpace>::Create(budget, num_shards * num_tables));
  std::fill(spaces.span().begin(), spaces.span().end(), TableSpace());
  shards = std::make_unique<Shard[]>(static_cast<size_t>(num_shards));
  for (int64_t i = 0; i < num_shards; ++i) {
    shards[static_cast<size_t>(i)].spaces = spaces.data() + i * num_tables;
  }
  if (options.snapshot_dir.empty() && options.open_at == 0) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(staging,
                          BudgetedBuffer<std::byte>::Create(budget, StagingBytes(options)));
  if (!options.snapshot_dir.empty()) HOTROW_RETURN_IF_ERROR(OpenSnapshotDir());
  return options.open_at == 0 ? absl::OkStatus() : Load(options.open_at);
}

absl::Status HostStore::Impl::CheckTables(std::span<const RowKey> keys) const {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (table_map.Find(keys[i].table) == TableMap::kNone) {
      return absl::InvalidArgumentError(absl::StrCat("host store: keys[", i, "] is of table ",
                                                     keys[i].table,
                                                     ", which the store does not have"));
    }
  }
  return absl::OkStatus();
}

void HostStore::Impl::SortByShard(std::span<const RowKey> keys, ShardOrder& sorted) const {
  // A counting sort. Two runs over the keys, so that nothing but the order need be kept.
  std::array<uint8_t, kUpsertBlock> shard_of;
  std::array<uint16_t, kShardsMax> next{};
  for (size_t i = 0; i < keys.size(); ++i) {
    shard_of[i] = static_cast<uint8_t>(ShardOf(HashRowKey(keys[i])));
    ++next[shard_of[i]];
  }
  uint16_t sum = 0;
  for (size_t s = 0; s < static_cast<size_t>(num_shards); ++s) {
    sorted.begin[s] = sum;
    sum = static_cast<uint16_t>(sum + std::exchange(next[s], sum));
  }
  sorted.begin[static_cast<size_t>(num_shards)] = sum;
  for (size_t i = 0; i < keys.size(); ++i) {
    sorted.order[next[shard_of[i]]++] = static_cast<uint16_t>(i);
  }
}

template <typename Body>
absl::Status HostStore::Impl::ForEachShard(std::span<const RowKey> keys, const Body& body) {
  ShardOrder sorted;
  for (size_t base = 0; base < keys.size(); base += kUpsertBlock) {
    const auto block = keys.subspan(base, std::min(kUpsertBlock, keys.size() - base));
    SortByShard(block, sorted);
    for (size_t s = 0; s < static_cast<size_t>(num_shards); ++s) {
      const std::span<const uint16_t> order(sorted.order.data() + sorted.begin[s],
                                            sorted.order.data() + sorted.begin[s + 1]);
      if (order.empty()) continue;
      std::unique_lock lock(shards[s].mutex);
      HOTROW_RETURN_IF_ERROR(body(shards[s], base, order));
    }
  }
  return absl::OkStatus();
}

uint32_t HostStore::Impl::ShardsOf(std::span<const RowKey> keys) const {
  const auto all = static_cast<uint32_t>((uint64_t{1} << num_shards) - 1);
  // So many keys need nearly all shards: not worth the hashing.
  if (static_cast<int64_t>(keys.size()) >= 2 * num_shards) return all;
  uint32_t mask = 0;
  for (const RowKey& key : keys) mask |= 1u << ShardOf(HashRowKey(key));
  return mask;
}

// A look-up waits for memory for its bucket, sometimes a second one, then its key, then its row.
// The loops below each do one step for all keys of the block: short loops, so that the processor
// has the misses of many keys under way at once. The keys are taken in the order of the batch,
// because the rows are then written in order too: in any other order (by shard, say) writing
// 512-byte rows costs as much as reading them.
template <typename Visit>
bool HostStore::Impl::FindBlock(std::span<const RowKey> keys, const Visit& visit) const {
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
    lane.table = table_map.Find(keys[i].table);
    unknown_table |= lane.table == TableMap::kNone;
    const uint32_t partition = PartitionIndex(lane.hash);
    lane.shard = &shards[partition >> shard_shift];
    lane.bucket = partitions[partition].bucket1(lane.hash);
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
    const int64_t bytes = std::min(tables[lanes[i].table].row_bytes, kPrefetchRowBytesMax);
    for (int64_t at = 0; at < bytes; at += kCacheLine) PrefetchRow(rows[i] + at);
  };
  for (size_t i = 0; i < n; ++i) {
    const Lane& lane = lanes[i];
    rows[i] = nullptr;
    if (lane.ordinal == kNoOrdinal) continue;
    const Chunk& chunk = ChunkOf(*lane.shard, lane.ordinal);
    const uint32_t slot = lane.ordinal % kChunkRows;
    if (*chunk.key(slot) == keys[i].key && chunk.table_index == lane.table) {
      rows[i] = chunk.rows + slot * tables[lane.table].row_bytes;
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
absl::Status HostStore::Impl::Upsert(Shard& shard, const RowKey* keys,
                                     std::span<const uint16_t> order, const Visit& visit,
                                     int64_t* added) {
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
      lane.table = table_map.Find(key.table);
      const IndexPartition& partition = PartitionOf(lane.hash);
      PrefetchWrite(partition.bucket1(lane.hash));
      PrefetchWrite(partition.bucket2(lane.hash));
    }
    if (const int64_t j = i - kUpsertAhead; j >= 0 && j < n) {
      // The buckets are looked up anew in each stage: an insert in between may have replaced them.
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
absl::Status HostStore::Impl::UpsertBatch(std::span<const RowKey> keys, const Visit& visit,
                                          int64_t* added) {
  HOTROW_RETURN_IF_ERROR(CheckTables(keys));
  std::shared_lock gate(writers);
  const absl::Status status =
      ForEachShard(keys, [&](Shard& shard, size_t base, std::span<const uint16_t> order) {
        return Upsert(
            shard, keys.data() + base, order,
            [&](size_t i, uint32_t table, std::byte* row, bool is_new) {
              visit(base + i, tables[table].row_bytes, row, is_new);
            },
            added);
      });
  rows.fetch_add(*added, std::memory_order_relaxed);
  return status;
}

template <typename Visit>
absl::Status HostStore::Impl::FindBatch(std::span<const RowKey> keys, const Visit& visit) {
  int64_t hits = 0;
  for (size_t base = 0; base < keys.size(); base += kFindWindow) {
    const auto window = keys.subspan(base, std::min(kFindWindow, keys.size() - base));
    // Ascending, as every find takes them; a batch that writes holds only one: so nobody waits in a
    // circle.
    std::array<std::shared_lock<WriterFirstMutex>, kShardsMax> locks;
    for (uint32_t rest = ShardsOf(window); rest != 0; rest &= rest - 1) {
      const auto shard = static_cast<size_t>(std::countr_zero(rest));
      locks[shard] = std::shared_lock(shards[shard].mutex);
    }
    for (size_t at = 0; at < window.size(); at += kFindBlock) {
      const auto block = window.subspan(at, std::min(kFindBlock, window.size() - at));
      const bool known = FindBlock(block, [&](size_t i, uint32_t table, std::byte* row) {
        hits += row != nullptr ? 1 : 0;
        visit(base + at + i, tables[table].row_bytes, row);
      });
      if (!known) return CheckTables(keys);  // says which
    }
  }
  finds.Add(static_cast<int64_t>(keys.size()));
  found.Add(hits);
  return absl::OkStatus();
}

absl::Status HostStore::Impl::EraseBatch(std::span<const RowKey> keys) {
  HOTROW_RETURN_IF_ERROR(CheckTables(keys));
  std::shared_lock gate(writers);
  int64_t erased = 0;
  HOTROW_RETURN_IF_ERROR(
      ForEachShard(keys, [&](Shard& shard, size_t base, std::span<const uint16_t> order) {
        for (const uint16_t i : order) {
          const RowKey& key = keys[base + i];
          const RowHash hash = HashRowKey(key);
          const IndexPartition::Entry entry =
              FindEntry(shard, hash, key.key, table_map.Find(key.table));
          if (entry.bucket == nullptr) continue;
          const uint32_t ordinal = entry.ordinal();
          PartitionOf(hash).Erase(hash, entry);
          FreeSlot(shard, ordinal);
          ++erased;
        }
        return absl::OkStatus();
      }));
  rows.fetch_sub(erased, std::memory_order_relaxed);
  rows_erased.Add(erased);
  return absl::OkStatus();
}

// What the index asks about keys.
struct HostStore::Impl::KeyAccess {
  RowHash Hash(uint32_t ordinal) const { return HashRowKey(impl.KeyOf(shard, ordinal)); }
  void Prefetch(uint32_t ordinal) const {
    PrefetchRead(ChunkOf(shard, ordinal).key(ordinal % kChunkRows));
  }
  const Impl& impl;
  const Shard& shard;
};

absl::StatusOr<uint32_t> HostStore::Impl::InsertNew(Shard& shard, const RowHash& hash, uint64_t key,
                                                    uint32_t table) {
  HOTROW_ASSIGN_OR_RETURN(const uint32_t ordinal, TakeSlot(shard, table));
  const Chunk& chunk = ChunkOf(shard, ordinal);
  *chunk.key(ordinal % kChunkRows) = key;
  chunk.SetLive(ordinal % kChunkRows);
  absl::Status status =
      PartitionOf(hash).Insert(budget, pool, hash, ordinal, KeyAccess{*this, shard});
  if (!status.ok()) {
    FreeSlot(shard, ordinal);
    return status;
  }
  return ordinal;
}

absl::StatusOr<uint32_t> HostStore::Impl::TakeSlot(Shard& shard, uint32_t table) {
  TableSpace& space = shard.spaces[table];
  if (space.free_head != kNoOrdinal) {
    const uint32_t ordinal = space.free_head;
    space.free_head = static_cast<uint32_t>(*ChunkOf(shard, ordinal).key(ordinal % kChunkRows));
    return ordinal;
  }
  if (space.fresh_next == space.fresh_end) HOTROW_RETURN_IF_ERROR(AddChunk(shard, table));
  return space.fresh_next++;
}

void HostStore::Impl::FreeSlot(Shard& shard, uint32_t ordinal) {
  const Chunk& chunk = ChunkOf(shard, ordinal);
  TableSpace& space = shard.spaces[chunk.table_index];
  chunk.ClearLive(ordinal % kChunkRows);
  *chunk.key(ordinal % kChunkRows) = space.free_head;
  space.free_head = ordinal;
}

absl::Status HostStore::Impl::AddChunk(Shard& shard, uint32_t table) {
  constexpr int64_t kChunksMax = (int64_t{1} << 32) / kChunkRows - 1;  // kNoOrdinal stays free
  if (shard.num_chunks == kChunksMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("host store: a shard holds its most, ", kChunksMax * kChunkRows, " rows"));
  }
  if (shard.num_chunks == shard.chunks.size()) {
    const int64_t size = std::max<int64_t>(16, shard.num_chunks + shard.num_chunks / 8);
    HOTROW_ASSIGN_OR_RETURN(auto larger,
                            BudgetedBuffer<Chunk>::Create(budget, size, options.huge_pages));
    std::copy_n(shard.chunks.data(), shard.num_chunks, larger.data());
    shard.chunks = std::move(larger);
  }
  TableSpace& space = shard.spaces[table];
  const int64_t row_bytes = tables[table].row_bytes;
  const int64_t slots =
      std::min(std::max<int64_t>(kChunkSlotsMin, space.num_slots / 8), tables[table].slots_max);
  HOTROW_ASSIGN_OR_RETURN(std::byte* const piece, arena.Carve(Chunk::Bytes(row_bytes, slots)));
  row_space_bytes.fetch_add(row_bytes * slots, std::memory_order_relaxed);
  shard.chunks[shard.num_chunks] = {.rows = piece + Chunk::HeadBytes(slots),
                                    .table_index = table,
                                    .num_slots = static_cast<uint32_t>(slots)};
  space.fresh_next = static_cast<uint32_t>(shard.num_chunks * kChunkRows);
  space.fresh_end = space.fresh_next + static_cast<uint32_t>(slots);
  space.num_slots += static_cast<uint32_t>(slots);
  ++shard.num_chunks;
  return absl::OkStatus();
}

absl::Status HostStore::Impl::OpenSnapshotDir() {
  HOTROW_RETURN_IF_ERROR(CreateDirsDurably(env, options.snapshot_dir));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(options.snapshot_dir));
  for (const std::string& name : names) {
    if (const SnapshotId snapshot = internal::ParseSnapshotFileName(name); snapshot != 0) {
      HOTROW_ASSIGN_OR_RETURN(const auto file, env.Open(SnapshotPath(snapshot), OpenMode::kRead));
      HOTROW_ASSIGN_OR_RETURN(const int64_t bytes, file->Size());
      snapshots[snapshot] = {.bytes = bytes, .info = std::nullopt};
      snapshot_bytes.fetch_add(bytes, std::memory_order_relaxed);
      continue;
    }
    // A snapshot whose writing was cut off by a crash.
    std::string_view stem = name;
    if (!stem.ends_with(internal::kSnapshotTmpSuffix)) continue;
    stem.remove_suffix(internal::kSnapshotTmpSuffix.size());
    if (internal::ParseSnapshotFileName(stem) == 0) continue;
    HOTROW_RETURN_IF_ERROR(env.Remove(options.snapshot_dir + "/" + name));
  }
  return absl::OkStatus();
}

absl::Status HostStore::Impl::Load(SnapshotId snapshot) {
  const std::string& dir = options.open_dir.empty() ? options.snapshot_dir : options.open_dir;
  const std::string path = dir + "/" + internal::SnapshotFileName(snapshot);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) return NoSnapshotError("open", snapshot, dir);
  internal::SnapshotIo io;
  HOTROW_RETURN_IF_ERROR(internal::ReadSnapshot(
      env, path, snapshot, options.open_at_identity, options.tables, staging.span(),
      [&](const RowKey& key) -> absl::StatusOr<std::byte*> {
        const RowHash hash = HashRowKey(key);
        const uint32_t table = table_map.Find(key.table);
        Shard& shard = shards[ShardOf(hash)];
        if (FindEntry(shard, hash, key.key, table).bucket != nullptr) {
          return absl::DataLossError(
              absl::StrCat("key ", key.key, " of table ", key.table, " is there twice"));
        }
        HOTROW_ASSIGN_OR_RETURN(const uint32_t ordinal, InsertNew(shard, hash, key.key, table));
        rows.fetch_add(1, std::memory_order_relaxed);
        return RowOf(shard, ordinal);
      },
      io));
  ios.Add(io.ios);
  bytes_read.Add(io.bytes);
  return absl::OkStatus();
}

absl::StatusOr<HostStore::Impl::SnapshotFile> HostStore::Impl::WriteSnapshot(
    SnapshotId snapshot, const std::string& path) {
  // No batch writes while this is held, and finds only read: no shard need be locked.
  std::unique_lock gate(writers);
  SnapshotInfo info = {.id = snapshot,
                       .committed = false,
                       .identity = UniqueId::Random(),
                       .table_rows = std::vector<int64_t>(options.tables.size())};
  for (int64_t s = 0; s < num_shards; ++s) {
    const Shard& shard = shards[static_cast<size_t>(s)];
    for (int64_t c = 0; c < shard.num_chunks; ++c) {
      info.table_rows[shard.chunks[c].table_index] += shard.chunks[c].CountLive();
    }
  }
  HOTROW_ASSIGN_OR_RETURN(auto writer, internal::SnapshotWriter::Create(
                                           env, path, info, options.tables, staging.span()));
  for (int64_t s = 0; s < num_shards; ++s) {
    const Shard& shard = shards[static_cast<size_t>(s)];
    for (int64_t c = 0; c < shard.num_chunks; ++c) {
      const Chunk& chunk = shard.chunks[c];
      const int64_t row_bytes = tables[chunk.table_index].row_bytes;
      std::array<internal::SnapshotWriter::Row, kChunkRows> live;
      size_t n = 0;
      HOTROW_RETURN_IF_ERROR(chunk.ForEachLive([&](uint32_t slot) {
        live[n++] = {*chunk.key(slot), chunk.rows + slot * row_bytes};
        return absl::OkStatus();
      }));
      if (n == 0) continue;
      HOTROW_RETURN_IF_ERROR(writer.AddBlock(options.tables[chunk.table_index], {live.data(), n}));
    }
  }
  HOTROW_RETURN_IF_ERROR(writer.Finish());
  ios.Add(writer.io().ios);
  bytes_written.Add(writer.io().bytes);
  return SnapshotFile{.bytes = writer.io().bytes, .info = std::move(info)};
}

absl::Status HostStore::Impl::CheckSnapshotExists(SnapshotId snapshot,
                                                  absl::string_view verb) const {
  if (snapshots.contains(snapshot)) return absl::OkStatus();
  return NoSnapshotError(verb, snapshot, options.snapshot_dir);
}

HostStore::HostStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HostStore::~HostStore() = default;

absl::StatusOr<std::unique_ptr<HostStore>> HostStore::Open(const HostStoreOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  auto impl = std::make_unique<Impl>(options);
  HOTROW_RETURN_IF_ERROR(impl->Init());
  return std::unique_ptr<HostStore>(new HostStore(std::move(impl)));
}

namespace {

absl::Status CheckSizes(size_t num_keys, size_t num_rows, size_t num_flags) {
  if (num_keys == num_rows && num_keys == num_flags) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("host store: ", num_keys, " keys, ", num_rows,
                                                 " rows and ", num_flags,
                                                 " flags; the numbers must be equal"));
}

}  // namespace

absl::Status HostStore::Find(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                             std::span<uint8_t> found) {
  HOTROW_RETURN_IF_ERROR(CheckSizes(keys.size(), rows.size(), found.size()));
  return impl_->FindBatch(keys, [&](size_t i, int64_t row_bytes, const std::byte* row) {
    found[i] = row != nullptr ? 1 : 0;
    if (row != nullptr) std::memcpy(rows[i], row, static_cast<size_t>(row_bytes));
  });
}

absl::Status HostStore::FindInPlace(std::span<const RowKey> keys, std::span<std::byte*> rows) {
  HOTROW_RETURN_IF_ERROR(CheckSizes(keys.size(), rows.size(), keys.size()));
  return impl_->FindBatch(keys, [&](size_t i, int64_t, std::byte* row) { rows[i] = row; });
}

absl::Status HostStore::InsertOrAssign(std::span<const RowKey> keys,
                                       std::span<const std::byte* const> rows) {
  HOTROW_RETURN_IF_ERROR(CheckSizes(keys.size(), rows.size(), keys.size()));
  int64_t written = 0;
  int64_t added = 0;
  const absl::Status status = impl_->UpsertBatch(
      keys,
      [&](size_t i, int64_t row_bytes, std::byte* row, bool) {
        std::memcpy(row, rows[i], static_cast<size_t>(row_bytes));
        ++written;
      },
      &added);
  impl_->rows_written.Add(written);
  return status;
}

absl::Status HostStore::InsertInPlace(std::span<const RowKey> keys, std::span<std::byte*> rows,
                                      std::span<uint8_t> added) {
  HOTROW_RETURN_IF_ERROR(CheckSizes(keys.size(), rows.size(), added.size()));
  int64_t num_added = 0;
  const absl::Status status = impl_->UpsertBatch(
      keys,
      [&](size_t i, int64_t row_bytes, std::byte* row, bool is_new) {
        if (is_new) std::memset(row, 0, static_cast<size_t>(row_bytes));
        rows[i] = row;
        added[i] = is_new ? 1 : 0;
      },
      &num_added);
  impl_->rows_written.Add(num_added);
  return status;
}

absl::Status HostStore::Erase(std::span<const RowKey> keys) { return impl_->EraseBatch(keys); }

absl::Status HostStore::Iterate(
    absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) {
  for (int64_t s = 0; s < impl_->num_shards; ++s) {
    // Held for the whole shard: were it let go in between, a row that is erased and inserted again
    // could be seen twice.
    Shard& shard = impl_->shards[static_cast<size_t>(s)];
    std::shared_lock lock(shard.mutex);
    for (int64_t c = 0; c < shard.num_chunks; ++c) {
      const Chunk& chunk = shard.chunks[c];
      const Table& table = impl_->tables[chunk.table_index];
      HOTROW_RETURN_IF_ERROR(chunk.ForEachLive([&](uint32_t slot) {
        return visit({*chunk.key(slot), table.table},
                     {chunk.rows + slot * table.row_bytes, static_cast<size_t>(table.row_bytes)});
      }));
    }
  }
  return absl::OkStatus();
}

absl::Status HostStore::Flush() { return absl::OkStatus(); }

absl::Status HostStore::PrepareSnapshot(SnapshotId snapshot, absl::FunctionRef<void()> captured) {
  Impl& impl = *impl_;
  if (impl.options.snapshot_dir.empty()) {
    return absl::FailedPreconditionError("host store: it was opened without a snapshot_dir");
  }
  if (snapshot == 0) return absl::FailedPreconditionError("host store: 0 names no snapshot");
  std::lock_guard lock(impl.snapshot_mutex);
  if (impl.snapshots.contains(snapshot)) {
    return absl::FailedPreconditionError(
        absl::StrCat("host store: there is a snapshot ", snapshot, " already"));
  }
  const std::string path = impl.SnapshotPath(snapshot);
  const std::string tmp_path = path + std::string(internal::kSnapshotTmpSuffix);
  absl::StatusOr<Impl::SnapshotFile> file = impl.WriteSnapshot(snapshot, tmp_path);
  absl::Status status = file.status();
  if (status.ok()) status = impl.env.Rename(tmp_path, path);
  if (!status.ok()) {
    impl.env.Remove(tmp_path).IgnoreError();  // else the next opening removes it
    return status;
  }
  captured();
  status = impl.env.SyncDir(impl.options.snapshot_dir);
  if (!status.ok()) {
    // Should this fail too, the file is whole and no manifest names it: an opening lists it.
    impl.env.Remove(path).IgnoreError();
    return status;
  }
  impl.snapshot_bytes.fetch_add(file->bytes, std::memory_order_relaxed);
  impl.snapshots[snapshot] = *std::move(file);
  return absl::OkStatus();
}

absl::Status HostStore::CommitSnapshot(SnapshotId snapshot) {
  // A prepared snapshot is complete; that it is committed stands in the caller's manifest alone.
  std::lock_guard lock(impl_->snapshot_mutex);
  return impl_->CheckSnapshotExists(snapshot, "commit");
}

absl::Status HostStore::DropSnapshot(SnapshotId snapshot) {
  Impl& impl = *impl_;
  std::lock_guard lock(impl.snapshot_mutex);
  HOTROW_RETURN_IF_ERROR(impl.CheckSnapshotExists(snapshot, "drop"));
  const absl::Status removed = impl.env.Remove(impl.SnapshotPath(snapshot));
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;  // gone already is good
  impl.snapshot_bytes.fetch_sub(impl.snapshots[snapshot].bytes, std::memory_order_relaxed);
  impl.snapshots.erase(snapshot);
  return impl.env.SyncDir(impl.options.snapshot_dir);
}

absl::StatusOr<std::vector<SnapshotId>> HostStore::ListSnapshots() {
  std::lock_guard lock(impl_->snapshot_mutex);
  std::vector<SnapshotId> ids;
  ids.reserve(impl_->snapshots.size());
  for (const auto& [snapshot, file] : impl_->snapshots) ids.push_back(snapshot);
  return ids;
}

absl::StatusOr<SnapshotInfo> HostStore::DescribeSnapshot(SnapshotId snapshot) {
  Impl& impl = *impl_;
  std::lock_guard lock(impl.snapshot_mutex);
  HOTROW_RETURN_IF_ERROR(impl.CheckSnapshotExists(snapshot, "describe"));
  const std::optional<SnapshotInfo>& written = impl.snapshots[snapshot].info;
  if (written.has_value()) return *written;
  HOTROW_ASSIGN_OR_RETURN(internal::SnapshotContents contents,
                          internal::ReadSnapshotContents(impl.env, impl.SnapshotPath(snapshot),
                                                         snapshot, impl.staging.span()));
  // Another run may have written the file, with its tables in another order.
  SnapshotInfo info = std::move(contents.info);
  const std::vector<int64_t> rows = std::exchange(info.table_rows, {});
  for (const StoreTable& table : impl.options.tables) {
    for (size_t t = 0; t < rows.size(); ++t) {
      if (contents.tables[t].table == table.table) info.table_rows.push_back(rows[t]);
    }
  }
  if (std::ssize(info.table_rows) != std::ssize(impl.options.tables)) info.table_rows.clear();
  return info;
}

RowStoreStats HostStore::Stats() const {
  const Impl& impl = *impl_;
  RowStoreStats stats;
  stats.rows = impl.rows.load(std::memory_order_relaxed);
  stats.budget_bytes = impl.budget.budget();
  stats.used_bytes = impl.budget.used();
  stats.peak_bytes = impl.budget.peak();
  const int64_t not_carved = impl.arena.extent_bytes() - impl.arena.carved_bytes();
  stats.metadata_bytes =
      stats.used_bytes - not_carved - impl.row_space_bytes.load(std::memory_order_relaxed);
  stats.finds = impl.finds.value();
  stats.found = impl.found.value();
  stats.rows_written = impl.rows_written.value();
  stats.rows_erased = impl.rows_erased.value();
  stats.ios = impl.ios.value();
  stats.bytes_read = impl.bytes_read.value();
  stats.bytes_written = impl.bytes_written.value();
  stats.snapshot_bytes = impl.snapshot_bytes.load(std::memory_order_relaxed);
  return stats;
}

std::span<const StoreTable> HostStore::tables() const { return impl_->options.tables; }

int64_t HostStore::row_bytes(uint32_t table) const {
  const uint32_t index = impl_->table_map.Find(table);
  return index == TableMap::kNone ? 0 : impl_->tables[index].row_bytes;
}

}  // namespace hotrow
