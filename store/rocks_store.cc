#include "store/rocks_store.h"

#include <fcntl.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/listener.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_manager.h>
#include <rocksdb/statistics.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/checkpoint.h>
#include <rocksdb/write_batch.h>
#include <rocksdb/write_buffer_manager.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/crc32c.h"
#include "base/env.h"
#include "base/errno_status.h"
#include "base/hash.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "store/snapshot_reader.h"

namespace hotrow {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kRowBytesMax = int64_t{1} << 30;
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr size_t kKeyBytes = 12;
// How many rows there are, written with every batch when counting is exact. Shorter than any row
// key, so that it is none.
constexpr absl::string_view kCountKey = "rows";
constexpr absl::string_view kTablesTitle = "hotrow rocksdb store 1";
constexpr absl::string_view kCommittedName = "COMMITTED";
constexpr absl::string_view kUnfinished = ".tmp";
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

using KeyBytes = std::array<char, kKeyBytes>;

KeyBytes EncodeKey(const RowKey& key) {
  KeyBytes bytes;
  for (int i = 0; i < 4; ++i) bytes[i] = static_cast<char>(key.table >> (24 - 8 * i));
  for (int i = 0; i < 8; ++i) bytes[4 + i] = static_cast<char>(key.key >> (56 - 8 * i));
  return bytes;
}

RowKey DecodeKey(const rocksdb::Slice& bytes) {
  RowKey key;
  for (int i = 0; i < 4; ++i) key.table = key.table << 8 | static_cast<uint8_t>(bytes[i]);
  for (int i = 4; i < 12; ++i) key.key = key.key << 8 | static_cast<uint8_t>(bytes[i]);
  return key;
}

rocksdb::Slice ToSlice(const KeyBytes& key) { return {key.data(), key.size()}; }

struct RowKeyHash {
  size_t operator()(const RowKey& key) const { return HashRowKey(key).lo; }
};

std::string Hex16(uint64_t value) {
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016" PRIx64, value);
  return digits;
}

// 0 when the name is not that of a finished snapshot.
SnapshotId ParseHex16(absl::string_view name) {
  uint64_t value = 0;
  if (name.size() != 16 || !absl::SimpleHexAtoi(name, &value) || Hex16(value) != name) return 0;
  return value;
}

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

// Keeps a second store, of this process or another, out of the directory.
class DirLock {
 public:
  // A reader shares the lock with other readers, makes no lock file, and gets null where there is
  // none.
  static absl::StatusOr<std::unique_ptr<DirLock>> Take(const std::string& dir, bool reader) {
    const std::string path = dir + "/LOCK";
    const int flags = reader ? O_RDONLY : O_RDWR | O_CREAT;
    const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
    if (fd < 0 && errno == ENOENT && reader) return nullptr;
    if (fd < 0) return ErrnoToStatus(errno, absl::StrCat("RocksDB store: open ", path));
    if (::flock(fd, (reader ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) {
      const int error = errno;
      ::close(fd);
      if (error == EWOULDBLOCK) {
        return absl::FailedPreconditionError(
            absl::StrCat("RocksDB store: ", dir, " is open already, here or in another process"));
      }
      return ErrnoToStatus(error, absl::StrCat("RocksDB store: lock ", path));
    }
    return std::unique_ptr<DirLock>(new DirLock(fd));
  }
  ~DirLock() { ::close(fd_); }
  DirLock(const DirLock&) = delete;
  DirLock& operator=(const DirLock&) = delete;

 private:
  explicit DirLock(int fd) : fd_(fd) {}
  const int fd_;
};

// --- The list of tables --------------------------------------------------------------------------

std::string TablesToText(std::span<const StoreTable> tables) {
  std::string text = absl::StrCat(kTablesTitle, "\n");
  for (const StoreTable& table : tables) {
    absl::StrAppend(&text, "table ", table.table, " row_bytes ", table.row_bytes, "\n");
  }
  absl::StrAppend(&text, "crc32c ", Crc32c(std::as_bytes(std::span(text))), "\n");
  return text;
}

absl::StatusOr<std::vector<StoreTable>> ParseTables(const std::string& path,
                                                    const std::string& text) {
  const size_t crc_at = text.rfind("crc32c ");
  uint32_t crc = 0;
  if (!absl::StartsWith(text, "hotrow rocksdb store ") || crc_at == std::string::npos ||
      !absl::SimpleAtoi(absl::string_view(text).substr(crc_at + 7), &crc) ||
      crc != Crc32c(std::as_bytes(std::span(text).first(crc_at)))) {
    return absl::DataLossError(absl::StrCat(
        "RocksDB store: ", path, ": the table list is damaged (its checksum does not fit)"));
  }
  const std::vector<absl::string_view> lines =
      absl::StrSplit(absl::string_view(text).substr(0, crc_at), '\n', absl::SkipEmpty());
  if (lines[0] != kTablesTitle) {
    return absl::FailedPreconditionError(absl::StrCat("RocksDB store: ", path, ": is a \"",
                                                      lines[0], "\"; this build reads \"",
                                                      kTablesTitle, "\""));
  }
  std::vector<StoreTable> tables;
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<absl::string_view> words = absl::StrSplit(lines[i], ' ');
    StoreTable table;
    if (words.size() != 4 || !absl::SimpleAtoi(words[1], &table.table) ||
        !absl::SimpleAtoi(words[3], &table.row_bytes)) {
      return absl::DataLossError(absl::StrCat("RocksDB store: ", path, ":", i + 1,
                                              ": expected \"table N row_bytes N\", found \"",
                                              lines[i], "\""));
    }
    tables.push_back(table);
  }
  return tables;
}

absl::Status CheckTables(const std::string& path, const std::string& text,
                         std::span<const StoreTable> tables) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<StoreTable> listed, ParseTables(path, text));
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

std::string LiveName(uint64_t number) { return absl::StrCat("live-", Hex16(number)); }

absl::StatusOr<uint64_t> ReadLiveNumber(const std::string& path) {
  HOTROW_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(PosixEnv(), path));
  uint64_t number = 0;
  if (!absl::StartsWith(text, "live-") || text.size() != 22 ||
      (number = ParseHex16(absl::string_view(text).substr(5, 16))) == 0) {
    return absl::DataLossError(absl::StrCat("RocksDB store: ", path,
                                            ": expected \"live-<16 hex digits>\", found ",
                                            text.size(), " other bytes"));
  }
  return number;
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

// An error with this text.
absl::Status WithCodeOf(const rocksdb::Status& status, const std::string& text) {
  switch (status.code()) {
    case rocksdb::Status::kCorruption:
      return absl::DataLossError(text);
    case rocksdb::Status::kIOError:
      return absl::DataLossError(text);
    case rocksdb::Status::kNotSupported:
      return absl::UnimplementedError(text);
    case rocksdb::Status::kInvalidArgument:
      return absl::InvalidArgumentError(text);
    case rocksdb::Status::kShutdownInProgress:
      return absl::FailedPreconditionError(text);
    case rocksdb::Status::kIncomplete:
    case rocksdb::Status::kTimedOut:
    case rocksdb::Status::kBusy:
    case rocksdb::Status::kTryAgain:
    case rocksdb::Status::kAborted:
      return absl::UnavailableError(text);
    default:
      return absl::InternalError(text);
  }
}

absl::StatusOr<int64_t> DecodeCount(const std::string& path, const std::string& value) {
  int64_t rows = 0;
  if (value.size() != sizeof(rows)) {
    return absl::DataLossError(absl::StrCat("RocksDB store ", path, ": the count of rows has ",
                                            value.size(), " bytes, not 8"));
  }
  std::memcpy(&rows, value.data(), sizeof(rows));
  return rows;
}

// All rows of a database. `path` is the store's, for errors.
absl::Status VisitRows(
    rocksdb::DB& db, const std::string& path,
    const std::unordered_map<uint32_t, int64_t>& row_bytes,
    absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) {
  rocksdb::ReadOptions options;
  options.verify_checksums = true;
  options.fill_cache = false;
  options.readahead_size = 512 << 10;
  const std::unique_ptr<rocksdb::Iterator> at(db.NewIterator(options));
  for (at->SeekToFirst(); at->Valid(); at->Next()) {
    if (at->key().size() != kKeyBytes) continue;  // the count of rows
    const RowKey key = DecodeKey(at->key());
    const rocksdb::Slice value = at->value();
    const auto table = row_bytes.find(key.table);
    const int64_t wanted = table == row_bytes.end() ? 0 : table->second;
    if (static_cast<int64_t>(value.size()) != wanted) {
      return absl::DataLossError(absl::StrCat("RocksDB store ", path, ": key ", key.key,
                                              " of table ", key.table, " has ", value.size(),
                                              " bytes, not ", wanted));
    }
    HOTROW_RETURN_IF_ERROR(
        visit(key, {reinterpret_cast<const std::byte*>(value.data()), value.size()}));
  }
  if (at->status().ok()) return absl::OkStatus();
  return WithCodeOf(at->status(),
                    absl::StrCat("RocksDB store ", path, ": iterate: ", at->status().ToString()));
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
  absl::Status OpenTables();
  struct LiveDir {
    std::string name;
    std::string old_name;  // that LIVE has now; empty: none
    bool is_new = false;
  };
  absl::StatusOr<LiveDir> ChooseLiveDir();
  absl::Status OpenLive();
  absl::Status RestoreSnapshot(const std::string& from, const std::string& to);
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

  // --- Disk ---
  std::string SnapshotsDir() const { return options_.path + "/snapshots"; }
  std::string SnapshotDir(SnapshotId id) const {
    return absl::StrCat(SnapshotsDir(), "/", Hex16(id));
  }
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
  std::unique_ptr<DirLock> lock_;
  std::shared_ptr<Listener> listener_;
  std::shared_ptr<rocksdb::Cache> cache_;
  std::shared_ptr<rocksdb::WriteBufferManager> write_buffers_;
  std::shared_ptr<rocksdb::SstFileManager> files_;
  std::shared_ptr<rocksdb::Statistics> statistics_;
  std::string live_dir_;
  std::unique_ptr<rocksdb::DB> db_;
  ThreadPool pool_;

  // Lock order: snapshots, writers.
  std::mutex snapshot_mutex_;  // one snapshot is made, committed or dropped at a time
  std::mutex writers_mutex_;   // with exact counts, one batch that writes at a time

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
  return WithCodeOf(status, text);
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
  options.listeners.push_back(listener_);
  options.info_log_level = rocksdb::WARN_LEVEL;
  options.keep_log_file_num = 2;
  options.max_log_file_size = kMiB;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  return options;
}

absl::Status RocksStore::OpenTables() {
  const std::string path = options_.path + "/TABLES";
  HOTROW_ASSIGN_OR_RETURN(const bool exists, PosixEnv().Exists(path));
  if (!exists) return WriteFileAtomically(PosixEnv(), path, TablesToText(options_.tables));
  HOTROW_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(PosixEnv(), path));
  return CheckTables(path, text, options_.tables);
}

// A database of its own out of a snapshot's files. Table files never change, so they are shared by
// a second name; the few others are copied.
absl::Status RocksStore::RestoreSnapshot(const std::string& from, const std::string& to) {
  Env& env = PosixEnv();
  HOTROW_RETURN_IF_ERROR(env.CreateDirs(to));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(from));
  for (const std::string& name : names) {
    if (name == kCommittedName) continue;
    const std::string source = absl::StrCat(from, "/", name);
    const std::string target = absl::StrCat(to, "/", name);
    if (absl::EndsWith(name, ".sst")) {
      std::error_code error;
      fs::create_hard_link(source, target, error);
      if (error) return FsError(error, absl::StrCat("RocksDB store: link ", source));
      continue;
    }
    HOTROW_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(env, source));
    HOTROW_ASSIGN_OR_RETURN(const auto file, env.Open(target, OpenMode::kTruncate));
    HOTROW_RETURN_IF_ERROR(WriteFull(*file, 0, std::as_bytes(std::span(text))));
    HOTROW_RETURN_IF_ERROR(file->Sync());
    HOTROW_RETURN_IF_ERROR(file->Close());
  }
  return env.SyncDir(to);
}

absl::StatusOr<RocksStore::LiveDir> RocksStore::ChooseLiveDir() {
  Env& env = PosixEnv();
  const std::string live_path = options_.path + "/LIVE";
  uint64_t number = 0;
  LiveDir live;
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(live_path));
  if (exists) {
    HOTROW_ASSIGN_OR_RETURN(number, ReadLiveNumber(live_path));
    live.old_name = LiveName(number);
  }
  live.is_new = !exists || options_.open_at != 0;
  live.name = live.is_new ? LiveName(number + 1) : live.old_name;
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> entries, env.ListDir(options_.path));
  for (const std::string& entry : entries) {
    if (absl::StartsWith(entry, "live-") && entry != live.old_name) {
      HOTROW_RETURN_IF_ERROR(RemoveAll(absl::StrCat(options_.path, "/", entry)));
    }
  }
  if (!live.is_new) return live;
  const std::string dir = absl::StrCat(options_.path, "/", live.name);
  if (options_.open_at != 0) {
    HOTROW_RETURN_IF_ERROR(RestoreSnapshot(SnapshotDir(options_.open_at), dir));
  } else {
    HOTROW_RETURN_IF_ERROR(env.CreateDirs(dir));
  }
  HOTROW_RETURN_IF_ERROR(env.SyncDir(options_.path));
  return live;
}

// The name in LIVE changes only when the database it names is whole and has opened, so a crash, or
// a snapshot that does not open, leaves the state before. Whatever LIVE does not name is rubbish.
absl::Status RocksStore::OpenLive() {
  HOTROW_ASSIGN_OR_RETURN(const LiveDir live, ChooseLiveDir());
  const bool create = live.is_new && options_.open_at == 0;
  HOTROW_RETURN_IF_ERROR(OpenDb(absl::StrCat(options_.path, "/", live.name), create));
  if (!live.is_new) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(
      WriteFileAtomically(PosixEnv(), options_.path + "/LIVE", live.name + "\n"));
  return live.old_name.empty() ? absl::OkStatus()
                               : RemoveAll(absl::StrCat(options_.path, "/", live.old_name));
}

absl::Status RocksStore::OpenDb(const std::string& dir, bool create) {
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
  const rocksdb::Status status = rocksdb::DB::Open(options, dir, &db);
  HOTROW_RETURN_IF_ERROR(ToStatus(status, "open"));
  db_.reset(db);
  live_dir_ = dir;
  listener_->NoteFlushed(db_->GetLatestSequenceNumber());  // nothing came from a log
  return absl::OkStatus();
}

absl::Status RocksStore::CountRows() {
  std::string value;
  const rocksdb::Slice key(kCountKey.data(), kCountKey.size());
  const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), key, &value);
  if (!status.ok() && !status.IsNotFound()) return ToStatus(status, "count rows");
  rocksdb::WriteOptions write_options;
  write_options.disableWAL = true;
  if (!options_.exact_counts) {
    // Blind writes would make it wrong for who counts later.
    return status.ok() ? ToStatus(db_->Delete(write_options, key), "count rows") : absl::OkStatus();
  }
  if (status.ok()) {
    HOTROW_ASSIGN_OR_RETURN(rows_, DecodeCount(options_.path, value));
    return absl::OkStatus();
  }
  int64_t rows = 0;
  HOTROW_RETURN_IF_ERROR(Iterate([&](const RowKey&, std::span<const std::byte>) -> absl::Status {
    ++rows;
    return absl::OkStatus();
  }));
  rows_ = rows;
  return absl::OkStatus();
}

absl::Status RocksStore::Init() {
  Env& env = PosixEnv();
  HOTROW_RETURN_IF_ERROR(CreateDirsDurably(env, SnapshotsDir()));
  HOTROW_ASSIGN_OR_RETURN(lock_, DirLock::Take(options_.path, /*reader=*/false));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> entries, env.ListDir(SnapshotsDir()));
  for (const std::string& entry : entries) {  // cut off by a crash
    if (absl::EndsWith(entry, kUnfinished)) {
      HOTROW_RETURN_IF_ERROR(RemoveAll(absl::StrCat(SnapshotsDir(), "/", entry)));
    }
  }
  HOTROW_RETURN_IF_ERROR(OpenTables());
  if (options_.open_at != 0) {
    HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(SnapshotDir(options_.open_at)));
    if (!exists) return Precondition(absl::StrCat("there is no snapshot ", options_.open_at));
  }
  HOTROW_RETURN_IF_ERROR(OpenLive());
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
        ToStatus(batch.Put({kCountKey.data(), kCountKey.size()},
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
  return VisitRows(*db_, options_.path, row_bytes_, visit);
}

absl::Status RocksStore::Flush() {
  constexpr int kTries = 50;
  constexpr std::chrono::milliseconds kPatience(200);
  const rocksdb::SequenceNumber last = db_->GetLatestSequenceNumber();
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
  HOTROW_ASSIGN_OR_RETURN(const std::vector<SnapshotId> ids, ListSnapshots());
  if (std::find(ids.begin(), ids.end(), snapshot) == ids.end()) {
    return Precondition(absl::StrCat("there is no snapshot ", snapshot));
  }
  SnapshotInfo info;
  info.id = snapshot;
  return info;
}

absl::Status RocksStore::PrepareSnapshot(SnapshotId snapshot, absl::FunctionRef<void()> captured) {
  if (snapshot == 0) return Precondition("0 is no snapshot id");
  Env& env = PosixEnv();
  const std::lock_guard lock(snapshot_mutex_);
  const std::string dir = SnapshotDir(snapshot);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(dir));
  if (exists) return Precondition(absl::StrCat("snapshot ", snapshot, " exists already"));
  const std::string temporary = absl::StrCat(dir, kUnfinished);
  HOTROW_RETURN_IF_ERROR(RemoveAll(temporary));  // of a try that failed
  const absl::Status status = [&]() -> absl::Status {
    // CreateCheckpoint flushes too, but see Flush.
    HOTROW_RETURN_IF_ERROR(Flush());
    rocksdb::Checkpoint* made = nullptr;
    const rocksdb::Status created = rocksdb::Checkpoint::Create(db_.get(), &made);
    const std::unique_ptr<rocksdb::Checkpoint> checkpoint(made);
    HOTROW_RETURN_IF_ERROR(ToStatus(created, "prepare a snapshot"));
    // RocksDB syncs what it writes, the names are ours to sync.
    HOTROW_RETURN_IF_ERROR(ToStatus(checkpoint->CreateCheckpoint(temporary, 0),
                                    absl::StrCat("prepare snapshot ", snapshot)));
    captured();
    HOTROW_RETURN_IF_ERROR(env.SyncDir(temporary));
    HOTROW_RETURN_IF_ERROR(env.Rename(temporary, dir));
    return env.SyncDir(SnapshotsDir());
  }();
  if (!status.ok()) {
    for (const std::string& path : {temporary, temporary + ".tmp", dir}) {
      RemoveAll(path).IgnoreError();
    }
    return status;
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
  return WriteFileAtomically(PosixEnv(), absl::StrCat(SnapshotDir(snapshot), "/", kCommittedName),
                             "");
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
    const std::string temporary = absl::StrCat(SnapshotDir(snapshot), kUnfinished);
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

// --- Reading a store that is not open ------------------------------------------------------------

// RocksDB would keep a log of what it does in the directory.
class NoLog final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

class RocksSnapshotReader final : public SnapshotReader {
 public:
  explicit RocksSnapshotReader(const SnapshotReaderOptions& options) : options_(options) {}

  absl::Status Open();

  std::span<const StoreTable> tables() const override { return tables_; }
  int64_t rows() const override { return rows_; }
  const SnapshotInfo& info() const override { return info_; }
  absl::Status Iterate(
      absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) override {
    return VisitRows(*db_, options_.path, row_bytes_, visit);
  }

 private:
  absl::StatusOr<std::string> DatabaseDir() const;
  absl::Status OpenDb(const std::string& dir);

  const SnapshotReaderOptions options_;
  std::unique_ptr<DirLock> lock_;
  std::vector<StoreTable> tables_;
  std::unordered_map<uint32_t, int64_t> row_bytes_;
  std::unique_ptr<rocksdb::DB> db_;
  SnapshotInfo info_;
  int64_t rows_ = -1;
};

absl::StatusOr<std::string> RocksSnapshotReader::DatabaseDir() const {
  Env& env = PosixEnv();
  if (options_.snapshot != 0) {
    const std::string dir = absl::StrCat(options_.path, "/snapshots/", Hex16(options_.snapshot));
    HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(dir));
    if (exists) return dir;
    return absl::FailedPreconditionError(absl::StrCat(
        "RocksDB store ", options_.path, ": there is no snapshot ", options_.snapshot));
  }
  HOTROW_ASSIGN_OR_RETURN(const uint64_t number, ReadLiveNumber(options_.path + "/LIVE"));
  return absl::StrCat(options_.path, "/", LiveName(number));
}

absl::Status RocksSnapshotReader::OpenDb(const std::string& dir) {
  constexpr int64_t kCacheBytes = 8 * kMiB;  // of indexes; blocks of rows pass it by
  const int64_t cache_bytes = options_.memory_budget_bytes == 0
                                  ? kCacheBytes
                                  : std::min(kCacheBytes, options_.memory_budget_bytes);
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(static_cast<size_t>(cache_bytes));
  table.cache_index_and_filter_blocks = true;
  rocksdb::Options options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.paranoid_checks = true;
  options.max_open_files = 64;
  options.info_log = std::make_shared<NoLog>();
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::OpenForReadOnly(options, dir, &db);
  if (!status.ok()) {
    return WithCodeOf(status, absl::StrCat("RocksDB store ", options_.path, ": open ", dir, ": ",
                                           status.ToString()));
  }
  db_.reset(db);
  return absl::OkStatus();
}

absl::Status RocksSnapshotReader::Open() {
  Env& env = PosixEnv();
  const std::string tables_path = options_.path + "/TABLES";
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(tables_path));
  if (!exists) {
    return absl::NotFoundError(
        absl::StrCat(options_.path, ": there is no RocksDB store, the file TABLES is missing"));
  }
  HOTROW_ASSIGN_OR_RETURN(lock_, DirLock::Take(options_.path, /*reader=*/true));
  HOTROW_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(env, tables_path));
  HOTROW_ASSIGN_OR_RETURN(tables_, ParseTables(tables_path, text));
  for (const StoreTable& table : tables_) row_bytes_[table.table] = table.row_bytes;
  HOTROW_ASSIGN_OR_RETURN(const std::string dir, DatabaseDir());
  HOTROW_RETURN_IF_ERROR(OpenDb(dir));
  std::string value;
  const rocksdb::Status counted =
      db_->Get(rocksdb::ReadOptions(), {kCountKey.data(), kCountKey.size()}, &value);
  if (counted.IsNotFound()) return absl::OkStatus();
  if (!counted.ok()) {
    return WithCodeOf(counted, absl::StrCat("RocksDB store ", options_.path,
                                            ": count rows: ", counted.ToString()));
  }
  HOTROW_ASSIGN_OR_RETURN(rows_, DecodeCount(options_.path, value));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SnapshotReader>> OpenRocksSnapshot(
    const SnapshotReaderOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  auto reader = std::make_unique<RocksSnapshotReader>(options);
  HOTROW_RETURN_IF_ERROR(reader->Open());
  return std::unique_ptr<SnapshotReader>(std::move(reader));
}

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
