#include "store/host/host_rows_impl.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace hotrow::internal {
namespace {

// A chunk of wide rows has fewer of them, so that it stays near this size.
constexpr int64_t kChunkBytesTarget = int64_t{128} << 10;
constexpr int64_t kChunkSlotsMin = 4;
constexpr int64_t kPartitionRows = int64_t{1} << 17;  // an index partition is rebuilt in about 5 ms
constexpr int64_t kPartitionsMax = int64_t{1} << 16;

int64_t ChunkSlotsMax(int64_t row_bytes) {
  return std::clamp<int64_t>(kChunkBytesTarget / row_bytes, 1, HostStore::kChunkRows);
}

}  // namespace

int64_t HostRows::ChooseNumPartitions(const HostStoreOptions& options) {
  int64_t row_bytes_min = kRowBytesMax;
  for (const StoreTable& table : options.tables) {
    row_bytes_min = std::min(row_bytes_min, table.row_bytes);
  }
  constexpr int64_t kMetadataBytes = 14;  // about, for each row
  const int64_t rows_max = options.budget_bytes / (row_bytes_min + kMetadataBytes);
  const auto wanted = static_cast<uint64_t>(std::max<int64_t>(1, rows_max / kPartitionRows));
  return std::min(kPartitionsMax, static_cast<int64_t>(std::bit_floor(wanted)));
}

// A table's next chunk is an eighth of what the shard holds of it, so that no more than about that
// is unused. The smallest chunks, which every table may need in every shard, may cost 1/64 of the
// budget together.
int64_t HostRows::ChooseNumShards(const HostStoreOptions& options, int64_t num_partitions) {
  int64_t smallest_bytes = 0;
  for (const StoreTable& table : options.tables) {
    smallest_bytes +=
        HostChunk::Bytes(table.row_bytes, std::min(kChunkSlotsMin, ChunkSlotsMax(table.row_bytes)));
  }
  int64_t num_shards = std::min(num_partitions, kShardsMax);
  while (num_shards > 1 && num_shards * smallest_bytes > options.budget_bytes / 64) num_shards /= 2;
  return num_shards;
}

HostRows::HostRows(const HostStoreOptions& options, MemoryBudget& budget)
    : options_(options),
      table_map_(options.tables),
      budget_(budget),
      arena_(budget, options.device),
      pool_(arena_),
      num_partitions_(ChooseNumPartitions(options)),
      num_shards_(ChooseNumShards(options, num_partitions_)),
      shard_shift_(std::countr_zero(static_cast<uint64_t>(num_partitions_ / num_shards_))) {}

int64_t HostRows::metadata_bytes() const {
  return table_map_.bytes() + static_cast<int64_t>(options_.tables.size() * sizeof(HostTable)) +
         num_partitions_ * static_cast<int64_t>(sizeof(IndexPartition)) +
         num_shards_ * static_cast<int64_t>(sizeof(Shard));
}

absl::Status HostRows::Init() {
  const auto num_tables = static_cast<int64_t>(options_.tables.size());
  tables_.reserve(options_.tables.size());
  for (const StoreTable& table : options_.tables) {
    tables_.push_back({table.table, ChunkSlotsMax(table.row_bytes), table.row_bytes});
  }
  if (options_.device != Device::kCpu) {
    const int64_t bytes = BytesToProvide();
    const absl::Status provided = arena_.Provide(bytes, options_.pool);
    // Rows that may never come can do with less, perhaps: Carve says when they cannot.
    const bool all_needed = KnowsAllRows() && bytes < options_.budget_bytes;
    if (!provided.ok() && (all_needed || arena_.num_extents() == 0)) return provided;
  }
  HOTROW_ASSIGN_OR_RETURN(empty_segment_, pool_.Take());
  partitions_ = std::make_unique<IndexPartition[]>(static_cast<size_t>(num_partitions_));
  for (int64_t i = 0; i < num_partitions_; ++i) {
    partitions_[static_cast<size_t>(i)].Init(&empty_segment_);
  }
  HOTROW_ASSIGN_OR_RETURN(spaces_,
                          BudgetedBuffer<TableSpace>::Create(num_shards_ * num_tables, budget_));
  std::fill(spaces_.span().begin(), spaces_.span().end(), TableSpace());
  shards_ = std::make_unique<Shard[]>(static_cast<size_t>(num_shards_));
  for (int64_t i = 0; i < num_shards_; ++i) {
    shards_[static_cast<size_t>(i)].spaces = spaces_.data() + i * num_tables;
  }
  return absl::OkStatus();
}

bool HostRows::KnowsAllRows() const {
  return !options_.rows_max.empty() &&
         std::ranges::all_of(options_.rows_max, [](int64_t rows) { return rows > 0; });
}

// In doubles: rows_max may be any number.
int64_t HostRows::BytesToProvide() const {
  const auto budget = static_cast<double>(options_.budget_bytes);
  const auto shards = static_cast<double>(num_shards_);
  double bytes = 0;
  double rows = 0;
  for (size_t t = 0; t < options_.tables.size(); ++t) {
    const int64_t rows_max = options_.rows_max.empty() ? 0 : options_.rows_max[t];
    const int64_t row_bytes = options_.tables[t].row_bytes;
    const int64_t slots_max = ChunkSlotsMax(row_bytes);
    // However rows are spread over shards, the last chunk of each is an eighth of what it holds,
    // and of kChunkSlotsMin slots at least.
    const double slots =
        1.125 * static_cast<double>(rows_max) + static_cast<double>(kChunkSlotsMin) * shards;
    // Chunks grow for as long as it takes to come from the smallest, an eighth a time, to the
    // largest: 8 + log(256 / 4) / log(9 / 8) of them.
    constexpr double kGrowingChunks = 44;
    const double chunks =
        std::min(slots / static_cast<double>(std::min(kChunkSlotsMin, slots_max)) + shards,
                 slots / static_cast<double>(slots_max) + kGrowingChunks * shards);
    // Keys and rows are each rounded up to a line.
    bytes += slots * static_cast<double>(row_bytes + 8) +
             chunks * static_cast<double>(HostChunk::HeadBytes(0) + 2 * kBufferAlignment);
    rows += static_cast<double>(rows_max);
  }
  // A partition's index is up to a quarter larger than 0.95 of its ways need, and while it grows
  // the one before is there as well: 64 / 12 / 0.95 * 1.25 * 1.8 bytes a row. Those of many
  // partitions use the same segments in turn. The first one or two of a partition are hardly
  // filled.
  constexpr double kIndexRowBytes = 13;
  const double partitions = std::min(static_cast<double>(num_partitions_), rows);
  bytes += kIndexRowBytes * rows + (2 * partitions + 8) * static_cast<double>(sizeof(IndexSegment));
  // What is left at the end of an extent is too small for the next chunk.
  bytes += bytes / 2048 + static_cast<double>(kChunkBytesTarget);
  if (!KnowsAllRows()) bytes = std::max(bytes, budget / 4);
  return bytes < budget ? static_cast<int64_t>(bytes) : options_.budget_bytes;
}

absl::Status HostRows::CheckTables(std::span<const RowKey> keys) const {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (table_map_.Find(keys[i].table) == HostTableMap::kNone) {
      return absl::InvalidArgumentError(absl::StrCat("host store: keys[", i, "] is of table ",
                                                     keys[i].table,
                                                     ", which the store does not have"));
    }
  }
  return absl::OkStatus();
}

void HostRows::SortByShard(std::span<const RowKey> keys, ShardOrder& sorted) const {
  // A counting sort. Two runs over the keys, so that nothing but the order need be kept.
  std::array<uint8_t, kUpsertBlock> shard_of;
  std::array<uint16_t, kShardsMax> next{};
  for (size_t i = 0; i < keys.size(); ++i) {
    shard_of[i] = static_cast<uint8_t>(ShardOf(HashRowKey(keys[i])));
    ++next[shard_of[i]];
  }
  uint16_t sum = 0;
  for (size_t s = 0; s < static_cast<size_t>(num_shards_); ++s) {
    sorted.begin[s] = sum;
    sum = static_cast<uint16_t>(sum + std::exchange(next[s], sum));
  }
  sorted.begin[static_cast<size_t>(num_shards_)] = sum;
  for (size_t i = 0; i < keys.size(); ++i) {
    sorted.order[next[shard_of[i]]++] = static_cast<uint16_t>(i);
  }
}

uint32_t HostRows::ShardsOf(std::span<const RowKey> keys) const {
  const auto all = static_cast<uint32_t>((uint64_t{1} << num_shards_) - 1);
  // So many keys need nearly all shards: not worth the hashing.
  if (static_cast<int64_t>(keys.size()) >= 2 * num_shards_) return all;
  uint32_t mask = 0;
  for (const RowKey& key : keys) mask |= 1u << ShardOf(HashRowKey(key));
  return mask;
}

absl::StatusOr<int64_t> HostRows::EraseBatch(std::span<const RowKey> keys) {
  HOTROW_RETURN_IF_ERROR(CheckTables(keys));
  std::shared_lock gate(writers_);
  int64_t erased = 0;
  HOTROW_RETURN_IF_ERROR(ForEachShard(
      keys, /*pool=*/nullptr, [&](Shard& shard, size_t base, std::span<const uint16_t> order) {
        for (const uint16_t i : order) {
          const RowKey& key = keys[base + i];
          const RowHash hash = HashRowKey(key);
          const IndexPartition::Entry entry =
              FindEntry(shard, hash, key.key, table_map_.Find(key.table));
          if (entry.bucket == nullptr) continue;
          const uint32_t ordinal = entry.ordinal();
          PartitionOf(hash).Erase(hash, entry);
          FreeSlot(shard, ordinal);
          ++erased;
        }
        return absl::OkStatus();
      }));
  rows_.fetch_sub(erased, std::memory_order_relaxed);
  return erased;
}

int64_t HostRows::DropAged(std::span<const RowAgeLine> lines, int64_t rows, AgeCursor* cursor) {
  std::vector<const RowAgeLine*> line_of(tables_.size());  // null: no row of the table ages
  for (const RowAgeLine& line : lines) {
    const uint32_t index = table_map_.Find(line.table);
    if (index != HostTableMap::kNone && !line.lines.none()) line_of[index] = &line;
  }
  std::shared_lock gate(writers_);
  int64_t dropped = 0;
  int64_t seen = 0;
  for (int64_t shards_ended = 0; seen < rows && shards_ended <= num_shards_;) {
    if (cursor->shard >= num_shards_) *cursor = {};
    Shard& shard = shards_[static_cast<size_t>(cursor->shard)];
    std::unique_lock lock(shard.mutex);
    const int64_t until = std::min(rows, seen + static_cast<int64_t>(kUpsertBlock));
    for (; cursor->chunk < shard.num_chunks && seen < until; ++cursor->chunk) {
      const HostChunk chunk = shard.chunks[cursor->chunk];
      seen += chunk.num_slots;
      if (line_of[chunk.table_index] == nullptr) continue;
      const RowAgeLine& line = *line_of[chunk.table_index];
      const int64_t row_bytes = tables_[chunk.table_index].row_bytes;
      const absl::Status visited = chunk.ForEachLive([&](uint32_t slot) {
        if (!line.HasAged(chunk.rows + slot * row_bytes)) return absl::OkStatus();
        const RowHash hash = HashRowKey({*chunk.key(slot), line.table});
        const IndexPartition::Entry entry =
            FindEntry(shard, hash, *chunk.key(slot), chunk.table_index);
        HOTROW_CHECK(entry.bucket != nullptr);
        PartitionOf(hash).Erase(hash, entry);
        FreeSlot(shard, static_cast<uint32_t>(cursor->chunk * kChunkRows) + slot);
        ++dropped;
        return absl::OkStatus();
      });
      HOTROW_CHECK(visited.ok());
    }
    if (cursor->chunk < shard.num_chunks) continue;
    cursor->chunk = 0;
    ++cursor->shard;
    ++shards_ended;
  }
  rows_.fetch_sub(dropped, std::memory_order_relaxed);
  return dropped;
}

// The lock is held for the whole shard: were it let go in between, a row that is erased and
// inserted again could be seen twice.
absl::Status HostRows::IterateShard(int64_t s, const VisitRow& visit) const {
  const Shard& shard = shards_[static_cast<size_t>(s)];
  const std::shared_lock lock(shard.mutex);
  for (int64_t c = 0; c < shard.num_chunks; ++c) {
    const HostChunk& chunk = shard.chunks[c];
    const HostTable& table = tables_[chunk.table_index];
    HOTROW_RETURN_IF_ERROR(chunk.ForEachLive([&](uint32_t slot) {
      return visit({*chunk.key(slot), table.table},
                   {chunk.rows + slot * table.row_bytes, static_cast<size_t>(table.row_bytes)});
    }));
  }
  return absl::OkStatus();
}

absl::Status HostRows::Iterate(VisitRow visit) const {
  for (int64_t s = 0; s < num_shards_; ++s) HOTROW_RETURN_IF_ERROR(IterateShard(s, visit));
  return absl::OkStatus();
}

void HostRows::IterateParts(ThreadPool* pool, HostStore::VisitPart visit) const {
  ParallelFor(pool, num_shards_, 1, [&](int64_t s, int64_t) {
    IterateShard(s, [&](const RowKey& key, std::span<const std::byte> row) {
      visit(s, key, row);
      return absl::OkStatus();
    }).IgnoreError();
  });
}

absl::StatusOr<std::byte*> HostRows::AddAlone(const RowKey& key) {
  const RowHash hash = HashRowKey(key);
  const uint32_t table = table_map_.Find(key.table);
  Shard& shard = shards_[ShardOf(hash)];
  if (FindEntry(shard, hash, key.key, table).bucket != nullptr) {
    return absl::DataLossError(
        absl::StrCat("key ", key.key, " of table ", key.table, " is there twice"));
  }
  HOTROW_ASSIGN_OR_RETURN(const uint32_t ordinal, InsertNew(shard, hash, key.key, table));
  rows_.fetch_add(1, std::memory_order_relaxed);
  return RowOf(shard, ordinal);
}

std::vector<int64_t> HostRows::CountByTable() const {
  std::vector<int64_t> rows(tables_.size());
  for (int64_t s = 0; s < num_shards_; ++s) {
    const Shard& shard = shards_[static_cast<size_t>(s)];
    for (int64_t c = 0; c < shard.num_chunks; ++c) {
      rows[shard.chunks[c].table_index] += shard.chunks[c].CountLive();
    }
  }
  return rows;
}

absl::Status HostRows::ForEachChunk(
    absl::FunctionRef<absl::Status(uint32_t table_index, std::span<const HostRow> rows)> visit)
    const {
  for (int64_t s = 0; s < num_shards_; ++s) {
    const Shard& shard = shards_[static_cast<size_t>(s)];
    for (int64_t c = 0; c < shard.num_chunks; ++c) {
      const HostChunk& chunk = shard.chunks[c];
      const int64_t row_bytes = tables_[chunk.table_index].row_bytes;
      std::array<HostRow, kChunkRows> live;
      size_t n = 0;
      HOTROW_RETURN_IF_ERROR(chunk.ForEachLive([&](uint32_t slot) {
        live[n++] = {*chunk.key(slot), chunk.rows + slot * row_bytes};
        return absl::OkStatus();
      }));
      if (n == 0) continue;
      HOTROW_RETURN_IF_ERROR(visit(chunk.table_index, {live.data(), n}));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> HostRows::InsertNew(Shard& shard, const RowHash& hash, uint64_t key,
                                             uint32_t table) {
  HOTROW_ASSIGN_OR_RETURN(const uint32_t ordinal, TakeSlot(shard, table));
  const HostChunk& chunk = ChunkOf(shard, ordinal);
  *chunk.key(ordinal % kChunkRows) = key;
  chunk.SetLive(ordinal % kChunkRows);
  absl::Status status =
      PartitionOf(hash).Insert(budget_, pool_, hash, ordinal, KeyAccess{*this, shard});
  if (!status.ok()) {
    FreeSlot(shard, ordinal);
    return status;
  }
  return ordinal;
}

absl::StatusOr<uint32_t> HostRows::TakeSlot(Shard& shard, uint32_t table) {
  TableSpace& space = shard.spaces[table];
  if (space.free_head != kNoOrdinal) {
    const uint32_t ordinal = space.free_head;
    space.free_head = static_cast<uint32_t>(*ChunkOf(shard, ordinal).key(ordinal % kChunkRows));
    return ordinal;
  }
  if (space.fresh_next == space.fresh_end) HOTROW_RETURN_IF_ERROR(AddChunk(shard, table));
  return space.fresh_next++;
}

void HostRows::FreeSlot(Shard& shard, uint32_t ordinal) {
  const HostChunk& chunk = ChunkOf(shard, ordinal);
  TableSpace& space = shard.spaces[chunk.table_index];
  chunk.ClearLive(ordinal % kChunkRows);
  *chunk.key(ordinal % kChunkRows) = space.free_head;
  space.free_head = ordinal;
}

absl::Status HostRows::AddChunk(Shard& shard, uint32_t table) {
  constexpr int64_t kChunksMax = (int64_t{1} << 32) / kChunkRows - 1;  // kNoOrdinal stays free
  if (shard.num_chunks == kChunksMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("host store: a shard holds its most, ", kChunksMax * kChunkRows, " rows"));
  }
  if (shard.num_chunks == shard.chunks.size()) {
    const int64_t size = std::max<int64_t>(16, shard.num_chunks + shard.num_chunks / 8);
    HOTROW_ASSIGN_OR_RETURN(auto larger,
                            BudgetedBuffer<HostChunk>::Create(size, {budget_, HugePages::kTry}));
    std::copy_n(shard.chunks.data(), shard.num_chunks, larger.data());
    shard.chunks = std::move(larger);
  }
  TableSpace& space = shard.spaces[table];
  const int64_t row_bytes = tables_[table].row_bytes;
  const int64_t slots =
      std::min(std::max<int64_t>(kChunkSlotsMin, space.num_slots / 8), tables_[table].slots_max);
  HOTROW_ASSIGN_OR_RETURN(std::byte* const piece, arena_.Carve(HostChunk::Bytes(row_bytes, slots)));
  row_space_bytes_.fetch_add(row_bytes * slots, std::memory_order_relaxed);
  shard.chunks[shard.num_chunks] = {.rows = piece + HostChunk::HeadBytes(slots),
                                    .table_index = table,
                                    .num_slots = static_cast<uint32_t>(slots)};
  space.fresh_next = static_cast<uint32_t>(shard.num_chunks * kChunkRows);
  space.fresh_end = space.fresh_next + static_cast<uint32_t>(slots);
  space.num_slots += static_cast<uint32_t>(slots);
  ++shard.num_chunks;
  return absl::OkStatus();
}

}  // namespace hotrow::internal
