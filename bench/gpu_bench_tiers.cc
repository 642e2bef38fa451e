#include "bench/gpu_bench_tiers.h"

#include <stdlib.h>

#include <cerrno>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <numeric>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/env.h"
#include "base/errno_status.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "cache/row_cache.h"
#include "embedding/embedding_collection.h"
#include "embedding/tiers/cached_store.h"
#include "embedding/tiers/tiered_table.h"
#include "models/data/permutation.h"
#include "models/data/zipf.h"
#include "ops/rows/row_init.h"
#include "ops/rows/row_layout.h"

namespace hotrow::bench {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;
// Bytes of an index: four keys in nine ways, so that one key of a thousand finds no room.
constexpr int64_t kIndexBytesPerRow = 48;
constexpr SparseOptimizerKind kOptimizer = SparseOptimizerKind::kSgd;
// Samples whose outputs are compared with what their rows must be.
constexpr int64_t kCheckedSamples = 64;

// A cache of `rows` rows takes so much for each: row, key and marks.
double CacheBytesOfRow(int64_t rows, int64_t row_bytes, Device device) {
  const RowCacheStats size =
      RowCache::SizeForBudget(rows * (row_bytes + 64) + kMiB, row_bytes, device);
  return static_cast<double>(size.used_bytes) /
         static_cast<double>(std::max<int64_t>(1, size.ways));
}

// The ids of a step are Zipf over each table, as LookupIds draws them, but drawn again for each
// step from the same tables.
class TierIds {
 public:
  TierIds(const TiersPlan& plan, ThreadPool* pool)
      : plan_(plan),
        pool_(pool),
        sampler_(static_cast<uint64_t>(plan.rows_per_table), kLookupZipf) {
    for (int64_t t = 0; t < plan.tables; ++t) {
      scatter_.emplace_back(static_cast<uint64_t>(plan.rows_per_table), plan.seed, 1,
                            static_cast<uint32_t>(t));
    }
  }

  // Feature-major, as JaggedBatch wants them.
  void Draw(int64_t step, std::vector<uint64_t>* ids) const {
    const int64_t n = plan_.samples;
    ids->resize(static_cast<size_t>(plan_.tables * n));
    ParallelFor(pool_, plan_.tables * n, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto table = static_cast<uint32_t>(i / n);
        const auto draw = static_cast<uint64_t>(step * n + i % n);
        const auto block = [&](uint32_t retry) {
          return RandomBlock(plan_.seed, RandomPurpose::kTest, draw, retry, table);
        };
        (*ids)[static_cast<size_t>(i)] = scatter_[table](sampler_.Rank(block(0), block));
      }
    });
  }

  // The rows [begin, end) of each table from the coldest to the hottest: so a cache that has seen
  // them in this order is left with those that it would keep.
  void Cover(int64_t begin, int64_t end, std::vector<uint64_t>* ids) const {
    ids->clear();
    for (const Permutation& scatter : scatter_) {
      for (int64_t i = begin; i < end; ++i) {
        ids->push_back(scatter(static_cast<uint64_t>(plan_.rows_per_table - 1 - i)));
      }
    }
  }

 private:
  const TiersPlan& plan_;
  ThreadPool* pool_;
  ZipfSampler sampler_;
  std::vector<Permutation> scatter_;  // of each table
};

class WallTimer final : public StreamTimer {
 public:
  absl::Status Begin() override {
    begin_ns_ = NowNanos();
    return absl::OkStatus();
  }
  absl::Status End() override {
    end_ns_ = NowNanos();
    return absl::OkStatus();
  }
  absl::StatusOr<double> Seconds() override {
    return 1e-9 * static_cast<double>(end_ns_ - begin_ns_);
  }

 private:
  int64_t begin_ns_ = 0;
  int64_t end_ns_ = 0;
};

// A directory for itself below `path`, removed with all that is in it.
class ScratchDir {
 public:
  static absl::StatusOr<std::unique_ptr<ScratchDir>> Create(const std::string& path) {
    std::string name = path + "/hotrow_gpu_bench.XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) {
      return ErrnoToStatus(errno, absl::StrCat("make directory ", name));
    }
    return std::unique_ptr<ScratchDir>(new ScratchDir(std::move(name)));
  }
  ~ScratchDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit ScratchDir(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

// What lies below a device cache that has room for a share of the rows.
struct TierCase {
  StoreKind store = StoreKind::kMemory;
  double share = 0;
  bool indexed = false;  // kMemory: the device finds rows of the store
};

EmbeddingCollectionOptions OptionsFor(const TiersPlan& plan, const TierCase& tier,
                                      const std::string& path) {
  EmbeddingCollectionOptions options;
  for (int64_t t = 0; t < plan.tables; ++t) {
    TableConfig table;
    table.name = absl::StrCat("table", t);
    table.embedding_dim = static_cast<int32_t>(plan.dim);
    table.feature_names = {absl::StrCat("feature", t)};
    table.optimizer.kind = kOptimizer;
    table.num_embeddings = plan.rows_per_table;
    table.max_hotness = 1;
    options.tables.push_back(std::move(table));
  }
  options.seed = plan.seed;
  options.max_batch_size = plan.samples;
  options.cache.device_bytes = plan.DeviceCacheBytes(tier.share);
  if (tier.indexed) options.cache.device_index_bytes = plan.device_index_bytes;
  if (tier.store == StoreKind::kSsd) {
    options.store = SsdStorage{
        .path = path, .memory_bytes = plan.ssd_store_bytes, .disk_bytes = plan.disk_bytes};
    options.cache.bytes = plan.host_cache_bytes;
  } else {
    options.store = MemoryStorage{.memory_bytes = plan.store_bytes};
  }
  return options;
}

// Tables with all their rows, behind a device cache that has room for a share of them.
class TieredTables {
 public:
  struct Seconds {
    std::vector<double> step;    // until the stream was idle
    std::vector<double> lookup;  // of Lookup alone
  };

  static absl::StatusOr<std::unique_ptr<TieredTables>> Create(
      const TiersRun& run, const EmbeddingCollectionOptions& options) {
    std::unique_ptr<TieredTables> tables(new TieredTables(run));
    HOTROW_RETURN_IF_ERROR(tables->Allocate(options));
    return tables;
  }
  ~TieredTables() {
    // What is enqueued still uses the memory below.
    (void)WaitForStream(run_.ctx);
  }

  // Trains every row of every table once, which makes those that are not there yet, and then some
  // steps as they will be measured. Afterwards the hot rows are resident, and dirty: a row that
  // leaves in the steps to come was trained, as it would be after long training, and is copied out.
  absl::Status Fill() {
    const int64_t rows = plan_.rows_per_table;
    for (int64_t begin = 0; begin < rows; begin += plan_.samples) {
      const int64_t end = std::min(rows, begin + plan_.samples);
      ids_.Cover(begin, end, &values_);
      HOTROW_RETURN_IF_ERROR(Step(end - begin, /*training=*/true, nullptr));
    }
    for (int64_t i = 0; i < plan_.warmup; ++i) HOTROW_RETURN_IF_ERROR(Next(true, nullptr));
    return absl::OkStatus();
  }
  // Writes dirty rows down: rows that leave from here on are clean.
  absl::Status Flush() {
    HOTROW_RETURN_IF_ERROR(tables_->Flush());
    return WaitForStream(run_.ctx);
  }
  absl::StatusOr<Seconds> Measure(bool training) {
    Seconds seconds;
    for (int64_t i = 0; i < plan_.steps; ++i) HOTROW_RETURN_IF_ERROR(Next(training, &seconds));
    HOTROW_RETURN_IF_ERROR(CheckOutput());
    return seconds;
  }
  absl::StatusOr<EmbeddingStats> Stats() { return tables_->GlobalStats(); }  // waits

 private:
  explicit TieredTables(const TiersRun& run)
      : run_(run), plan_(run.plan), ids_(run.plan, run.ctx.pool) {}

  absl::Status Allocate(const EmbeddingCollectionOptions& options) {
    HOTROW_ASSIGN_OR_RETURN(tables_, EmbeddingCollection::Create(options, run_.ctx));
    if (tables_->pooled_dim() != plan_.tables * plan_.dim) {
      return absl::InternalError("the tables' outputs do not lie side by side");
    }
    const int64_t floats = plan_.samples * tables_->pooled_dim();
    const CudaStream stream = run_.ctx.stream;
    HOTROW_ASSIGN_OR_RETURN(output_, DeviceMemory<float>::Create(floats, {plan_.device, stream}));
    HOTROW_ASSIGN_OR_RETURN(gradient_, DeviceMemory<float>::Create(floats, {plan_.device, stream}));
    const std::vector<float> zeros(static_cast<size_t>(std::min(floats, kMiB)), 0.0f);
    for (int64_t begin = 0; begin < floats; begin += std::ssize(zeros)) {
      const int64_t n = std::min(floats - begin, static_cast<int64_t>(std::ssize(zeros)));
      HOTROW_RETURN_IF_ERROR(EnqueueCopy(run_.ctx, gradient_.data() + begin, zeros.data(),
                                         n * static_cast<int64_t>(sizeof(float))));
    }
    offsets_.resize(static_cast<size_t>(plan_.tables * plan_.samples + 1));
    std::iota(offsets_.begin(), offsets_.end(), int64_t{0});
    return WaitForStream(run_.ctx);
  }

  absl::Status Next(bool training, Seconds* seconds) {
    ids_.Draw(next_draw_++, &values_);
    return Step(plan_.samples, training, seconds);
  }

  // One step over values_; nothing is enqueued before it nor after.
  absl::Status Step(int64_t samples, bool training, Seconds* seconds) {
    WallTimer wall;
    StreamTimer& timer = run_.timer != nullptr ? *run_.timer : wall;
    const JaggedBatch batch = {
        .batch_size = samples,
        .values = values_,
        .offsets = std::span(offsets_).first(static_cast<size_t>(plan_.tables * samples + 1))};
    const int64_t begin_ns = NowNanos();
    HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, tables_->Prefetch(batch));
    HOTROW_RETURN_IF_ERROR(timer.Begin());
    HOTROW_RETURN_IF_ERROR(
        step.Lookup({.pooled = {output_.data(), samples, tables_->pooled_dim()}}));
    HOTROW_RETURN_IF_ERROR(timer.End());
    if (training) {
      HOTROW_RETURN_IF_ERROR(
          std::move(step).Update({.pooled = {gradient_.data(), samples, tables_->pooled_dim()}}));
    }
    HOTROW_RETURN_IF_ERROR(WaitForStream(run_.ctx));
    const int64_t end_ns = NowNanos();
    if (seconds != nullptr) {
      HOTROW_ASSIGN_OR_RETURN(const double lookup, timer.Seconds());
      seconds->step.push_back(1e-9 * static_cast<double>(end_ns - begin_ns));
      seconds->lookup.push_back(lookup);
    }
    step = EmbeddingStep();  // its rows are unpinned
    return WaitForStream(run_.ctx);
  }

  // Gradients are zero, so the rows of the last step must be what they were made as.
  absl::Status CheckOutput() {
    const int64_t samples = std::min(kCheckedSamples, plan_.samples);
    const int64_t width = tables_->pooled_dim();
    std::vector<float> output(static_cast<size_t>(samples * width));
    HOTROW_RETURN_IF_ERROR(EnqueueCopy(run_.ctx, output.data(), output_.data(),
                                       std::ssize(output) * static_cast<int64_t>(sizeof(float))));
    HOTROW_RETURN_IF_ERROR(WaitForStream(run_.ctx));
    const RowLayout layout = RowLayout::For(static_cast<int32_t>(plan_.dim), kOptimizer);
    std::vector<std::byte> rows(static_cast<size_t>(samples * layout.row_bytes));
    std::vector<std::byte*> pointers;
    for (int64_t i = 0; i < samples; ++i) pointers.push_back(rows.data() + i * layout.row_bytes);
    for (int64_t t = 0; t < plan_.tables; ++t) {
      RowInitArgs args;
      args.layout = &layout;
      args.optimizer = kOptimizer;
      args.seed = plan_.seed;
      args.table = static_cast<uint32_t>(t);
      args.num_rows = samples;
      args.keys = values_.data() + t * plan_.samples;
      args.rows = pointers.data();
      HOTROW_RETURN_IF_ERROR(InitRows(ExecContext(), args));
      for (int64_t i = 0; i < samples; ++i) {
        if (std::memcmp(output.data() + i * width + t * plan_.dim, pointers[static_cast<size_t>(i)],
                        static_cast<size_t>(plan_.dim) * sizeof(float)) != 0) {
          return absl::DataLossError(absl::StrCat("table ", t, ": the row of key ", args.keys[i],
                                                  " is not what it was made as"));
        }
      }
    }
    return absl::OkStatus();
  }

  const TiersRun& run_;
  const TiersPlan& plan_;
  TierIds ids_;
  int64_t next_draw_ = 0;
  std::vector<uint64_t> values_;                 // of the last step
  std::vector<int64_t> offsets_;                 // one lookup in each bag
  DeviceMemory<float> output_;                   // [samples, tables * dim]
  DeviceMemory<float> gradient_;                 // the same, zeros
  std::unique_ptr<EmbeddingCollection> tables_;  // gone before the memory that its kernels use
};

// What a phase of n steps had of each, on average.
struct StepCounts {
  StepCounts(const TiersPlan& plan, const EmbeddingStats& before, const EmbeddingStats& after) {
    const auto in_all = [&](int64_t TierStats::*field, size_t tier) {
      return after.tiers[tier].*field - before.tiers[tier].*field;
    };
    const auto a_step = [&](int64_t count) {
      return static_cast<double>(count) / static_cast<double>(plan.steps);
    };
    const int64_t keys = in_all(&TierStats::unique_keys, 0);
    unique_keys = a_step(keys);
    misses = a_step(keys - in_all(&TierStats::unique_hits, 0));
    bytes_in = misses * static_cast<double>(plan.row_bytes);
    bytes_out =
        a_step(in_all(&TierStats::dirty_writebacks, 0)) * static_cast<double>(plan.row_bytes);
    const double known = a_step(after.device_index_rows_read - before.device_index_rows_read);
    known_share = misses > 0 ? known / misses : 0;
    array_bytes = static_cast<double>(TierStepBytes(
        plan.tables * plan.samples, std::llround(misses - known), std::llround(known)));
    disk_bytes = a_step(in_all(&TierStats::bytes_read, after.tiers.size() - 1));
  }
  double bytes() const { return bytes_in + bytes_out + array_bytes; }

  double unique_keys;
  double misses;
  double known_share;  // of the misses, that the device found
  double bytes_in;     // rows that came to the device,
  double bytes_out;    // and rows that left it
  double array_bytes;  // what TierStepBytes says
  double disk_bytes;   // read by the store below
};

void Report(const TiersRun& run, const TierCase& tier, bool training,
            const TieredTables::Seconds& seconds, const StepCounts& counts) {
  const TiersPlan& plan = run.plan;
  const StoreKind store = tier.store;
  const double share = tier.share;
  const double p99 = Percentile(seconds.step, 0.99);
  const Times lookup = TimesOf(seconds.lookup);
  Figure figure;
  figure.part = "tiers";
  figure.name = absl::StrFormat("%s%s, cache of %.0f %%, %s", std::string(StoreKindName(store)),
                                tier.indexed ? " with an index on the device" : "", 100 * share,
                                training ? "training" : "lookup");
  figure.times = TimesOf(seconds.step);
  figure.amount = counts.bytes();
  figure.unit = "bytes";
  if (run.bus_bytes_per_second > 0) {
    figure.limit_name = "host to device";
    figure.limit = run.bus_bytes_per_second;
  }
  figure.more = {{"store", StoreKindName(store)},
                 {"device", DeviceName(plan.device)},
                 {"cache_share", share},
                 {"training", training},
                 {"dim", plan.dim},
                 {"tables", plan.tables},
                 {"rows", plan.rows()},
                 {"rows_bytes", plan.rows_bytes()},
                 {"device_cache_bytes", plan.DeviceCacheBytes(share)},
                 {"device_index_bytes", tier.indexed ? plan.device_index_bytes : 0},
                 {"host_cache_bytes", store == StoreKind::kSsd ? plan.host_cache_bytes : 0},
                 {"lookups", plan.tables * plan.samples},
                 {"steps", plan.steps},
                 {"unique_keys", counts.unique_keys},
                 {"misses", counts.misses},
                 {"known_share", counts.known_share},
                 {"row_bytes_in", counts.bytes_in},
                 {"row_bytes_out", counts.bytes_out},
                 {"array_bytes", counts.array_bytes},
                 {"disk_bytes_read", store == StoreKind::kSsd ? counts.disk_bytes : 0},
                 {"p99_seconds", p99},
                 {"lookup_alone_median_seconds", lookup.median},
                 {"lookup_alone_p99_seconds", Percentile(seconds.lookup, 0.99)}};
  std::string line = FigureLine(figure);
  absl::StrAppendFormat(&line,
                        "\n    p99 %.4f ms; Lookup alone %.4f ms; %.0f unique keys, %.0f misses, "
                        "%.3f MB over the bus",
                        p99 * 1e3, lookup.median * 1e3, counts.unique_keys, counts.misses,
                        counts.bytes() * 1e-6);
  // Tables shrink where memory is short: their sizes stand in the line, and others than those of
  // the target are not compared with it.
  absl::StrAppendFormat(&line, "; dim %d, %d rows a table", plan.dim, plan.rows_per_table);
  const bool of_target = store == StoreKind::kMemory && share == 0.8 && !training;
  const bool full = plan.rows_per_table == kTierRowsPerTable && plan.samples == kLookupSamples &&
                    plan.dim == kWidestDim;
  if (of_target && !full) absl::StrAppend(&line, ", not those of the target");
  if (of_target && full) {
    figure.more["target_seconds"] = kTierTargetSeconds;
    figure.more["target_lookups"] = kLookupTables * kLookupSamples;
    absl::StrAppendFormat(&line, "; target %.1f ms for %d lookups", kTierTargetSeconds * 1e3,
                          kLookupTables * kLookupSamples);
  }
  run.add(FigureJson(figure), line);
}

absl::Status MeasureTier(const TiersRun& run, const TierCase& tier, const std::string& path) {
  std::unique_ptr<ScratchDir> dir;
  if (tier.store == StoreKind::kSsd) {
    HOTROW_ASSIGN_OR_RETURN(dir, ScratchDir::Create(path));
  }
  const EmbeddingCollectionOptions options =
      OptionsFor(run.plan, tier, dir == nullptr ? "" : dir->path() + "/store");
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<TieredTables> tables,
                          TieredTables::Create(run, options));
  for (const bool training : {false, true}) {
    HOTROW_RETURN_IF_ERROR(tables->Fill());
    if (!training) HOTROW_RETURN_IF_ERROR(tables->Flush());
    HOTROW_ASSIGN_OR_RETURN(const EmbeddingStats before, tables->Stats());
    HOTROW_ASSIGN_OR_RETURN(const TieredTables::Seconds seconds, tables->Measure(training));
    HOTROW_ASSIGN_OR_RETURN(const EmbeddingStats after, tables->Stats());
    Report(run, tier, training, seconds, StepCounts(run.plan, before, after));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t TiersPlan::DeviceCacheBytes(double share) const {
  const double ways = static_cast<double>(rows()) * (share >= 1 ? 1.125 : share);
  const double cache = ways * CacheBytesOfRow(rows(), row_bytes, device);
  // They take a little more of the sum, unless tables are as large as they should be.
  const int64_t buffers = TieredTable::BufferBytes(static_cast<int64_t>(cache), row_bytes,
                                                   {.device = device, .staged = true});
  return static_cast<int64_t>(cache) + buffers;
}

absl::StatusOr<TiersPlan> PlanTiers(const GpuBenchFlags& flags, const GpuBenchSizes& sizes,
                                    Device device) {
  TiersPlan plan;
  plan.device = device;
  HOTROW_ASSIGN_OR_RETURN(const GpuBenchPoints points, PointsToMeasure(flags));
  plan.dim = points.dims.back();
  plan.row_bytes = RowLayout::For(static_cast<int32_t>(plan.dim), kOptimizer).row_bytes;
  plan.rows_per_table = flags.quick ? 200'000 : kTierRowsPerTable;
  plan.rows_per_table =
      std::min(plan.rows_per_table, sizes.host_bytes / (plan.tables * plan.row_bytes));
  constexpr int64_t kLeastRows = 64;
  // The cache's buckets come in whole numbers, so its bytes are found by trying.
  while (plan.rows_per_table >= kLeastRows && plan.DeviceCacheBytes(1) > sizes.table_bytes) {
    plan.rows_per_table -= (plan.rows_per_table + 99) / 100;
  }
  if (plan.rows_per_table < kLeastRows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there is room for ", plan.rows_per_table, " rows in each of ", plan.tables,
        " tables, it takes ", kLeastRows, " at least; raise --device_bytes or --host_bytes"));
  }
  // A step has its rows pinned, and the cache must have room for as many more as its buckets ask.
  plan.samples = std::clamp<int64_t>(sizes.samples, 1, plan.rows_per_table / 2);
  plan.steps = flags.repeats != 0 ? flags.repeats : (flags.toy ? 3 : flags.quick ? 21 : 101);
  plan.warmup = sizes.warmup;
  plan.seed = static_cast<uint64_t>(flags.seed);
  // Limits that nothing is to come near.
  plan.store_bytes = 2 * plan.rows_bytes() + kGiB;
  plan.ssd_store_bytes = 64 * plan.rows() + 256 * kMiB;
  plan.disk_bytes = 4 * plan.rows_bytes() + 512 * kMiB;
  plan.device_index_bytes = kIndexBytesPerRow * plan.rows() + (64 << 10);
  plan.host_cache_bytes =
      std::max(plan.rows_bytes() / 10, CachedStore::MinCacheBytes(plan.row_bytes));
  return plan;
}

int64_t TierStepBytes(int64_t lookups, int64_t misses, int64_t known) {
  const int64_t batch = lookups * 8 + (lookups + 1) * 8;
  // key, lookups, position; key, slot and what became of it; slot, position, from, to; slot
  const int64_t of_miss = (16 + 4 + 4) + (16 + 8 + 2) + (8 + 4 + 8 + 8) + 8;
  // what became of it, and of the row that it evicted
  const int64_t of_known = 1 + 1;
  return batch + misses * of_miss + known * of_known;
}

double Percentile(std::vector<double> seconds, double fraction) {
  HOTROW_CHECK(!seconds.empty());
  std::sort(seconds.begin(), seconds.end());
  const auto rank =
      static_cast<int64_t>(std::ceil(fraction * static_cast<double>(std::ssize(seconds)) - 1e-9));
  return seconds[static_cast<size_t>(std::clamp<int64_t>(rank, 1, std::ssize(seconds)) - 1)];
}

absl::StatusOr<std::string> WhyNoSsd(const TiersPlan& plan, const std::string& path) {
  HOTROW_ASSIGN_OR_RETURN(const int64_t free, PosixEnv().FreeBytes(path));
  if (free < plan.disk_bytes) {
    return absl::StrFormat("%s has %.1f GiB free, it takes %.1f; name a directory with --path",
                           path, static_cast<double>(free) * 0x1p-30,
                           static_cast<double>(plan.disk_bytes) * 0x1p-30);
  }
  if (!plan.needs_direct_io) return std::string();
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<ScratchDir> dir, ScratchDir::Create(path));
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                          PosixEnv().OpenDirect(dir->path() + "/probe", OpenMode::kTruncate));
  const bool direct = file->direct();
  HOTROW_RETURN_IF_ERROR(file->Close());
  if (direct) return std::string();
  return absl::StrCat(path,
                      " is on a file system without direct I/O; name a directory with --path");
}

absl::Status MeasureTiers(const TiersRun& run) {
  std::string path = run.path;
  if (path.empty()) {
    std::error_code error;
    path = std::filesystem::temp_directory_path(error).string();
    if (error) path = "/tmp";
  }
  for (const StoreKind store : {StoreKind::kMemory, StoreKind::kSsd}) {
    if (store == StoreKind::kSsd) {
      HOTROW_ASSIGN_OR_RETURN(const std::string why, WhyNoSsd(run.plan, path));
      if (!why.empty()) {
        run.add({{"part", "tiers"},
                 {"name", StoreKindName(store)},
                 {"store", StoreKindName(store)},
                 {"skipped", why}},
                absl::StrCat("  ", std::string(StoreKindName(store)), " skipped: ", why));
        continue;
      }
    }
    for (auto largest = run.plan.shares.rbegin(); largest != run.plan.shares.rend(); ++largest) {
      const double share = *largest;
      HOTROW_RETURN_IF_ERROR(MeasureTier(run, {.store = store, .share = share}, path));
      // Where nothing leaves the cache, nobody asks the index.
      if (store != StoreKind::kMemory || share >= 1) continue;
      HOTROW_RETURN_IF_ERROR(
          MeasureTier(run, {.store = store, .share = share, .indexed = true}, path));
    }
  }
  return absl::OkStatus();
}

}  // namespace hotrow::bench
