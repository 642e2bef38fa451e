#ifndef HOTROW_MODELS_TRAIN_REPORT_H_
#define HOTROW_MODELS_TRAIN_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/trace.h"
#include "embedding/embedding_collection.h"
#include "models/data/metrics.h"
#include "models/saving/checkpoint_writer.h"
#include "models/saving/training_state.h"
#include "models/train/access_recorder.h"
#include "ops/rows/weights_precision.h"

namespace hotrow {

// The report of one training run. Scripts read the JSON form: names and meanings do not change.
struct TrainReport {
  std::string model;
  WeightsPrecision weights_precision = WeightsPrecision::kFp32;  // of all tables
  std::vector<std::pair<std::string, std::variant<int64_t, double, std::string>>> flags;
  // Numbers of the whole run, including the part before a checkpoint that it resumed from.
  int64_t samples = 0;  // trained on
  int64_t steps = 0;
  int64_t epochs = 0;  // finished
  int64_t resumed_from_step = 0;
  int32_t threads = 1;
  std::string device;
  int32_t world_size = 1;
  double seconds = 0;        // all of the run
  double train_seconds = 0;  // without evaluation
  double cpu_seconds = 0;    // of all threads of the process
  double step_ms_p50 = 0;
  double step_ms_p99 = 0;
  double step_ms_max = 0;
  int64_t graph_steps = 0;         // on a GPU: whose dense part was one launch, of this process
  int64_t fused_lookup_steps = 0;  // on a GPU: that read rows where they lie, of this process
  std::vector<std::string> unfused_products;  // UnfusedProducts() of this process
  // With --precision=fp16: as the last step left it, and how many steps were left out.
  std::optional<TrainingState::SavedLossScale> loss_scale;
  double train_logloss = 0;  // over the last epoch, each batch before its own update
  CtrMetrics valid;          // the last validation; with early stopping the best one
  CtrMetrics test;           // zeros when the run was stopped before
  // The metrics of each label, where the data have several: `valid` and `test` are then the means.
  struct Task {
    std::string label;
    CtrMetrics valid;
    CtrMetrics test;
  };
  std::vector<Task> tasks;
  int64_t window_seconds = 0;          // 0: no windows
  std::vector<TrainedWindow> windows;  // with samples, the first `epochs` of them trained
  int64_t best_epoch = 0;              // of the best validation, from 1; 0 without early stopping
  int64_t best_step = 0;
  double best_auc = 0;  // of the data's true probabilities; 0: the data does not know them
  // Empty with --digest=false; what comes of them is left out of the JSON and the summary then.
  std::string dense_hash;
  CollectionDigest digest;
  int64_t peak_rss_bytes = 0;
  EmbeddingStats tables;             // of all ranks
  int64_t exchange_dense_bytes = 0;  // sent to sum dense gradients, by all ranks
  CheckpointStats checkpoints;
  int64_t resumed_step = -1;    // of the checkpoint that the run resumed from; -1: none
  int64_t resumed_samples = 0;  // trained on before that checkpoint
  std::vector<TraceRecorder::StageTotal> stages;
  std::optional<MissRatioCurves> mrc;  // of the steps of this process; with --mrc only

  // What the summary says and the JSON does not.
  int32_t stopped_by_signal = 0;  // 0: the run went to its end
  bool stopped_early = false;     // by early_stop_patience
  int64_t saved_step = -1;        // of the model that was saved last; -1: none
  std::string checkpoint;         // directory of the newest one; empty: none
  std::string access_trace;       // of this rank; empty: none
  absl::Status access_status;     // of writing it; errors do not end the run
  int64_t num_parameters = 0;     // dense

  int64_t cache_bytes = 0;         // as used: the smallest legal budget resolved
  int64_t device_cache_bytes = 0;  // as used, too
  int64_t store_bytes = 0;

  // The rate of this process.
  double samples_per_second() const {
    return train_seconds > 0 ? static_cast<double>(samples - resumed_samples) / train_seconds : 0;
  }
  bool has_digest() const { return !dense_hash.empty(); }
  int64_t rows() const;
  int64_t row_bytes() const;
};

// Windows without samples in front of one.
int64_t EmptyBefore(const std::vector<TrainedWindow>& windows, size_t position);

std::string ReportToJson(const TrainReport& report);

// A summary for people: quality, speed, tiers, stages, checkpoints.
std::string FormatSummary(const TrainReport& report);

// "1,234,567"
std::string FormatCount(int64_t n);
// "64.0 MiB"
std::string FormatBytes(int64_t bytes);

// Peak resident memory of this process in bytes; 0: unknown.
int64_t PeakResidentBytes();
// Processor time of this process so far, user and system, in seconds.
double ProcessCpuSeconds();

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_REPORT_H_
