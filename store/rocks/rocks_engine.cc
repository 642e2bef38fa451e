#include "store/rocks/rocks_engine_impl.h"

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
#include <rocksdb/write_batch.h>
#include <rocksdb/write_buffer_manager.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/out_of_room.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "store/rocks/rocks_database_impl.h"
#include "store/rocks/rocks_disk_impl.h"

namespace hotrow::internal {

// What RocksDB says from its own threads.
class RocksEvents final : public rocksdb::EventListener {
 public:
  void OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status* error) override {
    Note(*error);
  }
  void OnErrorRecoveryEnd(const rocksdb::BackgroundErrorRecoveryInfo& info) override {
    Note(info.new_bg_error);
  }
  void OnErrorRecoveryCompleted(rocksdb::Status) override { Note(rocksdb::Status::OK()); }
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
  void Note(const rocksdb::Status& error) {
    const std::lock_guard lock(mutex_);
    const auto copy = [&]() -> absl::Status {
      error_ = error;  // its codes, then its words
      return absl::OkStatus();
    };
    Caught("", copy).IgnoreError();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  rocksdb::Status error_;
  rocksdb::SequenceNumber flushed_ = 0;
  std::atomic<int64_t> files_deleted_{0};
};

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

bool IsOutOfSpace(const rocksdb::Status& status) {
  return status.IsNoSpace() || status.subcode() == rocksdb::Status::kSpaceLimit;
}

// RocksDB starts threads when it first has work for them, and throws on that thread
// where the system has no room for one more. So those of its pools are started here, and `open`,
// which starts one or two more, is watched as well.
absl::Status WithThreads(int background_jobs, absl::FunctionRef<void()> open) {
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
    return absl::UnavailableError(absl::StrCat(
        "the system has no thread for RocksDB: ", error.what(), "; ", NoThreadRemedy()));
  }
  return absl::OkStatus();
}

}  // namespace

RocksEngine::RocksEngine(const RocksStoreOptions& options, const RocksSizes& sizes,
                         const RocksDisk& disk)
    : options_(options), sizes_(sizes), disk_(disk), events_(std::make_shared<RocksEvents>()) {}

RocksEngine::~RocksEngine() {
  if (db_ != nullptr) db_->Close().PermitUncheckedError();
}

absl::Status RocksEngine::ToStatus(const rocksdb::Status& status, std::string_view what) const {
  if (status.ok()) return absl::OkStatus();
  const std::string text = absl::StrCat("RocksDB store ", options_.path, ": ", std::string(what),
                                        ": ", status.ToString());
  if (status.IsNoSpace()) return OutOfRoomError(text + "; make room on that file system");
  if (IsOutOfSpace(status)) {
    return OutOfRoomError(
        options_.disk_budget_bytes == 0
            ? text
            : absl::StrCat(text, "; the disk budget is ", options_.disk_budget_bytes, " bytes, ",
                           disk_.used_bytes(), " are used; raise ", options_.disk_option));
  }
  if (status.IsMemoryLimit()) {
    return absl::ResourceExhaustedError(absl::StrCat(text, "; the memory budget is ",
                                                     options_.memory_budget_bytes, " bytes; raise ",
                                                     options_.memory_option));
  }
  return RocksErrorWithText(status, text);
}

// --- Opening -------------------------------------------------------------------------------------

rocksdb::Options RocksEngine::MakeOptions(bool direct) {
  rocksdb::LRUCacheOptions cache;
  cache.capacity = static_cast<size_t>(sizes_.cache);
  // A shard must hold the blocks that are pinned in it and what memtables reserve, 256 KiB a piece.
  const auto shards = static_cast<uint64_t>(sizes_.cache / (32 * kMiB));
  cache.num_shard_bits = std::clamp(static_cast<int>(std::bit_width(shards)) - 1, 0, 6);
  cache.strict_capacity_limit = true;
  cache_ = rocksdb::NewLRUCache(cache);
  write_buffers_ =
      std::make_shared<rocksdb::WriteBufferManager>(static_cast<size_t>(sizes_.memtables), cache_);
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
  table.block_size = kRocksBlockBytes;
  // A block in one page is one page to read. Rows of more than a quarter of a page would leave too
  // much of it empty.
  table.block_align = sizes_.row_bytes_max + kRocksRowOverhead <= kRocksBlockBytes / 4;

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
  options.sst_file_manager = disk_.table_files();
  options.statistics = statistics_;
  // Made while a table file is written, and kept in the MANIFEST. RocksDB 7.8 leaves the padding of
  // aligned blocks out, and what it says of such a file is then wrong.
  if (!table.block_align) {
    options.file_checksum_gen_factory = rocksdb::GetFileChecksumGenCrc32cFactory();
  }
  options.listeners.push_back(events_);
  options.info_log = NewRocksNoLog();
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  return options;
}

// RocksDB destroys its timer when a process exits, and waits there for a thread that a forked child
// does not have. So a child ends before that: after handlers that were registered later than this,
// without those from before RocksDB was used.
static void EndForkedChildrenAtExit() {
  static const pid_t process = ::getpid();
  static const int registered = ::on_exit(
      [](int status, void*) {
        if (::getpid() == process) return;
        std::fflush(nullptr);
        ::_exit(status);
      },
      nullptr);
  static_cast<void>(registered);
}

absl::Status RocksEngine::Open(const std::string& dir, bool create) {
  // Bypasses the page cache where the file system can, so that the budget covers all memory.
  const std::string probe = options_.path + "/probe.tmp";
  HOTROW_ASSIGN_OR_RETURN(const auto file, PosixEnv().OpenDirect(probe, OpenMode::kTruncate));
  const bool direct = file->direct();
  HOTROW_RETURN_IF_ERROR(file->Close());
  HOTROW_RETURN_IF_ERROR(PosixEnv().Remove(probe));
  rocksdb::DB* db = nullptr;
  rocksdb::Options options = MakeOptions(direct);
  options.create_if_missing = create;
  rocksdb::Status status;
  HOTROW_RETURN_IF_ERROR(WithThreads(options_.background_jobs,
                                     [&] { status = rocksdb::DB::Open(options, dir, &db); }));
  EndForkedChildrenAtExit();  // the timer is there now
  HOTROW_RETURN_IF_ERROR(ToStatus(status, "open"));
  db_.reset(db);
  dir_ = dir;
  events_->NoteFlushed(last_sequence());  // nothing came from a log
  return absl::OkStatus();
}

// --- Writing -------------------------------------------------------------------------------------

// RocksDB makes writers wait while compactions lag behind. When those cannot run, as on a full
// disk, the wait would have no end: then it ends here.
rocksdb::Status RocksEngine::WriteWithoutHanging(rocksdb::WriteBatch& batch) {
  rocksdb::WriteOptions options;
  options.disableWAL = true;  // rows are durable by Flush
  // RocksDB waits for room by itself and goes on then; callers are told instead of waiting with it.
  if (const rocksdb::Status error = events_->error(); IsOutOfSpace(error)) return error;
  constexpr auto kPoll = std::chrono::milliseconds(2);
  constexpr auto kPatience = std::chrono::seconds(2);  // without any compaction running
  auto idle_since = std::chrono::steady_clock::now();
  while (Property("rocksdb.is-write-stopped") != 0 && events_->error().ok()) {
    const auto now = std::chrono::steady_clock::now();
    if (is_busy()) {
      idle_since = now;
    } else if (now - idle_since > kPatience) {
      return rocksdb::Status::SpaceLimit("compactions find no room to run in");
    }
    std::this_thread::sleep_for(kPoll);
  }
  return db_->Write(options, &batch);
}

absl::Status RocksEngine::Write(rocksdb::WriteBatch& batch) {
  const rocksdb::Status status = WriteWithoutHanging(batch);
  if (status.ok()) return absl::OkStatus();
  const rocksdb::Status error = events_->error();
  if (error.ok()) return ToStatus(status, "write");
  return ToStatus(error, IsOutOfSpace(error)
                             ? "takes no rows until there is room, after a background error"
                             : "takes no more rows after a background error; open it again");
}

absl::Status RocksEngine::FlushMemtables(uint64_t last) {
  constexpr int kTries = 50;
  constexpr std::chrono::milliseconds kPatience(200);
  rocksdb::FlushOptions options;
  options.wait = true;
  options.allow_write_stall = true;
  for (int i = 0; i < kTries; ++i) {
    const rocksdb::Status status = db_->Flush(options);
    if (!status.ok()) {
      const rocksdb::Status error = events_->error();
      return error.ok() ? ToStatus(status, "flush")
                        : ToStatus(error, "flush, after a background error");
    }
    // Right after it has recovered from a full file system, RocksDB (7.8) may say that a flush is
    // done when it has not begun. What counts is what went to files. They are announced by another
    // thread, perhaps after Flush has returned.
    if (events_->AwaitFlushed(last, kPatience)) return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("RocksDB store ", options_.path,
                   ": flush: RocksDB says that it is done, but rows are in no file; try again"));
}

// --- Figures -------------------------------------------------------------------------------------

uint64_t RocksEngine::last_sequence() const { return db_->GetLatestSequenceNumber(); }

int64_t RocksEngine::Property(std::string_view name) const {
  uint64_t value = 0;
  return db_->GetIntProperty({name.data(), name.size()}, &value) ? static_cast<int64_t>(value) : 0;
}

bool RocksEngine::is_busy() const {
  return Property("rocksdb.num-running-compactions") + Property("rocksdb.num-running-flushes") > 0;
}

int64_t RocksEngine::files_deleted() const { return events_->files_deleted(); }

void RocksEngine::RaisePeak(int64_t used) const {
  int64_t peak = peak_bytes_.load(std::memory_order_relaxed);
  while (used > peak && !peak_bytes_.compare_exchange_weak(peak, used)) {
  }
}

void RocksEngine::NotePeak() const { RaisePeak(static_cast<int64_t>(cache_->GetUsage())); }

RocksEngine::Memory RocksEngine::memory() const {
  Memory memory;
  memory.reader_bytes = Property("rocksdb.estimate-table-readers-mem");
  const auto memtables = static_cast<int64_t>(write_buffers_->memory_usage());
  const auto charged = static_cast<int64_t>(write_buffers_->dummy_entries_in_cache_usage());
  memory.used_bytes = static_cast<int64_t>(cache_->GetUsage()) + memory.reader_bytes +
                      std::max<int64_t>(0, memtables - charged);
  RaisePeak(memory.used_bytes);
  memory.peak_bytes = peak_bytes_.load();
  return memory;
}

}  // namespace hotrow::internal
