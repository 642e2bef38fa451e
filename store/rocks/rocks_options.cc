#include "store/rocks/rocks_options_impl.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"

namespace hotrow {
namespace {

constexpr int64_t kRowBytesMax = int64_t{1} << 30;
constexpr int64_t kMiB = int64_t{1} << 20;

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
    return absl::InvalidArgumentError(absl::StrCat(
        memory_option, " must be at least ", kRocksMemoryMin, ", it is ", memory_budget_bytes));
  }
  if (disk_budget_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(disk_option, " must be at least 0, it is ", disk_budget_bytes));
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

namespace internal {

RocksSizes::RocksSizes(const RocksStoreOptions& options) {
  const int64_t budget = options.memory_budget_bytes;
  uncounted = std::min(budget / 8, 32 * kMiB);
  cache = budget - uncounted;
  // A quarter for memtables: half of that fills up while the other half is flushed.
  memtables = std::min(budget / 4, 256 * kMiB);
  memtable = memtables / 2;
  for (const StoreTable& table : options.tables) {
    row_bytes_max = std::max(row_bytes_max, table.row_bytes);
  }
  // Blocks that finds pin at one time, an eighth of the cache at most: a strict cache refuses what
  // does not fit beside them.
  const int64_t block = std::max(2 * kRocksBlockBytes, 2 * row_bytes_max);
  const int64_t blocks = std::max<int64_t>(1, cache / 8 / block);
  find_chunk = std::clamp<int64_t>(blocks / options.read_threads, 1, kRocksFindChunkMax);
}

}  // namespace internal
}  // namespace hotrow
