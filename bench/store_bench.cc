// Reads and writes batches of rows of one RowStore, with a RowCache in front, and prints one JSON
// object (--report=FILE writes it there, too).
//
// What bounds it: a row that is not in memory costs a read, so a cold read is bounded by the reads
// a second that the device does (--store=raw measures them), a warm one by those divided by the
// share of rows that miss; writing is bounded by the sequential write rate divided by the write
// amplification. Every row that is returned is compared with what was last written for its key, and
// at the end all rows are, in the store as it was opened again. Runs that write end with a Flush,
// inside the time that is measured.
//
// Memory: rss_bytes is the process's resident memory less what it was before the store and the
// cache were made. The harness's own (keys drawn beforehand, the version of each key, the caller's
// batch of rows) is made before that and stands in harness_bytes. What --ram_bytes says is shared
// between store (--store_bytes) and cache; nobody has the page cache, since all use direct I/O.
//
// Time: batches follow each other; a batch's time includes comparing its rows, and cpu_us_per_row
// is that of the whole process, background threads and comparing included. harness_cpu_us_per_row
// is the part of it that went into making and comparing rows.

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/check.h"
#include "base/env.h"
#include "base/exec_context.h"
#include "base/flag_set.h"
#include "base/flag_text.h"
#include "base/path_list.h"
#include "base/philox.h"
#include "base/run_main.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "bench/store_bench.h"
#include "cache/row_cache.h"
#include "models/data/permutation.h"
#include "models/data/zipf.h"

extern char** environ;

namespace hotrow::bench {
namespace {

// What the child of --kill leaves in the first rows.
constexpr uint32_t kKilledVersion = 0x7fffffff;

// Batches of distinct row numbers, drawn beforehand.
class Batches {
 public:
  Batches(const StoreBenchFlags& flags, double exponent, int64_t count, uint64_t stream)
      : batch_(flags.batch) {
    const auto rows = static_cast<uint64_t>(flags.rows);
    const ZipfSampler sampler(rows, exponent);
    // Ranks are scattered, so that the hottest rows are no neighbours.
    const Permutation scatter(rows, static_cast<uint64_t>(flags.seed), 1, 1);
    std::vector<uint32_t> last_batch(rows, 0);  // that drew the row, from 1
    numbers_.reserve(static_cast<size_t>(count * batch_));
    uint64_t draw = 0;
    for (int64_t b = 1; b <= count; ++b) {
      for (int64_t i = 0; i < batch_;) {
        const auto block = [&](uint32_t n) {
          return RandomBlock(static_cast<uint64_t>(flags.seed) + stream, RandomPurpose::kTest, draw,
                             n, static_cast<uint32_t>(stream));
        };
        const uint64_t rank = sampler.Rank(block(0), block);
        ++draw;
        const uint64_t row = scatter(rank);
        if (last_batch[row] == b) continue;
        last_batch[row] = static_cast<uint32_t>(b);
        numbers_.push_back(static_cast<uint32_t>(row));
        ++i;
      }
    }
  }
  std::span<const uint32_t> Get(int64_t b) const {
    return std::span(numbers_).subspan(static_cast<size_t>(b * batch_),
                                       static_cast<size_t>(batch_));
  }
  int64_t count() const { return static_cast<int64_t>(numbers_.size()) / batch_; }
  int64_t bytes() const { return static_cast<int64_t>(numbers_.capacity() * 4); }

 private:
  int64_t batch_;
  std::vector<uint32_t> numbers_;
};

// What was measured over some batches.
struct Measured {
  std::vector<double> seconds;  // of each batch
  double wall = 0;
  double cpu = 0;
  double harness_cpu = 0;
  int64_t rows = 0;
  RowStoreStats before;
  RowStoreStats after;
  int64_t peak_rss = 0;
  int64_t peak_disk = 0;

  double RowsPerSecond() const { return wall > 0 ? static_cast<double>(rows) / wall : 0; }
};

class Bench {
 public:
  explicit Bench(const StoreBenchFlags& flags) : flags_(flags) {}

  absl::StatusOr<nlohmann::ordered_json> Run(const FlagSet& set);
  // Opens what is there, writes, flushes, writes on and kills this process.
  absl::Status RunKillChild();

 private:
  absl::Status Open();
  absl::Status Load();
  absl::Status Settle();
  absl::Status CloseStore();
  absl::StatusOr<Measured> RunBatches(const Batches& batches, int64_t begin, int64_t end,
                                      const std::string& mix, bool cached);
  absl::Status ReadCached(std::span<const RowKey> keys, bool write);
  absl::Status ReadBare(std::span<const RowKey> keys, bool write);
  absl::Status UpdateBare(std::span<const RowKey> keys);
  absl::Status WriteBackEvicted(size_t n);
  absl::Status FlushCache();
  absl::Status CheckAllRows();
  absl::Status CheckRow(const RowKey& key, const std::byte* row);
  absl::Status KillChildAndReopen(double* seconds);
  std::span<std::byte> RowSpan(std::byte* row) const {
    return {row, static_cast<size_t>(flags_.row_bytes)};
  }

  const StoreBenchFlags flags_;
  int64_t store_bytes_ = 0;
  int64_t cache_bytes_ = 0;
  std::vector<uint32_t> versions_;    // of each row
  HostBuffer<std::byte> batch_rows_;  // the caller's: [batch, row_bytes]
  std::vector<std::byte*> batch_pointers_;
  std::vector<uint8_t> found_;

  std::unique_ptr<RowStore> store_;
  std::unique_ptr<RowCache> cache_;
  std::unique_ptr<ThreadPool> pool_;
  ExecContext context_;
  std::vector<int64_t> slots_;
  std::vector<Placement> placement_;
  std::vector<uint8_t> evicted_;
  std::vector<RowKey> evicted_keys_;
  HostBuffer<std::byte> evicted_rows_;  // [staging_rows, row_bytes]
  std::vector<RowKey> some_keys_;
  std::vector<std::byte*> some_rows_;
  std::vector<const std::byte*> some_const_rows_;
  std::vector<int64_t> some_slots_;
  double harness_cpu_ = 0;
};

absl::Status Bench::CheckRow(const RowKey& key, const std::byte* row) {
  if (RowIs(key.key, versions_[key.key], {row, static_cast<size_t>(flags_.row_bytes)})) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("--store=", flags_.store, ": key ", key.key,
                                          " came with other bytes than those of version ",
                                          versions_[key.key], ", which was written last"));
}

absl::Status Bench::Open() {
  HOTROW_ASSIGN_OR_RETURN(store_, OpenBenchStore(flags_, store_bytes_));
  return absl::OkStatus();
}

absl::Status Bench::CloseStore() {
  HOTROW_RETURN_IF_ERROR(store_->Flush());
  HOTROW_RETURN_IF_ERROR(store_->Close());
  store_.reset();
  return absl::OkStatus();
}

absl::Status Bench::Load() {
  std::vector<RowKey> keys;
  std::vector<const std::byte*> rows;
  for (int64_t begin = 0; begin < flags_.rows; begin += flags_.batch) {
    keys.clear();
    rows.clear();
    for (int64_t i = begin; i < std::min(flags_.rows, begin + flags_.batch); ++i) {
      std::byte* const row = batch_pointers_[static_cast<size_t>(i - begin)];
      FillRow(static_cast<uint64_t>(i), 0, RowSpan(row));
      keys.push_back({static_cast<uint64_t>(i), kBenchTable});
      rows.push_back(row);
    }
    HOTROW_RETURN_IF_ERROR(store_->InsertOrAssign(keys, rows));
  }
  return store_->Flush();
}

// Waits until background work has ended: nothing read or written for a second.
absl::Status Bench::Settle() {
  constexpr auto kPoll = std::chrono::milliseconds(250);
  constexpr int kQuietPolls = 4;
  constexpr int kPollsMax = 4 * 180;
  int quiet = 0;
  RowStoreStats last = store_->Stats();
  for (int poll = 0; poll < kPollsMax && quiet < kQuietPolls; ++poll) {
    if (flags_.store == "memory") return absl::OkStatus();
    std::this_thread::sleep_for(kPoll);
    const RowStoreStats now = store_->Stats();
    const bool same = now.bytes_written == last.bytes_written && now.bytes_read == last.bytes_read;
    quiet = same ? quiet + 1 : 0;
    last = now;
  }
  return absl::OkStatus();
}

// The first n entries of evicted_*: the dirty ones go back to the store in one batch.
absl::Status Bench::WriteBackEvicted(size_t n) {
  some_keys_.clear();
  some_const_rows_.clear();
  for (size_t i = 0; i < n; ++i) {
    if (evicted_[i] == 0) continue;
    some_keys_.push_back(evicted_keys_[i]);
    some_const_rows_.push_back(evicted_rows_.data() + static_cast<int64_t>(i) * flags_.row_bytes);
  }
  return some_keys_.empty() ? absl::OkStatus()
                            : store_->InsertOrAssign(some_keys_, some_const_rows_);
}

absl::Status Bench::ReadCached(std::span<const RowKey> keys, bool write) {
  const auto slice = static_cast<size_t>(flags_.staging_rows);
  for (size_t begin = 0; begin < keys.size(); begin += slice) {
    const size_t n = std::min(slice, keys.size() - begin);
    const std::span<const RowKey> part = keys.subspan(begin, n);
    const std::span<int64_t> slots = std::span(slots_).subspan(begin, n);
    const std::span<Placement> placement = std::span(placement_).first(n);
    HOTROW_RETURN_IF_ERROR(cache_->FindOrInsert(context_, part,
                                                {.slots = slots,
                                                 .placement = placement,
                                                 .evicted = std::span(evicted_).first(n),
                                                 .evicted_keys = std::span(evicted_keys_).first(n),
                                                 .evicted_rows = evicted_rows_.data()}));
    HOTROW_RETURN_IF_ERROR(WriteBackEvicted(n));
    some_keys_.clear();
    some_rows_.clear();
    some_slots_.clear();
    for (size_t i = 0; i < n; ++i) {
      if (placement[i] == Placement::kNoRoom) {
        return absl::ResourceExhaustedError(
            absl::StrCat("--row_cache: ", cache_bytes_, " bytes have no room for a batch of ",
                         flags_.batch, " rows; raise --ram_bytes or lower --batch"));
      }
      if (placement[i] != Placement::kFilled) continue;
      some_keys_.push_back(part[i]);
      some_rows_.push_back(cache_->row(slots[i]));
      some_slots_.push_back(slots[i]);
    }
    if (some_keys_.empty()) continue;
    const std::span<uint8_t> found = std::span(found_).first(some_keys_.size());
    HOTROW_RETURN_IF_ERROR(store_->Find(some_keys_, some_rows_, found));
    if (const auto miss = std::find(found.begin(), found.end(), 0); miss != found.end()) {
      return absl::DataLossError(absl::StrCat("--store=", flags_.store, ": key ",
                                              some_keys_[miss - found.begin()].key, " is lost"));
    }
    HOTROW_RETURN_IF_ERROR(cache_->MarkFilled(context_, some_slots_));
  }
  const double harness_begin = ThreadSeconds();
  for (size_t i = 0; i < keys.size(); ++i) {
    std::byte* const row = cache_->row(slots_[i]);
    HOTROW_RETURN_IF_ERROR(CheckRow(keys[i], row));
    if (write) FillRow(keys[i].key, ++versions_[keys[i].key], RowSpan(row));
  }
  harness_cpu_ += ThreadSeconds() - harness_begin;
  HOTROW_RETURN_IF_ERROR(cache_->Unpin(context_, std::span(slots_).first(keys.size()), write));
  return cache_->EndStep(context_);
}

absl::Status Bench::ReadBare(std::span<const RowKey> keys, bool write) {
  const std::span<uint8_t> found = std::span(found_).first(keys.size());
  HOTROW_RETURN_IF_ERROR(store_->Find(keys, std::span(batch_pointers_).first(keys.size()), found));
  const double harness_begin = ThreadSeconds();
  for (size_t i = 0; i < keys.size(); ++i) {
    if (found[i] == 0) {
      return absl::DataLossError(
          absl::StrCat("--store=", flags_.store, ": key ", keys[i].key, " is lost"));
    }
    HOTROW_RETURN_IF_ERROR(CheckRow(keys[i], batch_pointers_[i]));
  }
  harness_cpu_ += ThreadSeconds() - harness_begin;
  return write ? UpdateBare(keys) : absl::OkStatus();
}

absl::Status Bench::UpdateBare(std::span<const RowKey> keys) {
  const double harness_begin = ThreadSeconds();
  some_const_rows_.clear();
  for (size_t i = 0; i < keys.size(); ++i) {
    FillRow(keys[i].key, ++versions_[keys[i].key], RowSpan(batch_pointers_[i]));
    some_const_rows_.push_back(batch_pointers_[i]);
  }
  harness_cpu_ += ThreadSeconds() - harness_begin;
  return store_->InsertOrAssign(keys, some_const_rows_);
}

absl::StatusOr<Measured> Bench::RunBatches(const Batches& batches, int64_t begin, int64_t end,
                                           const std::string& mix, bool cached) {
  Measured result;
  result.before = store_->Stats();
  harness_cpu_ = 0;
  std::vector<RowKey> keys(static_cast<size_t>(flags_.batch), RowKey{0, kBenchTable});
  const double cpu_begin = ProcessSeconds();
  const double wall_begin = WallSeconds();
  constexpr int64_t kSampleEvery = 16;  // batches; reading the disk's use is not free
  for (int64_t b = begin; b < end; ++b) {
    const double batch_begin = WallSeconds();
    const std::span<const uint32_t> numbers = batches.Get(b);
    for (size_t i = 0; i < keys.size(); ++i) keys[i].key = numbers[i];
    if (mix == "update") {
      HOTROW_RETURN_IF_ERROR(UpdateBare(keys));
    } else if (cached) {
      HOTROW_RETURN_IF_ERROR(ReadCached(keys, mix == "read_write"));
    } else {
      HOTROW_RETURN_IF_ERROR(ReadBare(keys, mix == "read_write"));
    }
    result.seconds.push_back(WallSeconds() - batch_begin);
    result.rows += flags_.batch;
    if (b % kSampleEvery == 0) {
      result.peak_rss = std::max(result.peak_rss, ResidentBytes());
      const RowStoreStats now = store_->Stats();
      result.peak_disk = std::max(result.peak_disk, now.disk_used_bytes - now.snapshot_bytes);
    }
  }
  // What was written counts when it is durable, so that no store leaves work in its buffers.
  if (mix != "read") HOTROW_RETURN_IF_ERROR(store_->Flush());
  result.wall = WallSeconds() - wall_begin;
  result.cpu = ProcessSeconds() - cpu_begin;
  result.harness_cpu = harness_cpu_;
  result.after = store_->Stats();
  result.peak_rss = std::max(result.peak_rss, ResidentBytes());
  result.peak_disk =
      std::max(result.peak_disk, result.after.disk_used_bytes - result.after.snapshot_bytes);
  return result;
}

absl::Status Bench::FlushCache() {
  if (cache_ == nullptr) return absl::OkStatus();
  return cache_->ForEachDirty(
      context_, [&](std::span<const RowKey> keys, std::span<const std::byte* const> rows) {
        return store_->InsertOrAssign(keys, rows);
      });
}

absl::Status Bench::CheckAllRows() {
  std::vector<uint8_t> seen(static_cast<size_t>(flags_.rows), 0);
  int64_t count = 0;
  HOTROW_RETURN_IF_ERROR(
      store_->Iterate([&](const RowKey& key, std::span<const std::byte> row) -> absl::Status {
        if (key.table != kBenchTable || key.key >= seen.size() || seen[key.key] != 0) {
          return absl::DataLossError(absl::StrCat("--store=", flags_.store, ": key ", key.key,
                                                  " of table ", key.table,
                                                  " was never written, or came twice"));
        }
        seen[key.key] = 1;
        ++count;
        return CheckRow(key, row.data());
      }));
  if (count == flags_.rows) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("--store=", flags_.store, ": ", count, " rows of ", flags_.rows, " are there"));
}

absl::Status Bench::RunKillChild() {
  versions_.assign(static_cast<size_t>(flags_.rows), 0);
  HOTROW_ASSIGN_OR_RETURN(batch_rows_,
                          HostBuffer<std::byte>::Create(flags_.batch * flags_.row_bytes));
  store_bytes_ = flags_.store_bytes;
  HOTROW_RETURN_IF_ERROR(Open());
  std::vector<RowKey> keys;
  std::vector<const std::byte*> rows;
  for (int64_t i = 0; i < flags_.batch; ++i) {
    std::byte* const row = batch_rows_.data() + i * flags_.row_bytes;
    FillRow(static_cast<uint64_t>(i), kKilledVersion, RowSpan(row));
    keys.push_back({static_cast<uint64_t>(i), kBenchTable});
    rows.push_back(row);
  }
  HOTROW_RETURN_IF_ERROR(store_->InsertOrAssign(keys, rows));
  HOTROW_RETURN_IF_ERROR(store_->Flush());
  // Rows that nothing promises, with the same bytes, so that either outcome is right.
  HOTROW_RETURN_IF_ERROR(store_->InsertOrAssign(keys, rows));
  ::kill(::getpid(), SIGKILL);
  return absl::InternalError("SIGKILL did not end this process");
}

absl::Status Bench::KillChildAndReopen(double* seconds) {
  std::vector<std::string> arguments = {"store_bench",
                                        absl::StrCat("--store=", flags_.store),
                                        absl::StrCat("--path=", flags_.path),
                                        absl::StrCat("--more_paths=", flags_.more_paths),
                                        absl::StrCat("--rows=", flags_.rows),
                                        absl::StrCat("--row_bytes=", flags_.row_bytes),
                                        absl::StrCat("--store_bytes=", store_bytes_),
                                        absl::StrCat("--disk_bytes=", flags_.disk_bytes),
                                        absl::StrCat("--batch=", flags_.batch),
                                        absl::StrCat("--io=", flags_.io),
                                        "--kill_child=1"};
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t child = -1;
  if (const int error =
          ::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, argv.data(), environ);
      error != 0) {
    return absl::InternalError(absl::StrCat("--kill: no child: ", std::strerror(error)));
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFSIGNALED(status) ||
      WTERMSIG(status) != SIGKILL) {
    return absl::InternalError("--kill: the child failed before it was killed");
  }
  const double begin = WallSeconds();
  HOTROW_RETURN_IF_ERROR(Open());
  *seconds = WallSeconds() - begin;
  std::fill_n(versions_.begin(), flags_.batch, kKilledVersion);
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::ordered_json> Bench::Run(const FlagSet& set) {
  const bool cache_wanted = flags_.row_cache == "auto"
                                ? flags_.store != "memory" && flags_.mix != "update"
                                : flags_.row_cache != "0";
  if (cache_wanted && flags_.mix == "update") {
    return absl::InvalidArgumentError(
        "--row_cache: --mix=update writes to the store itself; leave it at auto or 0");
  }
  store_bytes_ =
      flags_.store_bytes != 0 ? flags_.store_bytes : DefaultStoreBytes(flags_, cache_wanted);
  if (cache_wanted) {
    const int64_t staging = std::min(flags_.staging_rows, flags_.batch) * flags_.row_bytes;
    constexpr int64_t kScratchPerKey = 20;  // of the cache, cache/row_cache.h
    if (flags_.row_cache == "auto") {
      cache_bytes_ = flags_.ram_bytes - store_bytes_ - staging - kScratchPerKey * flags_.batch;
    } else {
      HOTROW_ASSIGN_OR_RETURN(cache_bytes_, ParseBytes(flags_.row_cache));
    }
    const int64_t least = RowCache::BudgetForRows(flags_.batch, flags_.row_bytes);
    if (cache_bytes_ < least) {
      return absl::ResourceExhaustedError(
          absl::StrCat("--ram_bytes: ", flags_.ram_bytes, " bytes, ", store_bytes_,
                       " of them for the store, leave ", cache_bytes_,
                       " for the cache; a batch of ", flags_.batch, " rows needs ", least));
    }
  }

  // --- The harness, before memory is measured ---
  const Batches batches(flags_, flags_.zipf_exponent, flags_.warmup_batches + flags_.batches, 1);
  std::optional<Batches> read_batches;
  if (flags_.mix == "update" && flags_.read_batches > 0) {
    read_batches.emplace(flags_, 0.0, 2 * flags_.read_batches, 2);
  }
  const auto n = static_cast<size_t>(flags_.batch);
  versions_.assign(static_cast<size_t>(flags_.rows), 0);
  HOTROW_ASSIGN_OR_RETURN(batch_rows_,
                          HostBuffer<std::byte>::Create(flags_.batch * flags_.row_bytes));
  std::memset(batch_rows_.data(), 1, static_cast<size_t>(batch_rows_.bytes()));
  for (size_t i = 0; i < n; ++i) {
    batch_pointers_.push_back(batch_rows_.data() + static_cast<int64_t>(i) * flags_.row_bytes);
  }
  found_.assign(n, 0);
  pool_ = std::make_unique<ThreadPool>(static_cast<int>(flags_.threads));
  context_.pool = pool_.get();
  const int64_t base_rss = ResidentBytes();
  const int64_t harness_bytes = batches.bytes() + (read_batches ? read_batches->bytes() : 0) +
                                4 * flags_.rows + batch_rows_.bytes();

  // --- Load; close and open again, so that nothing is warm ---
  HOTROW_RETURN_IF_ERROR(Open());
  const double load_begin = WallSeconds();
  HOTROW_RETURN_IF_ERROR(Load());
  const double load_seconds = WallSeconds() - load_begin;
  HOTROW_RETURN_IF_ERROR(Settle());
  const double settled_seconds = WallSeconds() - load_begin;
  if (flags_.store != "memory") {
    HOTROW_RETURN_IF_ERROR(CloseStore());
    HOTROW_RETURN_IF_ERROR(Open());
    HOTROW_RETURN_IF_ERROR(Settle());
  }
  if (cache_wanted) {
    HOTROW_ASSIGN_OR_RETURN(cache_, RowCache::Create({.row_bytes = flags_.row_bytes,
                                                      .budget_bytes = cache_bytes_,
                                                      .policy = flags_.cache_policy}));
    slots_.assign(n, 0);
    placement_.assign(n, Placement::kNoRoom);
    evicted_.assign(n, 0);
    evicted_keys_.assign(n, RowKey{});
    HOTROW_ASSIGN_OR_RETURN(
        evicted_rows_, HostBuffer<std::byte>::Create(std::min(flags_.staging_rows, flags_.batch) *
                                                     flags_.row_bytes));
  }

  // --- Measure ---
  nlohmann::ordered_json json;
  if (read_batches) {
    HOTROW_ASSIGN_OR_RETURN(const Measured before,
                            RunBatches(*read_batches, 0, flags_.read_batches, "read", false));
    json["reads_before_per_second"] = before.RowsPerSecond();
  }
  const bool cached = cache_ != nullptr;
  HOTROW_RETURN_IF_ERROR(
      RunBatches(batches, 0, flags_.warmup_batches, flags_.mix, cached).status());
  HOTROW_ASSIGN_OR_RETURN(const Measured main, RunBatches(batches, flags_.warmup_batches,
                                                          batches.count(), flags_.mix, cached));
  const int64_t rss = ResidentBytes() - base_rss;
  if (read_batches) {  // at once, while cleaning or compaction is still at work
    HOTROW_ASSIGN_OR_RETURN(
        const Measured after,
        RunBatches(*read_batches, flags_.read_batches, 2 * flags_.read_batches, "read", false));
    json["reads_after_per_second"] = after.RowsPerSecond();
    json["reads_after_share"] =
        json["reads_before_per_second"] > 0
            ? after.RowsPerSecond() / json["reads_before_per_second"].get<double>()
            : 0.0;
  }
  HOTROW_RETURN_IF_ERROR(FlushCache());
  HOTROW_RETURN_IF_ERROR(store_->Flush());
  if (flags_.mix == "update") HOTROW_RETURN_IF_ERROR(Settle());
  const RowStoreStats last = store_->Stats();

  // --- Open again, and every row once more ---
  if (flags_.store != "memory") {
    HOTROW_RETURN_IF_ERROR(CloseStore());
    const double begin = WallSeconds();
    HOTROW_RETURN_IF_ERROR(Open());
    json["reopen_seconds"] = WallSeconds() - begin;
  } else {
    json["reopen_seconds"] = nullptr;  // memory forgets
  }
  HOTROW_RETURN_IF_ERROR(CheckAllRows());
  if (flags_.kill && flags_.store != "memory") {
    HOTROW_RETURN_IF_ERROR(CloseStore());
    double seconds = 0;
    HOTROW_RETURN_IF_ERROR(KillChildAndReopen(&seconds));
    json["reopen_after_kill_seconds"] = seconds;
    HOTROW_RETURN_IF_ERROR(CheckAllRows());
  }

  // --- Say it ---
  const auto rows = static_cast<double>(main.rows);
  const auto data_bytes = static_cast<double>(flags_.rows * flags_.row_bytes);
  const int64_t payload = main.after.payload_bytes_written - main.before.payload_bytes_written;
  const BatchTimes times = SummarizeBatches(main.seconds);
  nlohmann::ordered_json report;
  report["store"] = flags_.store;
  report["rows_per_second"] = main.RowsPerSecond();
  report["cpu_us_per_row"] = 1e6 * main.cpu / rows;
  report["harness_cpu_us_per_row"] = 1e6 * main.harness_cpu / rows;
  report["ios_per_row"] = static_cast<double>(main.after.ios - main.before.ios) / rows;
  report["bytes_read_per_row"] =
      static_cast<double>(main.after.bytes_read - main.before.bytes_read) / rows;
  report["p50_batch_ms"] = times.p50_ms;
  report["p99_batch_ms"] = times.p99_ms;
  report["max_batch_ms"] = times.max_ms;
  report["write_amplification"] =
      payload > 0 ? nlohmann::ordered_json(
                        static_cast<double>(main.after.bytes_written - main.before.bytes_written) /
                        static_cast<double>(payload))
                  : nlohmann::ordered_json(nullptr);
  // With what cleaning or compaction did after the last write, until it rested.
  if (flags_.mix == "update") {
    report["settled_write_amplification"] =
        static_cast<double>(last.bytes_written - main.before.bytes_written) /
        static_cast<double>(last.payload_bytes_written - main.before.payload_bytes_written);
    report["settled_space_amplification"] =
        static_cast<double>(last.disk_used_bytes - last.snapshot_bytes) / data_bytes;
  }
  report["space_amplification"] =
      static_cast<double>(main.after.disk_used_bytes - main.after.snapshot_bytes) / data_bytes;
  report["peak_space_amplification"] = static_cast<double>(main.peak_disk) / data_bytes;
  report["snapshot_bytes"] = last.snapshot_bytes;
  report["index_bytes_per_row"] =
      static_cast<double>(last.metadata_bytes) / static_cast<double>(flags_.rows);
  report["rss_bytes"] = rss;
  report["peak_rss_bytes"] = main.peak_rss - base_rss;
  report.update(json);
  report["rows_verified"] = main.rows + flags_.rows;
  report["seconds"] = main.wall;
  report["rows"] = flags_.rows;
  report["batches"] = static_cast<int64_t>(main.seconds.size());
  report["load_seconds"] = load_seconds;
  report["load_settled_seconds"] = settled_seconds;
  report["store_budget_bytes"] = store_bytes_;
  report["store_used_bytes"] = main.after.used_bytes;
  report["store_peak_bytes"] = main.after.peak_bytes;
  report["cache_budget_bytes"] = cache_bytes_;
  report["cache_rows"] = cached ? cache_->Size().ways : 0;
  report["misses_per_row"] = static_cast<double>(main.after.finds - main.before.finds) / rows;
  report["disk_used_bytes"] = main.after.disk_used_bytes;
  report["harness_bytes"] = harness_bytes;
  return report;
}

absl::Status RunProgram(StoreBenchFlags& flags, const FlagSet& set) {
  HOTROW_RETURN_IF_ERROR(Resolve(flags));
  if (!flags.kill_child.empty()) return Bench(flags).RunKillChild();
  const std::string data_path = flags.path;
  const bool on_disk = flags.store != "memory";
  // Only the bench's directory is emptied: one that is missing, or empty, or marked by an earlier
  // run.
  const std::string mark = data_path + "/store_bench.data";
  Env& env = PosixEnv();
  if (on_disk) {
    HOTROW_RETURN_IF_ERROR(env.CreateDirs(data_path));
    HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> entries, env.ListDir(data_path));
    HOTROW_ASSIGN_OR_RETURN(const bool marked, env.Exists(mark));
    if (!entries.empty() && !marked) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--path=", data_path, ": is not empty, and no earlier run of store_bench made it"));
    }
    HOTROW_RETURN_IF_ERROR(WriteFileAtomically(env, mark, "what lies here may be removed\n"));
    flags.path = data_path + "/data";
    std::error_code ignored;
    std::filesystem::remove_all(flags.path, ignored);
  }
  HOTROW_ASSIGN_OR_RETURN(std::vector<std::string> more, SplitPathList(flags.more_paths));
  const auto remove_more = [&] {
    std::error_code ignored;
    for (const std::string& path : more) std::filesystem::remove_all(path, ignored);
  };
  for (std::string& path : more) path += "/store_bench_data";
  flags.more_paths = JoinPathList(more);
  remove_more();
  const auto measured = flags.store == "raw" ? [&]() -> absl::StatusOr<nlohmann::ordered_json> {
    HOTROW_ASSIGN_OR_RETURN(const nlohmann::ordered_json device, MeasureDevice(flags));
    nlohmann::ordered_json report = {{"store", "raw"}};
    report.update(device);
    return report;
  }()
      : Bench(flags).Run(set);
  flags.path = data_path;
  if (on_disk && !flags.keep) {
    std::error_code ignored;
    std::filesystem::remove_all(data_path + "/data", ignored);
    std::filesystem::remove(mark, ignored);
    std::filesystem::remove(data_path, ignored);  // where it is empty
    remove_more();
  }
  HOTROW_RETURN_IF_ERROR(measured.status());
  nlohmann::ordered_json report = *measured;
  for (const auto& [name, value] : set.Values()) {
    if (name == "kill_child") continue;
    std::visit([&](const auto& v) { report["flags"][name] = v; }, value);
  }
  const std::string text = report.dump(2) + "\n";
  std::fputs(text.c_str(), stdout);
  return flags.report.empty() ? absl::OkStatus() : WriteFileAtomically(env, flags.report, text);
}

int Main(int argc, char** argv) {
  StoreBenchFlags flags;
  FlagSet set("store_bench");
  AddFlags(flags, set);
  const absl::Status parsed = set.Parse(argc, argv);
  if (parsed.ok() && set.help_requested()) {
    std::fputs(set.Help().c_str(), stdout);
    return 0;
  }
  const absl::Status status = parsed.ok() ? RunProgram(flags, set) : parsed;
  if (status.ok()) return 0;
  const std::string message(status.message());
  std::fprintf(stderr, "store_bench: %s\n", message.c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace
}  // namespace hotrow::bench

int main(int argc, char** argv) {
  return hotrow::RunMain("store_bench", [&] { return hotrow::bench::Main(argc, argv); });
}
