#include "store/rocks/rocks_store.h"

#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/statistics.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "store/disk_room.h"
#include "store/rocks/rocks_database_impl.h"
#include "store/rocks/rocks_disk_impl.h"
#include "store/rocks/rocks_engine_impl.h"
#include "store/rocks/rocks_live_state_impl.h"
#include "store/rocks/rocks_options_impl.h"
#include "store/rocks/rocks_snapshots_impl.h"

namespace hotrow {
namespace {

using internal::EncodeRocksKey;
using internal::kRocksBlockBytes;
using internal::kRocksCountKey;
using internal::kRocksFindChunkMax;
using internal::kRocksKeyBytes;
using internal::kRocksRowOverhead;
using internal::ReadRocksCount;
using internal::RocksDisk;
using internal::RocksEngine;
using internal::RocksLiveState;
using internal::RocksSizes;
using internal::RocksSnapshots;
using internal::VisitRocksRows;
using internal::VisitSomeRocksRows;

// A batch goes to RocksDB in pieces of about this size, which bounds what a memtable takes beyond
// its size.
constexpr int64_t kPieceBytes = int64_t{1} << 20;

using KeyBytes = std::array<char, kRocksKeyBytes>;

rocksdb::Slice ToSlice(const KeyBytes& key) { return {key.data(), key.size()}; }

struct RowKeyHash {
  // Seeded: nobody can choose keys that collide.
  size_t operator()(const RowKey& key) const { return absl::HashOf(key.key, key.table); }
};

// The strict cache found no room: pinned blocks of other reads fill it for the moment.
bool IsOutOfCache(const rocksdb::Status& status) {
  return status.IsMemoryLimit() || status.IsIncomplete();
}

class RocksStore final : public RowStore, public DiskRoom {
 public:
  explicit RocksStore(const RocksStoreOptions& options)
      : options_(options),
        sizes_(options),
        live_(options_),
        disk_(options_),
        engine_(options_, sizes_, disk_),
        snapshots_(options_, engine_, disk_),
        pool_(options.read_threads) {
    for (const StoreTable& table : options_.tables) row_bytes_[table.table] = table.row_bytes;
  }

  absl::Status Init();

  absl::Status Find(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                    std::span<uint8_t> found) override;
  absl::Status InsertOrAssign(std::span<const RowKey> keys,
                              std::span<const std::byte* const> rows) override;
  absl::Status Erase(std::span<const RowKey> keys) override;
  absl::Status Iterate(
      absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) override;
  absl::Status Flush() override;
  void TidyForSnapshot() override { disk_.DropErased(engine_); }
  using RowStore::PrepareSnapshot;
  absl::Status PrepareSnapshot(SnapshotId snapshot, absl::FunctionRef<void()> captured) override {
    HOTROW_RETURN_IF_ERROR(live_.CheckInPlace());
    return snapshots_.Prepare(snapshot, rows_at_open_, captured);
  }
  absl::Status CommitSnapshot(SnapshotId snapshot) override {
    HOTROW_RETURN_IF_ERROR(live_.CheckInPlace());
    return snapshots_.Commit(snapshot);
  }
  absl::Status DropSnapshot(SnapshotId snapshot) override {
    HOTROW_RETURN_IF_ERROR(live_.CheckInPlace());
    return snapshots_.Drop(snapshot);
  }
  absl::StatusOr<std::vector<SnapshotId>> ListSnapshots() override {
    HOTROW_RETURN_IF_ERROR(live_.CheckInPlace());
    return snapshots_.List();
  }
  absl::StatusOr<SnapshotInfo> DescribeSnapshot(SnapshotId snapshot) override {
    HOTROW_RETURN_IF_ERROR(live_.CheckInPlace());
    return snapshots_.Describe(snapshot);
  }
  RowStoreStats Stats() const override;
  std::span<const StoreTable> tables() const override { return options_.tables; }
  int64_t row_bytes(uint32_t table) const override {
    const auto found = row_bytes_.find(table);
    return found == row_bytes_.end() ? 0 : found->second;
  }
  void SetAgeLines(std::span<const RowAgeLine> lines) override;
  absl::Status CheckRoom(std::span<const RowsToCome> to_come) override;
  // Deletes them; compactions make room of that.
  absl::StatusOr<int64_t> DropAged(int64_t rows) override;

 private:
  absl::Status CountRows();

  absl::Status CheckTablesOf(std::span<const RowKey> keys) const;
  // found[i] = whether keys[i] is there; copies rows unless `rows` is empty.
  absl::Status Lookup(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                      std::span<uint8_t> found);
  absl::Status LookupChunk(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                           std::span<uint8_t> found);
  absl::Status TakeRow(const RowKey& key, const rocksdb::Status& status,
                       const rocksdb::PinnableSlice& value, std::byte* row, uint8_t* found) const;
  // Before these are inserted.
  absl::Status MakeRoom(std::span<const RowKey> keys, int64_t bytes);
  // Inserts, or erases when `rows` is empty.
  absl::Status WritePieces(std::span<const RowKey> keys, std::span<const std::byte* const> rows);
  absl::Status WritePiece(std::span<const RowKey> keys, std::span<const std::byte* const> rows);
  // WritePiece with writers_mutex_.
  absl::Status WriteHeld(std::span<const RowKey> keys, std::span<const std::byte* const> rows);
  bool HasAged(const RowKey& key, const std::byte* row) const;  // with aging_mutex_
  // Deletes those of these rows that are still old. Returns how many.
  absl::StatusOr<int64_t> DropPiece(std::span<const RowKey> keys);

  const RocksStoreOptions options_;
  const RocksSizes sizes_;
  std::unordered_map<uint32_t, int64_t> row_bytes_;
  RocksLiveState live_;  // outlives the database: it holds the lock of the directory
  RocksDisk disk_;
  RocksEngine engine_;
  RocksSnapshots snapshots_;
  ThreadPool pool_;

  std::mutex aging_mutex_;  // guards what follows; before writers_mutex_
  std::unordered_map<uint32_t, RowAgeLine> age_lines_;
  RowKey next_to_look_at_;

  // Alone: who must know what is there until the write is done, as with exact counts. Shared: other
  // batches that write.
  std::shared_mutex writers_mutex_;
  int64_t rows_at_open_ = 0;
  std::atomic<int64_t> rows_{0};
  std::atomic<int64_t> finds_{0};
  std::atomic<int64_t> found_{0};
  std::atomic<int64_t> rows_written_{0};
  std::atomic<int64_t> rows_erased_{0};
  std::atomic<int64_t> payload_bytes_{0};
  std::atomic<int64_t> to_come_bytes_{0};  // of new rows that CheckRoom said yes to
  std::atomic<int64_t> changed_bytes_{0};  // of all rows, and that were not written yet
};

// --- Opening -------------------------------------------------------------------------------------

absl::Status RocksStore::Init() {
  HOTROW_RETURN_IF_ERROR(pool_.status());
  HOTROW_RETURN_IF_ERROR(live_.Open(engine_));
  HOTROW_RETURN_IF_ERROR(CountRows());
  HOTROW_RETURN_IF_ERROR(disk_.Recount(engine_));
  // Opening it commits it.
  if (options_.open_at != 0) HOTROW_RETURN_IF_ERROR(CommitSnapshot(options_.open_at));
  return absl::OkStatus();
}

absl::Status RocksStore::CountRows() {
  rocksdb::DB& db = engine_.db();
  HOTROW_ASSIGN_OR_RETURN(const int64_t kept, ReadRocksCount(db, options_.path));
  if (!options_.exact_counts) {
    if (kept < 0) return absl::OkStatus();
    // Blind writes would make it wrong for who counts later.
    rocksdb::WriteOptions options;
    options.disableWAL = true;
    return engine_.ToStatus(db.Delete(options, {kRocksCountKey.data(), kRocksCountKey.size()}),
                            "count rows");
  }
  int64_t rows = kept;
  if (kept < 0) {
    rows = 0;
    HOTROW_RETURN_IF_ERROR(Iterate([&](const RowKey&, std::span<const std::byte>) -> absl::Status {
      ++rows;
      return absl::OkStatus();
    }));
  }
  rows_at_open_ = rows;
  rows_ = rows;
  return absl::OkStatus();
}

// --- Batches -------------------------------------------------------------------------------------

absl::Status RocksStore::CheckTablesOf(std::span<const RowKey> keys) const {
  uint32_t known = 0;  // the table that was looked up last
  bool any = false;
  for (const RowKey& key : keys) {
    if (any && key.table == known) continue;
    if (!row_bytes_.contains(key.table)) {
      return absl::InvalidArgumentError(
          absl::StrCat("RocksDB store ", options_.path, ": there is no table ", key.table));
    }
    known = key.table;
    any = true;
  }
  return absl::OkStatus();
}

absl::Status RocksStore::TakeRow(const RowKey& key, const rocksdb::Status& status,
                                 const rocksdb::PinnableSlice& value, std::byte* row,
                                 uint8_t* found) const {
  *found = 0;
  if (status.IsNotFound()) return absl::OkStatus();
  if (!status.ok()) {
    return engine_.ToStatus(status, absl::StrCat("find key ", key.key, " of table ", key.table));
  }
  const int64_t wanted = row_bytes(key.table);
  if (static_cast<int64_t>(value.size()) != wanted) {
    return absl::DataLossError(absl::StrCat("RocksDB store ", options_.path, ": key ", key.key,
                                            " of table ", key.table, " has ", value.size(),
                                            " bytes, not ", wanted));
  }
  *found = 1;
  if (row != nullptr) std::memcpy(row, value.data(), value.size());
  return absl::OkStatus();
}

absl::Status RocksStore::LookupChunk(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                                     std::span<uint8_t> found) {
  const size_t n = keys.size();
  std::array<KeyBytes, kRocksFindChunkMax> bytes;
  std::array<rocksdb::Slice, kRocksFindChunkMax> slices;
  std::array<rocksdb::PinnableSlice, kRocksFindChunkMax> values;
  std::array<rocksdb::Status, kRocksFindChunkMax> statuses;
  for (size_t i = 0; i < n; ++i) {
    bytes[i] = EncodeRocksKey(keys[i]);
    slices[i] = ToSlice(bytes[i]);
  }
  rocksdb::ReadOptions options;
  options.verify_checksums = true;
  rocksdb::DB& db = engine_.db();
  db.MultiGet(options, db.DefaultColumnFamily(), n, slices.data(), values.data(), statuses.data());
  bool again = false;
  for (size_t i = 0; i < n; ++i) {
    if (IsOutOfCache(statuses[i])) {
      again = true;
      continue;
    }
    HOTROW_RETURN_IF_ERROR(
        TakeRow(keys[i], statuses[i], values[i], rows.empty() ? nullptr : rows[i], &found[i]));
    values[i].Reset();
  }
  if (!again) return absl::OkStatus();
  // One by one, with nothing else pinned by this thread, and giving others time to finish.
  constexpr int kTries = 200;
  for (size_t i = 0; i < n; ++i) {
    for (int tries = 0; IsOutOfCache(statuses[i]) && tries < kTries; ++tries) {
      if (tries > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      values[i].Reset();
      statuses[i] = db.Get(options, db.DefaultColumnFamily(), slices[i], &values[i]);
      if (IsOutOfCache(statuses[i])) continue;
      HOTROW_RETURN_IF_ERROR(
          TakeRow(keys[i], statuses[i], values[i], rows.empty() ? nullptr : rows[i], &found[i]));
    }
    if (IsOutOfCache(statuses[i])) {
      return absl::ResourceExhaustedError(
          absl::StrCat("RocksDB store ", options_.path, ": the memory budget of ",
                       options_.memory_budget_bytes, " bytes has no room for one more block of ",
                       std::max(kRocksBlockBytes, sizes_.row_bytes_max), " bytes; raise ",
                       options_.memory_option, ": ", statuses[i].ToString()));
    }
    values[i].Reset();
  }
  return absl::OkStatus();
}

absl::Status RocksStore::Lookup(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                                std::span<uint8_t> found) {
  std::mutex mutex;
  absl::Status first_error;
  std::atomic<bool> failed{false};
  pool_.ParallelFor(
      static_cast<int64_t>(keys.size()), sizes_.find_chunk, [&](int64_t begin, int64_t end) {
        if (failed.load(std::memory_order_relaxed)) return;
        const auto at = static_cast<size_t>(begin);
        const auto n = static_cast<size_t>(end - begin);
        const absl::Status status = LookupChunk(
            keys.subspan(at, n), rows.empty() ? rows : rows.subspan(at, n), found.subspan(at, n));
        if (status.ok()) return;
        failed = true;
        const std::lock_guard lock(mutex);
        first_error.Update(status);
      });
  return first_error;
}

absl::Status RocksStore::Find(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                              std::span<uint8_t> found) {
  if (rows.size() != keys.size() || found.size() != keys.size()) {
    return absl::InvalidArgumentError(absl::StrCat("RocksDB store: Find got ", keys.size(),
                                                   " keys, ", rows.size(), " rows and ",
                                                   found.size(), " flags"));
  }
  HOTROW_RETURN_IF_ERROR(CheckTablesOf(keys));
  HOTROW_RETURN_IF_ERROR(Lookup(keys, rows, found));
  finds_ += static_cast<int64_t>(keys.size());
  found_ += std::count(found.begin(), found.end(), 1);
  engine_.NotePeak();
  return absl::OkStatus();
}

absl::Status RocksStore::InsertOrAssign(std::span<const RowKey> keys,
                                        std::span<const std::byte* const> rows) {
  if (rows.size() != keys.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "RocksDB store: InsertOrAssign got ", keys.size(), " keys and ", rows.size(), " rows"));
  }
  return WritePieces(keys, rows);
}

absl::Status RocksStore::Erase(std::span<const RowKey> keys) { return WritePieces(keys, {}); }

absl::Status RocksStore::WritePieces(std::span<const RowKey> keys,
                                     std::span<const std::byte* const> rows) {
  HOTROW_RETURN_IF_ERROR(CheckTablesOf(keys));
  for (size_t begin = 0; begin < keys.size();) {
    size_t end = begin;
    int64_t bytes = 0;
    do {
      bytes += kRocksRowOverhead + (rows.empty() ? 0 : row_bytes(keys[end].table));
      ++end;
    } while (end < keys.size() && bytes < kPieceBytes);
    if (!rows.empty() && options_.disk_budget_bytes > 0) {
      HOTROW_RETURN_IF_ERROR(MakeRoom(keys.subspan(begin, end - begin), bytes));
    }
    HOTROW_RETURN_IF_ERROR(WritePiece(keys.subspan(begin, end - begin),
                                      rows.empty() ? rows : rows.subspan(begin, end - begin)));
    begin = end;
  }
  engine_.NotePeak();
  return absl::OkStatus();
}

// Rows that are there, and those that have a promise, find room where new ones do not.
absl::Status RocksStore::MakeRoom(std::span<const RowKey> keys, int64_t bytes) {
  disk_.NoteWritten(bytes);
  const int64_t limit = disk_.new_rows_limit();
  if (disk_.HasRoom(engine_, bytes, limit)) return absl::OkStatus();
  std::vector<uint8_t> found(keys.size());
  HOTROW_RETURN_IF_ERROR(Lookup(keys, {}, found));
  int64_t fresh = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (found[i] == 0) fresh += kRocksRowOverhead + row_bytes(keys[i].table);
  }
  if (fresh > to_come_bytes_) return disk_.MakeRoom(engine_, bytes, limit);
  const absl::Status has_room = disk_.MakeRoom(engine_, bytes, options_.disk_budget_bytes);
  // A compaction may have used up, beside a snapshot, what was free when a cache changed these.
  if (!has_room.ok() && changed_bytes_.fetch_sub(bytes) >= bytes) return absl::OkStatus();
  return has_room;
}

absl::Status RocksStore::CheckRoom(std::span<const RowsToCome> to_come) {
  if (options_.disk_budget_bytes == 0) return absl::OkStatus();
  int64_t bytes = 0;
  int64_t changed = 0;
  for (const RowsToCome& some : to_come) {
    bytes += some.rows * (kRocksRowOverhead + some.row_bytes);
    changed += some.changed * (kRocksRowOverhead + some.row_bytes);
  }
  if (bytes > 0) {
    HOTROW_RETURN_IF_ERROR(disk_.MakeRoom(engine_, bytes, disk_.new_rows_limit()));
    to_come_bytes_ = bytes;
  }
  HOTROW_RETURN_IF_ERROR(disk_.MakeRoom(engine_, 0, disk_.steps_limit()));
  changed_bytes_ = changed;
  return absl::OkStatus();
}

absl::Status RocksStore::WritePiece(std::span<const RowKey> keys,
                                    std::span<const std::byte* const> rows) {
  if (options_.exact_counts) {
    const std::unique_lock lock(writers_mutex_);
    return WriteHeld(keys, rows);
  }
  const std::shared_lock lock(writers_mutex_);
  return WriteHeld(keys, rows);
}

absl::Status RocksStore::WriteHeld(std::span<const RowKey> keys,
                                   std::span<const std::byte* const> rows) {
  int64_t change = 0;  // of the number of rows
  if (options_.exact_counts) {
    std::vector<uint8_t> found(keys.size());
    HOTROW_RETURN_IF_ERROR(Lookup(keys, {}, found));
    std::unordered_set<RowKey, RowKeyHash> counted;
    for (size_t i = 0; i < keys.size(); ++i) {
      // Rows that come, or rows that go.
      if ((found[i] == 0) == !rows.empty() && counted.insert(keys[i]).second) {
        change += rows.empty() ? -1 : 1;
      }
    }
  }
  int64_t payload = 0;
  rocksdb::WriteBatch batch;
  for (size_t i = 0; i < keys.size(); ++i) {
    const KeyBytes key = EncodeRocksKey(keys[i]);
    rocksdb::Status status;
    if (rows.empty()) {
      status = batch.Delete(ToSlice(key));
    } else {
      const int64_t bytes = row_bytes(keys[i].table);
      payload += bytes;
      status = batch.Put(ToSlice(key),
                         {reinterpret_cast<const char*>(rows[i]), static_cast<size_t>(bytes)});
    }
    if (!status.ok()) return engine_.ToStatus(status, "write");
  }
  if (options_.exact_counts) {
    const int64_t rows_now = rows_.load() + change;
    HOTROW_RETURN_IF_ERROR(
        engine_.ToStatus(batch.Put({kRocksCountKey.data(), kRocksCountKey.size()},
                                   {reinterpret_cast<const char*>(&rows_now), sizeof(rows_now)}),
                         "write"));
  }
  HOTROW_RETURN_IF_ERROR(engine_.Write(batch));
  rows_ += change;
  if (rows.empty()) {
    rows_erased_ += options_.exact_counts ? -change : static_cast<int64_t>(keys.size());
    int64_t bytes = 0;
    for (const RowKey& key : keys) bytes += kRocksRowOverhead + row_bytes(key.table);
    disk_.NoteErased(bytes);
  } else {
    rows_written_ += static_cast<int64_t>(keys.size());
    payload_bytes_ += payload;
  }
  return absl::OkStatus();
}

// --- Rows that have aged -------------------------------------------------------------------------

void RocksStore::SetAgeLines(std::span<const RowAgeLine> lines) {
  const std::lock_guard lock(aging_mutex_);
  age_lines_.clear();
  for (const RowAgeLine& line : lines) {
    if (!line.lines.none()) age_lines_[line.table] = line;
  }
}

bool RocksStore::HasAged(const RowKey& key, const std::byte* row) const {
  const auto line = age_lines_.find(key.table);
  return line != age_lines_.end() && line->second.HasAged(row);
}

absl::StatusOr<int64_t> RocksStore::DropAged(int64_t rows) {
  const std::lock_guard lock(aging_mutex_);
  if (age_lines_.empty()) return 0;
  std::vector<RowKey> aged;
  HOTROW_RETURN_IF_ERROR(
      VisitSomeRocksRows(engine_.db(), options_.path, row_bytes_, rows, &next_to_look_at_,
                         [&](const RowKey& key, std::span<const std::byte> row) -> absl::Status {
                           if (HasAged(key, row.data())) aged.push_back(key);
                           return absl::OkStatus();
                         }));
  constexpr size_t kPieceKeys = 1024;
  int64_t dropped = 0;
  for (size_t begin = 0; begin < aged.size(); begin += kPieceKeys) {
    const size_t n = std::min(kPieceKeys, aged.size() - begin);
    HOTROW_ASSIGN_OR_RETURN(const int64_t piece, DropPiece(std::span(aged).subspan(begin, n)));
    dropped += piece;
  }
  engine_.NotePeak();
  return dropped;
}

// They may have been written since they were seen.
absl::StatusOr<int64_t> RocksStore::DropPiece(std::span<const RowKey> keys) {
  const std::unique_lock lock(writers_mutex_);
  int64_t bytes = 0;
  for (const RowKey& key : keys) bytes += row_bytes(key.table);
  std::vector<std::byte> copies(static_cast<size_t>(bytes));
  std::vector<std::byte*> rows;
  std::byte* next = copies.data();
  for (const RowKey& key : keys) {
    rows.push_back(next);
    next += row_bytes(key.table);
  }
  std::vector<uint8_t> found(keys.size());
  HOTROW_RETURN_IF_ERROR(Lookup(keys, rows, found));
  std::vector<RowKey> aged;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (found[i] != 0 && HasAged(keys[i], rows[i])) aged.push_back(keys[i]);
  }
  if (!aged.empty()) HOTROW_RETURN_IF_ERROR(WriteHeld(aged, {}));
  return std::ssize(aged);
}

absl::Status RocksStore::Iterate(
    absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) {
  return VisitRocksRows(engine_.db(), options_.path, row_bytes_, visit);
}

absl::Status RocksStore::Flush() {
  const uint64_t last = engine_.last_sequence();
  HOTROW_RETURN_IF_ERROR(engine_.FlushMemtables(last));
  return live_.NoteFlushed(last);
}

RowStoreStats RocksStore::Stats() const {
  RowStoreStats stats;
  const auto ticks = [&](uint32_t ticker) {
    return static_cast<int64_t>(engine_.statistics().getTickerCount(ticker));
  };
  stats.rows = options_.exact_counts ? rows_.load() : engine_.Property("rocksdb.estimate-num-keys");
  stats.budget_bytes = options_.memory_budget_bytes;
  const RocksEngine::Memory memory = engine_.memory();
  stats.used_bytes = memory.used_bytes;
  stats.peak_bytes = memory.peak_bytes;
  stats.metadata_bytes = memory.reader_bytes;
  stats.finds = finds_.load();
  stats.found = found_.load();
  stats.rows_written = rows_written_.load();
  stats.rows_erased = rows_erased_.load();
  stats.payload_bytes_written = payload_bytes_.load();
  stats.ios = ticks(rocksdb::LAST_LEVEL_READ_COUNT) + ticks(rocksdb::NON_LAST_LEVEL_READ_COUNT);
  stats.bytes_read =
      ticks(rocksdb::LAST_LEVEL_READ_BYTES) + ticks(rocksdb::NON_LAST_LEVEL_READ_BYTES);
  stats.bytes_written = ticks(rocksdb::FLUSH_WRITE_BYTES) + ticks(rocksdb::COMPACT_WRITE_BYTES);
  stats.disk_budget_bytes = options_.disk_budget_bytes;
  const RocksDisk::Usage usage = disk_.Measure(engine_);
  stats.disk_used_bytes = usage.all_bytes;
  stats.snapshot_bytes = usage.snapshot_bytes;
  return stats;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RowStore>> OpenRocksStore(const RocksStoreOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  auto store = std::make_unique<RocksStore>(options);
  HOTROW_RETURN_IF_ERROR(store->Init());
  return std::unique_ptr<RowStore>(std::move(store));
}

}  // namespace hotrow
