#ifndef HOTROW_BENCH_GPU_BENCH_TIERS_H_
#define HOTROW_BENCH_GPU_BENCH_TIERS_H_

// The part "tiers" of gpu_bench: batches looked up and trained through a row cache on the device,
// over host memory and over an SSD. It runs on the CPU as well, with the tiers of a GPU in host
// memory: that is how its test runs it.

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"
#include "base/exec_context.h"
#include "bench/gpu_bench_plan.h"
#include "store/open.h"

namespace hotrow::bench {

// What Prefetch and Lookup of kLookupTables * kLookupSamples ids are meant to take at a share of
// 0.8 over host memory, with tables of kTierRowsPerTable rows of dim kWidestDim.
inline constexpr double kTierTargetSeconds = 1.2e-3;
inline constexpr int64_t kTierRowsPerTable = 1'000'000;

// All rows of all tables are made before anything is measured, so the tables' sizes are the
// footprint. Lookups come first, after all rows were written down: what leaves the cache is clean.
// Training comes after every row was trained again: what leaves is dirty. Bytes are bytes.
struct TiersPlan {
  Device device = Device::kCpu;
  std::vector<double> shares;  // of the rows that device caches have room for; the last one first
  int64_t tables = kLookupTables;
  int64_t dim = kWidestDim;
  int64_t rows_per_table = 0;  // R
  int64_t samples = 0;         // of a step; one lookup a table in each; at most R / 2
  int64_t steps = 0;           // that are measured, of each kind
  int64_t warmup = 0;
  uint64_t seed = 0;

  int64_t row_bytes = 0;           // dim floats as SGD has them
  int64_t store_bytes = 0;         // budget of a memory store,
  int64_t device_index_bytes = 0;  // and of an index of it on the device: all rows find room
  int64_t ssd_store_bytes = 0;     // of an SSD store: memory,
  int64_t disk_bytes = 0;          // and disk
  int64_t host_cache_bytes = 0;    // between the device and an SSD store: a tenth of the rows
  bool needs_direct_io = true;     // over an SSD: through the page cache it would measure memory

  int64_t rows() const { return tables * rows_per_table; }
  int64_t rows_bytes() const { return rows() * row_bytes; }
  // device_cache_bytes in which share * rows() rows have a place; for a share of 1 an eighth more,
  // so that hardly any row ever has to leave.
  int64_t DeviceCacheBytes(double share) const;
};

// Rows of the widest of --dims, a million a table (with --quick 200,000), fewer where
// sizes.table_bytes has no room for the cache or sizes.host_bytes none for the rows.
// InvalidArgument when nothing is left of them.
absl::StatusOr<TiersPlan> PlanTiers(const GpuBenchFlags& flags, const GpuBenchSizes& sizes,
                                    Device device);

// What crosses the bus for a step beside rows: its ids and offsets; and of each miss what the host
// is told, what it asks the cache for, and where its row comes from and goes to. known: misses that
// the device has found by itself.
int64_t TierStepBytes(int64_t lookups, int64_t misses, int64_t known = 0);

// The smallest of `seconds` that is no smaller than `fraction` of them. At least one.
double Percentile(std::vector<double> seconds, double fraction);

// Times what is enqueued on a stream between Begin and End.
class StreamTimer {
 public:
  virtual ~StreamTimer() = default;
  virtual absl::Status Begin() = 0;
  virtual absl::Status End() = 0;
  virtual absl::StatusOr<double> Seconds() = 0;  // once the stream is idle
};

struct TiersRun {
  TiersPlan plan;
  ExecContext ctx;                  // of plan.device, with threads for the host's part
  StreamTimer* timer = nullptr;     // null on the CPU: the wall clock
  std::string path;                 // directory for SSD stores; empty: that of temporary files
  double bus_bytes_per_second = 0;  // of page-locked copies to the device; 0: not measured
  // Gets each figure and its line, or what was skipped and why.
  std::function<void(nlohmann::ordered_json json, const std::string& line)> add;
};

// Measures each share over each kind of store. An SSD store is skipped where there is no room for
// it or no direct I/O. DataLoss when rows are not what they must be.
absl::Status MeasureTiers(const TiersRun& run);

// Whether an SSD store can be measured in this directory: empty, or why not.
absl::StatusOr<std::string> WhyNoSsd(const TiersPlan& plan, const std::string& path);

}  // namespace hotrow::bench

#endif  // HOTROW_BENCH_GPU_BENCH_TIERS_H_
