#include "tools/calibration.h"

#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/buffer.h"
#include "base/env.h"
#include "base/hash.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "base/trace.h"
#include "embedding/embedding_collection.h"
#include "embedding/tiers/tiered_table.h"
#include "models/data/data_source.h"
#include "models/data/zipf.h"
#include "models/programs/trainer_flags.h"
#include "models/train/batch_reader.h"
#include "models/train/report.h"
#include "models/zoo/dlrm_model.h"
#include "ops/dot_interaction.h"
#include "ops/mlp.h"
#include "ops/row_layout.h"
#include "store/host/host_store.h"
#include "tools/measure_device.h"
#include "tools/plan/tier_bytes.h"

namespace hotrow {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// Larger than the processors' caches, those of many cores together included.
constexpr int64_t kMemoryBytes = 1024 * kMiB;
constexpr int64_t kGatherRows = 1'000'000;
constexpr int64_t kGatherRowBytes = 512;
constexpr int64_t kGatherBatch = 16'384;
constexpr int64_t kDiskFileBytes = 512 * kMiB;
constexpr int64_t kDiskBatch = 1024;
constexpr int64_t kDiskBatches = 128;
// The tables that the engine's costs are measured with: those of a click model.
constexpr int kTables = 26;
constexpr int64_t kTableRows = 100'000;
constexpr double kZipf = 1.05;
constexpr int64_t kBatch = 2048;
constexpr int64_t kBatches = 40;
constexpr std::array<int32_t, 2> kDims = {16, 128};
// A cache of a third of the rows both hits and misses.
constexpr int64_t kRowsPerSmallCacheRow = 3;
constexpr uint64_t kSeed = 1;

double Now() { return 1e-9 * static_cast<double>(NowNanos()); }

// Processor time of all threads of this process; unlike that of getrusage, to the nanosecond.
double ProcessorNow() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Seconds of one call: the median of calls that take about `seconds` together, three at least.
absl::StatusOr<double> MedianSeconds(double seconds, absl::FunctionRef<absl::Status()> call) {
  std::vector<double> times;
  double spent = 0;
  while (std::ssize(times) < 3 || spent < seconds) {
    const double begin = Now();
    HOTROW_RETURN_IF_ERROR(call());
    times.push_back(Now() - begin);
    spent += times.back();
  }
  const auto middle = times.begin() + std::ssize(times) / 2;
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

std::string MachineName(int threads) {
  std::string cpu = "unknown processor";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0 || line.find(": ") == std::string::npos) continue;
    cpu = line.substr(line.find(": ") + 2);
    break;
  }
  utsname system = {};
  uname(&system);
  return absl::StrFormat(
      "%s, %d processors, %s, %s %s", cpu, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)),
      FormatBytes(static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE)),
      system.sysname, system.machine);
}

// A line through two points that does not go below zero anywhere.
EngineCost LineThrough(double bytes0, double seconds0, double bytes1, double seconds1) {
  const double slope = (seconds1 - seconds0) / (bytes1 - bytes0);
  if (slope <= 0) return {std::max(0.0, (seconds0 + seconds1) / 2), 0};
  const double base = seconds0 - slope * bytes0;
  if (base >= 0) return {base, slope};
  return {0, std::max(0.0, seconds1 / bytes1)};
}

class Calibrator {
 public:
  Calibrator(const CalibrationOptions& options, std::string dir)
      : options_(options), dir_(std::move(dir)), pool_(options.threads) {
    ctx_.pool = &pool_;
  }

  // What came of starting them.
  absl::Status threads() const { return pool_.status(); }
  absl::Status Memory();
  absl::Status Gather();
  absl::Status Disk();
  absl::Status Dense();
  absl::Status Engine();
  absl::Status Beside();

  HardwareProfile profile;

 private:
  // What steps of a collection took, and what they were.
  struct Steps {
    double unique = 0;  // seconds, summed over steps
    double find = 0;
    double write_back = 0;
    double pool = 0;
    double sum = 0;
    double update = 0;
    double cpu = 0;           // processor seconds of all
    double prefetch_cpu = 0;  // of them, while keys are found and rows made resident
    double lookups = 0;
    double keys = 0;  // distinct
    double hits = 0;
    double evicted = 0;
    double steps = 0;
  };
  // The first pass over the batches, which makes their rows, and the passes after it.
  struct Passes {
    Steps first;
    Steps later;
  };
  enum class Tiers { kStore, kWholeCache, kSmallCache, kSmallCacheOverSsd };
  // Training-like steps, each quantity of one step: first alone, then with the rows of the next one
  // placed and read, and data read, beside it.
  struct Together {
    double step = 0;         // seconds of a step, without what is done ahead of it
    double step_cpu = 0;     // processor seconds of that
    double ahead = 0;        // seconds of what is done ahead, on its own thread
    double ahead_cpu = 0;    // processor seconds of that
    double reading_cpu = 0;  // processor seconds of reading and drawing the data
    double at_once = 0;      // seconds of a step with these two beside it
    double ios = 0;          // transfers of the disk
    double misses = 0;       // rows that the cache has not
  };
  static constexpr std::array kTogether = {
      &Together::step,        &Together::step_cpu, &Together::ahead, &Together::ahead_cpu,
      &Together::reading_cpu, &Together::at_once,  &Together::ios,   &Together::misses};

  int64_t Scaled(int64_t n) const {
    return std::max<int64_t>(1, static_cast<int64_t>(options_.effort * static_cast<double>(n)));
  }
  absl::Status TimeMlp(const std::vector<int32_t>& sizes, int64_t batch, double* seconds,
                       double* flops);
  absl::StatusOr<double> DotFlops(int32_t dim, int64_t batch);
  // Of measuring a dense part: of small batches there are enough calls in less.
  double SecondsOf(int64_t batch) const { return (batch == kBatch ? 0.3 : 0.1) * options_.effort; }
  void DrawBatches();
  EmbeddingCollectionOptions OptionsOf(Tiers tiers, int32_t dim) const;
  absl::StatusOr<Passes> RunTiers(Tiers tiers, int32_t dim);
  absl::StatusOr<Together> RunTogether(Tiers tiers, int32_t dim);

  const CalibrationOptions& options_;
  const std::string dir_;
  ThreadPool pool_;
  ExecContext ctx_;
  std::vector<std::vector<uint64_t>> batches_;  // [kTables * kBatch] keys each
  int64_t distinct_rows_ = 0;                   // of all batches
};

absl::Status Calibrator::Memory() {
  const int64_t bytes =
      std::clamp<int64_t>(UsableMemoryBytes() / 8, 16 * kMiB, Scaled(kMemoryBytes));
  HOTROW_ASSIGN_OR_RETURN(auto buffer, HostBuffer<uint64_t>::Create(bytes / 8, HugePages::kTry));
  uint64_t* const words = buffer.data();
  const int64_t n = bytes / 8;
  constexpr int64_t kGrain = kMiB / 8;
  ParallelFor(&pool_, n, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) words[i] = static_cast<uint64_t>(i);
  });
  std::atomic<uint64_t> total{0};
  HOTROW_ASSIGN_OR_RETURN(const double read_seconds,
                          MedianSeconds(options_.effort, [&]() -> absl::Status {
                            total = 0;
                            ParallelFor(&pool_, n, kGrain, [&](int64_t begin, int64_t end) {
                              uint64_t sum = 0;
                              for (int64_t i = begin; i < end; ++i) sum += words[i];
                              total.fetch_add(sum, std::memory_order_relaxed);
                            });
                            return absl::OkStatus();
                          }));
  const auto count = static_cast<uint64_t>(n);
  if (total.load() != count * (count - 1) / 2) {
    return absl::DataLossError("memory: what was read is not what was written");
  }
  profile.dram_bytes_per_second = static_cast<double>(bytes) / read_seconds;
  HOTROW_ASSIGN_OR_RETURN(
      const double copy_seconds, MedianSeconds(options_.effort / 2, [&]() -> absl::Status {
        ParallelFor(&pool_, n / 2, kGrain, [&](int64_t begin, int64_t end) {
          std::memcpy(words + n / 2 + begin, words + begin, static_cast<size_t>(end - begin) * 8);
        });
        return absl::OkStatus();
      }));
  profile.gpu_link_bytes_per_second = static_cast<double>(bytes) / 2 / copy_seconds;
  profile.dram_bytes = static_cast<double>(UsableMemoryBytes());
  return absl::OkStatus();
}

absl::Status Calibrator::Gather() {
  const int64_t rows = Scaled(kGatherRows);
  HostStoreOptions store_options;
  store_options.tables = {{.table = 0, .row_bytes = kGatherRowBytes}};
  store_options.budget_bytes = rows * (kGatherRowBytes + 32) * 5 / 4 + 64 * kMiB;
  HOTROW_ASSIGN_OR_RETURN(const auto store, HostStore::Open(store_options));
  std::vector<RowKey> keys(kGatherBatch);
  std::vector<std::byte> memory(kGatherBatch * kGatherRowBytes);
  std::vector<std::byte*> places(kGatherBatch);
  for (int64_t i = 0; i < kGatherBatch; ++i) {
    places[static_cast<size_t>(i)] = memory.data() + i * kGatherRowBytes;
  }
  for (int64_t begin = 0; begin < rows; begin += kGatherBatch) {
    const auto n = static_cast<size_t>(std::min(kGatherBatch, rows - begin));
    for (size_t i = 0; i < n; ++i) {
      keys[i] = {Mix64(static_cast<uint64_t>(begin) + i), 0};
    }
    HOTROW_RETURN_IF_ERROR(store->InsertOrAssign(
        std::span(keys).first(n), std::span<const std::byte* const>(places.data(), n)));
  }
  std::vector<uint8_t> found(kGatherBatch);
  RandomStream random(kSeed, RandomPurpose::kTest, 1);
  // Keys are drawn outside of what is timed.
  std::vector<double> seconds;
  double spent = 0;
  while (std::ssize(seconds) < 3 || spent < 1.5 * options_.effort) {
    for (RowKey& key : keys) key = {Mix64(random.Below(static_cast<uint64_t>(rows))), 0};
    const double begin = Now();
    HOTROW_RETURN_IF_ERROR(FindInStore(ctx_, store.get(), /*spread=*/true, keys, places, found));
    seconds.push_back(Now() - begin);
    spent += seconds.back();
    if (std::count(found.begin(), found.end(), 1) != kGatherBatch) {
      return absl::InternalError("the store in memory has lost rows");
    }
  }
  std::nth_element(seconds.begin(), seconds.begin() + std::ssize(seconds) / 2, seconds.end());
  profile.gather_rows_per_second = static_cast<double>(kGatherBatch) / seconds[seconds.size() / 2];
  profile.cpu_seconds_per_key = 1 / profile.gather_rows_per_second;
  return absl::OkStatus();
}

absl::Status Calibrator::Disk() {
  DeviceMeasurementOptions device;
  device.dir = dir_ + "/raw";
  device.file_bytes = Scaled(kDiskFileBytes);
  device.batch = kDiskBatch;
  device.batches = Scaled(kDiskBatches);
  device.mixed = false;
  device.seconds_max = 3 * options_.effort;
  HOTROW_ASSIGN_OR_RETURN(const DeviceMeasurement measured, MeasureDevice(device));
  const DeviceReads& reads =
      measured.liburing_is_better() ? measured.by_liburing : measured.by_io_queue;
  profile.ssd_read_ios_per_second = reads.per_second();
  // Of single blocks; longer reads may be faster, which plans do not count on.
  profile.ssd_read_bytes_per_second = reads.per_second() * static_cast<double>(kDeviceReadBytes);
  profile.ssd_write_bytes_per_second = measured.write_bytes_per_second;
  profile.ssd_bytes = static_cast<double>(UsableDiskBytes(options_.dir));
  return absl::OkStatus();
}

// Forward and backward of a batch.
absl::Status Calibrator::TimeMlp(const std::vector<int32_t>& sizes, int64_t batch, double* seconds,
                                 double* flops) {
  HOTROW_ASSIGN_OR_RETURN(
      const auto mlp,
      Mlp::Create({.sizes = sizes, .relu_on_output = true, .max_batch_size = batch}));
  const auto parameters = static_cast<size_t>(mlp->num_parameters());
  std::vector<float> weights(parameters);
  std::vector<float> gradients(parameters);
  mlp->InitParameters(kSeed, weights);
  const int64_t in = mlp->input_size();
  const int64_t out = mlp->output_size();
  std::vector<float> x(static_cast<size_t>(batch * in));
  std::vector<float> dx(x.size());
  std::vector<float> y(static_cast<size_t>(batch * out));
  RandomStream random(kSeed, RandomPurpose::kTest, 2);
  for (float& value : x) value = static_cast<float>(random.Uniform()) - 0.5f;
  HOTROW_ASSIGN_OR_RETURN(const double median,
                          MedianSeconds(SecondsOf(batch), [&]() -> absl::Status {
                            HOTROW_RETURN_IF_ERROR(mlp->Forward(ctx_, {.parameters = weights.data(),
                                                                       .x = x.data(),
                                                                       .x_stride = in,
                                                                       .batch_size = batch,
                                                                       .y = y.data(),
                                                                       .y_stride = out,
                                                                       .training = true}));
                            // Backward overwrites it, and numbers that fade to denormals are slow.
                            std::fill(y.begin(), y.end(), 0.01f);
                            return mlp->Backward(ctx_, {.parameters = weights.data(),
                                                        .dy = y.data(),
                                                        .dy_stride = out,
                                                        .dx = dx.data(),
                                                        .dx_stride = in,
                                                        .parameter_gradients = gradients.data()});
                          }));
  double macs = 0;
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    macs += static_cast<double>(sizes[i]) * sizes[i + 1];
  }
  *seconds += median;
  *flops += 6 * macs * static_cast<double>(batch);
  return absl::OkStatus();
}

absl::StatusOr<double> Calibrator::DotFlops(int32_t dim, int64_t batch) {
  constexpr int32_t kVectors = kTables + 1;
  const int64_t out = DotInteractionOutputSize(kTables, dim);
  std::vector<float> dense(static_cast<size_t>(batch * dim), 0.1f);
  std::vector<float> sparse(static_cast<size_t>(batch * dim * kTables), 0.1f);
  std::vector<float> output(static_cast<size_t>(batch * out));
  std::vector<float> output_gradient(output.size(), 0.01f);
  std::vector<float> dense_gradient(dense.size());
  std::vector<float> sparse_gradient(sparse.size());
  const DotInteractionArgs forward = {.batch_size = batch,
                                      .num_sparse = kTables,
                                      .dim = dim,
                                      .dense = dense.data(),
                                      .dense_stride = dim,
                                      .sparse = sparse.data(),
                                      .sparse_stride = int64_t{dim} * kTables,
                                      .output = output.data(),
                                      .output_stride = out};
  HOTROW_ASSIGN_OR_RETURN(
      const double seconds, MedianSeconds(SecondsOf(batch), [&]() -> absl::Status {
        HOTROW_RETURN_IF_ERROR(DotInteraction(ctx_, forward));
        return DotInteractionGrad(ctx_, {.forward = forward,
                                         .output_gradient = output_gradient.data(),
                                         .dense_gradient = dense_gradient.data(),
                                         .dense_gradient_stride = dim,
                                         .sparse_gradient = sparse_gradient.data(),
                                         .sparse_gradient_stride = int64_t{dim} * kTables});
      }));
  const double macs = kVectors * (kVectors - 1) / 2.0 * dim;
  return 6 * macs * static_cast<double>(batch) / seconds;
}

absl::Status Calibrator::Dense() {
  const auto rate = [&](const std::vector<std::vector<int32_t>>& mlps, int64_t batch,
                        double* flops_per_second) -> absl::Status {
    double seconds = 0;
    double flops = 0;
    for (const std::vector<int32_t>& sizes : mlps) {
      HOTROW_RETURN_IF_ERROR(TimeMlp(sizes, batch, &seconds, &flops));
    }
    *flops_per_second = flops / seconds;
    return absl::OkStatus();
  };
  HOTROW_RETURN_IF_ERROR(
      rate({{13, 512, 256, 64, 16}, {367, 512, 256, 1}}, kBatch, &profile.dense_flops));
  HardwareProfile::DenseRates large;
  for (const auto& [samples, rates] :
       {std::pair<double, HardwareProfile::DenseRates*>{HardwareProfile::kBatchLarge, &large},
        {HardwareProfile::kBatchMiddle, &profile.dense_middle},
        {HardwareProfile::kBatchSmall, &profile.dense_small}}) {
    const auto batch = static_cast<int64_t>(samples);
    for (const auto& [width, flops] :
         {std::pair<double, double*>{HardwareProfile::kNarrow, &rates->narrow},
          {HardwareProfile::kMiddle, &rates->middle},
          {HardwareProfile::kWide, &rates->wide}}) {
      const auto w = static_cast<int32_t>(width);
      HOTROW_RETURN_IF_ERROR(rate({{w, w, w, w}}, batch, flops));
    }
    HOTROW_ASSIGN_OR_RETURN(rates->dot_short,
                            DotFlops(static_cast<int32_t>(HardwareProfile::kDotShort), batch));
    HOTROW_ASSIGN_OR_RETURN(rates->dot_long,
                            DotFlops(static_cast<int32_t>(HardwareProfile::kDotLong), batch));
  }
  profile.dense_flops_narrow = large.narrow;
  profile.dense_flops_middle = large.middle;
  profile.dense_flops_wide = large.wide;
  profile.dot_flops_short = large.dot_short;
  profile.dot_flops_long = large.dot_long;
  return absl::OkStatus();
}

void Calibrator::DrawBatches() {
  const int64_t count = std::max<int64_t>(4, Scaled(kBatches));
  const ZipfSampler zipf(kTableRows, kZipf);
  std::set<uint64_t> distinct;
  for (int64_t b = 0; b < count; ++b) {
    std::vector<uint64_t> keys;
    keys.reserve(kTables * kBatch);
    for (uint64_t table = 0; table < kTables; ++table) {
      for (int64_t i = 0; i < kBatch; ++i) {
        const auto draw = static_cast<uint32_t>(keys.size());
        const auto block = [&](uint32_t n) {
          return RandomBlock(kSeed, RandomPurpose::kTest, static_cast<uint64_t>(b), draw, n);
        };
        keys.push_back(Mix64(zipf.Rank(block(0), block) * kTables + table));
      }
    }
    distinct.insert(keys.begin(), keys.end());
    batches_.push_back(std::move(keys));
  }
  distinct_rows_ = std::ssize(distinct);
}

EmbeddingCollectionOptions Calibrator::OptionsOf(Tiers tiers, int32_t dim) const {
  const int64_t row_bytes = RowLayout::For(dim, SparseOptimizerKind::kRowWiseAdagrad).row_bytes;
  EmbeddingCollectionOptions options;
  for (int t = 0; t < kTables; ++t) {
    TableConfig table;
    table.name = absl::StrCat("t", t);
    table.embedding_dim = dim;
    table.feature_names = {absl::StrCat("f", t)};
    options.tables.push_back(std::move(table));
  }
  options.max_batch_size = kBatch;
  options.store_bytes = distinct_rows_ * (row_bytes + 32) * 5 / 4 + 64 * kMiB;
  if (tiers == Tiers::kWholeCache) {
    // Twice the rows: no partition is full, nothing is evicted.
    options.cache_bytes = CacheBudgetForWays(2 * distinct_rows_, row_bytes);
  } else if (tiers != Tiers::kStore) {
    // Room for the rows of a step in any case.
    options.cache_bytes = CacheBudgetForWays(
        std::max(distinct_rows_ / kRowsPerSmallCacheRow, kTables * kBatch), row_bytes);
  }
  if (tiers == Tiers::kSmallCacheOverSsd) {
    options.store = StoreKind::kSsd;
    options.store_path = absl::StrCat(dir_, "/ssd", dim);
    options.store_bytes = 64 * kMiB + 16 * distinct_rows_;
    options.disk_bytes = 3 * distinct_rows_ * SsdBytesPerRow(row_bytes) + 128 * kMiB;
  }
  return options;
}

absl::StatusOr<Calibrator::Passes> Calibrator::RunTiers(Tiers tiers, int32_t dim) {
  EmbeddingCollectionOptions options = OptionsOf(tiers, dim);
  TraceRecorder trace(/*keep_events=*/false);
  ExecContext ctx = ctx_;
  ctx.trace = &trace;
  HOTROW_ASSIGN_OR_RETURN(const auto tables, EmbeddingCollection::Create(options, ctx));

  std::vector<int64_t> offsets(kTables * kBatch + 1);
  for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<int64_t>(i);
  const auto floats = static_cast<size_t>(kBatch * tables->pooled_dim());
  std::vector<float> pooled(floats);
  const std::vector<float> gradient(floats, 1e-4f);
  double prefetch = 0;
  double prefetch_cpu = 0;
  double lookup = 0;
  double update = 0;
  const auto step = [&](const std::vector<uint64_t>& keys) -> absl::Status {
    const double cpu0 = ProcessorNow();
    const double t0 = Now();
    HOTROW_ASSIGN_OR_RETURN(auto now, tables->Prefetch({kBatch, keys, offsets, {}}));
    const double t1 = Now();
    prefetch_cpu += ProcessorNow() - cpu0;
    HOTROW_RETURN_IF_ERROR(tables->Lookup(*now, {.pooled = pooled.data()}));
    const double t2 = Now();
    HOTROW_RETURN_IF_ERROR(tables->Update(std::move(now), {.pooled = gradient.data()}));
    prefetch += t1 - t0;
    lookup += t2 - t1;
    update += Now() - t2;
    return absl::OkStatus();
  };
  const auto span = [&](std::string_view name) {
    for (const TraceRecorder::StageTotal& stage : trace.StageTotals()) {
      if (stage.name == name) return stage.ms / 1e3;
    }
    return 0.0;
  };
  // What the spans and counters say so far.
  const auto reading = [&] {
    const EmbeddingStats stats = tables->Stats();
    Steps out;
    const double resident = span("place") + span("fill");
    out.write_back = span("write_back");
    out.pool = span("pool");
    out.sum = span("segment_sum");
    out.unique = prefetch - resident;
    out.find = resident + lookup - out.pool;
    out.update = update - out.sum;
    out.cpu = ProcessorNow();
    out.prefetch_cpu = prefetch_cpu;
    out.steps = static_cast<double>(stats.steps);
    out.lookups = out.steps * kTables * kBatch;
    out.keys = static_cast<double>(stats.unique_keys);
    for (const TierStats& tier : stats.tiers) {
      if (tier.name != "cache") continue;
      out.hits = static_cast<double>(tier.unique_hits);
      out.evicted = static_cast<double>(tier.dirty_writebacks);
    }
    return out;
  };
  const Steps start = reading();
  for (const std::vector<uint64_t>& keys : batches_) HOTROW_RETURN_IF_ERROR(step(keys));
  const Steps before = reading();
  const double begin = Now();
  do {
    for (const std::vector<uint64_t>& keys : batches_) HOTROW_RETURN_IF_ERROR(step(keys));
  } while (Now() - begin < 0.8 * options_.effort);
  Passes out = {before, reading()};
  HOTROW_RETURN_IF_ERROR(tables->Close());
  std::error_code error;
  if (!options.store_path.empty()) std::filesystem::remove_all(options.store_path, error);
  for (double Steps::*const field :
       {&Steps::unique, &Steps::find, &Steps::write_back, &Steps::pool, &Steps::sum, &Steps::update,
        &Steps::cpu, &Steps::prefetch_cpu, &Steps::lookups, &Steps::keys, &Steps::hits,
        &Steps::evicted, &Steps::steps}) {
    out.first.*field -= start.*field;
    out.later.*field -= before.*field;
  }
  return out;
}

absl::Status Calibrator::Engine() {
  DrawBatches();
  struct Costs {
    double row_bytes, weight_bytes;
    double unique, in_place, hit, miss, evict, ssd_miss, pool, sum, update, new_in_place, new_row;
    double unique_busy, hit_busy, miss_busy, ssd_miss_busy;
  };
  std::array<Costs, kDims.size()> costs = {};
  const auto new_rows = static_cast<double>(distinct_rows_);
  // The share of the threads that so much processor time in so much time is.
  const auto busy = [&](double cpu, double seconds) {
    const double share = seconds > 0 ? cpu / seconds / options_.threads : 1;
    return std::clamp(share, 1.0 / options_.threads, 1.0);
  };
  for (size_t d = 0; d < kDims.size(); ++d) {
    Costs& cost = costs[d];
    cost.row_bytes = static_cast<double>(
        RowLayout::For(kDims[d], SparseOptimizerKind::kRowWiseAdagrad).row_bytes);
    cost.weight_bytes = 4.0 * kDims[d];
    HOTROW_ASSIGN_OR_RETURN(const Passes store_passes, RunTiers(Tiers::kStore, kDims[d]));
    HOTROW_ASSIGN_OR_RETURN(const Passes whole_passes, RunTiers(Tiers::kWholeCache, kDims[d]));
    HOTROW_ASSIGN_OR_RETURN(const Passes small_passes, RunTiers(Tiers::kSmallCache, kDims[d]));
    HOTROW_ASSIGN_OR_RETURN(const Passes ssd_passes, RunTiers(Tiers::kSmallCacheOverSsd, kDims[d]));
    const Steps& in_place = store_passes.later;
    const Steps& whole = whole_passes.later;
    const Steps& small = small_passes.later;
    const Steps& ssd = ssd_passes.later;
    // Parts that do the same in all runs, from those whose rows lie in memory.
    const double lookups = in_place.lookups + whole.lookups + small.lookups;
    const double keys = in_place.keys + whole.keys + small.keys;
    cost.unique = (in_place.unique + whole.unique + small.unique) / lookups;
    cost.pool = (in_place.pool + whole.pool + small.pool) / lookups;
    cost.sum = (in_place.sum + whole.sum + small.sum) / lookups;
    cost.update = (in_place.update + whole.update + small.update) / keys;
    cost.in_place = in_place.find / in_place.keys;
    cost.hit = whole.find / whole.keys;
    const double misses = std::max(1.0, small.keys - small.hits);
    cost.evict = small.write_back / std::max(1.0, small.evicted);
    cost.miss = std::max(0.0, small.find - small.write_back - small.hits * cost.hit) / misses;
    // Waiting for the disk takes no processor, so processor time tells what the store adds.
    const double ssd_misses = std::max(1.0, ssd.keys - ssd.hits);
    const double extra = ssd.cpu / ssd.steps - small.cpu / small.steps;
    const double extra_cpu = std::max(0.0, extra) * ssd.steps / ssd_misses;
    cost.ssd_miss = cost.miss + cost.evict + extra_cpu / options_.threads;

    // What the first pass took longer than its counts cost later. A row is made in the store when
    // it is updated for the first time.
    const Steps& made = store_passes.first;
    cost.new_in_place =
        std::max(0.0, made.find + made.update - made.keys * (cost.in_place + cost.update)) /
        new_rows;
    const Steps& filled = small_passes.first;
    cost.new_row =
        std::max(0.0, filled.find - filled.hits * cost.hit -
                          (filled.keys - filled.hits) * cost.miss - filled.evicted * cost.evict) /
        new_rows;

    // Without a cache nothing but finding keys is done ahead.
    const double unique_cpu = in_place.prefetch_cpu / in_place.lookups;
    const double hit_cpu =
        std::max(0.0, whole.prefetch_cpu - whole.lookups * unique_cpu) / whole.keys;
    const double miss_cpu =
        std::max(0.0, small.prefetch_cpu - small.lookups * unique_cpu - small.hits * hit_cpu) /
        misses;
    cost.unique_busy = busy(unique_cpu, cost.unique);
    cost.hit_busy = busy(hit_cpu, cost.hit);
    cost.miss_busy = busy(miss_cpu, cost.miss + cost.evict * small.evicted / misses);
    cost.ssd_miss_busy = busy(miss_cpu + extra_cpu, cost.ssd_miss);
  }
  const auto line = [&](double Costs::*bytes, double Costs::*cost) {
    return LineThrough(costs[0].*bytes, costs[0].*cost, costs[1].*bytes, costs[1].*cost);
  };
  EngineCosts& engine = profile.engine;
  engine.unique_seconds_per_lookup = (costs[0].unique + costs[1].unique) / 2;
  engine.in_place = line(&Costs::row_bytes, &Costs::in_place);
  engine.hit = line(&Costs::row_bytes, &Costs::hit);
  engine.miss = line(&Costs::row_bytes, &Costs::miss);
  engine.evict = line(&Costs::row_bytes, &Costs::evict);
  engine.ssd_miss = line(&Costs::row_bytes, &Costs::ssd_miss);
  engine.pool = line(&Costs::weight_bytes, &Costs::pool);
  engine.sum = line(&Costs::weight_bytes, &Costs::sum);
  engine.update = line(&Costs::row_bytes, &Costs::update);
  engine.new_in_place = line(&Costs::row_bytes, &Costs::new_in_place);
  engine.new_row = line(&Costs::row_bytes, &Costs::new_row);
  const auto mean = [&](double Costs::*share) { return (costs[0].*share + costs[1].*share) / 2; };
  engine.unique_busy = mean(&Costs::unique_busy);
  engine.hit_busy = mean(&Costs::hit_busy);
  engine.miss_busy = mean(&Costs::miss_busy);
  engine.ssd_miss_busy = mean(&Costs::ssd_miss_busy);
  return absl::OkStatus();
}

// Steps as a trainer takes them: rows made resident ahead, looked up, through the dense layers and
// back, updated; data read by a thread of its own.
absl::StatusOr<Calibrator::Together> Calibrator::RunTogether(Tiers tiers, int32_t dim) {
  EmbeddingCollectionOptions options = OptionsOf(tiers, dim);
  options.prefetch_depth = 1;
  HOTROW_ASSIGN_OR_RETURN(const auto tables, EmbeddingCollection::Create(options, ctx_));
  constexpr int32_t kDense = 13;
  HOTROW_ASSIGN_OR_RETURN(const auto model,
                          DlrmModel::Create({.num_dense = kDense,
                                             .num_sparse = kTables,
                                             .embedding_dim = dim,
                                             .dense_arch_layer_sizes = {512, 256, dim},
                                             .over_arch_layer_sizes = {512, 256, 1},
                                             .max_batch_size = kBatch}));
  std::vector<int64_t> offsets(kTables * kBatch + 1);
  for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<int64_t>(i);
  const std::vector<float> dense(static_cast<size_t>(kBatch * kDense), 0.1f);
  const auto floats = static_cast<size_t>(kBatch * tables->pooled_dim());
  std::vector<float> pooled(floats);
  std::vector<float> gradient(floats);
  std::vector<float> logits(static_cast<size_t>(kBatch));
  size_t next = 0;
  const auto prefetch = [&]() {
    return tables->Prefetch({kBatch, batches_[next++ % batches_.size()], offsets, {}});
  };
  const auto compute = [&](std::unique_ptr<EmbeddingStep> step) -> absl::Status {
    HOTROW_RETURN_IF_ERROR(tables->Lookup(*step, {.pooled = pooled.data()}));
    HOTROW_RETURN_IF_ERROR(model->Forward(ctx_,
                                          {.batch_size = kBatch,
                                           .dense = dense.data(),
                                           .embeddings = pooled.data(),
                                           .training = true,
                                           .step = 1},
                                          logits));
    // In the place of a loss.
    std::fill(logits.begin(), logits.end(), 1e-4f);
    HOTROW_RETURN_IF_ERROR(model->Backward(ctx_, logits, gradient.data()));
    return tables->Update(std::move(step), {.pooled = gradient.data()});
  };

  // What is read are not the keys of the steps, whose rows are there already. While steps are
  // alone nothing is taken from the reader, and it rests.
  HOTROW_ASSIGN_OR_RETURN(
      const auto data,
      OpenDataSource(absl::StrCat("synthetic:samples=100M,valid=1,test=1,tables=", kTables,
                                  ",rows=", kTableRows, ",zipf=", kZipf, ",dense=", kDense),
                     kSeed));
  BatchReader beside(data.get(), {.batch_size = kBatch, .read_ahead = 2});
  BatchReader alone(data.get(), {.batch_size = kBatch});
  const auto read = [](BatchReader* reader) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(auto item, reader->Next());
    if (item != nullptr) reader->Recycle(std::move(item));
    return absl::OkStatus();
  };

  // Transfers of the disk and misses so far.
  const auto count = [&] {
    std::pair<double, double> out;
    for (const TierStats& tier : tables->Stats().tiers) {
      if (tier.name == StoreKindName(StoreKind::kSsd)) out.first = static_cast<double>(tier.ios);
      if (tier.name == "cache") {
        out.second = static_cast<double>(tier.unique_keys - tier.unique_hits);
      }
    }
    return out;
  };

  // Alone and beside each other by turns, so that what changes with time falls on both; the medians
  // of the turns, so that what else runs for a moment falls on neither.
  const int64_t steps = std::max<int64_t>(2, Scaled(8));
  std::vector<Together> turns;
  const auto take_turn = [&]() -> absl::Status {
    Together turn;
    const auto [ios, misses] = count();
    for (int64_t i = 0; i < steps; ++i) {
      const double cpu0 = ProcessorNow();
      const double t0 = Now();
      HOTROW_ASSIGN_OR_RETURN(auto step, prefetch());
      // Waits for its rows, and does little else.
      HOTROW_RETURN_IF_ERROR(tables->BeginLookup(*step));
      const double t1 = Now();
      const double cpu1 = ProcessorNow();
      HOTROW_RETURN_IF_ERROR(compute(std::move(step)));
      turn.ahead += t1 - t0;
      turn.ahead_cpu += cpu1 - cpu0;
      turn.step += Now() - t1;
      turn.step_cpu += ProcessorNow() - cpu1;
    }
    turn.ios = count().first - ios;
    turn.misses = count().second - misses;
    const double reading = ProcessorNow();
    for (int64_t i = 0; i < steps; ++i) HOTROW_RETURN_IF_ERROR(read(&alone));
    turn.reading_cpu = ProcessorNow() - reading;

    HOTROW_ASSIGN_OR_RETURN(auto now, prefetch());
    HOTROW_RETURN_IF_ERROR(tables->BeginLookup(*now));
    const double begin = Now();
    for (int64_t i = 0; i < steps; ++i) {
      HOTROW_RETURN_IF_ERROR(read(&beside));
      HOTROW_ASSIGN_OR_RETURN(auto later, prefetch());
      HOTROW_RETURN_IF_ERROR(compute(std::move(now)));
      now = std::move(later);
    }
    turn.at_once = Now() - begin;
    HOTROW_RETURN_IF_ERROR(compute(std::move(now)));
    turns.push_back(turn);
    return absl::OkStatus();
  };
  for (size_t i = 0; i < batches_.size(); ++i) {
    HOTROW_ASSIGN_OR_RETURN(auto step, prefetch());
    HOTROW_RETURN_IF_ERROR(compute(std::move(step)));
  }
  const double begin = Now();
  do {
    HOTROW_RETURN_IF_ERROR(take_turn());
  } while (Now() - begin < 2 * options_.effort);
  HOTROW_RETURN_IF_ERROR(tables->Close());
  std::error_code error;
  if (!options.store_path.empty()) std::filesystem::remove_all(options.store_path, error);

  Together out;
  for (double Together::*const field : kTogether) {
    const auto middle = turns.begin() + std::ssize(turns) / 2;
    std::nth_element(turns.begin(), middle, turns.end(),
                     [&](const Together& a, const Together& b) { return a.*field < b.*field; });
    out.*field = (*middle).*field / static_cast<double>(steps);
  }
  return out;
}

// The parts of a step were measured one by one; here they run beside each other.
absl::Status Calibrator::Beside() {
  // As much as tells that it was measured, where a noise makes it less than nothing.
  constexpr double kLeast = 0.01;
  Together memory;
  Together ssd;
  std::array<double, kDims.size()> row_bytes = {};
  std::array<double, kDims.size()> waits = {};
  for (size_t d = 0; d < kDims.size(); ++d) {
    HOTROW_ASSIGN_OR_RETURN(const Together in_memory, RunTogether(Tiers::kSmallCache, kDims[d]));
    HOTROW_ASSIGN_OR_RETURN(const Together on_disk,
                            RunTogether(Tiers::kSmallCacheOverSsd, kDims[d]));
    for (double Together::*const field : kTogether) {
      memory.*field += in_memory.*field;
      ssd.*field += on_disk.*field;
    }
    // Alone, a thread that neither works nor is done waits for the disk. From four threads on many
    // do the work.
    constexpr int kThreadsForPipeline = 4;
    const int workers = options_.threads < kThreadsForPipeline ? 1 : options_.threads;
    const double waited = on_disk.ahead - on_disk.ahead_cpu / workers;
    row_bytes[d] = static_cast<double>(
        RowLayout::For(kDims[d], SparseOptimizerKind::kRowWiseAdagrad).row_bytes);
    waits[d] =
        (waited - on_disk.ios / profile.ssd_read_ios_per_second) / std::max(1.0, on_disk.misses);
  }
  const double processors = options_.threads;
  EngineCosts& engine = profile.engine;
  engine.step_beside = std::max(kLeast, (memory.at_once - memory.step) * processors /
                                            (memory.ahead_cpu + memory.reading_cpu));
  engine.disk_beside =
      std::max(kLeast, (ssd.at_once - ssd.ahead) * processors / (ssd.step_cpu + ssd.reading_cpu));
  // Little enough to be nothing where the disk is as fast as by itself.
  constexpr double kLeastWait = 1e-10;
  engine.ssd_wait = LineThrough(row_bytes[0], std::max(kLeastWait, waits[0]), row_bytes[1],
                                std::max(kLeastWait, waits[1]));
  return absl::OkStatus();
}

}  // namespace

absl::Status CalibrationOptions::Validate() const {
  if (threads < 1 || threads > 1024) {
    return absl::InvalidArgumentError(absl::StrCat("threads must lie in [1, 1024], is ", threads));
  }
  if (!(effort > 0 && effort <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("effort must lie in (0, 1], is ", effort));
  }
  return absl::OkStatus();
}

absl::StatusOr<HardwareProfile> Calibrate(const CalibrationOptions& options,
                                          absl::FunctionRef<void(std::string_view)> progress) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  Env& env = PosixEnv();
  // Before anything is made: a directory that is not there is more likely a slip than a wish.
  HOTROW_ASSIGN_OR_RETURN(const int64_t free, env.FreeBytes(options.dir));
  const auto need = static_cast<int64_t>(options.effort * 2e9) + 300 * kMiB;
  if (free < need) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options.dir, ": has ", FormatBytes(free), " free, measuring takes up to ",
                     FormatBytes(need), "; name a directory with more room"));
  }
  const std::string dir = absl::StrCat(options.dir, "/hotrow_calibrate.", getpid());
  HOTROW_RETURN_IF_ERROR(env.CreateDirs(dir));
  struct Remover {
    const std::string& dir;
    ~Remover() {
      std::error_code error;
      std::filesystem::remove_all(dir, error);
    }
  } const remover{dir};
  Calibrator calibrator(options, dir);
  HOTROW_RETURN_IF_ERROR(calibrator.threads());
  calibrator.profile = *FindAccelerator("cpu");
  calibrator.profile.name = "this machine";
  calibrator.profile.machine = MachineName(options.threads);
  calibrator.profile.threads = options.threads;
  struct Part {
    const char* name;
    absl::Status (Calibrator::*measure)();
  };
  for (const Part& part :
       {Part{"memory", &Calibrator::Memory}, Part{"rows by key", &Calibrator::Gather},
        Part{"the disk", &Calibrator::Disk}, Part{"dense layers", &Calibrator::Dense},
        Part{"the table engine", &Calibrator::Engine},
        Part{"work beside work", &Calibrator::Beside}}) {
    progress(part.name);
    HOTROW_RETURN_IF_ERROR((calibrator.*part.measure)());
  }
  return calibrator.profile;
}

}  // namespace hotrow
