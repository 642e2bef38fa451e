#ifndef HOTROW_BENCH_STORE_BENCH_H_
#define HOTROW_BENCH_STORE_BENCH_H_

// The parts of store_bench: flags, the stores it opens, the device measured by itself.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/flag_set.h"
#include "cache/cache_policy.h"
#include "store/row_store.h"

namespace hotrow::bench {

struct StoreBenchFlags {
  std::string store = "memory";
  std::string path;
  std::string more_paths;  // a list
  int64_t rows = 4'000'000;
  int64_t row_bytes = 512;
  int64_t ram_bytes = int64_t{256} << 20;
  int64_t store_bytes = 0;
  std::string row_cache = "auto";
  int64_t disk_bytes = 0;
  int64_t batch = 16'384;
  int64_t batches = 50;
  int64_t warmup_batches = 0;
  std::string pattern = "uniform";
  std::string mix = "read";
  int64_t read_batches = 20;
  int64_t threads = 2;
  int64_t rocks_threads = 64;
  CachePolicy cache_policy = CachePolicy::kLfu;
  int64_t staging_rows = 4096;
  std::string io = "auto";
  int64_t seed = 1;
  bool kill = false;
  std::string kill_child;  // hidden: what the child of --kill does
  bool keep = false;
  std::string report;

  // The exponent of `pattern`: 0 for uniform.
  double zipf_exponent = 0;
};

void AddFlags(StoreBenchFlags& flags, FlagSet& set);
// Checks them, and computes what follows from several. Errors: InvalidArgument, naming the flag.
absl::Status Resolve(StoreBenchFlags& flags);

// --- Time, processor, memory ---------------------------------------------------------------------

double WallSeconds();
double ProcessSeconds();  // of processor, all threads
double ThreadSeconds();   // of processor, this thread
int64_t ResidentBytes();

// p50, p99 and max in milliseconds of durations in seconds.
struct BatchTimes {
  double p50_ms = 0;
  double p99_ms = 0;
  double max_ms = 0;
};
BatchTimes SummarizeBatches(std::vector<double> seconds);

// --- Rows ----------------------------------------------------------------------------------------

// Every 8-byte word of a row depends on its key, its version and its place, and costs one addition.
void FillRow(uint64_t key, uint32_t version, std::span<std::byte> row);
bool RowIs(uint64_t key, uint32_t version, std::span<const std::byte> row);

// --- Stores --------------------------------------------------------------------------------------

inline constexpr uint32_t kBenchTable = 7;

// What the store gets of --ram_bytes, by kind, when --store_bytes leaves it open; with_cache: a
// RowCache stands in front.
int64_t DefaultStoreBytes(const StoreBenchFlags& flags, bool with_cache);
// The same for --disk_bytes.
int64_t DefaultDiskBytes(const StoreBenchFlags& flags);

// Opens the store of these flags, empty or with what is there.
absl::StatusOr<std::unique_ptr<RowStore>> OpenBenchStore(const StoreBenchFlags& flags,
                                                         int64_t store_bytes);

// --- The device ----------------------------------------------------------------------------------

// Random 4 KiB reads at depth 128 past the page cache, through Env::NewIoQueue and through io_uring
// itself, sequential writes of 1 MiB, and both at once.
absl::StatusOr<nlohmann::ordered_json> MeasureDevice(const StoreBenchFlags& flags);

}  // namespace hotrow::bench

#endif  // HOTROW_BENCH_STORE_BENCH_H_
