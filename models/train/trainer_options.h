#ifndef HOTROW_MODELS_TRAIN_TRAINER_OPTIONS_H_
#define HOTROW_MODELS_TRAIN_TRAINER_OPTIONS_H_

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/device.h"
#include "embedding/embedding_collection.h"
#include "models/data/data_source.h"
#include "models/saving/scoring_options.h"
#include "models/train/learning_rate.h"
#include "ops/rows/weights_precision.h"
#include "ops/training/dense_optimizer.h"
#include "ops/training/loss_scale.h"

namespace hotrow {

class Communicator;
class Env;

// TrainerOptions::cache_bytes, device_cache_bytes: the smallest budget that one step fits in.
inline constexpr int64_t kSmallestCache = -1;
// TrainerOptions::delta_bytes, unless it is given.
inline constexpr int64_t kDeltaBytes = int64_t{1} << 30;

// The options of a training run. models/train/trainer_settings.cc has a row for each setting: its
// flag, its legal values, and whether the bits of the run depend on it.
struct TrainerOptions : ScoringOptions {
  int64_t batch_size = 0;  // required
  int64_t epochs = 1;
  int64_t limit_train_batches = 0;           // of each epoch; 0: all
  int64_t validation_freq_within_epoch = 0;  // steps; 0: at the end of each epoch only
  // Above 0: training in the order of time, window after window of this length; see RunTraining.
  int64_t window_seconds = 0;
  // Above 0: behind the last window the run waits so long for the next.
  int64_t follow_seconds = 0;

  // All tables alike: embedding_dim columns of this precision, this pooling and initializer, and
  // table_optimizer.
  int32_t embedding_dim = 0;  // required
  WeightsPrecision weights_precision = WeightsPrecision::kFp32;
  Pooling pooling = Pooling::kSum;
  // The admission of all tables that are trained, docs/row_life.md. admission_bytes: memory of the
  // counters.
  Admission admission;
  int64_t admission_bytes = 0;
  int64_t ttl_steps = 0;
  int64_t min_rows = 0;  // of each table
  int64_t max_rows = 0;
  int64_t row_limit_steps = 64;
  std::optional<Initializer> initializer;  // none: uniform in +-1/sqrt(rows), table by table
  DenseOptimizerConfig dense_optimizer;
  bool fuse_lookup = true;  // on a GPU: models read rows where they lie, where that works
  bool cuda_graph = true;   // on a GPU: the dense part of steps as one launch, where that works
  float loss_scale = LossScale().scale;  // with kFp16: the first one, a power of two
  // The gradient of all dense parameters together is scaled down to this Euclidean norm where it is
  // longer; 0: never.
  double max_gradient_norm = 0;
  // The same for the tables: TableConfig::max_row_gradient_norm of all of them, and
  // EmbeddingCollectionOptions::max_gradient_norm.
  float max_row_gradient_norm = 0;
  float max_table_gradient_norm = 0;
  LearningRateOptions schedule;
  // Models of several tasks: the factor of each task's loss, in the order of the labels; empty:
  // ones. And the label whose AUC decides what the schedule does; empty: the mean over all tasks.
  std::vector<double> task_weights;
  std::string validation_task;
  uint64_t seed = 0;  // of the rows' first values
  // OpenDataOptions::shuffle_bytes of the data source that trains: part of the run's bits.
  int64_t shuffle_bytes = int64_t{512} << 20;

  // Connects the ranks that train one model: each takes a contiguous slice of every batch and keeps
  // the rows of its shards. Not owned; null, or of one rank: alone. The ranks first check that they
  // have the same options and data. RankSettings (models/train/run_settings.h) lists the options
  // that each rank may have for itself.
  Communicator* communicator = nullptr;
  ExchangeType exchange_forward = ExchangeType::kFp32;
  ExchangeType exchange_backward = ExchangeType::kFp32;
  ExchangeRounding exchange_rounding = ExchangeRounding::kNearest;
  int64_t exchange_feedback_bytes = 0;  // RankOptions::feedback_bytes

  StoreKind store = StoreKind::kMemory;
  int64_t store_bytes = 0;         // required
  std::string store_path;          // ssd, rocksdb: required; a list (SetDirs); ranks: RankDir
  int64_t disk_bytes = 0;          // ssd and rocksdb: required
  int64_t cache_bytes = 0;         // 0: no cache, in memory only; kSmallestCache
  Device device = Device::kCpu;    // that of RunTraining's ctx
  int64_t device_cache_bytes = 0;  // CacheOptions::device_bytes; kSmallestCache
  int64_t device_index_bytes = 0;  // CacheOptions::device_index_bytes
  CachePolicy cache_policy = CachePolicy::kLru;
  int32_t prefetch_depth = 0;

  // Directory to save the model to; empty: none. With early_stop_patience or keep_best it is saved
  // whenever validation improves, so the directory holds the best one. Otherwise it is saved at the
  // end of training, also after a stop_signal.
  std::string save_dir;
  // The report's validation and test metrics, too, are those of the best validation.
  bool keep_best = false;
  // A saved model to start from; empty: from new parameters. See RunTraining.
  std::string init_from;
  // Rows for some tables of a new run, behind init_from: see ParsePretrainedRows.
  std::string init_rows;
  // Flags that decide the meaning of each dense parameter. Those that a saved model records must
  // agree.
  std::vector<std::pair<std::string, std::string>> shape;

  // Directory of checkpoints; empty: none. See RunTraining.
  std::string checkpoint_dir;
  int64_t checkpoint_every = 0;  // steps; 0: at the end and on a stop_signal only
  int64_t keep_checkpoints = 2;
  bool resume = false;  // from the newest one, if any
  // Directory of a chain of deltas (docs/deltas.md); empty: none. A link of each checkpoint at a
  // multiple of delta_every steps, and of the last one. Checkpoints that the next delta starts from
  // stay beyond keep_checkpoints.
  std::string delta_dir;
  int64_t delta_every = 0;                        // a multiple of checkpoint_every
  ExchangeType delta_rows = ExchangeType::kFp32;  // of their weights
  bool delta_weights_only = false;                // without the state of optimizers
  int64_t keep_deltas = 0;                        // at least that many stay; 0: all
  int64_t delta_bytes = kDeltaBytes;              // memory of writing a link, on rank 0
  // Flags of data and model that decide the bits of the run, with their values. A checkpoint must
  // agree in them.
  std::vector<std::pair<std::string, std::string>> settings;
  // Input for the planner (docs/planner.md). Empty: none. None of it changes a bit.
  std::string save_spec;      // file for SpecOf, written before training, by rank 0
  std::string record_trace;   // file for an access trace, see AccessTracePath
  double sample_rate = 0.01;  // of the trace, in (0, 1]
  bool mrc = false;           // TrainReport::mrc
  // Checkpoints are written on their own thread; false: inside the steps, for tests.
  bool checkpoint_in_background = true;

  // Numbers to watch (docs/metrics.md), of each rank. Their texts are made and given out beside the
  // run, which waits for none of it. None of it changes a bit.
  std::string metrics_file;   // empty: none; see MetricsFilePath
  int32_t metrics_port = -1;  // -1: none; 0: any free one; several ranks: that of rank 0
  std::string metrics_address = "127.0.0.1";
  double metrics_every = 1;          // seconds
  int64_t disk_endurance_bytes = 0;  // that the store's disk is made for; 0: not known

  Env* env = nullptr;  // of all files that are written; not owned; null: the real one

  // Stream for header, progress and validation results; not owned; null: none.
  std::FILE* out = nullptr;
  // Stream for warnings; not owned; null: none.
  std::FILE* notices = nullptr;
  // Reads every row at the end of the run, for the hashes and numbers of rows of the report.
  bool digest = true;
  bool mllog = false;  // also writes MLPerf's lines (models/train/mllog.h) to `out`
  // Not owned. When it becomes a signal's number (not 0), training ends after the current step,
  // without evaluation of test data.
  const std::atomic<int>* stop_signal = nullptr;

  // The rules of several settings together, and of the structs within. The bounds of each whole
  // number by itself: CheckLowerBounds (trainer_settings.h). Errors name the flag, the limit and
  // the value.
  absl::Status Validate() const;
};

// The trainer's tables for a schema. unpooled_features: CtrModel's; with each of them all of its
// table.
EmbeddingCollectionOptions CollectionOptions(const TrainerOptions& options,
                                             const DataSchema& schema,
                                             std::span<const int32_t> unpooled_features = {});

// Whether frozen_tables and read_only_features name tables and features of the schema. Errors:
// InvalidArgument, which names the flag, the name and what there is.
absl::Status CheckReadOnly(const TrainerOptions& options, const DataSchema& schema);

// Sets the smallest budgets in `tables` if `options` ask for them. `tables` is complete otherwise.
// Errors: ResourceExhausted (too small for one step), which names the flag, the limit and the
// value; those of EmbeddingCollectionOptions::Validate.
absl::Status ResolveBudgets(const TrainerOptions& options, Device device,
                            EmbeddingCollectionOptions* tables);

// The error of a run whose `what` is not finite in a step: OutOfRange, with the flags that help and
// what is known of the cause.
absl::Status DivergedError(const TrainerOptions& options, int64_t run_step, const char* what,
                           std::string_view cause = {});

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_TRAINER_OPTIONS_H_
