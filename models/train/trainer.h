#ifndef HOTROW_MODELS_TRAIN_TRAINER_H_
#define HOTROW_MODELS_TRAIN_TRAINER_H_

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"
#include "base/exec_context.h"
#include "embedding/embedding_collection.h"
#include "models/data/data_source.h"
#include "models/train/learning_rate.h"
#include "models/train/report.h"
#include "models/zoo/ctr_model.h"
#include "ops/dense_optimizer.h"
#include "ops/weights_precision.h"

namespace hotrow {

class Communicator;
class Env;

// TrainerOptions::cache_bytes, device_cache_bytes: the smallest budget that one step fits in.
inline constexpr int64_t kSmallestCache = -1;

struct TrainerOptions {
  int64_t batch_size = 0;  // required
  int64_t epochs = 1;
  int64_t limit_train_batches = 0;           // of each epoch; 0: all
  int64_t validation_freq_within_epoch = 0;  // steps; 0: at the end of each epoch only

  // All tables alike: embedding_dim columns of this precision, this pooling, optimizer and
  // initializer.
  int32_t embedding_dim = 0;  // required
  WeightsPrecision weights_precision = WeightsPrecision::kFp32;
  Pooling pooling = Pooling::kSum;
  SparseOptimizerConfig table_optimizer;
  std::optional<Initializer> initializer;  // none: uniform in +-1/sqrt(rows), table by table
  DenseOptimizerConfig dense_optimizer;
  // The gradient of all dense parameters together is scaled down to this Euclidean norm where it is
  // longer; 0: never.
  double max_gradient_norm = 0;
  LearningRateOptions schedule;
  uint64_t seed = 0;  // of the rows' first values

  // Several ranks train one model: each takes a contiguous slice of every batch and keeps the rows
  // of its shards. Not owned; null, or of one rank: alone. All ranks have the same options and
  // data, which is checked before anything else (RankSettings in models/train/run_settings.h); a
  // rank's own are the sizes of budgets, store_path, cache_policy, prefetch_depth, the names of
  // what is written, `out`, `notices` and stop_signal.
  Communicator* communicator = nullptr;
  ExchangeType exchange_forward = ExchangeType::kFp32;
  ExchangeType exchange_backward = ExchangeType::kFp32;
  ExchangeRounding exchange_rounding = ExchangeRounding::kNearest;
  int64_t exchange_feedback_bytes = 0;  // EmbeddingCollectionOptions::exchange_feedback_bytes

  StoreKind store = StoreKind::kMemory;
  int64_t store_bytes = 0;         // required
  std::string store_path;          // ssd and rocksdb: required; several ranks: RankDir below it
  int64_t disk_bytes = 0;          // ssd and rocksdb: required
  int64_t cache_bytes = 0;         // 0: no cache, in memory only; kSmallestCache
  Device device = Device::kCpu;    // that of RunTraining's ctx
  int64_t device_cache_bytes = 0;  // EmbeddingCollectionOptions::device_cache_bytes; kSmallestCache
  CachePolicy cache_policy = CachePolicy::kLru;
  int32_t prefetch_depth = 0;

  // Where the model is saved; empty: nowhere. With early_stop_patience whenever validation
  // improves, so that the directory holds the best one; otherwise at the end of training, also
  // after a stop_signal.
  std::string save_dir;
  // A saved model to start from; empty: from new parameters. See RunTraining.
  std::string init_from;
  // Flags that decide what each dense parameter is; a saved model must agree in those that it
  // knows.
  std::vector<std::pair<std::string, std::string>> shape;

  // Where checkpoints go; empty: nowhere. See RunTraining.
  std::string checkpoint_dir;
  int64_t checkpoint_every = 0;  // steps; 0: at the end and on a stop_signal only
  int64_t keep_checkpoints = 2;
  bool resume = false;  // go on from the newest one, if any
  // What the bits of a run depend on beside these options, as flags and values: data, model. A
  // checkpoint must agree in them.
  std::vector<std::pair<std::string, std::string>> settings;
  // What the planner can be told of the run (docs/planner.md). Empty: nowhere. None of it moves a
  // bit.
  std::string save_spec;      // file for what SpecOf gives, written before training, by rank 0
  std::string record_trace;   // file for an access trace, see AccessTracePath
  double sample_rate = 0.01;  // of the trace, in (0, 1]
  bool mrc = false;           // TrainReport::mrc
  // Checkpoints are written by a thread of their own; false: inside the steps, for tests.
  bool checkpoint_in_background = true;

  Env* env = nullptr;  // of all files that are written; not owned; null: the real one

  // Where header, progress and validation results go; not owned; null: nowhere.
  std::FILE* out = nullptr;
  // Where a line goes that nobody should miss, though nothing has failed; not owned; null: nowhere.
  std::FILE* notices = nullptr;
  bool mllog = false;  // MLPerf's lines (models/train/mllog.h) go there too
  // Not owned. Once it is not 0 (a signal's number) training ends after the current step, and test
  // data is not evaluated.
  const std::atomic<int>* stop_signal = nullptr;

  absl::Status Validate() const;  // names the flag, the limit and the value it got
};

using ModelFactory =
    std::function<absl::StatusOr<std::unique_ptr<CtrModel>>(const DataSchema& schema)>;

// Trains the model that the factory makes on the train split, with the tables that the schema
// names, and evaluates it on validation and test data. Steps are prefetched up to prefetch_depth
// ahead; batches are read ahead on one more thread when ctx.pool has more than one.
//
// With schedule.early_stop_patience, test data is evaluated whenever validation improves, and the
// report's metrics are those of the best validation, although training went on from there: nothing
// need be rolled back. Otherwise they are those of the end.
//
// init_from starts from a saved model: its rows and their optimizer state, dense parameters and, if
// the dense optimizer is of the same kind, its state; the step number of optimizers and dropout
// goes on, the schedule and the epochs of the new data start anew. Keys that the model does not
// have join as new rows do, by options.seed. Saving and going on gives the bits of a run that went
// on without a stop.
//
// checkpoint_dir keeps checkpoints of the whole run: tables, dense parameters, the state of both
// optimizers, where the data stand, what validation has shown so far. One is taken every
// checkpoint_every steps while training goes on, at the end, and on a stop_signal; that one is
// waited for. resume goes on from the newest one: parameters, rows and metrics then end with the
// bits of a run that was never interrupted, whatever batch was prefetched and however the process
// ended. Settings that change bits must be those of the checkpoint (FailedPrecondition, naming
// each); on a processor of another kind, whose matrix products have other bits, it goes on and says
// so in `notices`; tiers, threads, checkpoint_every and the number of epochs may be others. Without
// resume a checkpoint_dir that holds checkpoints is refused, as is a store_path that holds rows. Of
// a store with a disk budget checkpoints are taken early, and fewer are kept, when the rows that
// only they hold take much of it.
//
// The bits of parameters and rows depend on data, model and options, but not on cache_bytes,
// cache_policy, store, prefetch_depth or the size of ctx.pool, nor on how often validation runs
// unless the schedule acts on it.
//
// With several ranks every rank calls it and returns the same metrics; the counts and bytes of the
// report are those of all ranks together, peak_rss_bytes the largest, times and stages the rank's
// own. Dense parameters are the same on all ranks; dense gradients are summed in the order of
// ranks. For a fixed number of ranks a run repeats bit for bit, whatever the tiers. Directories are
// on a file system that all ranks see, store_path may be local. A checkpoint may be resumed on any
// number of ranks. With exchange_feedback_bytes it holds what each rank's gradients had lost; on
// another number of ranks, with another budget and from init_from that begins at zero. The first
// rank that fails ends the others with an error that names it; so does a store that has no room,
// where one rank alone would make some.
//
// Uses ctx.trace for stages; `flags` of the report is left empty. Errors: InvalidArgument
// (options, malformed data), ResourceExhausted (a budget too small for one step), OutOfRange (the
// loss is no longer a finite number), FailedPrecondition and DataLoss (a saved model that does not
// fit or is damaged; see models/saving/saved_model.h), and what data source and store say.
absl::StatusOr<TrainReport> RunTraining(const TrainerOptions& options, DataSource& data,
                                        const ModelFactory& factory, const ExecContext& ctx);

// The tables of a schema as the trainer makes them.
EmbeddingCollectionOptions CollectionOptions(const TrainerOptions& options,
                                             const DataSchema& schema);

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_TRAINER_H_
