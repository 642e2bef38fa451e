#include "models/train/run_metrics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

#include "base/exposition.h"
#include "embedding/stats.h"

namespace hotrow {
namespace {

constexpr MetricKind kCounter = MetricKind::kCounter;
constexpr MetricKind kGauge = MetricKind::kGauge;

double Seconds(int64_t nanos) { return 1e-9 * static_cast<double>(nanos); }

// One family of one sample.
void Put(ExpositionWriter* out, const char* name, MetricKind kind, const char* help,
         int64_t value) {
  out->Family(name, kind, help);
  out->Sample(value);
}
void Put(ExpositionWriter* out, const char* name, MetricKind kind, const char* help, double value) {
  out->Family(name, kind, help);
  out->Sample({}, value);
}

void AppendRun(const RunMetrics& run, ExpositionWriter* out) {
  out->Family("hotrow_run_info", kGauge, "What is trained: always 1.");
  out->Sample({{{"model", run.model}, {"device", run.device}, {"store", run.store}}}, int64_t{1});
  out->Family("hotrow_run_state", kGauge, "What the run does: 1 for its state, 0 for the others.");
  for (const RunState state : kRunStates) {
    out->Sample({{{"state", RunStateName(state)}}}, int64_t{state == run.state ? 1 : 0});
  }
  Put(out, "hotrow_run_ranks", kGauge, "Ranks that train together.", int64_t{run.world_size});
  Put(out, "hotrow_run_start_timestamp_seconds", kGauge, "When this process began the run.",
      run.start_unix_seconds);
  Put(out, "hotrow_metrics_timestamp_seconds", kGauge,
      "When these numbers were taken; they change between steps only.", run.unix_seconds);
  Put(out, "hotrow_last_step_timestamp_seconds", kGauge,
      "When the last training step ended; 0: none yet.", run.last_step_unix_seconds);
  Put(out, "hotrow_process_cpu_seconds_total", kCounter,
      "Processor time of all threads of the process.", run.cpu_seconds);
  Put(out, "hotrow_process_peak_resident_bytes", kGauge, "The most memory that the process had.",
      run.peak_rss_bytes);
}

void AppendTraining(const RunMetrics& run, ExpositionWriter* out) {
  Put(out, "hotrow_steps_total", kCounter,
      "Training steps of the run, those before it was resumed included.", run.steps);
  Put(out, "hotrow_samples_total", kCounter, "Samples of these steps, of all ranks.", run.samples);
  Put(out, "hotrow_epochs", kGauge, "Passes over the training data, with the present one's part.",
      run.epochs);
  Put(out, "hotrow_training_seconds_total", kCounter,
      "Time spent on training steps, waiting for data included, evaluation not.",
      Seconds(run.train_ns));
  out->Family("hotrow_step_seconds", MetricKind::kHistogram, "Time of a training step.");
  out->Buckets({}, TimeBuckets::kBoundSeconds, run.step_times.counts(),
               run.step_times.sum_seconds());
  Put(out, "hotrow_training_loss", kGauge, "Mean loss of about the last hundred steps.", run.loss);
  Put(out, "hotrow_learning_rate_factor", kGauge,
      "What the schedule multiplies learning rates with.", run.learning_rate_factor);
  Put(out, "hotrow_gradient_checks_total", kCounter,
      "Steps whose gradients were searched for numbers that are not finite; on a CPU.",
      run.gradient_checks);
  Put(out, "hotrow_non_finite_gradients_total", kCounter, "Searched steps that had such numbers.",
      run.non_finite_gradients);
  Put(out, "hotrow_divergences_total", kCounter,
      "1 where the run ended because its loss or a norm was not finite.", run.divergences);
  if (run.valid.samples > 0) {
    if (!std::isnan(run.valid.auc)) {
      Put(out, "hotrow_validation_auc_ratio", kGauge, "AUC of the last validation.", run.valid.auc);
    }
    Put(out, "hotrow_validation_logloss", kGauge, "Logloss of the last validation.",
        run.valid.logloss);
  }
  if (run.stages.empty()) return;
  out->Family("hotrow_stage_seconds_total", kCounter,
              "Time inside a stage, summed over its threads; stages may lie within others.");
  for (const TraceRecorder::StageTotal& stage : run.stages) {
    out->Sample({{{"stage", stage.name}}}, 1e-3 * stage.ms);
  }
  out->Family("hotrow_stage_runs_total", kCounter, "How often the stage ran.");
  for (const TraceRecorder::StageTotal& stage : run.stages) {
    out->Sample({{{"stage", stage.name}}}, stage.count);
  }
}

void AppendCheckpoints(const CheckpointStats& stats, ExpositionWriter* out) {
  Put(out, "hotrow_checkpoints_total", kCounter, "Checkpoints committed.", stats.count);
  Put(out, "hotrow_checkpoints_early_total", kCounter,
      "Checkpoints taken early to free disk space.", stats.early);
  Put(out, "hotrow_checkpoint_written_bytes_total", kCounter, "Bytes written for checkpoints.",
      stats.bytes);
  Put(out, "hotrow_checkpoint_pause_seconds_total", kCounter,
      "How long training stood still for checkpoints.", Seconds(stats.pause_ns));
  Put(out, "hotrow_checkpoint_pause_max_seconds", kGauge, "The longest pause for a checkpoint.",
      Seconds(stats.pause_ns_max));
  Put(out, "hotrow_checkpoint_commit_seconds", kGauge,
      "From the beginning of the last checkpoint until it was committed.",
      Seconds(stats.commit_ns_last));
}

void AppendEndurance(const RunMetrics& run, ExpositionWriter* out) {
  if (run.disk_endurance_bytes <= 0 || run.tables.tiers.empty()) return;
  const TierStats& store = run.tables.tiers.back();
  Put(out, "hotrow_disk_endurance_bytes", kGauge,
      "What may be written to the store's disk over its life, as the run was told.",
      run.disk_endurance_bytes);
  Put(out, "hotrow_disk_endurance_used_ratio", kGauge,
      "The part of it that this process has written to the store.",
      static_cast<double>(store.bytes_written) / static_cast<double>(run.disk_endurance_bytes));
}

}  // namespace

std::string_view RunStateName(RunState state) {
  switch (state) {
    case RunState::kStarting:
      return "starting";
    case RunState::kTraining:
      return "training";
    case RunState::kEvaluating:
      return "evaluating";
    case RunState::kSaving:
      return "saving";
    case RunState::kFinished:
      return "finished";
    case RunState::kFailed:
      return "failed";
  }
  return "unknown";
}

void TimeBuckets::Add(int64_t nanos) {
  const double seconds = Seconds(nanos);
  const auto bucket = std::lower_bound(kBoundSeconds.begin(), kBoundSeconds.end(), seconds);
  ++counts_[static_cast<size_t>(bucket - kBoundSeconds.begin())];
  sum_ns_ += nanos;
}

std::string MetricsText(const RunMetrics& metrics) {
  const std::string rank = std::to_string(metrics.rank);
  std::vector<MetricLabel> common;
  if (metrics.world_size > 1) common.emplace_back("rank", rank);
  ExpositionWriter writer(common);
  AppendRun(metrics, &writer);
  AppendTraining(metrics, &writer);
  if (metrics.has_checkpoints) AppendCheckpoints(metrics.checkpoints, &writer);
  AppendEndurance(metrics, &writer);
  AppendMetrics(metrics.tables, &writer);
  return writer.Take();
}

std::string AllMetricsText() {
  RunMetrics all;
  all.world_size = 2;
  all.valid.samples = 1;
  all.has_checkpoints = true;
  all.stages = {{.name = "lookup"}};
  all.disk_endurance_bytes = 1;
  for (const char* const name : {"device_cache", "cache", "ssd"}) {
    all.tables.tiers.push_back({.name = name});
  }
  all.tables.tables.push_back({.name = "users"});
  all.tables.tables.back().ages.Add(1);
  all.tables.tables.back().scores.Add(1);
  return MetricsText(all);
}

}  // namespace hotrow
