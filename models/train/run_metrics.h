#ifndef HOTROW_MODELS_TRAIN_RUN_METRICS_H_
#define HOTROW_MODELS_TRAIN_RUN_METRICS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/trace.h"
#include "embedding/stats.h"
#include "models/data/metrics.h"
#include "models/saving/checkpoint_writer.h"

namespace hotrow {

// What a run is doing.
enum class RunState { kStarting, kTraining, kEvaluating, kSaving, kFinished, kFailed };
inline constexpr std::array kRunStates = {RunState::kStarting,   RunState::kTraining,
                                          RunState::kEvaluating, RunState::kSaving,
                                          RunState::kFinished,   RunState::kFailed};
std::string_view RunStateName(RunState state);  // "training"

// Times in buckets with fixed bounds, from 0.1 ms to 10 s, as a histogram of Prometheus has them.
// Memory does not grow. Threads: one at a time.
class TimeBuckets {
 public:
  static constexpr std::array kBoundSeconds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
                                               0.01,   0.025,   0.05,   0.1,   0.25,   0.5,
                                               1.0,    2.5,     5.0,    10.0};

  void Add(int64_t nanos);
  const std::array<int64_t, kBoundSeconds.size() + 1>& counts() const { return counts_; }
  int64_t sum_ns() const { return sum_ns_; }
  double sum_seconds() const { return 1e-9 * static_cast<double>(sum_ns_); }

 private:
  std::array<int64_t, kBoundSeconds.size() + 1> counts_{};  // the last: above all bounds
  int64_t sum_ns_ = 0;
};

// The numbers of one moment of a training run, of this rank. docs/metrics.md says what each means.
struct RunMetrics {
  // Numbers of the whole run.
  std::string model;
  std::string device;
  std::string store;
  int32_t rank = 0;
  int32_t world_size = 1;
  double start_unix_seconds = 0;

  RunState state = RunState::kStarting;
  double unix_seconds = 0;            // of this moment
  double last_step_unix_seconds = 0;  // 0: none yet
  // Those of checkpoints that the run went on from included.
  int64_t steps = 0;
  int64_t samples = 0;
  double epochs = 0;  // with the part of the present one
  // Numbers of this process.
  int64_t train_ns = 0;
  TimeBuckets step_times;
  double loss = 0;  // recent
  double learning_rate_factor = 0;
  int64_t gradient_checks = 0;       // steps whose gradients were looked at
  int64_t non_finite_gradients = 0;  // of them, with a number that is not finite
  int64_t divergences = 0;           // 1: the run ended because a number was not finite
  CtrMetrics valid;                  // samples 0: there was no validation yet
  CheckpointStats checkpoints;
  bool has_checkpoints = false;
  std::vector<TraceRecorder::StageTotal> stages;
  EmbeddingStats tables;
  int64_t disk_endurance_bytes = 0;  // 0: not known
  int64_t peak_rss_bytes = 0;
  double cpu_seconds = 0;
};

// The metrics as Prometheus reads them. With several ranks each sample has the label `rank`.
std::string MetricsText(const RunMetrics& metrics);

// Names of which there is a sample for sure in the text of a run over a disk with validation,
// checkpoints and several ranks: all that there are. For tests of pages that name them.
std::string AllMetricsText();

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_RUN_METRICS_H_
