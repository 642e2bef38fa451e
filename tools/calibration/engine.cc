#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/trace.h"
#include "embedding/embedding_collection.h"
#include "embedding/storage_fields.h"
#include "tools/calibration/measure.h"

namespace hotrow {
namespace {

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

absl::StatusOr<Passes> RunTiers(CalibrationBench* bench, const ClickTables& click, ClickTiers tiers,
                                int32_t dim) {
  EmbeddingCollectionOptions options = click.Options(*bench, tiers, dim);
  TraceRecorder trace(/*keep_events=*/false);
  ExecContext ctx = bench->ctx;
  ctx.trace = &trace;
  HOTROW_ASSIGN_OR_RETURN(const auto tables, EmbeddingCollection::Create(options, ctx));

  const int64_t batch = click.batch_size();
  const std::vector<float> numbers(static_cast<size_t>(batch * tables->pooled_dim()), 1e-4f);
  HOTROW_ASSIGN_OR_RETURN(auto pooled, bench->OnDevice(numbers));
  HOTROW_ASSIGN_OR_RETURN(auto gradient, bench->OnDevice(numbers));
  double prefetch = 0;
  double prefetch_cpu = 0;
  double lookup = 0;
  double update = 0;
  const auto step = [&](const std::vector<uint64_t>& keys) -> absl::Status {
    const double cpu0 = ProcessorSeconds();
    const double t0 = WallSeconds();
    HOTROW_ASSIGN_OR_RETURN(auto now, tables->Prefetch({batch, keys, click.offsets(), {}}));
    HOTROW_RETURN_IF_ERROR(WaitForStream(ctx));
    const double t1 = WallSeconds();
    prefetch_cpu += ProcessorSeconds() - cpu0;
    HOTROW_RETURN_IF_ERROR(now.Lookup({.pooled = {pooled.data(), batch, tables->pooled_dim()}}));
    HOTROW_RETURN_IF_ERROR(WaitForStream(ctx));
    const double t2 = WallSeconds();
    HOTROW_RETURN_IF_ERROR(
        std::move(now).Update({.pooled = {gradient.data(), batch, tables->pooled_dim()}}));
    HOTROW_RETURN_IF_ERROR(WaitForStream(ctx));
    prefetch += t1 - t0;
    lookup += t2 - t1;
    update += WallSeconds() - t2;
    return absl::OkStatus();
  };
  const auto span = [&](std::string_view name) {
    for (const TraceRecorder::StageTotal& stage : trace.StageTotals()) {
      if (stage.name == name) return stage.ms / 1e3;
    }
    return 0.0;
  };
  // What the spans and counters say so far.
  const auto reading = [&]() -> absl::StatusOr<Steps> {
    HOTROW_ASSIGN_OR_RETURN(const EmbeddingStats stats, tables->GlobalStats());
    Steps out;
    const double resident = span("place") + span("fill");
    out.write_back = span("write_back");
    // A GPU sums and updates in one go; on an H100 either takes half (bench/results/gpu.md).
    out.pool = bench->on_gpu() ? lookup : span("pool");
    out.sum = bench->on_gpu() ? update / 2 : span("segment_sum");
    out.unique = prefetch - resident;
    out.find = resident + lookup - out.pool;
    out.update = update - out.sum;
    out.cpu = ProcessorSeconds();
    out.prefetch_cpu = prefetch_cpu;
    out.steps = static_cast<double>(stats.steps);
    out.lookups = out.steps * kClickTables * static_cast<double>(batch);
    out.keys = static_cast<double>(stats.unique_keys);
    for (const TierStats& tier : stats.tiers) {
      if (tier.name != "cache" && tier.name != "device_cache") continue;
      out.hits = static_cast<double>(tier.unique_hits);
      out.evicted = static_cast<double>(tier.dirty_writebacks);
    }
    return out;
  };
  HOTROW_ASSIGN_OR_RETURN(const Steps start, reading());
  for (const std::vector<uint64_t>& keys : click.batches()) HOTROW_RETURN_IF_ERROR(step(keys));
  HOTROW_ASSIGN_OR_RETURN(const Steps before, reading());
  const double begin = WallSeconds();
  do {
    for (const std::vector<uint64_t>& keys : click.batches()) HOTROW_RETURN_IF_ERROR(step(keys));
  } while (WallSeconds() - begin < 0.8 * bench->options.effort);
  HOTROW_ASSIGN_OR_RETURN(const Steps after, reading());
  Passes out = {before, after};
  HOTROW_RETURN_IF_ERROR(tables->Close());
  std::error_code error;
  const std::string dir = FieldsOf(options.store).dir;
  if (!dir.empty()) std::filesystem::remove_all(dir, error);
  for (double Steps::*const field :
       {&Steps::unique, &Steps::find, &Steps::write_back, &Steps::pool, &Steps::sum, &Steps::update,
        &Steps::cpu, &Steps::prefetch_cpu, &Steps::lookups, &Steps::keys, &Steps::hits,
        &Steps::evicted, &Steps::steps}) {
    out.first.*field -= start.*field;
    out.later.*field -= before.*field;
  }
  return out;
}

}  // namespace

namespace {

// Rows in a GPU's cache: all of them, and a part over host memory. Time is the wall's.
absl::Status MeasureEngineOnGpu(CalibrationBench* bench, const ClickTables& tables,
                                HardwareProfile* profile) {
  struct Costs {
    double row_bytes, weight_bytes, unique, hit, miss, evict, pool, sum, update;
  };
  std::array<Costs, kClickDims.size()> costs = {};
  for (size_t d = 0; d < kClickDims.size(); ++d) {
    Costs& cost = costs[d];
    cost.row_bytes = static_cast<double>(ClickRowBytes(kClickDims[d]));
    cost.weight_bytes = 4.0 * kClickDims[d];
    HOTROW_ASSIGN_OR_RETURN(const Passes whole_passes,
                            RunTiers(bench, tables, ClickTiers::kWholeCache, kClickDims[d]));
    HOTROW_ASSIGN_OR_RETURN(const Passes small_passes,
                            RunTiers(bench, tables, ClickTiers::kSmallCache, kClickDims[d]));
    const Steps& whole = whole_passes.later;
    const Steps& small = small_passes.later;
    cost.unique = whole.unique / whole.lookups;
    cost.hit = whole.find / whole.keys;
    // Without what it writes, which is one number for each that it reads.
    cost.pool = std::max(
        0.0, whole.pool / whole.lookups - cost.weight_bytes / profile->hbm_bytes_per_second);
    cost.sum = whole.sum / whole.lookups;
    cost.update = whole.update / whole.keys;
    // Rows come and go on threads of their own, so what a step takes longer is theirs together.
    const double longer =
        (small.unique + small.find) / small.steps - (whole.unique + whole.find) / whole.steps;
    const double both =
        std::max(0.0, longer) * small.steps / std::max(1.0, small.keys - small.hits);
    cost.evict = std::min(both, small.write_back / std::max(1.0, small.evicted));
    cost.miss = both - cost.evict;
  }
  const auto line = [&](double Costs::*bytes, double Costs::*cost) {
    return LineThrough(costs[0].*bytes, costs[0].*cost, costs[1].*bytes, costs[1].*cost);
  };
  EngineCosts& engine = profile->engine;
  engine.unique_seconds_per_lookup = (costs[0].unique + costs[1].unique) / 2;
  engine.hit = line(&Costs::row_bytes, &Costs::hit);
  engine.miss = line(&Costs::row_bytes, &Costs::miss);
  engine.evict = line(&Costs::row_bytes, &Costs::evict);
  engine.pool = line(&Costs::weight_bytes, &Costs::pool);
  engine.sum = line(&Costs::weight_bytes, &Costs::sum);
  engine.update = line(&Costs::row_bytes, &Costs::update);
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasureEngine(CalibrationBench* bench, const ClickTables& tables,
                           HardwareProfile* profile) {
  if (bench->on_gpu()) return MeasureEngineOnGpu(bench, tables, profile);
  struct Costs {
    double row_bytes, weight_bytes;
    double unique, in_place, hit, miss, evict, ssd_miss, pool, sum, update, new_in_place, new_row;
    double unique_busy, hit_busy, miss_busy, ssd_miss_busy;
  };
  std::array<Costs, kClickDims.size()> costs = {};
  const auto new_rows = static_cast<double>(tables.distinct_rows());
  // The share of the threads that so much processor time in so much time is.
  const auto busy = [&](double cpu, double seconds) {
    const double share = seconds > 0 ? cpu / seconds / bench->options.threads : 1;
    return std::clamp(share, 1.0 / bench->options.threads, 1.0);
  };
  for (size_t d = 0; d < kClickDims.size(); ++d) {
    Costs& cost = costs[d];
    cost.row_bytes = static_cast<double>(ClickRowBytes(kClickDims[d]));
    cost.weight_bytes = 4.0 * kClickDims[d];
    HOTROW_ASSIGN_OR_RETURN(const Passes store_passes,
                            RunTiers(bench, tables, ClickTiers::kStore, kClickDims[d]));
    HOTROW_ASSIGN_OR_RETURN(const Passes whole_passes,
                            RunTiers(bench, tables, ClickTiers::kWholeCache, kClickDims[d]));
    HOTROW_ASSIGN_OR_RETURN(const Passes small_passes,
                            RunTiers(bench, tables, ClickTiers::kSmallCache, kClickDims[d]));
    HOTROW_ASSIGN_OR_RETURN(const Passes ssd_passes,
                            RunTiers(bench, tables, ClickTiers::kSmallCacheOverSsd, kClickDims[d]));
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
    cost.ssd_miss = cost.miss + cost.evict + extra_cpu / bench->options.threads;

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
  EngineCosts& engine = profile->engine;
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

}  // namespace hotrow
