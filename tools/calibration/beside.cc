#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "embedding/embedding_collection.h"
#include "embedding/storage_fields.h"
#include "models/data/open_data_source.h"
#include "models/train/batch_reader.h"
#include "models/zoo/dlrm_model.h"
#include "tools/calibration/measure.h"

namespace hotrow {
namespace {

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
constexpr std::array kTogether = {&Together::step,      &Together::step_cpu,    &Together::ahead,
                                  &Together::ahead_cpu, &Together::reading_cpu, &Together::at_once,
                                  &Together::ios,       &Together::misses};

// Steps as a trainer takes them: rows made resident ahead, looked up, through the dense layers and
// back, updated; data read by another thread.
absl::StatusOr<Together> RunTogether(CalibrationBench* bench, const ClickTables& click,
                                     ClickTiers tiers, int32_t dim) {
  EmbeddingCollectionOptions options = click.Options(*bench, tiers, dim);
  options.prefetch_depth = 1;
  HOTROW_ASSIGN_OR_RETURN(const auto tables, EmbeddingCollection::Create(options, bench->ctx));
  constexpr int32_t kDense = 13;
  // A name, not a temporary: GCC warns of members that are initialized in one.
  const DlrmOptions network = {{.num_dense = kDense,
                                .num_sparse = kClickTables,
                                .embedding_dim = dim,
                                .over_arch_layer_sizes = {512, 256, 1},
                                .max_batch_size = kClickBatch},
                               {512, 256, dim}};
  HOTROW_ASSIGN_OR_RETURN(const auto model, DlrmModel::Create(network));
  const std::vector<float> dense(static_cast<size_t>(kClickBatch * kDense), 0.1f);
  const auto floats = static_cast<size_t>(kClickBatch * tables->pooled_dim());
  std::vector<float> pooled(floats);
  std::vector<float> gradient(floats);
  std::vector<float> logits(static_cast<size_t>(kClickBatch));
  size_t next = 0;
  const auto prefetch = [&]() {
    return tables->Prefetch(
        {kClickBatch, click.batches()[next++ % click.batches().size()], click.offsets(), {}});
  };
  const auto compute = [&](EmbeddingStep step) -> absl::Status {
    HOTROW_RETURN_IF_ERROR(
        step.Lookup({.pooled = {pooled.data(), kClickBatch, tables->pooled_dim()}}));
    HOTROW_RETURN_IF_ERROR(model->Forward(bench->ctx,
                                          {.batch_size = kClickBatch,
                                           .dense = dense.data(),
                                           .embeddings = pooled.data(),
                                           .training = true,
                                           .step = 1},
                                          logits));
    // In the place of a loss.
    std::fill(logits.begin(), logits.end(), 1e-4f);
    HOTROW_RETURN_IF_ERROR(model->Backward(bench->ctx, logits, gradient.data(), {}));
    return std::move(step).Update({.pooled = {gradient.data(), kClickBatch, tables->pooled_dim()}});
  };

  // What is read are not the keys of the steps, whose rows are there already. While steps are
  // alone nothing is taken from the reader, and it rests.
  HOTROW_ASSIGN_OR_RETURN(
      const auto data, OpenDataSource(absl::StrCat("synthetic:samples=100M,valid=1,test=1,tables=",
                                                   kClickTables, ",rows=", kClickTableRows,
                                                   ",zipf=", kClickZipf, ",dense=", kDense),
                                      kCalibrationSeed));
  BatchReader beside(data.get(), {.batch_size = kClickBatch, .read_ahead = 2});
  BatchReader alone(data.get(), {.batch_size = kClickBatch});
  const auto read = [](BatchReader* reader) { return reader->Next().status(); };

  // Transfers of the disk and misses so far.
  const auto count = [&] {
    std::pair<double, double> out;
    const std::vector<TierStats> tiers = tables->Stats().tiers;
    out.first = static_cast<double>(tiers.back().ios);  // the store's
    for (const TierStats& tier : tiers) {
      if (tier.name == "cache") {
        out.second = static_cast<double>(tier.unique_keys - tier.unique_hits);
      }
    }
    return out;
  };

  // Alone and beside each other by turns, so that what changes with time falls on both; the medians
  // of the turns, so that what else runs for a moment falls on neither.
  const int64_t steps = std::max<int64_t>(2, bench->Scaled(8));
  std::vector<Together> turns;
  const auto take_turn = [&]() -> absl::Status {
    Together turn;
    const auto [ios, misses] = count();
    for (int64_t i = 0; i < steps; ++i) {
      const double cpu0 = ProcessorSeconds();
      const double t0 = WallSeconds();
      HOTROW_ASSIGN_OR_RETURN(auto step, prefetch());
      // Waits for its rows, and does little else.
      HOTROW_RETURN_IF_ERROR(step.BeginLookup());
      const double t1 = WallSeconds();
      const double cpu1 = ProcessorSeconds();
      HOTROW_RETURN_IF_ERROR(compute(std::move(step)));
      turn.ahead += t1 - t0;
      turn.ahead_cpu += cpu1 - cpu0;
      turn.step += WallSeconds() - t1;
      turn.step_cpu += ProcessorSeconds() - cpu1;
    }
    turn.ios = count().first - ios;
    turn.misses = count().second - misses;
    const double reading = ProcessorSeconds();
    for (int64_t i = 0; i < steps; ++i) HOTROW_RETURN_IF_ERROR(read(&alone));
    turn.reading_cpu = ProcessorSeconds() - reading;

    HOTROW_ASSIGN_OR_RETURN(auto now, prefetch());
    HOTROW_RETURN_IF_ERROR(now.BeginLookup());
    const double begin = WallSeconds();
    for (int64_t i = 0; i < steps; ++i) {
      HOTROW_RETURN_IF_ERROR(read(&beside));
      HOTROW_ASSIGN_OR_RETURN(auto later, prefetch());
      HOTROW_RETURN_IF_ERROR(compute(std::move(now)));
      now = std::move(later);
    }
    turn.at_once = WallSeconds() - begin;
    HOTROW_RETURN_IF_ERROR(compute(std::move(now)));
    turns.push_back(turn);
    return absl::OkStatus();
  };
  for (size_t i = 0; i < click.batches().size(); ++i) {
    HOTROW_ASSIGN_OR_RETURN(auto step, prefetch());
    HOTROW_RETURN_IF_ERROR(compute(std::move(step)));
  }
  const double begin = WallSeconds();
  do {
    HOTROW_RETURN_IF_ERROR(take_turn());
  } while (WallSeconds() - begin < 2 * bench->options.effort);
  HOTROW_RETURN_IF_ERROR(tables->Close());
  std::error_code error;
  const std::string dir = FieldsOf(options.store).dir;
  if (!dir.empty()) std::filesystem::remove_all(dir, error);

  Together out;
  for (double Together::*const field : kTogether) {
    const auto middle = turns.begin() + std::ssize(turns) / 2;
    std::nth_element(turns.begin(), middle, turns.end(),
                     [&](const Together& a, const Together& b) { return a.*field < b.*field; });
    out.*field = (*middle).*field / static_cast<double>(steps);
  }
  return out;
}

}  // namespace

// The parts of a step were measured one by one; here they run beside each other.
absl::Status MeasureBeside(CalibrationBench* bench, const ClickTables& tables,
                           HardwareProfile* profile) {
  // As much as tells that it was measured, where a noise makes it less than nothing.
  constexpr double kLeast = 0.01;
  Together memory;
  Together ssd;
  std::array<double, kClickDims.size()> row_bytes = {};
  std::array<double, kClickDims.size()> waits = {};
  for (size_t d = 0; d < kClickDims.size(); ++d) {
    HOTROW_ASSIGN_OR_RETURN(const Together in_memory,
                            RunTogether(bench, tables, ClickTiers::kSmallCache, kClickDims[d]));
    HOTROW_ASSIGN_OR_RETURN(
        const Together on_disk,
        RunTogether(bench, tables, ClickTiers::kSmallCacheOverSsd, kClickDims[d]));
    for (double Together::*const field : kTogether) {
      memory.*field += in_memory.*field;
      ssd.*field += on_disk.*field;
    }
    // Alone, a thread that neither works nor is done waits for the disk. From four threads on many
    // do the work.
    constexpr int kThreadsForPipeline = 4;
    const int workers = bench->options.threads < kThreadsForPipeline ? 1 : bench->options.threads;
    const double waited = on_disk.ahead - on_disk.ahead_cpu / workers;
    row_bytes[d] = static_cast<double>(ClickRowBytes(kClickDims[d]));
    waits[d] =
        (waited - on_disk.ios / profile->ssd_read_ios_per_second) / std::max(1.0, on_disk.misses);
  }
  const double processors = bench->options.threads;
  EngineCosts& engine = profile->engine;
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

}  // namespace hotrow
