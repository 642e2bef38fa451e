#include "store/rocks/rocks_store.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_checksum.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/listener.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_manager.h>
#include <rocksdb/statistics.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/checkpoint.h>
#include <rocksdb/write_batch.h>
#include <rocksdb/write_buffer_manager.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/hash/hash.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/env.h"
#include "base/errno_status.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "base/unique_id.h"
#include "store/rocks/rocks_database_impl.h"
#include "store/rocks/rocks_dir_impl.h"

namespace hotrow {
namespace {

namespace fs = std::filesystem;

using internal::CheckRocksDatabaseFiles;
using internal::CheckRocksDirectory;
using internal::CheckRocksSnapshotFiles;
using internal::CopyRegularFile;
using internal::Crc32cOfFile;
using internal::kRocksCommittedName;
using internal::kRocksCountKey;
using internal::kRocksKeyBytes;
using internal::kRocksListName;
using internal::kRocksLiveName;
using internal::kRocksMakingName;
using internal::kRocksSnapshotsName;
using internal::kRocksTablesName;
using internal::kRocksUnfinished;
using internal::LookAtRocksDirectory;
using internal::ParseHex16;
using internal::ReadRocksCount;
using internal::ReadRocksLive;
using internal::ReadRocksSnapshot;
using internal::ReadRocksTables;
using internal::RocksDamageToStatus;
using internal::RocksDatabase;
using internal::RocksDirectory;
using internal::RocksDirLock;
using internal::RocksErrorWithText;
using internal::RocksFile;
using internal::RocksLive;
using internal::RocksLiveDirName;
using internal::RocksLiveToText;
using internal::RocksRemedy;
using internal::RocksSnapshot;
using internal::RocksSnapshotDir;
using internal::RocksSnapshotList;
using internal::RocksSnapshotListToText;
using internal::RocksTablesToText;
using internal::VisitRocksRows;

constexpr int64_t kRowBytesMax = int64_t{1} << 30;
constexpr int64_t kMiB = int64_t{1} << 20;
// A batch goes to RocksDB in pieces of about this size, which bounds what a memtable takes beyond
// its size.
constexpr int64_t kPieceBytes = kMiB;
// What a row takes in a memtable besides its bytes: key, sequence, lengths, node of the list.
constexpr int64_t kRowOverhead = 48;
// RocksDB's default unit of reading; with O_DIRECT on 512-byte or 4096-byte blocks one read is one
// page.
constexpr int64_t kBlockBytes = 4096;
// Blocks that MultiGet looks up at a time; RocksDB itself goes by 32.
constexpr int64_t kFindChunkMax = 64;
// Of indexes, while a database is only looked at.
constexpr int64_t kLookCacheBytes = kMiB;

using KeyBytes = std::array<char, kRocksKeyBytes>;

KeyBytes EncodeKey(const RowKey& key) {
  KeyBytes bytes;
  for (int i = 0; i < 4; ++i) bytes[i] = static_cast<char>(key.table >> (24 - 8 * i));
  for (int i = 0; i < 8; ++i) bytes[4 + i] = static_cast<char>(key.key >> (56 - 8 * i));
  return bytes;
}

rocksdb::Slice ToSlice(const KeyBytes& key) { return {key.data(), key.size()}; }

struct RowKeyHash {
  // Seeded: nobody can choose keys that collide.
  size_t operator()(const RowKey& key) const { return absl::HashOf(key.key, key.table); }
};

absl::Status FsError(const std::error_code& error, absl::string_view what) {
  return ErrnoToStatus(error.value(), std::string_view(what.data(), what.size()));
}

absl::Status RemoveAll(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return error ? FsError(error, absl::StrCat("remove ", path)) : absl::OkStatus();
}

// The bytes of the files in a directory, by inode, so that hard links count once.
absl::Status AddFiles(const std::string& dir, std::map<uint64_t, int64_t>& bytes_of) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixEnv().ListDir(dir));
  for (const std::string& name : names) {
    struct stat info;
    // RocksDB removes files meanwhile.
    if (::stat(absl::StrCat(dir, "/", name).c_str(), &info) != 0 || !S_ISREG(info.st_mode)) {
      continue;
    }
    bytes_of[info.st_ino] = info.st_size;
  }
  return absl::OkStatus();
}

// Against those of the directory's list, in any order.
absl::Status CheckTables(const std::string& path, std::span<const StoreTable> listed,
                         std::span<const StoreTable> tables) {
  const auto disagrees = [&](uint32_t table, absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("RocksDB store: ", path, ": table ", table, ": ", what));
  };
  std::map<uint32_t, int64_t> wanted;
  for (const StoreTable& table : tables) wanted[table.table] = table.row_bytes;
  for (const StoreTable& table : listed) {
    const auto found = wanted.find(table.table);
    if (found == wanted.end()) {
      return disagrees(table.table, "is in the store, the options have no such table");
    }
    if (found->second != table.row_bytes) {
      return disagrees(table.table,
                       absl::StrCat("row_bytes is ", table.row_bytes, " in the store and ",
                                    found->second, " in the options"));
    }
    wanted.erase(found);
  }
  if (!wanted.empty()) {
    return disagrees(wanted.begin()->first, "is in the options, the store has no such table");
  }
  return absl::OkStatus();
}

// The number in "live-<16 hex digits>"; 0 when the name is another.
uint64_t LiveNumber(const std::string& name) {
  absl::string_view digits = name;
  if (!absl::ConsumePrefix(&digits, "live-")) return 0;
  return ParseHex16({digits.data(), digits.size()});
}

// --- Sizes ---------------------------------------------------------------------------------------

struct Sizes {
  explicit Sizes(const RocksStoreOptions& options) {
    const int64_t budget = options.memory_budget_bytes;
    uncounted = std::min(budget / 8, 32 * kMiB);
    cache = budget - uncounted;
    // A quarter for memtables: half of that fills up while the other half is flushed.
    memtables = std::min(budget / 4, 256 * kMiB);
    memtable = memtables / 2;
    for (const StoreTable& table : options.tables) {
      row_bytes_max = std::max(row_bytes_max, table.row_bytes);
    }
    // Blocks that finds pin at one time, an eighth of the cache at most: a strict cache refuses
    // what does not fit beside them.
    const int64_t block = std::max(2 * kBlockBytes, 2 * row_bytes_max);
    const int64_t blocks = std::max<int64_t>(1, cache / 8 / block);
    find_chunk = std::clamp<int64_t>(blocks / options.read_threads, 1, kFindChunkMax);
  }

  int64_t uncounted = 0;
  int64_t cache = 0;
  int64_t memtables = 0;
  int64_t memtable = 0;
  int64_t row_bytes_max = 0;
  int64_t find_chunk = 0;
};

// What RocksDB says from its own threads.
class Listener final : public rocksdb::EventListener {
 public:
  void OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status* error) override {
    const std::lock_guard lock(mutex_);
    error_ = *error;
  }
  void OnErrorRecoveryEnd(const rocksdb::BackgroundErrorRecoveryInfo& info) override {
    const std::lock_guard lock(mutex_);
    error_ = info.new_bg_error;
  }
  void OnErrorRecoveryCompleted(rocksdb::Status) override {
    const std::lock_guard lock(mutex_);
    error_ = rocksdb::Status::OK();
  }
  void OnTableFileDeleted(const rocksdb::TableFileDeletionInfo&) override {
    files_deleted_.fetch_add(1, std::memory_order_relaxed);
  }

  void OnFlushCompleted(rocksdb::DB*, const rocksdb::FlushJobInfo& info) override {
    NoteFlushed(info.largest_seqno);
  }

  rocksdb::Status error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  // Everything up to this number is in files.
  void NoteFlushed(rocksdb::SequenceNumber number) {
    {
      const std::lock_guard lock(mutex_);
      flushed_ = std::max(flushed_, number);
    }
    changed_.notify_all();
  }
  // Waits until that is so, but not for long; whether it is.
  bool AwaitFlushed(rocksdb::SequenceNumber number, std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, patience, [&] { return flushed_ >= number; });
  }
  int64_t files_deleted() const { return files_deleted_.load(std::memory_order_relaxed); }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  rocksdb::Status error_;
  rocksdb::SequenceNumber flushed_ = 0;
  std::atomic<int64_t> files_deleted_{0};
};

bool IsOutOfSpace(const rocksdb::Status& status) {
  return status.IsNoSpace() || status.subcode() == rocksdb::Status::kSpaceLimit;
}
// The strict cache found no room: pinned blocks of other reads fill it for the moment.
bool IsOutOfCache(const rocksdb::Status& status) {
  return status.IsMemoryLimit() || status.IsIncomplete();
}

class RocksStore final : public RowStore {
 public:
  explicit RocksStore(const RocksStoreOptions& options)
      : options_(options),
        sizes_(options),
        listener_(std::make_shared<Listener>()),
        pool_(options.read_threads) {
    for (const StoreTable& table : options_.tables) row_bytes_[table.table] = table.row_bytes;
  }
  ~RocksStore() override;

  absl::Status Init();

  absl::Status Find(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                    std::span<uint8_t> found) override;
  absl::Status InsertOrAssign(std::span<const RowKey> keys,
                              std::span<const std::byte* const> rows) override;
  absl::Status Erase(std::span<const RowKey> keys) override;
  absl::Status Iterate(
      absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) override;
  absl::Status Flush() override;
  using RowStore::PrepareSnapshot;
  absl::Status PrepareSnapshot(SnapshotId snapshot, absl::FunctionRef<void()> captured) override;
  absl::Status CommitSnapshot(SnapshotId snapshot) override;
  absl::Status DropSnapshot(SnapshotId snapshot) override;
  absl::StatusOr<std::vector<SnapshotId>> ListSnapshots() override;
  absl::StatusOr<SnapshotInfo> DescribeSnapshot(SnapshotId snapshot) override;
  RowStoreStats Stats() const override;
  std::span<const StoreTable> tables() const override { return options_.tables; }
  int64_t row_bytes(uint32_t table) const override {
    const auto found = row_bytes_.find(table);
    return found == row_bytes_.end() ? 0 : found->second;
  }

 private:
  // --- Opening ---
  absl::Status MakeStore(const RocksDirectory& directory);
  absl::Status OpenStore(const RocksDirectory& directory);
  // What opening needs is there and whole; changes nothing.
  absl::Status CheckLive(const RocksDirectory& directory);
  absl::StatusOr<RocksSnapshot> CheckSnapshot();
  absl::Status RemoveUnfinished();
  absl::Status RemoveOtherLiveDirs(const RocksDirectory& directory);
  absl::Status OpenSnapshot(const RocksDirectory& directory, const RocksSnapshot& snapshot);
  absl::Status RestoreSnapshot(const RocksSnapshot& snapshot, const std::string& to);
  absl::Status WriteLive(const RocksLive& live);
  absl::Status OpenDb(const std::string& dir, bool create);
  absl::Status CountRows();
  rocksdb::Options DbOptions(bool direct);

  // --- Batches ---
  absl::Status CheckTablesOf(std::span<const RowKey> keys) const;
  // found[i] = whether keys[i] is there; copies rows unless `rows` is empty.
  absl::Status Lookup(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                      std::span<uint8_t> found);
  absl::Status LookupChunk(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                           std::span<uint8_t> found);
  absl::Status TakeRow(const RowKey& key, const rocksdb::Status& status,
                       const rocksdb::PinnableSlice& value, std::byte* row, uint8_t* found) const;
  // Inserts, or erases when `rows` is empty.
  absl::Status WritePieces(std::span<const RowKey> keys, std::span<const std::byte* const> rows);
  absl::Status WritePiece(std::span<const RowKey> keys, std::span<const std::byte* const> rows);
  absl::Status Write(rocksdb::WriteBatch& batch);
  rocksdb::Status WriteWithoutHanging(rocksdb::WriteBatch& batch);

  // Everything up to this number of RocksDB's is in files afterwards.
  absl::Status FlushMemtables(rocksdb::SequenceNumber last);
  absl::Status WriteSnapshotList(SnapshotId snapshot, const std::string& dir,
                                 rocksdb::SequenceNumber last);

  // --- Disk ---
  std::string PathOf(absl::string_view name) const {
    return absl::StrCat(options_.path, "/", name);
  }
  std::string SnapshotsDir() const { return PathOf(kRocksSnapshotsName); }
  std::string SnapshotDir(SnapshotId id) const { return RocksSnapshotDir(options_.path, id); }
  int64_t Property(std::string_view name) const {
    uint64_t value = 0;
    return db_->GetIntProperty({name.data(), name.size()}, &value) ? static_cast<int64_t>(value)
                                                                   : 0;
  }
  absl::Status RefreshSnapshotBytes();
  absl::Status CheckDiskBudget(int64_t more_bytes);
  int64_t DiskBytes() const;
  absl::Status DiskFull(int64_t used, int64_t more) const;

  // --- Errors ---
  absl::Status ToStatus(const rocksdb::Status& status, absl::string_view what) const;
  absl::Status Precondition(absl::string_view what) const {
    return absl::FailedPreconditionError(absl::StrCat("RocksDB store ", options_.path, ": ", what));
  }
  void NotePeak() const;

  const RocksStoreOptions options_;
  const Sizes sizes_;
  std::unordered_map<uint32_t, int64_t> row_bytes_;
  std::unique_ptr<RocksDirLock> lock_;
  std::shared_ptr<Listener> listener_;
  std::shared_ptr<rocksdb::Cache> cache_;
  std::shared_ptr<rocksdb::WriteBufferManager> write_buffers_;
  std::shared_ptr<rocksdb::SstFileManager> files_;
  std::shared_ptr<rocksdb::Statistics> statistics_;
  std::string live_dir_;
  std::mutex live_mutex_;  // guards live_ and the file LIVE
  RocksLive live_;
  std::unique_ptr<rocksdb::DB> db_;
  ThreadPool pool_;

  // Lock order: snapshots, writers.
  std::mutex snapshot_mutex_;  // one snapshot is made, committed or dropped at a time
  std::mutex writers_mutex_;   // with exact counts, one batch that writes at a time

  int64_t rows_at_open_ = 0;
  std::atomic<int64_t> rows_{0};
  mutable std::atomic<int64_t> peak_bytes_{0};
  std::atomic<int64_t> finds_{0};
  std::atomic<int64_t> found_{0};
  std::atomic<int64_t> rows_written_{0};
  std::atomic<int64_t> rows_erased_{0};
  std::atomic<int64_t> payload_bytes_{0};
  std::atomic<int64_t> erased_since_compaction_{0};
  std::mutex disk_mutex_;  // guards files_deleted_seen_ and the refreshing of snapshot_bytes_
  int64_t files_deleted_seen_ = -1;
  std::atomic<int64_t> snapshot_bytes_{0};
};

absl::Status RocksStore::ToStatus(const rocksdb::Status& status, absl::string_view what) const {
  if (status.ok()) return absl::OkStatus();
  std::string text =
      absl::StrCat("RocksDB store ", options_.path, ": ", what, ": ", status.ToString());
  if (IsOutOfSpace(status)) {
    return absl::ResourceExhaustedError(options_.disk_budget_bytes == 0
                                            ? text
                                            : absl::StrCat(text, "; the disk budget is ",
                                                           options_.disk_budget_bytes, " bytes, ",
                                                           DiskBytes(), " are used"));
  }
  if (status.IsMemoryLimit()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(text, "; the memory budget is ", options_.memory_budget_bytes, " bytes"));
  }
  return RocksErrorWithText(status, text);
}

// --- Opening -------------------------------------------------------------------------------------

rocksdb::Options RocksStore::DbOptions(bool direct) {
  rocksdb::LRUCacheOptions cache;
  cache.capacity = static_cast<size_t>(sizes_.cache);
  // A shard must hold the blocks that are pinned in it and what memtables reserve, 256 KiB a piece.
  const auto shards = static_cast<uint64_t>(sizes_.cache / (32 * kMiB));
  cache.num_shard_bits = std::clamp(static_cast<int>(std::bit_width(shards)) - 1, 0, 6);
  cache.strict_capacity_limit = true;
  cache_ = rocksdb::NewLRUCache(cache);
  write_buffers_ =
      std::make_shared<rocksdb::WriteBufferManager>(static_cast<size_t>(sizes_.memtables), cache_);
  files_.reset(rocksdb::NewSstFileManager(rocksdb::Env::Default()));
  statistics_ = rocksdb::CreateDBStatistics();
  statistics_->set_stats_level(rocksdb::StatsLevel::kExceptDetailedTimers);

  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache_;
  table.cache_index_and_filter_blocks = true;
  table.pin_l0_filter_and_index_blocks_in_cache = false;
  // Index and filter in pieces of a block, so that a small cache need not hold a file's whole one.
  table.index_type = rocksdb::BlockBasedTableOptions::kTwoLevelIndexSearch;
  table.partition_filters = true;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.optimize_filters_for_memory = true;
  table.checksum = rocksdb::kCRC32c;
  table.format_version = 5;
  table.block_size = kBlockBytes;
  // A block in one page is one page to read. Rows of more than a quarter of a page would leave too
  // much of it empty.
  table.block_align = sizes_.row_bytes_max + kRowOverhead <= kBlockBytes / 4;

  rocksdb::Options options;
  options.paranoid_checks = true;
  options.compression = rocksdb::kNoCompression;
  options.bottommost_compression = rocksdb::kNoCompression;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.write_buffer_manager = write_buffers_;
  options.write_buffer_size = static_cast<size_t>(sizes_.memtable);
  options.max_write_buffer_number = 4;
  options.level_compaction_dynamic_level_bytes = true;
  const int64_t level_base = std::max(4 * sizes_.memtable, 8 * kMiB);
  options.max_bytes_for_level_base = static_cast<uint64_t>(level_base);
  options.target_file_size_base =
      static_cast<uint64_t>(std::clamp(level_base / 4, 2 * kMiB, 64 * kMiB));
  options.max_background_jobs = options_.background_jobs;
  options.use_direct_reads = direct;
  options.use_direct_io_for_flush_and_compaction = direct;
  options.compaction_readahead_size = 512 << 10;
  options.sst_file_manager = files_;
  options.statistics = statistics_;
  // Made while a table file is written, and kept in the MANIFEST. RocksDB 7.8 leaves the padding of
  // aligned blocks out, and what it says of such a file is then wrong.
  if (!table.block_align) {
    options.file_checksum_gen_factory = rocksdb::GetFileChecksumGenCrc32cFactory();
  }
  options.listeners.push_back(listener_);
  options.info_log = internal::NewRocksNoLog();
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  return options;
}

// Nothing was promised to anybody until the mark is gone: whoever finds it without LIVE begins
// anew.
absl::Status RocksStore::MakeStore(const RocksDirectory& directory) {
  if (options_.open_at != 0) {
    return Precondition(absl::StrCat("there is no snapshot ", options_.open_at));
  }
  Env& env = PosixEnv();
  HOTROW_RETURN_IF_ERROR(WriteFileAtomically(env, PathOf(kRocksMakingName), ""));
  HOTROW_RETURN_IF_ERROR(CreateDirsDurably(env, SnapshotsDir()));
  HOTROW_RETURN_IF_ERROR(RemoveUnfinished());
  HOTROW_RETURN_IF_ERROR(RemoveOtherLiveDirs(directory));
  HOTROW_RETURN_IF_ERROR(
      WriteFileAtomically(env, PathOf(kRocksTablesName), RocksTablesToText(options_.tables)));
  const RocksLive live = {.number = 1};
  const std::string dir = PathOf(RocksLiveDirName(live.number));
  HOTROW_RETURN_IF_ERROR(env.CreateDirs(dir));
  HOTROW_RETURN_IF_ERROR(env.SyncDir(options_.path));
  HOTROW_RETURN_IF_ERROR(OpenDb(dir, /*create=*/true));
  HOTROW_RETURN_IF_ERROR(WriteLive(live));
  HOTROW_RETURN_IF_ERROR(env.Remove(PathOf(kRocksMakingName)));
  return env.SyncDir(options_.path);
}

absl::Status RocksStore::OpenStore(const RocksDirectory& directory) {
  HOTROW_RETURN_IF_ERROR(
      CheckRocksDirectory(options_.path, directory, /*opens_snapshot=*/options_.open_at != 0));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<StoreTable> listed, ReadRocksTables(options_.path));
  HOTROW_RETURN_IF_ERROR(CheckTables(PathOf(kRocksTablesName), listed, options_.tables));
  std::optional<RocksSnapshot> snapshot;
  if (options_.open_at != 0) {
    HOTROW_ASSIGN_OR_RETURN(snapshot, CheckSnapshot());
  } else {
    HOTROW_RETURN_IF_ERROR(CheckLive(directory));
  }
  // Nothing has changed up to here.
  HOTROW_RETURN_IF_ERROR(RemoveUnfinished());
  if (directory.has_live && directory.is_being_made) {
    HOTROW_RETURN_IF_ERROR(PosixEnv().Remove(PathOf(kRocksMakingName)));
  }
  if (snapshot.has_value()) return OpenSnapshot(directory, *snapshot);
  HOTROW_RETURN_IF_ERROR(OpenDb(PathOf(RocksLiveDirName(live_.number)), /*create=*/false));
  return RemoveOtherLiveDirs(directory);
}

// RocksDB would remove table files that a damaged MANIFEST does not name, so it looks before it
// opens.
absl::Status RocksStore::CheckLive(const RocksDirectory& directory) {
  HOTROW_ASSIGN_OR_RETURN(live_, ReadRocksLive(options_.path));
  const std::string dir = PathOf(RocksLiveDirName(live_.number));
  const absl::Status status = [&]() -> absl::Status {
    std::vector<RocksDamage> damage;
    HOTROW_RETURN_IF_ERROR(CheckRocksDatabaseFiles(dir, &damage));
    HOTROW_RETURN_IF_ERROR(RocksDamageToStatus(damage));
    HOTROW_ASSIGN_OR_RETURN(
        const std::unique_ptr<RocksDatabase> database,
        RocksDatabase::Open({.path = options_.path, .dir = dir, .cache_bytes = kLookCacheBytes}));
    return database->CheckSequence(live_, dir);
  }();
  if (!absl::IsDataLoss(status)) return status;
  return absl::DataLossError(absl::StrCat(status.message(), RocksRemedy(directory)));
}

absl::StatusOr<RocksSnapshot> RocksStore::CheckSnapshot() {
  HOTROW_ASSIGN_OR_RETURN(RocksSnapshot snapshot,
                          ReadRocksSnapshot(options_.path, options_.open_at, options_.tables));
  HOTROW_RETURN_IF_ERROR(CheckSnapshotIdentity(absl::StrCat("RocksDB store ", options_.path),
                                               snapshot.info, options_.open_at_identity));
  std::vector<RocksDamage> damage;
  HOTROW_RETURN_IF_ERROR(CheckRocksSnapshotFiles(snapshot, nullptr, &damage));
  HOTROW_RETURN_IF_ERROR(RocksDamageToStatus(damage));
  return snapshot;
}

// Snapshots that a crash cut off while they were made or dropped.
absl::Status RocksStore::RemoveUnfinished() {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixEnv().ListDir(SnapshotsDir()));
  for (const std::string& name : names) {
    if (!absl::EndsWith(name, kRocksUnfinished)) continue;
    HOTROW_RETURN_IF_ERROR(RemoveAll(absl::StrCat(SnapshotsDir(), "/", name)));
  }
  return absl::OkStatus();
}

// Those that LIVE does not name.
absl::Status RocksStore::RemoveOtherLiveDirs(const RocksDirectory& directory) {
  for (const std::string& name : directory.live_dirs) {
    if (live_.number != 0 && name == RocksLiveDirName(live_.number)) continue;
    HOTROW_RETURN_IF_ERROR(RemoveAll(PathOf(name)));
  }
  return absl::OkStatus();
}

absl::Status RocksStore::WriteLive(const RocksLive& live) {
  HOTROW_RETURN_IF_ERROR(
      WriteFileAtomically(PosixEnv(), PathOf(kRocksLiveName), RocksLiveToText(live)));
  live_ = live;
  return absl::OkStatus();
}

// The name in LIVE changes only when the database it names is whole and has opened, so a crash, or
// a snapshot that does not open, leaves the state before.
absl::Status RocksStore::OpenSnapshot(const RocksDirectory& directory,
                                      const RocksSnapshot& snapshot) {
  RocksLive live;
  for (const std::string& name : directory.live_dirs) {
    live.number = std::max(live.number, LiveNumber(name));
  }
  if (const absl::StatusOr<RocksLive> old = ReadRocksLive(options_.path); old.ok()) {
    live.number = std::max(live.number, old->number);
    live_ = *old;
  }
  ++live.number;
  // Remains of a crash. A snapshot is also what helps when LIVE, or what it names, is damaged: then
  // nothing goes before the snapshot has opened.
  if (std::count(directory.live_dirs.begin(), directory.live_dirs.end(),
                 RocksLiveDirName(live_.number)) > 0) {
    HOTROW_RETURN_IF_ERROR(RemoveOtherLiveDirs(directory));
  }
  const std::string dir = PathOf(RocksLiveDirName(live.number));
  HOTROW_RETURN_IF_ERROR(RestoreSnapshot(snapshot, dir));
  HOTROW_RETURN_IF_ERROR(PosixEnv().SyncDir(options_.path));
  HOTROW_RETURN_IF_ERROR(OpenDb(dir, /*create=*/false));
  live.sequence = db_->GetLatestSequenceNumber();
  std::error_code error;
  if (fs::is_directory(PathOf(kRocksLiveName), error)) {  // a file cannot be renamed over it
    fs::remove(PathOf(kRocksLiveName), error);
    if (error) return FsError(error, absl::StrCat("remove ", PathOf(kRocksLiveName)));
  }
  HOTROW_RETURN_IF_ERROR(WriteLive(live));
  return RemoveOtherLiveDirs(directory);
}

// A database of its own out of a snapshot's files. Table files never change, so they are shared by
// a second name; the few others are copied.
absl::Status RocksStore::RestoreSnapshot(const RocksSnapshot& snapshot, const std::string& to) {
  Env& env = PosixEnv();
  HOTROW_RETURN_IF_ERROR(env.CreateDirs(to));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(snapshot.dir));
  for (const std::string& name : names) {
    if (name == kRocksListName || absl::StartsWith(name, kRocksCommittedName)) continue;
    const std::string source = absl::StrCat(snapshot.dir, "/", name);
    const std::string target = absl::StrCat(to, "/", name);
    if (!absl::EndsWith(name, ".sst")) {
      HOTROW_RETURN_IF_ERROR(CopyRegularFile(source, target));
      continue;
    }
    std::error_code error;
    fs::create_hard_link(source, target, error);
    if (error) return FsError(error, absl::StrCat("RocksDB store: link ", source));
  }
  return env.SyncDir(to);
}

// RocksDB starts threads when it first has work for them, and throws on whatever thread that is
// where the system has no room for one more. So those of its pools are started here, and `open`,
// which starts one or two more, is watched as well.
static absl::Status WithThreads(int background_jobs, absl::FunctionRef<void()> open) {
  rocksdb::Env* const env = rocksdb::Env::Default();
  // As many of each kind as it takes for so many jobs.
  const int flushes = std::max(1, background_jobs / 4);
  const std::pair<rocksdb::Env::Priority, int> pools[] = {
      {rocksdb::Env::HIGH, flushes}, {rocksdb::Env::LOW, std::max(1, background_jobs - flushes)}};
  try {
    for (const auto& [pool, threads] : pools) {
      env->IncBackgroundThreadsIfNeeded(threads, pool);
      env->Schedule([](void*) {}, nullptr, pool);
    }
    open();
  } catch (const std::system_error& error) {
    return absl::UnavailableError(
        absl::StrCat("the system has no thread for RocksDB: ", error.what(),
                     "; raise the limit of threads (ulimit -u)"));
  }
  return absl::OkStatus();
}

absl::Status RocksStore::OpenDb(const std::string& dir, bool create) {
  HOTROW_RETURN_IF_ERROR(pool_.status());
  bool direct = options_.direct_io;
  if (direct) {
    const std::string probe = options_.path + "/probe.tmp";
    HOTROW_ASSIGN_OR_RETURN(const auto file, PosixEnv().OpenDirect(probe, OpenMode::kTruncate));
    direct = file->direct();
    HOTROW_RETURN_IF_ERROR(file->Close());
    HOTROW_RETURN_IF_ERROR(PosixEnv().Remove(probe));
  }
  rocksdb::DB* db = nullptr;
  rocksdb::Options options = DbOptions(direct);
  options.create_if_missing = create;  // a database that has gone is no empty one
  rocksdb::Status status;
  HOTROW_RETURN_IF_ERROR(WithThreads(options_.background_jobs,
                                     [&] { status = rocksdb::DB::Open(options, dir, &db); }));
  HOTROW_RETURN_IF_ERROR(ToStatus(status, "open"));
  db_.reset(db);
  live_dir_ = dir;
  listener_->NoteFlushed(db_->GetLatestSequenceNumber());  // nothing came from a log
  return absl::OkStatus();
}

absl::Status RocksStore::CountRows() {
  HOTROW_ASSIGN_OR_RETURN(const int64_t kept, ReadRocksCount(*db_, options_.path));
  if (!options_.exact_counts) {
    if (kept < 0) return absl::OkStatus();
    // Blind writes would make it wrong for who counts later.
    rocksdb::WriteOptions options;
    options.disableWAL = true;
    return ToStatus(db_->Delete(options, {kRocksCountKey.data(), kRocksCountKey.size()}),
                    "count rows");
  }
  if (kept >= 0) {
    rows_at_open_ = kept;
    rows_ = kept;
    return absl::OkStatus();
  }
  int64_t rows = 0;
  HOTROW_RETURN_IF_ERROR(Iterate([&](const RowKey&, std::span<const std::byte>) -> absl::Status {
    ++rows;
    return absl::OkStatus();
  }));
  rows_at_open_ = rows;
  rows_ = rows;
  return absl::OkStatus();
}

absl::Status RocksStore::Init() {
  HOTROW_RETURN_IF_ERROR(CreateDirsDurably(PosixEnv(), options_.path));
  HOTROW_ASSIGN_OR_RETURN(lock_, RocksDirLock::Take(options_.path, /*reader=*/false));
  HOTROW_ASSIGN_OR_RETURN(const RocksDirectory directory, LookAtRocksDirectory(options_.path));
  HOTROW_RETURN_IF_ERROR(directory.is_new() ? MakeStore(directory) : OpenStore(directory));
  HOTROW_RETURN_IF_ERROR(CountRows());
  HOTROW_RETURN_IF_ERROR(RefreshSnapshotBytes());
  // Opening it commits it.
  if (options_.open_at != 0) HOTROW_RETURN_IF_ERROR(CommitSnapshot(options_.open_at));
  return absl::OkStatus();
}

RocksStore::~RocksStore() {
  if (db_ == nullptr) return;
  // Flushes what is in memtables; nothing of it was promised, so an error loses nothing promised.
  db_->Close().PermitUncheckedError();
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
    return ToStatus(status, absl::StrCat("find key ", key.key, " of table ", key.table));
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
  std::array<KeyBytes, kFindChunkMax> bytes;
  std::array<rocksdb::Slice, kFindChunkMax> slices;
  std::array<rocksdb::PinnableSlice, kFindChunkMax> values;
  std::array<rocksdb::Status, kFindChunkMax> statuses;
  for (size_t i = 0; i < n; ++i) {
    bytes[i] = EncodeKey(keys[i]);
    slices[i] = ToSlice(bytes[i]);
  }
  rocksdb::ReadOptions options;
  options.verify_checksums = true;
  db_->MultiGet(options, db_->DefaultColumnFamily(), n, slices.data(), values.data(),
                statuses.data());
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
      statuses[i] = db_->Get(options, db_->DefaultColumnFamily(), slices[i], &values[i]);
      if (IsOutOfCache(statuses[i])) continue;
      HOTROW_RETURN_IF_ERROR(
          TakeRow(keys[i], statuses[i], values[i], rows.empty() ? nullptr : rows[i], &found[i]));
    }
    if (IsOutOfCache(statuses[i])) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "RocksDB store ", options_.path, ": the memory budget of ", options_.memory_budget_bytes,
          " bytes has no room for one more block of ", std::max(kBlockBytes, sizes_.row_bytes_max),
          " bytes: ", statuses[i].ToString()));
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
  NotePeak();
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
      bytes += kRowOverhead + (rows.empty() ? 0 : row_bytes(keys[end].table));
      ++end;
    } while (end < keys.size() && bytes < kPieceBytes);
    if (!rows.empty() && options_.disk_budget_bytes > 0) {
      HOTROW_RETURN_IF_ERROR(CheckDiskBudget(bytes));
    }
    HOTROW_RETURN_IF_ERROR(WritePiece(keys.subspan(begin, end - begin),
                                      rows.empty() ? rows : rows.subspan(begin, end - begin)));
    begin = end;
  }
  NotePeak();
  return absl::OkStatus();
}

absl::Status RocksStore::WritePiece(std::span<const RowKey> keys,
                                    std::span<const std::byte* const> rows) {
  std::unique_lock<std::mutex> lock;
  int64_t change = 0;  // of the number of rows
  if (options_.exact_counts) {
    lock = std::unique_lock(writers_mutex_);
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
    const KeyBytes key = EncodeKey(keys[i]);
    rocksdb::Status status;
    if (rows.empty()) {
      status = batch.Delete(ToSlice(key));
    } else {
      const int64_t bytes = row_bytes(keys[i].table);
      payload += bytes;
      status = batch.Put(ToSlice(key),
                         {reinterpret_cast<const char*>(rows[i]), static_cast<size_t>(bytes)});
    }
    HOTROW_RETURN_IF_ERROR(ToStatus(status, "write"));
  }
  if (options_.exact_counts) {
    const int64_t rows_now = rows_.load() + change;
    HOTROW_RETURN_IF_ERROR(
        ToStatus(batch.Put({kRocksCountKey.data(), kRocksCountKey.size()},
                           {reinterpret_cast<const char*>(&rows_now), sizeof(rows_now)}),
                 "write"));
  }
  HOTROW_RETURN_IF_ERROR(Write(batch));
  rows_ += change;
  if (rows.empty()) {
    rows_erased_ += options_.exact_counts ? -change : static_cast<int64_t>(keys.size());
    erased_since_compaction_ += static_cast<int64_t>(keys.size());
  } else {
    rows_written_ += static_cast<int64_t>(keys.size());
    payload_bytes_ += payload;
  }
  return absl::OkStatus();
}

// RocksDB makes writers wait while compactions lag behind. When those cannot run, as on a full
// disk, the wait would have no end: then it ends here.
rocksdb::Status RocksStore::WriteWithoutHanging(rocksdb::WriteBatch& batch) {
  rocksdb::WriteOptions options;
  options.disableWAL = true;  // see Durability
  // RocksDB waits for room by itself and goes on then; callers are told instead of waiting with it.
  if (const rocksdb::Status error = listener_->error(); IsOutOfSpace(error)) return error;
  constexpr auto kPoll = std::chrono::milliseconds(2);
  constexpr auto kPatience = std::chrono::seconds(2);  // without any compaction running
  auto idle_since = std::chrono::steady_clock::now();
  while (Property("rocksdb.is-write-stopped") != 0 && listener_->error().ok()) {
    const auto now = std::chrono::steady_clock::now();
    if (Property("rocksdb.num-running-compactions") + Property("rocksdb.num-running-flushes") > 0) {
      idle_since = now;
    } else if (now - idle_since > kPatience) {
      return rocksdb::Status::SpaceLimit("compactions find no room to run in");
    }
    std::this_thread::sleep_for(kPoll);
  }
  return db_->Write(options, &batch);
}

absl::Status RocksStore::Write(rocksdb::WriteBatch& batch) {
  const rocksdb::Status status = WriteWithoutHanging(batch);
  if (status.ok()) return absl::OkStatus();
  const rocksdb::Status error = listener_->error();
  if (error.ok()) return ToStatus(status, "write");
  return ToStatus(error, IsOutOfSpace(error)
                             ? "takes no rows until there is room, after a background error"
                             : "takes no more rows after a background error; open it again");
}

absl::Status RocksStore::Iterate(
    absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) {
  return VisitRocksRows(*db_, options_.path, row_bytes_, visit);
}

absl::Status RocksStore::Flush() {
  const rocksdb::SequenceNumber last = db_->GetLatestSequenceNumber();
  HOTROW_RETURN_IF_ERROR(FlushMemtables(last));
  // From now on a MANIFEST that knows less is a damaged one.
  const std::lock_guard lock(live_mutex_);
  if (last <= live_.sequence) return absl::OkStatus();
  return WriteLive({.number = live_.number, .sequence = last});
}

absl::Status RocksStore::FlushMemtables(rocksdb::SequenceNumber last) {
  constexpr int kTries = 50;
  constexpr std::chrono::milliseconds kPatience(200);
  rocksdb::FlushOptions options;
  options.wait = true;
  options.allow_write_stall = true;
  for (int i = 0; i < kTries; ++i) {
    const rocksdb::Status status = db_->Flush(options);
    if (!status.ok()) {
      const rocksdb::Status error = listener_->error();
      return error.ok() ? ToStatus(status, "flush")
                        : ToStatus(error, "flush, after a background error");
    }
    // Right after it has recovered from a full file system, RocksDB (7.8) may say that a flush is
    // done when it has not begun. What counts is what went to files. They are announced by another
    // thread, perhaps after Flush has returned.
    if (listener_->AwaitFlushed(last, kPatience)) return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("RocksDB store ", options_.path,
                   ": flush: RocksDB says that it is done, but rows are in no file; try again"));
}

// --- Snapshots -----------------------------------------------------------------------------------

absl::StatusOr<std::vector<SnapshotId>> RocksStore::ListSnapshots() {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixEnv().ListDir(SnapshotsDir()));
  std::vector<SnapshotId> ids;  // 16 digits each, so sorted names are sorted numbers
  for (const std::string& name : names) {
    if (const SnapshotId id = ParseHex16(name); id != 0) ids.push_back(id);
  }
  return ids;
}

absl::StatusOr<SnapshotInfo> RocksStore::DescribeSnapshot(SnapshotId snapshot) {
  const std::lock_guard lock(snapshot_mutex_);
  HOTROW_ASSIGN_OR_RETURN(RocksSnapshot found,
                          ReadRocksSnapshot(options_.path, snapshot, options_.tables));
  return std::move(found.info);
}

// Says what the checkpoint in `dir` consists of, and draws its identity. Opens it for that, as
// whoever resumes from it will, and so finds one that RocksDB did not make whole. last: of a write
// that must be in it.
absl::Status RocksStore::WriteSnapshotList(SnapshotId snapshot, const std::string& dir,
                                           rocksdb::SequenceNumber last) {
  RocksSnapshotList list = {
      .id = snapshot, .identity = UniqueId::Random(), .tables = options_.tables};
  const auto fails = [&](absl::string_view what) {
    return absl::InternalError(absl::StrCat("RocksDB store ", options_.path, ": prepare snapshot ",
                                            snapshot, ": RocksDB's checkpoint ", what));
  };
  std::map<std::string, RocksFile> table_files;
  {
    HOTROW_ASSIGN_OR_RETURN(
        const std::unique_ptr<RocksDatabase> database,
        RocksDatabase::Open({.path = options_.path, .dir = dir, .cache_bytes = kLookCacheBytes}));
    list.sequence = database->sequence();
    if (options_.exact_counts) {
      // The first batch after opening writes the count; without one the rows are those of then.
      list.rows = database->rows() >= 0 ? database->rows() : rows_at_open_;
    }
    for (RocksFile& file : database->table_files()) table_files[file.name] = std::move(file);
  }
  if (list.sequence < last) {
    return fails(absl::StrCat("has the writes up to ", list.sequence, " only, not up to ", last));
  }
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixEnv().ListDir(dir));
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(dir, "/", name);
    std::error_code error;
    const auto bytes = static_cast<int64_t>(fs::file_size(path, error));
    if (error) return FsError(error, absl::StrCat("RocksDB store: size of ", path));
    RocksFile file = {.name = name, .bytes = bytes};
    if (absl::EndsWith(name, ".sst")) {
      const auto known = table_files.find(name);
      if (known == table_files.end() || known->second.bytes != bytes) {
        return fails(absl::StrCat("has a file ", name, " of ", bytes,
                                  " bytes that its MANIFEST does not know"));
      }
      file.crc32c = known->second.crc32c;
      table_files.erase(known);
    } else {
      HOTROW_ASSIGN_OR_RETURN(file.crc32c, Crc32cOfFile(path, bytes));
    }
    list.files.push_back(std::move(file));
  }
  if (!table_files.empty()) {
    return fails(absl::StrCat("lacks the file ", table_files.begin()->first));
  }
  return WriteFileAtomically(PosixEnv(), absl::StrCat(dir, "/", kRocksListName),
                             RocksSnapshotListToText(list));
}

absl::Status RocksStore::PrepareSnapshot(SnapshotId snapshot, absl::FunctionRef<void()> captured) {
  if (snapshot == 0) return Precondition("0 is no snapshot id");
  Env& env = PosixEnv();
  const std::lock_guard lock(snapshot_mutex_);
  const std::string dir = SnapshotDir(snapshot);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(dir));
  if (exists) return Precondition(absl::StrCat("snapshot ", snapshot, " exists already"));
  const std::string temporary = absl::StrCat(dir, kRocksUnfinished);
  HOTROW_RETURN_IF_ERROR(RemoveAll(temporary));  // of a try that failed
  bool has_name = false;
  const absl::Status status = [&]() -> absl::Status {
    // CreateCheckpoint flushes too, but see FlushMemtables.
    const rocksdb::SequenceNumber last = db_->GetLatestSequenceNumber();
    HOTROW_RETURN_IF_ERROR(FlushMemtables(last));
    rocksdb::Checkpoint* made = nullptr;
    const rocksdb::Status created = rocksdb::Checkpoint::Create(db_.get(), &made);
    const std::unique_ptr<rocksdb::Checkpoint> checkpoint(made);
    HOTROW_RETURN_IF_ERROR(ToStatus(created, "prepare a snapshot"));
    // RocksDB syncs what it writes, the names are ours to sync.
    HOTROW_RETURN_IF_ERROR(ToStatus(checkpoint->CreateCheckpoint(temporary, 0),
                                    absl::StrCat("prepare snapshot ", snapshot)));
    captured();
    HOTROW_RETURN_IF_ERROR(WriteSnapshotList(snapshot, temporary, last));
    HOTROW_RETURN_IF_ERROR(env.SyncDir(temporary));
    HOTROW_RETURN_IF_ERROR(env.Rename(temporary, dir));
    has_name = true;
    return env.SyncDir(SnapshotsDir());
  }();
  if (!status.ok()) {
    // The name goes first: at no moment is there half a snapshot under it.
    absl::Status removed = has_name ? env.Rename(dir, temporary) : absl::OkStatus();
    removed.Update(RemoveAll(temporary));
    removed.Update(RemoveAll(temporary + ".tmp"));  // RocksDB's own
    if (removed.ok()) return status;
    return absl::Status(status.code(), absl::StrCat(status.message(), "; what was made of it is ",
                                                    "still there: ", removed.message()));
  }
  RefreshSnapshotBytes().IgnoreError();  // a figure; the snapshot is there
  return absl::OkStatus();
}

absl::Status RocksStore::CommitSnapshot(SnapshotId snapshot) {
  const std::lock_guard lock(snapshot_mutex_);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, PosixEnv().Exists(SnapshotDir(snapshot)));
  if (snapshot == 0 || !exists) {
    return Precondition(absl::StrCat("there is no snapshot ", snapshot));
  }
  return WriteFileAtomically(PosixEnv(),
                             absl::StrCat(SnapshotDir(snapshot), "/", kRocksCommittedName), "");
}

absl::Status RocksStore::DropSnapshot(SnapshotId snapshot) {
  Env& env = PosixEnv();
  {
    const std::lock_guard lock(snapshot_mutex_);
    HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(SnapshotDir(snapshot)));
    if (snapshot == 0 || !exists) {
      return Precondition(absl::StrCat("there is no snapshot ", snapshot));
    }
    // At one moment it is gone whole.
    const std::string temporary = absl::StrCat(SnapshotDir(snapshot), kRocksUnfinished);
    HOTROW_RETURN_IF_ERROR(RemoveAll(temporary));
    HOTROW_RETURN_IF_ERROR(env.Rename(SnapshotDir(snapshot), temporary));
    HOTROW_RETURN_IF_ERROR(env.SyncDir(SnapshotsDir()));
    HOTROW_RETURN_IF_ERROR(RemoveAll(temporary));
  }
  RefreshSnapshotBytes().IgnoreError();
  return absl::OkStatus();
}

// --- Space ---------------------------------------------------------------------------------------

int64_t RocksStore::DiskBytes() const {
  return static_cast<int64_t>(files_->GetTotalSize()) + snapshot_bytes_.load();
}

// RocksDB does not know of files that only a snapshot names.
absl::Status RocksStore::RefreshSnapshotBytes() {
  const std::lock_guard lock(disk_mutex_);
  files_deleted_seen_ = listener_->files_deleted();
  std::map<uint64_t, int64_t> snapshots;
  std::map<uint64_t, int64_t> live;
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixEnv().ListDir(SnapshotsDir()));
  for (const std::string& name : names) {
    if (ParseHex16(name) == 0) continue;
    // Not found: dropped just now.
    const absl::Status status = AddFiles(absl::StrCat(SnapshotsDir(), "/", name), snapshots);
    if (!status.ok() && !absl::IsNotFound(status)) return status;
  }
  HOTROW_RETURN_IF_ERROR(AddFiles(live_dir_, live));
  int64_t bytes = 0;
  for (const auto& [inode, size] : snapshots) {
    if (!live.contains(inode)) bytes += size;
  }
  snapshot_bytes_ = bytes;
  return absl::OkStatus();
}

absl::Status RocksStore::DiskFull(int64_t used, int64_t more) const {
  return absl::ResourceExhaustedError(absl::StrCat(
      "RocksDB store ", options_.path, ": the disk budget is ", options_.disk_budget_bytes,
      " bytes, of which rows may use 3/4; ", used, " are used and ", more,
      " more are needed; raise the budget, or drop snapshots or rows"));
}

absl::Status RocksStore::CheckDiskBudget(int64_t more_bytes) {
  const int64_t limit = options_.disk_budget_bytes - options_.disk_budget_bytes / 4;
  const auto used = [&] { return DiskBytes() + Property("rocksdb.cur-size-all-mem-tables"); };
  bool stale = false;
  {
    const std::lock_guard lock(disk_mutex_);
    stale = files_deleted_seen_ != listener_->files_deleted();
  }
  if (stale) HOTROW_RETURN_IF_ERROR(RefreshSnapshotBytes());
  if (used() + more_bytes <= limit) return absl::OkStatus();
  // Space that is due to come free: compactions that are under way, rows that were erased.
  constexpr int kPolls = 500;
  const auto busy = [&] {
    return Property("rocksdb.num-running-compactions") + Property("rocksdb.num-running-flushes") >
           0;
  };
  for (int poll = 0; poll < kPolls && busy() && used() + more_bytes > limit; ++poll) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (used() + more_bytes > limit && erased_since_compaction_.exchange(0) > 0) {
    rocksdb::CompactRangeOptions options;
    options.exclusive_manual_compaction = false;
    options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
    // What it cannot free is refused below.
    db_->CompactRange(options, nullptr, nullptr).PermitUncheckedError();
  }
  HOTROW_RETURN_IF_ERROR(RefreshSnapshotBytes());
  const int64_t now = used();
  return now + more_bytes <= limit ? absl::OkStatus() : DiskFull(now, more_bytes);
}

// The cache counts the memtables, too, in its own steps.
void RocksStore::NotePeak() const {
  const auto used = static_cast<int64_t>(cache_->GetUsage());
  int64_t peak = peak_bytes_.load(std::memory_order_relaxed);
  while (used > peak && !peak_bytes_.compare_exchange_weak(peak, used)) {
  }
}

RowStoreStats RocksStore::Stats() const {
  RowStoreStats stats;
  const auto ticks = [&](uint32_t ticker) {
    return static_cast<int64_t>(statistics_->getTickerCount(ticker));
  };
  stats.rows = options_.exact_counts ? rows_.load() : Property("rocksdb.estimate-num-keys");
  stats.budget_bytes = options_.memory_budget_bytes;
  const int64_t readers = Property("rocksdb.estimate-table-readers-mem");
  const auto memtables = static_cast<int64_t>(write_buffers_->memory_usage());
  const auto charged = static_cast<int64_t>(write_buffers_->dummy_entries_in_cache_usage());
  stats.used_bytes = static_cast<int64_t>(cache_->GetUsage()) + readers +
                     std::max<int64_t>(0, memtables - charged);
  NotePeak();
  stats.peak_bytes = std::max(peak_bytes_.load(), stats.used_bytes);
  int64_t peak = peak_bytes_.load();
  while (stats.peak_bytes > peak && !peak_bytes_.compare_exchange_weak(peak, stats.peak_bytes)) {
  }
  stats.metadata_bytes = readers;
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
  std::map<uint64_t, int64_t> live;
  AddFiles(live_dir_, live).IgnoreError();
  std::map<uint64_t, int64_t> all = live;
  if (const auto names = PosixEnv().ListDir(SnapshotsDir()); names.ok()) {
    for (const std::string& name : *names) {
      AddFiles(absl::StrCat(SnapshotsDir(), "/", name), all).IgnoreError();
    }
  }
  for (const auto& [inode, bytes] : all) {
    stats.disk_used_bytes += bytes;
    if (!live.contains(inode)) stats.snapshot_bytes += bytes;
  }
  return stats;
}

}  // namespace

absl::Status RocksStoreOptions::Validate() const {
  if (path.empty()) return absl::InvalidArgumentError("RocksStoreOptions.path: must not be empty");
  if (tables.empty()) {
    return absl::InvalidArgumentError("RocksStoreOptions.tables: at least one is needed");
  }
  std::map<uint32_t, size_t> seen;
  for (size_t i = 0; i < tables.size(); ++i) {
    const StoreTable& table = tables[i];
    if (table.row_bytes < 1 || table.row_bytes > kRowBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("RocksStoreOptions.tables[", i, "]: row_bytes of table ", table.table,
                       " must lie in [1, ", kRowBytesMax, "], it is ", table.row_bytes));
    }
    if (!seen.emplace(table.table, i).second) {
      return absl::InvalidArgumentError(absl::StrCat("RocksStoreOptions.tables[", i, "]: table ",
                                                     table.table, " is there already, at [",
                                                     seen[table.table], "]"));
    }
  }
  if (memory_budget_bytes < kRocksMemoryMin) {
    return absl::InvalidArgumentError(
        absl::StrCat("RocksStoreOptions.memory_budget_bytes must be at least ", kRocksMemoryMin,
                     ", it is ", memory_budget_bytes));
  }
  if (disk_budget_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "RocksStoreOptions.disk_budget_bytes must be at least 0, it is ", disk_budget_bytes));
  }
  if (read_threads < 1 || read_threads > 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("RocksStoreOptions.read_threads must lie in [1, 256], it is ", read_threads));
  }
  if (background_jobs < 1 || background_jobs > 64) {
    return absl::InvalidArgumentError(absl::StrCat(
        "RocksStoreOptions.background_jobs must lie in [1, 64], it is ", background_jobs));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RowStore>> OpenRocksStore(const RocksStoreOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  auto store = std::make_unique<RocksStore>(options);
  HOTROW_RETURN_IF_ERROR(store->Init());
  return std::unique_ptr<RowStore>(std::move(store));
}

}  // namespace hotrow
