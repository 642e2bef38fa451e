#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/path_list.h"
#include "base/status_macros.h"
#include "bench/store_bench.h"
#include "store/open.h"
#include "store/store_facts.h"

namespace hotrow::bench {
namespace {

double Seconds(clockid_t clock) {
  timespec now{};
  HOTROW_CHECK(::clock_gettime(clock, &now) == 0);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Where a word's place goes into its value.
constexpr uint64_t kWordStep = 0x9e3779b97f4a7c15ULL;

uint64_t FirstWord(uint64_t key, uint32_t version) {
  return Mix64(key ^ Mix64(static_cast<uint64_t>(version) + 1));
}

}  // namespace

double WallSeconds() { return Seconds(CLOCK_MONOTONIC); }
double ProcessSeconds() {
  rusage usage{};
  HOTROW_CHECK(::getrusage(RUSAGE_SELF, &usage) == 0);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}
double ThreadSeconds() { return Seconds(CLOCK_THREAD_CPUTIME_ID); }

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0;
  int64_t resident = 0;
  file >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

BatchTimes SummarizeBatches(std::vector<double> seconds) {
  if (seconds.empty()) return {};
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double share) {
    const auto i = static_cast<size_t>(share * static_cast<double>(seconds.size()));
    return 1e3 * seconds[std::min(i, seconds.size() - 1)];
  };
  return {.p50_ms = at(0.5), .p99_ms = at(0.99), .max_ms = 1e3 * seconds.back()};
}

void FillRow(uint64_t key, uint32_t version, std::span<std::byte> row) {
  uint64_t word = FirstWord(key, version);
  for (size_t at = 0; at + 8 <= row.size(); at += 8, word += kWordStep) {
    std::memcpy(row.data() + at, &word, 8);
  }
}

bool RowIs(uint64_t key, uint32_t version, std::span<const std::byte> row) {
  uint64_t word = FirstWord(key, version);
  uint64_t difference = 0;
  for (size_t at = 0; at + 8 <= row.size(); at += 8, word += kWordStep) {
    uint64_t found = 0;
    std::memcpy(&found, row.data() + at, 8);
    difference |= found ^ word;
  }
  return difference == 0;
}

int64_t DefaultStoreBytes(const StoreBenchFlags& flags, bool with_cache) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  if (flags.store == "memory") {
    // Rows, 16 bytes of metadata each, and 1/8 + 64 MiB for what is part-filled.
    const int64_t rows_bytes = flags.rows * (flags.row_bytes + 16);
    return rows_bytes + rows_bytes / 8 + 64 * kMiB;
  }
  if (!with_cache) return flags.ram_bytes;
  // RocksDB: index and filter blocks of all rows, memtables, the blocks under way.
  if (flags.store == "rocksdb") return std::max(8 * kMiB, flags.ram_bytes / 4);
  // SSD: 9 bytes of index a row, and buffers.
  return 9 * flags.rows + std::min(24 * kMiB, std::max(8 * kMiB, flags.ram_bytes / 8));
}

int64_t DefaultDiskBytes(const StoreBenchFlags& flags) {
  if (flags.store != "ssd") return 0;  // no limit
  const int64_t rows_bytes = flags.rows * flags.row_bytes;
  return rows_bytes + rows_bytes / 2 + (int64_t{64} << 20);
}

absl::StatusOr<std::unique_ptr<RowStore>> OpenBenchStore(const StoreBenchFlags& flags,
                                                         int64_t store_bytes) {
  HOTROW_ASSIGN_OR_RETURN(const StoreKind kind, ParseStoreKind(flags.store));
  HOTROW_ASSIGN_OR_RETURN(std::vector<std::string> more_paths, SplitPathList(flags.more_paths));
  StoreOptions options = MakeStoreOptions(
      kind,
      {.path = FactsOf(kind).on_disk ? flags.path : std::string(),
       .more_paths = std::move(more_paths),
       .tables = {{.table = kBenchTable, .row_bytes = flags.row_bytes}},
       .memory_budget_bytes = store_bytes,
       .disk_budget_bytes = flags.disk_bytes != 0 ? flags.disk_bytes : DefaultDiskBytes(flags)});
  if (auto* const rocks = std::get_if<RocksStoreOptions>(&options); rocks != nullptr) {
    rocks->read_threads = static_cast<int32_t>(flags.rocks_threads);
    rocks->background_jobs = static_cast<int32_t>(flags.threads);
  }
  if (auto* const ssd = std::get_if<SsdStoreOptions>(&options); ssd != nullptr) {
    ssd->io.kind = flags.io == "uring"     ? IoQueueKind::kUring
                   : flags.io == "threads" ? IoQueueKind::kThreads
                                           : IoQueueKind::kAuto;
  }
  return OpenStore(options);
}

}  // namespace hotrow::bench
