#ifndef HOTROW_BENCH_GPU_BENCH_PLAN_H_
#define HOTROW_BENCH_GPU_BENCH_PLAN_H_

// The parts of gpu_bench that need no GPU: sizes, bytes, what is drawn, the report.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/hash.h"
#include "base/macros.h"

namespace hotrow::bench {

struct GpuBenchFlags {
  std::string only;  // parts, joined by commas; empty: all
  bool quick = false;
  bool toy = false;          // tiny, for an emulated GPU: every line runs, figures say nothing
  int64_t device_bytes = 0;  // 0: nine tenths of what is free
  int64_t host_bytes = 0;    // page-locked; 0: 8 GiB, but a third of what the host has at most
  int64_t repeats = 0;       // 0: by `quick`
  int64_t threads = 0;       // of the host's gather; 0: all processors
  int64_t seed = 1;
  int64_t l2_fetch = 0;  // 0: as the driver has it
  // Lists of numbers, joined by commas: what PointsToMeasure reads.
  std::string dims = "8,32,64,128";
  std::string loads = "0.5,0.75,0.9,1.0";
  std::string hits = "0.6,1.0";
  std::string shares = "0.8,1.0";
  std::string report;
  std::string path;  // of SSD stores; empty: where temporary files go
  std::string ids;   // a file for the ids of the ops' batch, for others that measure the same
};

// The parts in the order in which they run: "device" names the GPU, then come the limits.
std::vector<std::string> GpuBenchParts();
// --only as a list, in that order, with "device" and the limits that the parts are compared with.
// InvalidArgument names what is no part.
absl::StatusOr<std::vector<std::string>> PartsToRun(const GpuBenchFlags& flags);

// What the parts measure, each list in ascending order without repetitions.
struct GpuBenchPoints {
  std::vector<int> dims;       // of gather, host_gather, staging, find and insert; tiers: the last
  std::vector<double> loads;   // of find and insert,
  std::vector<double> hits;    // and hit rates
  std::vector<double> shares;  // of the rows of tiers, that device caches have room for
};
inline constexpr int kWidestDim = 128;  // batches have room for rows so wide
// InvalidArgument names the flag and the number in it.
absl::StatusOr<GpuBenchPoints> PointsToMeasure(const GpuBenchFlags& flags);

// The batch of the ops: 10 features of one table each, one lookup a sample.
inline constexpr int64_t kLookupTables = 10;
inline constexpr int64_t kLookupSamples = 104'857;
inline constexpr int64_t kLookupHotness = 8;  // of the bags that lookups are measured with, too
inline constexpr double kLookupZipf = 1.05;

// The layers of the two MLPs of a DLRM of MLPerf's sizes, and the batches that are multiplied. 127
// is what the last batch of an epoch may be: no power of two divides it.
struct GemmLayer {
  int64_t in = 0;
  int64_t out = 0;
};
inline constexpr GemmLayer kDlrmLayers[] = {{13, 512},    {512, 256},  {256, 128}, {479, 1024},
                                            {1024, 1024}, {1024, 512}, {512, 256}, {256, 1}};

// --- Sizes ---

struct GpuBenchSizes {
  int64_t table_bytes = 0;     // of rows that are gathered at random
  int64_t cache_bytes = 0;     // of the caches of find, insert and load: the same but for a toy
  int64_t copy_bytes = 0;      // of each of the two sides of a copy within the device
  int64_t bus_bytes = 0;       // of a copy between host and device
  int64_t host_bytes = 0;      // of page-locked rows
  int64_t batch = 0;           // keys of a call of the cache
  int64_t samples = 0;         // of the ops' batch
  int64_t rows_per_table = 0;  // of the ops' tables: ids are drawn from so many
  int64_t repeats = 0;
  int64_t warmup = 0;
  std::vector<int64_t> gemm_rows;      // batches of the products
  std::vector<int64_t> dense_batches;  // of networks and interactions
  int64_t matrix_side = 0;             // of the square product that is their limit
};

// What an H200 (141 GB) holds comfortably, or less where the device or the host has less.
// Everything but the page-locked rows stays below device_bytes. InvalidArgument when that is below
// kLeastDeviceBytes, the message names `flag`.
inline constexpr int64_t kLeastDeviceBytes = int64_t{256} << 20;
absl::StatusOr<GpuBenchSizes> SizesFor(const GpuBenchFlags& flags, int64_t device_bytes,
                                       int64_t host_available_bytes);

// How many rows one launch of a gather reads: so many that caching them (their bytes are 8 times
// the device's L2) is no help and that a launch's own cost does not show, but no more than the
// table has, and their copies within output_bytes.
int64_t GatherRowsOfLaunch(int64_t row_bytes, int64_t table_rows, int64_t l2_bytes,
                           int64_t output_bytes);

// --- The cache's keys ---

// The keys of place 0, 1, 2, ...: distinct, and scattered over the 64 bits.
HOTROW_HOST_DEVICE constexpr uint64_t BenchKey(uint64_t place) { return Mix64(place + 1); }

// A batch of n keys of which `hits` are resident, spread evenly: hits among the first j keys. Key j
// hits when the count goes up from j to j + 1. n * hits < 2^63.
HOTROW_HOST_DEVICE constexpr int64_t HitsBefore(int64_t j, int64_t n, int64_t hits) {
  return j * hits / n;
}

// round(fraction * n): ways to fill for a load factor, hits in a batch for a hit rate.
int64_t Share(int64_t n, double fraction);

// --- Bytes ---

// The least that must pass the device's memory, each input read once and each output written once.
// Dimensions as in the ops' headers: N lookups, U unique rows, F features, B samples, D columns.
int64_t GatherBytes(int64_t rows, int64_t row_bytes);  // index, row, copy
int64_t UniqueBytes(int64_t lookups, int64_t unique);
int64_t PartitionBytes(int64_t lookups, int64_t unique);
int64_t PooledLookupBytes(int64_t lookups, int64_t unique, int64_t dim, int64_t bags);
int64_t GradientSegmentSumBytes(int64_t lookups, int64_t unique, int64_t dim);
int64_t SparseUpdateBytes(int64_t unique, int64_t dim, int64_t row_bytes);
int64_t FusedUpdateBytes(int64_t lookups, int64_t unique, int64_t dim, int64_t row_bytes);

// What a find of a resident key must read of a bucket, whose layout cache/row_cache.h gives: its 32
// tags, a state, a key and a table lie in four sectors of 32 bytes.
inline constexpr int64_t kSectorBytes = 32;
inline constexpr int kSectorDim = 8;  // floats of one
inline constexpr int64_t kSectorsPerFind = 4;

// --- Results ---

// Seconds of the repeats of one thing.
struct Times {
  double median = 0;
  double min = 0;
  double max = 0;
};
Times TimesOf(std::vector<double> seconds);  // at least one

// One line of the report.
struct Figure {
  std::string part;  // "gather"
  std::string name;  // "find dim 128 load 0.90 hit rate 1.0"
  Times times;
  double amount = 0;            // of one repeat, in `unit`
  std::string unit;             // "rows", "bytes", "keys"
  std::string limit_name;       // what bounds it; empty: it is a limit itself
  double limit = 0;             // units a second
  nlohmann::ordered_json more;  // dims, loads, counts

  double rate() const { return times.median > 0 ? amount / times.median : 0; }  // units a second
  double percent() const { return limit > 0 ? 100 * rate() / limit : 0; }
};

// "  find dim 128 load 0.90      6.61 G keys/s     0.159 ms    87.1 % of gather" - without line
// end.
std::string FigureLine(const Figure& figure);
nlohmann::ordered_json FigureJson(const Figure& figure);

// --- Ids ---

// The ids of the ops' batch, feature-major (feature f = table f has [f * samples, (f+1) *
// samples)): Zipf over rows_per_table rows, scattered over [0, rows_per_table).
std::vector<uint64_t> LookupIds(int64_t tables, int64_t samples, int64_t rows_per_table,
                                double exponent, uint64_t seed);

}  // namespace hotrow::bench

#endif  // HOTROW_BENCH_GPU_BENCH_PLAN_H_
