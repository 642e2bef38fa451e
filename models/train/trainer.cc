#include "models/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/buffer.h"
#include "base/check.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/env.h"
#include "base/hash.h"
#include "base/math.h"
#include "base/metrics.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "base/trace.h"
#include "comm/communicator.h"
#include "comm/compare_ranks.h"
#include "comm/lane.h"
#include "comm/run_together.h"
#include "models/data/slice_batch.h"
#include "models/saving/checkpoint.h"
#include "models/saving/checkpoint_writer.h"
#include "models/saving/dense_file.h"
#include "models/saving/saved_model.h"
#include "models/saving/saved_model_fit.h"
#include "models/saving/saved_model_writer.h"
#include "models/saving/store_paths.h"
#include "models/saving/training_state.h"
#include "models/train/access_recorder.h"
#include "models/train/batch_reader.h"
#include "models/train/mllog.h"
#include "models/train/progress.h"
#include "models/train/run_settings.h"
#include "models/train/spec_writer.h"
#include "models/zoo/model_parts.h"
#include "ops/bce_loss.h"
#include "ops/processor_kind.h"
#include "ops/row_layout.h"

namespace hotrow {
namespace {

constexpr int32_t kReadAhead = 2;  // batches: one being made while one waits
constexpr int64_t kTextEveryNanos = 100'000'000;
constexpr int64_t kNormGrain = 1 << 14;  // floats summed in one piece
// Several ranks: gradients of dense parameters are summed in pieces of at least this many floats (1
// MiB), while backward goes on.
constexpr int64_t kBucketFloats = 1 << 18;
// Steps ahead of a checkpoint, half the way to it at most, at which the tables are told to prepare:
// seconds, in which a store can tidy up.
constexpr int64_t kAnnounceSteps = 100;
constexpr int64_t kDiskWatchSteps = 16;
// A store on a disk is short of room when that much of its budget is used and that much of it holds
// rows for old checkpoints alone. Below this the store itself makes room, by cleaning.
constexpr double kShortOfDisk = 0.85;
constexpr double kMuchForSnapshots = 0.2;

double Seconds(int64_t nanos) { return 1e-9 * static_cast<double>(nanos); }

// Same bits for any pool: the pieces do not depend on it, and their sums are added in order.
double EuclideanNorm(ThreadPool* pool, std::span<const float> x) {
  const auto n = static_cast<int64_t>(x.size());
  std::vector<double> sums(static_cast<size_t>(CeilDiv(n, kNormGrain)));
  ParallelFor(pool, n, kNormGrain, [&](int64_t begin, int64_t end) {
    double sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += static_cast<double>(x[i]) * x[i];
    sums[begin / kNormGrain] = sum;
  });
  return std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
}

class Trainer {
 public:
  Trainer(const TrainerOptions& options, DataSource& data, const ExecContext& ctx)
      : options_(options),
        env_(options.env != nullptr ? *options.env : PosixEnv()),
        data_(data),
        schema_(data.schema()),
        ctx_(ctx),
        rank_(options.communicator == nullptr ? 0 : options.communicator->rank()),
        world_size_(options.communicator == nullptr ? 1 : options.communicator->world_size()),
        policy_(options.schedule),
        mllog_([this](std::string_view line) { PrintLine(line); }) {}

  absl::Status Init(const ModelFactory& factory);
  // Trains, saves and tests as the options say.
  absl::Status Run();
  absl::StatusOr<TrainReport> Report();
  // Leaves the store in good order. Nothing may follow.
  absl::Status Close() { return tables_->Close(); }

 private:
  // A step between its prefetch and its update; without `step` the end of an epoch.
  struct InFlight {
    std::unique_ptr<BatchReader::Item> item;
    std::unique_ptr<EmbeddingStep> step;
  };
  struct Evaluation {
    CtrMetrics metrics;
    double best_auc = 0;
    bool complete = false;  // not stopped by a signal
  };

  bool many_ranks() const { return world_size_ > 1; }
  int OwnSignal() const {
    return options_.stop_signal == nullptr ? 0 : options_.stop_signal->load();
  }
  // With several ranks what they have agreed on last: all stop at the same place.
  int stop_signal() const { return many_ranks() ? agreed_signal_ : OwnSignal(); }
  bool stopped() const { return stop_signal() != 0; }
  // The largest number that any rank has, and the sum of all.
  absl::StatusOr<int64_t> LargestOfRanks(int64_t mine);
  absl::StatusOr<int64_t> SumOverRanks(int64_t mine);
  absl::Status AgreeOnStop();
  bool quiet() const { return options_.out == nullptr; }
  bool mllog() const { return options_.mllog && !quiet(); }
  bool stops_early() const { return options_.schedule.early_stop_patience > 0; }
  // Step number of optimizers and dropout for the step to come.
  uint32_t StepNumber() const { return static_cast<uint32_t>(first_step_ + steps_ + 1); }
  int64_t TotalSamples() const;
  BatchReaderOptions ReaderOptions(Split split) const;
  SavedModel Description() const;
  absl::Status Connect();
  absl::Status CompareOptions();
  absl::Status FindStart();
  absl::Status CheckStart() const;
  absl::Status CompareStarts();
  absl::Status FindProcessor();
  absl::Status CreateTables();
  absl::Status SaveSpec() const;
  absl::Status OpenRecorder();
  absl::Status AllocateBuffers();
  absl::Status LoadDense();
  absl::StatusOr<DenseArrays<const float>> DenseOnHost();
  absl::StatusOr<const float*> OnDevice(const std::vector<float>& host,
                                        DeviceMemory<float>* memory);
  bool on_gpu() const { return ctx_.device != Device::kCpu; }
  absl::Status LoadResiduals();
  void PrintHeader() const;
  void PrintLine(std::string_view line);
  void LogSettings();

  absl::Status Train();
  absl::Status Test();
  absl::Status Save();
  absl::Status FillPipeline(BatchReader* reader);
  absl::Status PrefetchNext(InFlight* next);
  absl::Status PrefetchAgain();
  absl::Status TrainOne(BatchReader* reader);
  absl::Status Step(InFlight* now);
  absl::Status StepOnRanks(InFlight* now, float factor, double* loss);
  void StartAgreement(double loss_sum);
  absl::Status FinishAgreement(double* loss_sum);

  TrainingState State() const;
  void Restore(const TrainingState& state);
  absl::Status BeginCheckpoint(bool early);
  absl::Status CheckpointFailed(const absl::Status& status);
  absl::Status PollCheckpoint();
  absl::Status WaitCheckpoint();
  absl::Status CarryCheckpoints();
  absl::Status WatchDisk();
  absl::StatusOr<bool> MakeRoom();
  absl::Status EndWithCheckpoint();
  void PrintCheckpoint();
  absl::Status ApplyDenseUpdate(std::span<const float> gradients, float learning_rate_factor);
  // The mean over `batch`, a slice of a batch of mean_over samples.
  absl::StatusOr<double> Loss(const CtrBatch& batch, int64_t mean_over);
  absl::Status NotFinite(const char* what) const;
  // The first n logits.
  absl::StatusOr<std::span<const float>> LogitsOnHost(int64_t n);
  absl::StatusOr<std::span<const float>> GatherLogits(const BatchReader::Item& item,
                                                      std::span<const float> mine);
  absl::Status EvaluateTables(const CtrBatch& batch);
  absl::StatusOr<Evaluation> Evaluate(Split split, Progress* progress);
  absl::Status Validate(int64_t epoch);
  double EpochsSoFar() const;
  void ShowProgress();
  absl::StatusOr<Hash128> DenseHash();

  const TrainerOptions& options_;
  Env& env_;
  DataSource& data_;
  const DataSchema& schema_;
  const ExecContext ctx_;
  const int64_t begin_ns_ = NowNanos();

  // Several ranks: one channel for what the caller's thread asks, one on which gradients are summed
  // while it computes.
  const int32_t rank_;
  const int32_t world_size_;
  std::unique_ptr<Communicator> control_;
  int agreed_signal_ = 0;
  double agreement_[2] = {};  // sums over ranks: of losses, of signals
  int64_t dense_bytes_ = 0;   // sent

  std::unique_ptr<CtrModel> model_;
  EmbeddingCollectionOptions collection_options_;
  std::unique_ptr<EmbeddingCollection> tables_;
  DeviceMemory<float> momentum1_;  // of the dense optimizer
  DeviceMemory<float> momentum2_;
  HostBuffer<float> clipped_;       // a gradient that was too long, scaled
  HostBuffer<float> summed_;        // the gradient of all ranks
  std::unique_ptr<CommLane> sums_;  // its thread writes the sums

  std::string processor_;            // TrainingState::processor
  std::optional<SavedModel> start_;  // of init_from, or the checkpoint to go on from
  bool resumed_ = false;             // the latter
  std::string residuals_anew_;       // why residuals of gradients begin at zero; empty: they do not
  std::unique_ptr<SavedModelWriter> writer_;
  int64_t first_step_ = 0;  // steps that the model of init_from had seen
  int64_t saved_step_ = -1;

  // Null: neither --record_trace nor --mrc.
  std::unique_ptr<AccessRecorder> recorder_;
  std::string access_trace_;

  // Declared after tables_, which it calls.
  std::unique_ptr<CheckpointWriter> checkpoints_;
  bool checkpoint_due_ = false;
  int64_t checkpoint_due_step_ = -1;  // the step at which one was due last
  bool said_busy_ = false;
  bool room_made_ = false;  // since the last step

  DeviceMemory<float> embeddings_;          // [B, E]
  DeviceMemory<float> embedding_gradient_;  // [B, E]
  DeviceMemory<float> logits_;              // [B]
  DeviceMemory<float> logit_gradient_;      // [B]
  // A GPU: a batch's arrays and the loss there, and copies of what the host looks at.
  DeviceMemory<float> dense_features_;
  DeviceMemory<float> labels_;
  DeviceMemory<double> loss_;
  DeviceMemory<std::byte> loss_workspace_;
  std::vector<float> host_logits_;
  std::vector<float> host_parameters_;
  std::vector<float> host_momentum1_;
  std::vector<float> host_momentum2_;
  HostBuffer<float> global_logits_;  // several ranks: of a whole batch

  // Declared after tables_: steps must not outlive them.
  std::deque<InFlight> pipeline_;
  int64_t outstanding_ = 0;  // steps in pipeline_
  bool data_ended_ = false;

  // Where the data stand behind the last step: the batch to come.
  int64_t next_epoch_ = 0;
  int64_t next_sample_ = 0;
  int64_t next_batch_ = 0;
  bool validation_due_ = false;
  int64_t validated_step_ = -1;

  int64_t steps_ = 0;
  int64_t samples_ = 0;
  int64_t resumed_samples_ = 0;
  int64_t epochs_done_ = 0;
  int64_t epoch_ = -1;  // of the last step
  int64_t steps_in_epoch_ = 0;
  int64_t epoch_samples_ = 0;
  double epoch_loss_sum_ = 0;
  double recent_loss_ = 0;  // decaying mean, for the progress line
  int64_t train_ns_ = 0;
  int64_t next_text_ns_ = 0;
  Histogram step_ns_;
  CtrMetrics valid_;
  Evaluation test_;

  ValidationPolicy policy_;
  bool stopped_early_ = false;
  int64_t best_epoch_ = 0;
  int64_t best_step_ = 0;

  Progress* progress_ = nullptr;  // the line that is being shown, if any
  MlLogger mllog_;
};

int64_t Trainer::TotalSamples() const {
  int64_t samples = schema_.train_samples;
  if (options_.limit_train_batches > 0) {
    const int64_t limit = options_.limit_train_batches * options_.batch_size;
    samples = samples == 0 ? limit : std::min(samples, limit);
  }
  return samples * options_.epochs;
}

BatchReaderOptions Trainer::ReaderOptions(Split split) const {
  const bool has_spare_thread = ctx_.pool != nullptr && ctx_.pool->num_threads() > 1;
  return {.split = split,
          .batch_size = options_.batch_size,
          .rank = rank_,
          .world_size = world_size_,
          .keep_global_labels = many_ranks() && split != Split::kTrain,
          .read_ahead = has_spare_thread ? kReadAhead : 0};
}

// The model as it is here, without rows and parts.
SavedModel Trainer::Description() const {
  SavedModel out;
  out.model = std::string(model_->name());
  out.shape = options_.shape;
  out.num_dense = schema_.num_dense;
  for (const DataFeature& feature : schema_.features) {
    out.features.push_back({feature.name, feature.table});
  }
  for (const TableConfig& table : collection_options_.tables) {
    out.tables.push_back({.name = table.name,
                          .dim = table.embedding_dim,
                          .optimizer = std::string(SparseOptimizerName(table.optimizer.kind)),
                          .weights_precision = table.weights_precision,
                          .initializer = table.initializer});
  }
  out.seed = options_.seed;
  out.dense_optimizer = std::string(DenseOptimizerName(options_.dense_optimizer.kind));
  out.num_parameters = static_cast<int64_t>(model_->parameters().size());
  out.parts = {{.store = std::string(StoreKindName(options_.store)),
                .tables_dir = options_.store == StoreKind::kMemory
                                  ? collection_options_.snapshot_dir
                                  : collection_options_.store_path}};
  return out;
}

// Reads what the run starts from, if anything.
absl::Status Trainer::FindStart() {
  const std::string& dir = options_.checkpoint_dir;
  if (!dir.empty()) {
    const absl::StatusOr<std::vector<std::string>> names = ListCheckpoints(env_, dir);
    if (!names.ok()) {
      return absl::FailedPreconditionError(absl::StrCat("--checkpoint_dir=", dir, ": ",
                                                        names.status().message(),
                                                        "; give a directory of its own"));
    }
    if (!options_.resume && !names->empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "--checkpoint_dir=", dir, ": it holds checkpoints, the newest is ", names->back(),
          "; add --resume to go on from it, or give another directory"));
    }
    if (!names->empty()) {
      HOTROW_ASSIGN_OR_RETURN(start_, ReadCheckpoint(env_, dir));
      resumed_ = true;
    }
  }
  if (!resumed_ && !options_.init_from.empty()) {
    HOTROW_ASSIGN_OR_RETURN(start_, ReadCheckpoint(env_, options_.init_from));
  }
  return absl::OkStatus();
}

absl::Status Trainer::CheckStart() const {
  if (!start_.has_value()) return absl::OkStatus();
  if (!resumed_) {
    return CheckSavedModelFits(*start_, Description(),
                               {.flag = absl::StrCat("--init_from=", options_.init_from),
                                .train_anew = "train anew without --init_from"});
  }
  const std::string flag = absl::StrCat("--resume from ", start_->dir);
  if (!start_->training.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(flag,
                     ": it does not know where in the data its training stood; start from "
                     "it with --init_from=",
                     start_->dir, " and another --checkpoint_dir"));
  }
  if (start_->model != model_->name()) {
    return absl::FailedPreconditionError(absl::StrCat(flag, ": it holds a model \"", start_->model,
                                                      "\", this is ", std::string(model_->name()),
                                                      "; use the program ", start_->model));
  }
  HOTROW_RETURN_IF_ERROR(
      CompareWithCheckpoint(start_->training->settings, BitSettings(options_), flag));
  return CheckSavedModelFits(
      *start_, Description(),
      {.flag = flag, .train_anew = "train anew with another --checkpoint_dir"});
}

absl::Status Trainer::CreateTables() {
  EmbeddingCollectionOptions& options = collection_options_;
  options.env = &env_;
  options.communicator = control_.get();
  if (!options.store_path.empty()) {
    options.store_path = RankDir(options.store_path, rank_, world_size_);
  }
  if (options_.store == StoreKind::kMemory) {
    if (checkpoints_ != nullptr) {
      options.snapshot_dir = checkpoints_->tables_dir();
    } else if (writer_ != nullptr) {
      options.snapshot_dir = writer_->tables_dir();
    }
  }
  if (start_.has_value()) {
    for (const SavedModel::Part& part : start_->parts) {
      HOTROW_ASSIGN_OR_RETURN(const StoreKind kind, ParseStoreKind(part.store));
      options.open_from.push_back({.snapshot = part.snapshot,
                                   .identity = part.identity,
                                   .store = kind,
                                   .dir = part.tables_dir});
    }
    options.open_steps = start_->step;
  }
  // What a run leaves in its store that was killed before its first checkpoint.
  options.start_over = options_.resume;
  if (options_.exchange_feedback_bytes > 0) {
    const int64_t least = EmbeddingCollection::MinFeedbackBytes(options);
    if (options_.exchange_feedback_bytes < least) {
      return absl::InvalidArgumentError(
          absl::StrCat("--exchange_feedback=", options_.exchange_feedback_bytes,
                       " is too small: the residuals of four rows of ", options_.embedding_dim,
                       " columns need ", least, " bytes; raise it, or use --exchange_feedback=0"));
    }
  }
  // The cache that rows are trained in.
  const bool on_device = options_.device_cache_bytes != 0;
  const char* const flag = on_device ? "device_cache_bytes" : "cache_bytes";
  int64_t& cache_bytes = on_device ? options.device_cache_bytes : options.cache_bytes;
  const int64_t wanted = on_device ? options_.device_cache_bytes : options_.cache_bytes;
  EmbeddingCollectionOptions smallest = options;
  (on_device ? smallest.device_cache_bytes : smallest.cache_bytes) =
      std::max<int64_t>(cache_bytes, 1);
  HOTROW_ASSIGN_OR_RETURN(const int64_t min_cache_bytes,
                          EmbeddingCollection::MinCacheBytes(smallest, ctx_.device));
  if (wanted == kSmallestCache) cache_bytes = min_cache_bytes;
  if (cache_bytes > 0 && cache_bytes < min_cache_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "--", flag, "=", cache_bytes, " is too small: the rows of one step of ",
        options_.batch_size, " samples need ", min_cache_bytes, " (", FormatBytes(min_cache_bytes),
        "); raise it, use --", flag, "=min, or lower --batch_size"));
  }
  HOTROW_RETURN_IF_ERROR(SaveSpec());
  if (!options_.record_trace.empty() || options_.mrc) {
    collection_options_.on_update = [this](uint32_t table, std::span<const RowKey> keys,
                                           std::span<const int32_t> lookups) {
      recorder_->Add(table, keys, lookups);
    };
  }
  HOTROW_ASSIGN_OR_RETURN(tables_, EmbeddingCollection::Create(collection_options_, ctx_));
  if (checkpoints_ != nullptr) {
    HOTROW_RETURN_IF_ERROR(
        checkpoints_->Attach(tables_.get(), options_.store, Description().parts[0].tables_dir));
    for (const std::string& note : checkpoints_->notes()) PrintLine(note);
  }
  if (!start_.has_value()) return absl::OkStatus();
  const bool counted = std::any_of(start_->tables.begin(), start_->tables.end(),
                                   [](const SavedModel::Table& table) { return table.rows >= 0; });
  if (!counted) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables_->Digest());
  return CheckSavedTables(*start_, digest);
}

// With the budgets as they are used, and before anything is made on a disk.
absl::Status Trainer::SaveSpec() const {
  if (options_.save_spec.empty() || rank_ != 0) return absl::OkStatus();
  SpecSource source;
  source.collection = collection_options_;
  source.batch_size = options_.batch_size;
  source.ranks = world_size_;
  for (const TableConfig& table : collection_options_.tables) {
    // Features that share a table may look up more or less of it.
    double lookups = 0;
    for (const DataFeature& feature : schema_.features) {
      if (feature.table != table.name) continue;
      lookups += static_cast<double>(std::max<int64_t>(feature.max_hotness, 1));
    }
    source.hotness.push_back(lookups / static_cast<double>(table.feature_names.size()));
  }
  source.dense_features = schema_.num_dense;
  const DenseLayers layers = model_->layers();
  source.bottom = layers.bottom;
  source.top = layers.top;
  source.interaction = layers.interaction;
  source.cross_layers = layers.cross_layers;
  source.cross_rank = layers.cross_rank;
  source.dense_optimizer = DenseOptimizerName(options_.dense_optimizer.kind);
  if (!options_.checkpoint_dir.empty()) {
    source.checkpoint_interval_steps = options_.checkpoint_every;
  }
  const absl::Status saved = [&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const std::string spec, SpecOf(source));
    return WriteFileAtomically(env_, options_.save_spec, spec);
  }();
  if (saved.ok()) return saved;
  return absl::Status(saved.code(),
                      absl::StrCat("--save_spec=", options_.save_spec, ": ", saved.message()));
}

absl::Status Trainer::OpenRecorder() {
  if (collection_options_.on_update == nullptr) return absl::OkStatus();
  AccessRecorderOptions recorder = {.trace_sample_rate = options_.sample_rate,
                                    .curves = options_.mrc,
                                    .seed = options_.seed,
                                    .env = &env_};
  for (const TableConfig& table : collection_options_.tables) {
    recorder.tables.push_back(table.name);
  }
  if (!options_.record_trace.empty()) {
    recorder.trace_path = access_trace_ = AccessTracePath(options_.record_trace, rank_, world_size_,
                                                          resumed_ ? start_->step : int64_t{-1});
  }
  HOTROW_ASSIGN_OR_RETURN(recorder_, AccessRecorder::Open(recorder));
  return absl::OkStatus();
}

static std::span<float> Sized(std::vector<float>* floats, size_t size) {
  floats->resize(size);
  return *floats;
}

absl::Status Trainer::LoadDense() {
  const bool same_optimizer =
      start_->dense_optimizer == DenseOptimizerName(options_.dense_optimizer.kind);
  if (!on_gpu()) {
    DenseArrays<float> dense = {.parameters = model_->parameters()};
    if (same_optimizer) {
      dense.momentum1 = momentum1_.span();
      dense.momentum2 = momentum2_.span();
    }
    return ReadSavedDense(env_, *start_, dense);
  }
  DenseArrays<float> dense = {.parameters = Sized(&host_parameters_, model_->parameters().size())};
  if (same_optimizer) {
    dense.momentum1 = Sized(&host_momentum1_, momentum1_.span().size());
    dense.momentum2 = Sized(&host_momentum2_, momentum2_.span().size());
  }
  HOTROW_RETURN_IF_ERROR(ReadSavedDense(env_, *start_, dense));
  const auto upload = [&](std::span<float> to, std::span<const float> from) {
    return EnqueueCopy(ctx_, to.data(), from.data(), static_cast<int64_t>(from.size_bytes()));
  };
  HOTROW_RETURN_IF_ERROR(upload(model_->parameters(), dense.parameters));
  HOTROW_RETURN_IF_ERROR(upload(momentum1_.span(), dense.momentum1));
  HOTROW_RETURN_IF_ERROR(upload(momentum2_.span(), dense.momentum2));
  return WaitForStream(ctx_);
}

// Parameters and optimizer state where the host can read them: of a GPU a copy, of this moment.
absl::StatusOr<DenseArrays<const float>> Trainer::DenseOnHost() {
  DenseArrays<const float> dense = {.parameters = model_->parameters(),
                                    .momentum1 = momentum1_.span(),
                                    .momentum2 = momentum2_.span()};
  if (!on_gpu()) return dense;
  const auto download = [&](std::span<const float>* array, std::vector<float>* host) {
    const std::span<float> copy = Sized(host, array->size());
    const absl::Status copied =
        EnqueueCopy(ctx_, copy.data(), array->data(), static_cast<int64_t>(array->size_bytes()));
    *array = copy;
    return copied;
  };
  HOTROW_RETURN_IF_ERROR(download(&dense.parameters, &host_parameters_));
  HOTROW_RETURN_IF_ERROR(download(&dense.momentum1, &host_momentum1_));
  HOTROW_RETURN_IF_ERROR(download(&dense.momentum2, &host_momentum2_));
  HOTROW_RETURN_IF_ERROR(WaitForStream(ctx_));
  return dense;
}

// A batch's array where the model reads it.
absl::StatusOr<const float*> Trainer::OnDevice(const std::vector<float>& host,
                                               DeviceMemory<float>* memory) {
  if (!on_gpu()) return host.data();
  HOTROW_RETURN_IF_ERROR(
      memory->Reserve(ctx_.device, std::max<int64_t>(std::ssize(host), 1), ctx_.stream));
  HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx_, memory->data(), host.data(), std::ssize(host) * 4));
  return memory->data();
}

// Of this rank among as many as wrote the checkpoint.
absl::Status Trainer::LoadResiduals() {
  if (!resumed_ || !tables_->keeps_residuals()) return absl::OkStatus();
  if (start_->residuals.empty()) {
    residuals_anew_ = "the checkpoint has none";
    return absl::OkStatus();
  }
  if (std::ssize(start_->residuals) != world_size_) {
    residuals_anew_ =
        absl::StrCat("the checkpoint has those of ", start_->residuals.size(), " ranks");
    return absl::OkStatus();
  }
  HOTROW_ASSIGN_OR_RETURN(const std::string bytes, ReadSavedResiduals(env_, *start_, rank_));
  const absl::StatusOr<bool> loaded = tables_->LoadResiduals(std::as_bytes(std::span(bytes)));
  if (!loaded.ok()) {
    return absl::Status(loaded.status().code(),
                        absl::StrCat(start_->dir, "/", start_->residuals[rank_].file, ": ",
                                     loaded.status().message()));
  }
  if (!*loaded) residuals_anew_ = "the checkpoint has those of another budget";
  return absl::OkStatus();
}

absl::Status Trainer::AllocateBuffers() {
  const int64_t samples = CeilDiv(options_.batch_size, int64_t{world_size_});  // of a slice
  const int64_t floats = samples * tables_->pooled_dim();
  const auto take = [this](int64_t size, DeviceMemory<float>* memory) {
    auto taken = DeviceMemory<float>::Create(ctx_.device, size, ctx_.stream, HugePages::kTry);
    if (!taken.ok()) return taken.status();
    *memory = *std::move(taken);
    return absl::OkStatus();
  };
  HOTROW_RETURN_IF_ERROR(take(floats, &embeddings_));
  HOTROW_RETURN_IF_ERROR(take(floats, &embedding_gradient_));
  HOTROW_RETURN_IF_ERROR(take(samples, &logits_));
  HOTROW_RETURN_IF_ERROR(take(samples, &logit_gradient_));
  if (many_ranks()) {
    HOTROW_ASSIGN_OR_RETURN(global_logits_, HostBuffer<float>::Create(options_.batch_size));
  }
  const auto num_parameters = static_cast<int64_t>(model_->parameters().size());
  const int32_t state_arrays = DenseStateArrays(options_.dense_optimizer.kind);
  if (state_arrays >= 1) HOTROW_RETURN_IF_ERROR(take(num_parameters, &momentum1_));
  if (state_arrays >= 2) HOTROW_RETURN_IF_ERROR(take(num_parameters, &momentum2_));
  if (options_.max_gradient_norm > 0) {
    HOTROW_ASSIGN_OR_RETURN(clipped_, HostBuffer<float>::Create(num_parameters, HugePages::kTry));
  }
  if (many_ranks()) {
    HOTROW_ASSIGN_OR_RETURN(summed_, HostBuffer<float>::Create(num_parameters, HugePages::kTry));
  }
  if (!on_gpu()) return absl::OkStatus();
  // State begins with zeros, and device memory does not.
  const std::vector<float> zeros(static_cast<size_t>(num_parameters));
  for (DeviceMemory<float>* const state : {&momentum1_, &momentum2_}) {
    HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx_, state->data(), zeros.data(), state->bytes()));
  }
  HOTROW_ASSIGN_OR_RETURN(loss_, DeviceMemory<double>::Create(ctx_.device, 1, ctx_.stream));
  HOTROW_ASSIGN_OR_RETURN(
      loss_workspace_,
      DeviceMemory<std::byte>::Create(
          ctx_.device, BceWithLogitsWorkspaceBytes(ctx_.device, samples), ctx_.stream));
  return WaitForStream(ctx_);
}

absl::Status Trainer::Connect() {
  if (!many_ranks()) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(control_, options_.communicator->Duplicate());
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> sums, options_.communicator->Duplicate());
  sums_ = std::make_unique<CommLane>(std::move(sums));
  return absl::OkStatus();
}

// Before anything is read or made that depends on them: ranks that differ would train another model
// than anybody asked for, or wait for each other in different calls.
absl::Status Trainer::CompareOptions() {
  if (!many_ranks()) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(const NamedValues mine, RankSettings(options_, data_));
  return CompareRanks(*control_, mine);
}

// What no option says: the model that the factory made, and what the directories held that each
// rank has read for itself.
absl::Status Trainer::CompareStarts() {
  if (!many_ranks()) return absl::OkStatus();
  NamedValues mine = {
      {"the model", absl::StrCat(std::string(model_->name()), " of ", model_->parameters().size(),
                                 " dense parameters")},
      {"the start",
       start_.has_value()
           ? absl::StrFormat("%s of step %d, dense parameters of checksum %08x",
                             resumed_ ? "a checkpoint" : "a model", start_->step, start_->dense_crc)
           : "new parameters"}};
  if (!on_gpu()) {
    const std::span<const float> parameters = model_->parameters();
    mine.emplace_back("the hash of the first dense parameters",
                      HashBytes(0, 0, std::as_bytes(parameters)).ToHex());
  }
  return CompareRanks(*control_, mine);
}

// The kind of processor, of all ranks, and a word about it where the checkpoint was made on
// another.
absl::Status Trainer::FindProcessor() {
  if (on_gpu()) return absl::OkStatus();
  processor_ = ProcessorKind();
  if (many_ranks()) {
    HOTROW_ASSIGN_OR_RETURN(std::vector<std::string> kinds, AllGatherTexts(*control_, processor_));
    std::sort(kinds.begin(), kinds.end());
    kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
    processor_ = absl::StrJoin(kinds, ", ");
  }
  if (!resumed_ || options_.notices == nullptr) return absl::OkStatus();
  const std::string& before = start_->training->processor;
  if (before.empty() || before == processor_) return absl::OkStatus();
  std::fprintf(options_.notices,
               "notice: --resume from %s: it was trained on another kind of processor (%s) than "
               "this one (%s); training goes on, with other bits than there\n",
               start_->dir.c_str(), before.c_str(), processor_.c_str());
  std::fflush(options_.notices);
  return absl::OkStatus();
}

absl::Status Trainer::Init(const ModelFactory& factory) {
  if (mllog()) LogSettings();
  HOTROW_RETURN_IF_ERROR(Connect());
  HOTROW_RETURN_IF_ERROR(CompareOptions());
  // Before anything is read there: it takes the directory's lock.
  if (!options_.checkpoint_dir.empty()) {
    HOTROW_ASSIGN_OR_RETURN(checkpoints_,
                            CheckpointWriter::Open({.dir = options_.checkpoint_dir,
                                                    .keep = options_.keep_checkpoints,
                                                    .background = options_.checkpoint_in_background,
                                                    .env = &env_,
                                                    .trace = ctx_.trace,
                                                    .communicator = control_.get()}));
  }
  HOTROW_RETURN_IF_ERROR(FindStart());
  HOTROW_ASSIGN_OR_RETURN(model_, factory(schema_));
  HOTROW_RETURN_IF_ERROR(CheckDevice(*model_, ctx_.device));
  collection_options_ = CollectionOptions(options_, schema_);
  HOTROW_RETURN_IF_ERROR(CheckStart());
  HOTROW_RETURN_IF_ERROR(CompareStarts());
  HOTROW_RETURN_IF_ERROR(FindProcessor());
  if (!options_.save_dir.empty()) {
    HOTROW_ASSIGN_OR_RETURN(writer_,
                            SavedModelWriter::Open(&env_, options_.save_dir, control_.get()));
  }
  HOTROW_RETURN_IF_ERROR(CreateTables());
  HOTROW_RETURN_IF_ERROR(AllocateBuffers());
  if (start_.has_value()) {
    HOTROW_RETURN_IF_ERROR(LoadDense());
    HOTROW_RETURN_IF_ERROR(LoadResiduals());
    first_step_ = start_->step;
    if (resumed_) Restore(*start_->training);
  }
  // Last: a run that is refused leaves an older trace as it is.
  HOTROW_RETURN_IF_ERROR(OpenRecorder());
  if (!quiet()) PrintHeader();
  if (mllog()) mllog_.End("init_stop");
  return absl::OkStatus();
}

// Above the progress line, so that the two do not mix.
void Trainer::PrintLine(std::string_view line) {
  if (progress_ != nullptr) {
    progress_->Print(line);
  } else if (!quiet()) {
    std::fprintf(options_.out, "%.*s\n", static_cast<int>(line.size()), line.data());
    std::fflush(options_.out);
  }
}

void Trainer::LogSettings() {
  mllog_.Start("init_start");
  mllog_.Point("seed", static_cast<int64_t>(options_.seed));
  mllog_.Point("global_batch_size", options_.batch_size);
  mllog_.Point("train_samples", schema_.train_samples);
  mllog_.Point("eval_samples", schema_.valid_samples);
  mllog_.Point("opt_name", std::string(DenseOptimizerName(options_.dense_optimizer.kind)));
  mllog_.Point("opt_base_learning_rate",
               static_cast<double>(options_.dense_optimizer.learning_rate));
  mllog_.Point("table_opt_name", std::string(SparseOptimizerName(options_.table_optimizer.kind)));
  mllog_.Point("table_opt_base_learning_rate",
               static_cast<double>(options_.table_optimizer.learning_rate));
  mllog_.Point("opt_learning_rate_warmup_steps", options_.schedule.lr_warmup_steps);
  mllog_.Point("lr_decay_start_steps", options_.schedule.lr_decay_start);
  mllog_.Point("opt_learning_rate_decay_steps", options_.schedule.lr_decay_steps);
}

void Trainer::PrintHeader() const {
  int64_t rows = 0;
  bool rows_known = true;
  for (const TableConfig& table : collection_options_.tables) {
    rows += table.num_embeddings;
    rows_known = rows_known && table.num_embeddings > 0;
  }
  const int64_t row_bytes = RowLayout::For(options_.embedding_dim, options_.table_optimizer.kind,
                                           options_.weights_precision)
                                .row_bytes;
  const std::string precision =
      options_.weights_precision == WeightsPrecision::kFp32
          ? std::string()
          : absl::StrCat(" in ", std::string(WeightsPrecisionName(options_.weights_precision)));

  std::string text = absl::StrFormat("%s on %s\n", std::string(model_->name()), schema_.name);
  absl::StrAppendFormat(
      &text, "  data     %s train, %s validation, %s test samples; %d features, %d dense\n",
      FormatCount(schema_.train_samples), FormatCount(schema_.valid_samples),
      FormatCount(schema_.test_samples), schema_.features.size(), schema_.num_dense);
  absl::StrAppendFormat(&text, "  model    %s dense parameters, %s\n",
                        FormatCount(static_cast<int64_t>(model_->parameters().size())),
                        std::string(DenseOptimizerName(options_.dense_optimizer.kind)));
  absl::StrAppendFormat(&text, "  tables   %d of %d columns%s, %s: %d bytes a row%s\n",
                        collection_options_.tables.size(), options_.embedding_dim, precision,
                        std::string(SparseOptimizerName(options_.table_optimizer.kind)), row_bytes,
                        rows_known ? absl::StrFormat(", up to %s rows (%s)", FormatCount(rows),
                                                     FormatBytes(rows * row_bytes))
                                   : std::string());
  absl::StrAppend(&text, "  tiers    ");
  if (collection_options_.device_cache_bytes > 0) {
    absl::StrAppendFormat(&text, "device cache of %s over ",
                          FormatBytes(collection_options_.device_cache_bytes));
  }
  if (collection_options_.cache_bytes > 0) {
    absl::StrAppendFormat(&text, "cache of %s over ", FormatBytes(collection_options_.cache_bytes));
  }
  const std::string store(StoreKindName(options_.store));
  if (options_.store == StoreKind::kMemory) {
    absl::StrAppendFormat(&text, "%s of up to %s\n", store, FormatBytes(options_.store_bytes));
  } else {
    absl::StrAppendFormat(&text, "%s in %s of up to %s, with %s of memory\n", store,
                          options_.store_path, FormatBytes(options_.disk_bytes),
                          FormatBytes(options_.store_bytes));
  }
  if (checkpoints_ != nullptr) {
    absl::StrAppendFormat(
        &text, "  saving   checkpoints in %s, %s%s, keeping %d\n", options_.checkpoint_dir,
        options_.checkpoint_every > 0
            ? absl::StrCat("every ", FormatCount(options_.checkpoint_every), " steps and ")
            : std::string(),
        "at the end", options_.keep_checkpoints);
    if (options_.resume && !resumed_) {
      absl::StrAppend(&text, "           none is there to go on from: from the beginning\n");
    }
  }
  if (start_.has_value()) {
    int64_t saved_rows = 0;
    for (const SavedModel::Table& table : start_->tables) saved_rows += table.rows;
    absl::StrAppendFormat(&text, "  from     %s: step %s",
                          resumed_ ? start_->dir : options_.init_from, FormatCount(start_->step));
    if (start_->tables.empty() || start_->tables[0].rows >= 0) {
      absl::StrAppendFormat(&text, ", %s rows", FormatCount(saved_rows));
    }
    absl::StrAppend(&text, "\n");
    const std::string kind(DenseOptimizerName(options_.dense_optimizer.kind));
    if (start_->dense_optimizer != kind) {
      absl::StrAppendFormat(&text,
                            "           the state of %s starts anew: the saved model has that of "
                            "%s\n",
                            kind, start_->dense_optimizer);
    }
  }
  if (many_ranks()) {
    absl::StrAppendFormat(&text,
                          "  ranks    %d share each batch and the tables; rows travel as %s, "
                          "gradients as %s\n",
                          world_size_, std::string(ExchangeTypeName(options_.exchange_forward)),
                          std::string(ExchangeTypeName(options_.exchange_backward)));
  }
  if (many_ranks() && options_.exchange_feedback_bytes > 0) {
    absl::StrAppendFormat(&text, "           what gradients lose is kept for the next, in %s%s\n",
                          FormatBytes(options_.exchange_feedback_bytes),
                          residuals_anew_.empty()
                              ? std::string()
                              : absl::StrCat(", from zero on: ", residuals_anew_));
  }
  absl::StrAppendFormat(&text, "  run      batch %s, prefetch %d, %d threads on the %s%s\n\n",
                        FormatCount(options_.batch_size), options_.prefetch_depth,
                        ctx_.pool == nullptr ? 1 : ctx_.pool->num_threads(),
                        std::string(DeviceName(ctx_.device)), many_ranks() ? " for each rank" : "");
  std::fputs(text.c_str(), options_.out);
  std::fflush(options_.out);
}

absl::Status Trainer::PrefetchNext(InFlight* next) {
  if (next->item->ends_epoch()) return absl::OkStatus();
  TraceSpan span(ctx_.trace, "prefetch");
  HOTROW_ASSIGN_OR_RETURN(next->step, tables_->Prefetch(next->item->batch.sparse()));
  return absl::OkStatus();
}

// Reads and prefetches until prefetch_depth steps wait behind the one to be computed. A batch that
// could not be prefetched stays in the pipeline.
absl::Status Trainer::FillPipeline(BatchReader* reader) {
  while (!data_ended_ && outstanding_ <= options_.prefetch_depth) {
    InFlight next;
    {
      TraceSpan span(ctx_.trace, "data");
      HOTROW_ASSIGN_OR_RETURN(next.item, reader->Next());
    }
    if (next.item == nullptr) {
      data_ended_ = true;
      break;
    }
    if (!next.item->ends_epoch()) ++outstanding_;
    pipeline_.push_back(std::move(next));
    HOTROW_RETURN_IF_ERROR(PrefetchNext(&pipeline_.back()));
  }
  return absl::OkStatus();
}

// Cancels what is prefetched and asks for it again, in order.
absl::Status Trainer::PrefetchAgain() {
  for (auto it = pipeline_.rbegin(); it != pipeline_.rend(); ++it) it->step.reset();
  for (InFlight& next : pipeline_) HOTROW_RETURN_IF_ERROR(PrefetchNext(&next));
  return absl::OkStatus();
}

absl::Status Trainer::NotFinite(const char* what) const {
  return absl::OutOfRangeError(absl::StrFormat(
      "step %d: the %s is not a finite number, training has diverged; lower --learning_rate (%g "
      "for tables, %g for dense parameters)",
      steps_ + 1, what, options_.table_optimizer.learning_rate,
      options_.dense_optimizer.learning_rate));
}

absl::StatusOr<double> Trainer::Loss(const CtrBatch& batch, int64_t mean_over) {
  TraceSpan span(ctx_.trace, "loss");
  HOTROW_ASSIGN_OR_RETURN(const float* const labels, OnDevice(batch.labels, &labels_));
  double loss = 0;
  HOTROW_RETURN_IF_ERROR(BceWithLogits(ctx_, {.logits = logits_.data(),
                                              .labels = labels,
                                              .batch_size = batch.batch_size,
                                              .gradient = logit_gradient_.data(),
                                              .mean_over = mean_over,
                                              .loss = on_gpu() ? loss_.data() : &loss,
                                              .workspace = loss_workspace_.data(),
                                              .workspace_bytes = loss_workspace_.bytes()}));
  if (on_gpu()) {
    // The one wait of a step: the host is then no more than a step ahead.
    HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx_, &loss, loss_.data(), sizeof(loss)));
    HOTROW_RETURN_IF_ERROR(WaitForStream(ctx_));
  }
  if (!std::isfinite(loss)) return NotFinite("training loss");
  return loss;
}

absl::Status Trainer::ApplyDenseUpdate(std::span<const float> gradients,
                                       float learning_rate_factor) {
  TraceSpan span(ctx_.trace, "dense_update");
  DenseTensor all = {.parameters = model_->parameters(),
                     .gradients = gradients,
                     .momentum1 = momentum1_.span(),
                     .momentum2 = momentum2_.span()};
  if (options_.max_gradient_norm > 0) {
    const double norm = EuclideanNorm(ctx_.pool, all.gradients);
    if (!std::isfinite(norm)) return NotFinite("gradient of the dense parameters");
    if (norm > options_.max_gradient_norm) {
      const auto scale = static_cast<float>(options_.max_gradient_norm / norm);
      ParallelFor(ctx_.pool, clipped_.size(), kNormGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) clipped_[i] = scale * all.gradients[i];
      });
      all.gradients = clipped_.span();
    }
  }
  return DenseUpdate(ctx_, options_.dense_optimizer, {&all, 1}, learning_rate_factor, StepNumber());
}

absl::StatusOr<int64_t> Trainer::LargestOfRanks(int64_t mine) {
  if (!many_ranks()) return mine;
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> all, control_->AllGatherSizes(mine));
  return *std::max_element(all.begin(), all.end());
}

absl::StatusOr<int64_t> Trainer::SumOverRanks(int64_t mine) {
  if (!many_ranks()) return mine;
  HOTROW_RETURN_IF_ERROR(control_->AllReduceSum(std::span<int64_t>(&mine, 1)));
  return mine;
}

absl::Status Trainer::AgreeOnStop() {
  if (!many_ranks() || agreed_signal_ != 0) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(const int64_t signal, LargestOfRanks(OwnSignal()));
  agreed_signal_ = static_cast<int>(signal);
  return absl::OkStatus();
}

// What the ranks must know of each other after a step, summed while backward runs.
void Trainer::StartAgreement(double loss_sum) {
  agreement_[0] = loss_sum;
  agreement_[1] = OwnSignal();
  sums_->Start([this](Communicator& channel) {
    return channel.AllReduceSum(std::span<double>(agreement_));
  });
}

absl::Status Trainer::FinishAgreement(double* loss_sum) {
  {
    TraceSpan span(ctx_.trace, "all_reduce");
    HOTROW_RETURN_IF_ERROR(sums_->WaitAll());
  }
  *loss_sum = agreement_[0];
  // Each rank sees the same sum, so all of them ask, or none.
  return agreement_[1] != 0 ? AgreeOnStop() : absl::OkStatus();
}

// This rank's slice of a batch: rows set out before the dense half needs them, and gradients as
// soon as they are final. `loss`: the mean over the whole batch.
absl::Status Trainer::StepOnRanks(InFlight* now, float factor, double* loss) {
  const CtrBatch& batch = now->item->batch;
  const int64_t global_batch_size = now->item->global_batch_size;
  {
    TraceSpan span(ctx_.trace, "lookup");
    HOTROW_RETURN_IF_ERROR(tables_->BeginLookup(*now->step));
  }
  {
    TraceSpan span(ctx_.trace, "forward");
    HOTROW_RETURN_IF_ERROR(model_->Forward(
        ctx_,
        {.batch_size = batch.batch_size,
         .dense = batch.dense.data(),
         .embeddings = embeddings_.data(),
         .training = true,
         .step = StepNumber(),
         .first_sample = now->item->first_sample,
         .await_embeddings =
             [&] { return tables_->Lookup(*now->step, {.pooled = embeddings_.data()}); }},
        logits_.span().first(batch.batch_size)));
  }
  HOTROW_ASSIGN_OR_RETURN(const double slice_loss, Loss(batch, global_batch_size));
  StartAgreement(slice_loss * static_cast<double>(batch.batch_size));
  {
    TraceSpan span(ctx_.trace, "backward");
    const std::span<const float> gradients = model_->gradients();
    auto bucket_end = static_cast<int64_t>(gradients.size());
    const auto ready = [&](int64_t begin, int64_t) {
      if (begin > 0 && bucket_end - begin < kBucketFloats) return absl::OkStatus();
      const std::span<float> bucket =
          summed_.span().subspan(begin, std::exchange(bucket_end, begin) - begin);
      std::copy_n(gradients.begin() + begin, bucket.size(), bucket.begin());
      sums_->Start([bucket](Communicator& channel) { return channel.AllReduceSum(bucket); });
      // Of a sum over n ranks each sends 2 (n - 1) / n of the data.
      dense_bytes_ +=
          2 * (world_size_ - 1) * static_cast<int64_t>(bucket.size_bytes()) / world_size_;
      return absl::OkStatus();
    };
    HOTROW_RETURN_IF_ERROR(model_->Backward(
        ctx_, logit_gradient_.span().first(batch.batch_size), embedding_gradient_.data(),
        {.embedding_gradient_ready =
             [&] {
               return tables_->BeginUpdate(*now->step, {.pooled = embedding_gradient_.data()});
             },
         .gradients_ready = ready}));
  }
  {
    TraceSpan span(ctx_.trace, "update");
    HOTROW_RETURN_IF_ERROR(tables_->Update(std::move(now->step), {}, factor));
  }
  double loss_sum = 0;
  HOTROW_RETURN_IF_ERROR(FinishAgreement(&loss_sum));
  *loss = loss_sum / static_cast<double>(global_batch_size);
  return ApplyDenseUpdate(summed_.span(), factor);
}

absl::Status Trainer::Step(InFlight* now) {
  const CtrBatch& batch = now->item->batch;
  const int64_t global_batch_size = now->item->global_batch_size;
  if (now->item->epoch != epoch_) {
    epoch_ = now->item->epoch;
    steps_in_epoch_ = 0;
    epoch_samples_ = 0;
    epoch_loss_sum_ = 0;
    if (mllog()) mllog_.Start("epoch_start", {{"epoch_num", epoch_ + 1}});
  }
  const auto factor =
      static_cast<float>(ScheduleFactor(options_.schedule, steps_ + 1) * policy_.factor());
  double loss = 0;
  if (many_ranks()) {
    HOTROW_RETURN_IF_ERROR(StepOnRanks(now, factor, &loss));
  } else {
    {
      TraceSpan span(ctx_.trace, "lookup");
      HOTROW_RETURN_IF_ERROR(tables_->Lookup(*now->step, {.pooled = embeddings_.data()}));
    }
    {
      TraceSpan span(ctx_.trace, "forward");
      HOTROW_ASSIGN_OR_RETURN(const float* const dense, OnDevice(batch.dense, &dense_features_));
      HOTROW_RETURN_IF_ERROR(model_->Forward(ctx_,
                                             {.batch_size = batch.batch_size,
                                              .dense = dense,
                                              .embeddings = embeddings_.data(),
                                              .training = true,
                                              .step = StepNumber()},
                                             logits_.span().first(batch.batch_size)));
    }
    HOTROW_ASSIGN_OR_RETURN(loss, Loss(batch, global_batch_size));
    {
      TraceSpan span(ctx_.trace, "backward");
      HOTROW_RETURN_IF_ERROR(model_->Backward(ctx_, logit_gradient_.span().first(batch.batch_size),
                                              embedding_gradient_.data()));
    }
    {
      TraceSpan span(ctx_.trace, "update");
      HOTROW_RETURN_IF_ERROR(
          tables_->Update(std::move(now->step), {.pooled = embedding_gradient_.data()}, factor));
    }
    HOTROW_RETURN_IF_ERROR(ApplyDenseUpdate(model_->gradients(), factor));
  }

  if (recorder_ != nullptr) {
    const absl::Status recorded = recorder_->EndStep(tables_->steps(), global_batch_size);
    if (!recorded.ok()) {
      PrintLine(
          absl::StrCat(std::string(recorded.message()), ": the trace ends here, training goes on"));
    }
  }
  ++steps_;
  ++steps_in_epoch_;
  samples_ += global_batch_size;
  epoch_samples_ += global_batch_size;
  epoch_loss_sum_ += loss * static_cast<double>(global_batch_size);
  // Over the last hundred steps or so, the mean of all steps while there are fewer.
  recent_loss_ += (loss - recent_loss_) / static_cast<double>(std::min<int64_t>(steps_, 100));
  return absl::OkStatus();
}

absl::StatusOr<std::span<const float>> Trainer::LogitsOnHost(int64_t n) {
  const std::span<const float> logits = logits_.span().first(n);
  if (!on_gpu()) return logits;
  const std::span<float> copy = Sized(&host_logits_, static_cast<size_t>(n));
  HOTROW_RETURN_IF_ERROR(
      EnqueueCopy(ctx_, copy.data(), logits.data(), static_cast<int64_t>(copy.size_bytes())));
  HOTROW_RETURN_IF_ERROR(WaitForStream(ctx_));
  return std::span<const float>(copy);
}

// The logits of a whole batch, on each rank; of one rank its own.
absl::StatusOr<std::span<const float>> Trainer::GatherLogits(const BatchReader::Item& item,
                                                             std::span<const float> mine) {
  if (!many_ranks()) return mine;
  std::vector<int64_t> bytes(world_size_);
  std::vector<int64_t> offsets(world_size_);
  for (int32_t p = 0; p < world_size_; ++p) {
    const int64_t begin = SliceBegin(item.global_batch_size, p, world_size_);
    const int64_t end = SliceBegin(item.global_batch_size, p + 1, world_size_);
    offsets[p] = begin * static_cast<int64_t>(sizeof(float));
    bytes[p] = (end - begin) * static_cast<int64_t>(sizeof(float));
  }
  const std::span<float> all = global_logits_.span().first(item.global_batch_size);
  HOTROW_RETURN_IF_ERROR(
      control_->AllGatherV(std::as_bytes(mine), bytes, offsets, std::as_writable_bytes(all)));
  return std::span<const float>(all);
}

// Rows that a full store would not take back stand before those that are read.
absl::Status Trainer::EvaluateTables(const CtrBatch& batch) {
  bool made = false;
  absl::Status status;
  while (true) {
    status = tables_->Evaluate(batch.sparse(), {.pooled = embeddings_.data()});
    if (!absl::IsResourceExhausted(status)) break;
    const absl::StatusOr<bool> has_room = MakeRoom();
    if (!has_room.ok() || !*has_room) return status;
    made = true;
  }
  // The step that was refused too is still to come.
  room_made_ |= made;
  return status;
}

absl::StatusOr<Trainer::Evaluation> Trainer::Evaluate(Split split, Progress* progress) {
  TraceSpan span(ctx_.trace, "evaluate");
  // The stages of the report are those of training; evaluation is one of them.
  ExecContext ctx = ctx_;
  ctx.trace = nullptr;
  BatchReader reader(&data_, ReaderOptions(split));
  MetricsAccumulator metrics;
  std::vector<float> true_probabilities;
  std::vector<float> labels;
  int64_t samples = 0;
  while (!stopped()) {
    HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<BatchReader::Item> item, reader.Next());
    if (item == nullptr) break;
    const CtrBatch& batch = item->batch;
    if (!item->ends_epoch()) {
      HOTROW_RETURN_IF_ERROR(EvaluateTables(batch));
      HOTROW_ASSIGN_OR_RETURN(const float* const dense, OnDevice(batch.dense, &dense_features_));
      HOTROW_RETURN_IF_ERROR(model_->Forward(
          ctx, {.batch_size = batch.batch_size, .dense = dense, .embeddings = embeddings_.data()},
          logits_.span().first(batch.batch_size)));
      HOTROW_ASSIGN_OR_RETURN(const std::span<const float> logits, LogitsOnHost(batch.batch_size));
      if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) {
        return NotFinite("model's prediction");
      }
      HOTROW_ASSIGN_OR_RETURN(const std::span<const float> all, GatherLogits(*item, logits));
      const std::vector<float>& batch_labels = many_ranks() ? item->global_labels : batch.labels;
      const std::vector<float>& truth =
          many_ranks() ? item->global_true_probability : batch.true_probability;
      metrics.Add(all, batch_labels);
      samples += item->global_batch_size;
      if (progress != nullptr) progress->Update(samples, "");
      if (!truth.empty()) {
        true_probabilities.insert(true_probabilities.end(), truth.begin(), truth.end());
        labels.insert(labels.end(), batch_labels.begin(), batch_labels.end());
      }
    }
    reader.Recycle(std::move(item));
    HOTROW_RETURN_IF_ERROR(PollCheckpoint());
    HOTROW_RETURN_IF_ERROR(AgreeOnStop());
  }
  Evaluation evaluation;
  evaluation.complete = !stopped();
  if (!evaluation.complete) return evaluation;
  evaluation.metrics = metrics.Compute();
  if (!labels.empty()) evaluation.best_auc = Auc(true_probabilities, labels);
  return evaluation;
}

// Passes over the training data so far, with the part of the present one where its length is known.
double Trainer::EpochsSoFar() const {
  const int64_t per_epoch = TotalSamples() / options_.epochs;
  return per_epoch > 0 ? static_cast<double>(samples_) / static_cast<double>(per_epoch)
                       : static_cast<double>(epochs_done_);
}

absl::Status Trainer::Validate(int64_t epoch) {
  const MlLogger::Metadata epoch_num = {{"epoch_num", EpochsSoFar()}};
  if (mllog()) mllog_.Start("eval_start", epoch_num);
  HOTROW_ASSIGN_OR_RETURN(const Evaluation evaluation,
                          Evaluate(Split::kValid, /*progress=*/nullptr));
  if (!evaluation.complete) return absl::OkStatus();
  const int64_t validated_before = validated_step_;
  validation_due_ = false;
  validated_step_ = steps_;
  if (evaluation.metrics.samples == 0) {
    const char* const flag = stops_early()                               ? "early_stop_patience"
                             : options_.schedule.lr_plateau_patience > 0 ? "lr_plateau_patience"
                                                                         : nullptr;
    if (flag == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, " needs validation data, and ", schema_.name, " has none"));
  }
  if (mllog()) {
    mllog_.Point("eval_accuracy", evaluation.metrics.auc, epoch_num);
    mllog_.End("eval_stop", epoch_num);
  }
  const ValidationPolicy::State policy_before = policy_.state();
  const ValidationPolicy::Verdict verdict = policy_.Observe(evaluation.metrics.auc);
  if (!stops_early()) {
    valid_ = evaluation.metrics;
  } else if (verdict.better) {
    HOTROW_ASSIGN_OR_RETURN(const Evaluation test, Evaluate(Split::kTest, /*progress=*/nullptr));
    if (!test.complete) {
      // A signal. As if this validation had not been.
      policy_.set_state(policy_before);
      validation_due_ = true;
      validated_step_ = validated_before;
      return absl::OkStatus();
    }
    valid_ = evaluation.metrics;
    test_ = test;
    best_epoch_ = epoch + 1;
    best_step_ = steps_;
    HOTROW_RETURN_IF_ERROR(Save());
  }
  stopped_early_ = verdict.stop;

  std::string text =
      absl::StrFormat("epoch %d, step %s: validation AUC %.4f, logloss %.4f", epoch + 1,
                      FormatCount(steps_), evaluation.metrics.auc, evaluation.metrics.logloss);
  if (stops_early() && verdict.better) absl::StrAppend(&text, ", the best so far");
  if (verdict.lowered) absl::StrAppendFormat(&text, ", learning rate x %g", policy_.factor());
  PrintLine(text);
  return absl::OkStatus();
}

absl::Status Trainer::Save() {
  if (writer_ == nullptr) return absl::OkStatus();
  // One snapshot at a time.
  HOTROW_RETURN_IF_ERROR(WaitCheckpoint());
  TraceSpan span(ctx_.trace, "save");
  HOTROW_ASSIGN_OR_RETURN(const DenseArrays<const float> dense, DenseOnHost());
  HOTROW_RETURN_IF_ERROR(writer_->Save(Description(), *tables_, dense));
  saved_step_ = tables_->steps();
  return absl::OkStatus();
}

void Trainer::ShowProgress() {
  if (progress_ == nullptr) return;
  const int64_t now = NowNanos();
  if (now < next_text_ns_) return;
  next_text_ns_ = now + kTextEveryNanos;
  std::string text = absl::StrFormat("loss %.4f", recent_loss_);
  if (collection_options_.cache_bytes > 0 || collection_options_.device_cache_bytes > 0) {
    const EmbeddingStats stats = tables_->Stats();
    const TierStats& cache = stats.tiers.front();
    if (cache.lookups > 0) {
      absl::StrAppendFormat(
          &text, ", hits %.1f %%",
          100.0 * static_cast<double>(cache.lookup_hits) / static_cast<double>(cache.lookups));
    }
  }
  progress_->Update(samples_, text);
}

TrainingState Trainer::State() const {
  TrainingState state;
  state.settings = BitSettings(options_);
  state.processor = processor_;
  state.epoch = next_epoch_;
  state.samples_in_epoch = next_sample_;
  state.batches_in_epoch = next_batch_;
  state.validation_due = validation_due_;
  state.validated_step = validated_step_;
  state.first_step = first_step_;
  state.steps = steps_;
  state.samples = samples_;
  state.epochs_done = epochs_done_;
  state.last_epoch = epoch_;
  state.steps_in_last_epoch = steps_in_epoch_;
  state.samples_in_last_epoch = epoch_samples_;
  state.loss_sum_in_last_epoch = epoch_loss_sum_;
  state.recent_loss = recent_loss_;
  state.policy = policy_.state();
  state.stopped_early = stopped_early_;
  state.best_epoch = best_epoch_;
  state.best_step = best_step_;
  state.valid = valid_;
  state.test = test_.metrics;
  state.best_auc = test_.best_auc;
  return state;
}

void Trainer::Restore(const TrainingState& state) {
  next_epoch_ = state.epoch;
  next_sample_ = state.samples_in_epoch;
  next_batch_ = state.batches_in_epoch;
  validation_due_ = state.validation_due;
  validated_step_ = state.validated_step;
  first_step_ = state.first_step;
  steps_ = state.steps;
  checkpoint_due_step_ = state.steps;
  samples_ = resumed_samples_ = state.samples;
  epochs_done_ = state.epochs_done;
  epoch_ = state.last_epoch;
  steps_in_epoch_ = state.steps_in_last_epoch;
  epoch_samples_ = state.samples_in_last_epoch;
  epoch_loss_sum_ = state.loss_sum_in_last_epoch;
  recent_loss_ = state.recent_loss;
  policy_.set_state(state.policy);
  stopped_early_ = state.stopped_early;
  best_epoch_ = state.best_epoch;
  best_step_ = state.best_step;
  valid_ = state.valid;
  test_.metrics = state.test;
  test_.best_auc = state.best_auc;
}

absl::Status Trainer::BeginCheckpoint(bool early) {
  SavedModel model = Description();
  model.step = tables_->steps();
  model.training = State();
  HOTROW_ASSIGN_OR_RETURN(const DenseArrays<const float> dense, DenseOnHost());
  const absl::Status begun = checkpoints_->Begin(std::move(model), dense, early);
  if (!begun.ok()) return CheckpointFailed(begun);
  return options_.checkpoint_in_background ? absl::OkStatus() : WaitCheckpoint();
}

void Trainer::PrintCheckpoint() {
  const CheckpointStats& stats = checkpoints_->stats();
  PrintLine(absl::StrFormat(
      "checkpoint %s: training paused %.1f ms, committed after %.2f s", checkpoints_->newest_dir(),
      1e-6 * static_cast<double>(stats.pause_ns_last), Seconds(stats.commit_ns_last)));
}

// A checkpoint has failed. Where there was no room for it there may be once older ones are gone:
// then it is due again.
absl::Status Trainer::CheckpointFailed(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return status;
  HOTROW_ASSIGN_OR_RETURN(const bool removed, checkpoints_->KeepNewestOnly());
  if (!removed) return status;
  PrintLine(absl::StrFormat("step %s: no room for a checkpoint: removed all but %s (%s)",
                            FormatCount(steps_), checkpoints_->newest_dir(),
                            std::string(status.message())));
  checkpoint_due_ = true;
  room_made_ = true;
  return absl::OkStatus();
}

absl::Status Trainer::PollCheckpoint() {
  if (checkpoints_ == nullptr) return absl::OkStatus();
  const absl::StatusOr<bool> committed = checkpoints_->Poll();
  if (!committed.ok()) return CheckpointFailed(committed.status());
  if (*committed) PrintCheckpoint();
  return absl::OkStatus();
}

absl::Status Trainer::WaitCheckpoint() {
  if (checkpoints_ == nullptr || !checkpoints_->busy()) return absl::OkStatus();
  const absl::Status status = checkpoints_->Wait();
  if (!status.ok()) return CheckpointFailed(status);
  PrintCheckpoint();
  return absl::OkStatus();
}

// Between two steps: what is in flight, what is due, what the disk needs.
absl::Status Trainer::CarryCheckpoints() {
  if (checkpoints_ == nullptr) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(PollCheckpoint());
  const int64_t every = options_.checkpoint_every;
  if (every > 0 && steps_ > 0 && steps_ % every == 0 && steps_ != checkpoint_due_step_) {
    checkpoint_due_ = true;
    checkpoint_due_step_ = steps_;
  }
  const int64_t ahead = std::min(every / 2, kAnnounceSteps);
  if (ahead > 0 && steps_ % every == every - ahead && options_.checkpoint_in_background) {
    tables_->AnnounceSnapshot();
  }
  if (checkpoint_due_ && checkpoints_->busy() && !said_busy_) {
    said_busy_ = true;
    PrintLine(absl::StrFormat(
        "step %s: the checkpoint before is still being written; the next is taken right after it. "
        "Raise --checkpoint_every=%d if this is not what you want",
        FormatCount(steps_), every));
  }
  if (checkpoints_->busy()) return absl::OkStatus();
  if (checkpoint_due_) {
    checkpoint_due_ = false;
    if (checkpoints_->newest_step() >= tables_->steps()) return absl::OkStatus();
    return BeginCheckpoint(/*early=*/false);
  }
  return steps_ % kDiskWatchSteps == 0 ? WatchDisk() : absl::OkStatus();
}

// Rows that only checkpoints hold take room on the disk until these are gone.
absl::Status Trainer::WatchDisk() {
  if (options_.store == StoreKind::kMemory) return absl::OkStatus();
  const EmbeddingStats stats = tables_->Stats();
  const TierStats& disk = stats.tiers.back();
  const auto budget = static_cast<double>(disk.disk_budget_bytes);
  const bool is_short = budget > 0 &&
                        static_cast<double>(disk.disk_used_bytes) >= kShortOfDisk * budget &&
                        static_cast<double>(disk.snapshot_bytes) >= kMuchForSnapshots * budget;
  HOTROW_ASSIGN_OR_RETURN(const int64_t any_short, LargestOfRanks(is_short ? 1 : 0));
  if (any_short == 0) return absl::OkStatus();
  const std::string why =
      is_short
          ? absl::StrFormat("step %s: old checkpoints hold %s of the %s that --disk_bytes allows",
                            FormatCount(steps_), FormatBytes(disk.snapshot_bytes),
                            FormatBytes(disk.disk_budget_bytes))
          : absl::StrFormat("step %s: old checkpoints hold much of another rank's --disk_bytes",
                            FormatCount(steps_));
  if (checkpoints_->newest_step() < tables_->steps()) {
    PrintLine(absl::StrCat(why, ": taking one early, which replaces them"));
    return BeginCheckpoint(/*early=*/true);
  }
  HOTROW_ASSIGN_OR_RETURN(const bool removed, checkpoints_->KeepNewestOnly());
  if (removed) {
    PrintLine(absl::StrCat(why, ": removed all but ", checkpoints_->newest_dir()));
  }
  return absl::OkStatus();
}

// The store has refused a step for want of room. True when something was freed, so that the step
// should be tried again.
absl::StatusOr<bool> Trainer::MakeRoom() {
  // Of several ranks the others have the step behind them, or wait for this one: there is no way
  // back to before it.
  if (many_ranks()) return false;
  if (checkpoints_ == nullptr || options_.store == StoreKind::kMemory) return false;
  // A checkpoint that found no room has made some; what was refused before that may fit now.
  if (std::exchange(room_made_, false)) return true;
  if (tables_->Stats().tiers.back().snapshot_bytes == 0) return false;
  if (checkpoints_->busy()) {
    HOTROW_RETURN_IF_ERROR(WaitCheckpoint());
  }
  HOTROW_ASSIGN_OR_RETURN(const bool removed, checkpoints_->KeepNewestOnly());
  if (removed) {
    PrintLine(absl::StrFormat("step %s: the disk budget is used up: removed all checkpoints but %s",
                              FormatCount(steps_), checkpoints_->newest_dir()));
    return true;
  }
  if (checkpoints_->newest_step() >= tables_->steps()) return false;
  PrintLine(absl::StrFormat(
      "step %s: the disk budget is used up: taking a checkpoint early, which replaces %s",
      FormatCount(steps_), checkpoints_->newest_dir()));
  HOTROW_RETURN_IF_ERROR(BeginCheckpoint(/*early=*/true));
  HOTROW_RETURN_IF_ERROR(WaitCheckpoint());
  return checkpoints_->newest_step() >= tables_->steps();
}

// What the next start goes on from: everything up to here.
absl::Status Trainer::EndWithCheckpoint() {
  if (checkpoints_ == nullptr) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(WaitCheckpoint());
  // One of this step goes on with the same bits, whether validation has run since or not. Twice at
  // most: the first try may have to make room.
  while (checkpoints_->newest_step() < tables_->steps()) {
    HOTROW_RETURN_IF_ERROR(BeginCheckpoint(/*early=*/false));
    HOTROW_RETURN_IF_ERROR(WaitCheckpoint());
  }
  return absl::OkStatus();
}

// One batch, or the end of an epoch. Nothing has changed when it fails, but the pipeline.
absl::Status Trainer::TrainOne(BatchReader* reader) {
  const int64_t begin = NowNanos();
  HOTROW_RETURN_IF_ERROR(FillPipeline(reader));
  if (pipeline_.empty()) return absl::OkStatus();
  InFlight& now = pipeline_.front();
  if (now.item->ends_epoch()) {
    ++epochs_done_;
    validation_due_ = validated_step_ != steps_;
    next_epoch_ = now.item->epoch + 1;
    next_sample_ = next_batch_ = 0;
    train_ns_ += NowNanos() - begin;
    if (mllog()) mllog_.End("epoch_stop", {{"epoch_num", next_epoch_}});
  } else {
    HOTROW_RETURN_IF_ERROR(Step(&now));
    --outstanding_;
    next_epoch_ = now.item->epoch;
    next_sample_ += now.item->global_batch_size;
    ++next_batch_;
    const int64_t nanos = NowNanos() - begin;
    train_ns_ += nanos;
    step_ns_.Add(nanos);
    const int64_t every = options_.validation_freq_within_epoch;
    validation_due_ = every > 0 && steps_in_epoch_ % every == 0;
    ShowProgress();
  }
  reader->Recycle(std::move(now.item));
  pipeline_.pop_front();
  return absl::OkStatus();
}

absl::Status Trainer::Train() {
  BatchReaderOptions reader_options = ReaderOptions(Split::kTrain);
  reader_options.epochs = options_.epochs;
  reader_options.limit_batches = options_.limit_train_batches;
  reader_options.first_epoch = next_epoch_;
  reader_options.first_sample = next_sample_;
  reader_options.first_batch = next_batch_;
  reader_options.trace = ctx_.trace;
  BatchReader reader(&data_, reader_options);

  while (!stopped()) {
    if (validation_due_) {
      // At the end of an epoch its successor is the one to come.
      HOTROW_RETURN_IF_ERROR(Validate(next_batch_ == 0 ? next_epoch_ - 1 : next_epoch_));
    }
    HOTROW_RETURN_IF_ERROR(CarryCheckpoints());
    if (stopped() || stopped_early_ || (data_ended_ && pipeline_.empty())) break;
    const absl::Status status = TrainOne(&reader);
    if (status.ok()) {
      room_made_ = false;
      continue;
    }
    if (!absl::IsResourceExhausted(status)) return status;
    const absl::StatusOr<bool> has_room = MakeRoom();
    if (!has_room.ok() || !*has_room) return status;
    HOTROW_RETURN_IF_ERROR(PrefetchAgain());
  }
  pipeline_.clear();
  outstanding_ = 0;
  return EndWithCheckpoint();
}

absl::Status Trainer::Test() {
  // With early stopping the test metrics are those of the best validation, if there was one.
  if (stopped() || best_epoch_ > 0) return absl::OkStatus();
  std::optional<Progress> progress;
  if (!quiet()) progress.emplace(options_.out, "test", "samples", schema_.test_samples);
  HOTROW_ASSIGN_OR_RETURN(test_,
                          Evaluate(Split::kTest, progress.has_value() ? &*progress : nullptr));
  return absl::OkStatus();
}

absl::Status Trainer::Run() {
  if (mllog()) mllog_.Start("run_start");
  absl::Status status;
  {
    std::optional<Progress> line;
    if (!quiet()) line.emplace(options_.out, "train", "samples", TotalSamples());
    progress_ = line.has_value() ? &*line : nullptr;
    status = Train();
    // Without a best validation there is nothing better to save than what is here.
    if (status.ok() && best_epoch_ == 0) status = Save();
    if (progress_ != nullptr) {
      progress_->Update(samples_, absl::StrFormat("loss %.4f", recent_loss_));
    }
    progress_ = nullptr;
  }
  if (status.ok()) status = Test();
  if (mllog()) {
    const bool whole = status.ok() && !stopped();
    mllog_.End("run_stop", {{"status", std::string(whole ? "success" : "aborted")}});
  }
  return status;
}

// Parameters and optimizer state, each array with its number as key.
absl::StatusOr<Hash128> Trainer::DenseHash() {
  HOTROW_ASSIGN_OR_RETURN(const DenseArrays<const float> dense, DenseOnHost());
  Hash128 hash;
  uint64_t array = 0;
  for (const std::span<const float> floats : {dense.parameters, dense.momentum1, dense.momentum2}) {
    hash += HashBytes(array++, 0, std::as_bytes(floats));
  }
  return hash;
}

absl::StatusOr<TrainReport> Trainer::Report() {
  TrainReport report;
  // Before the digest, whose flush would add write-backs.
  HOTROW_ASSIGN_OR_RETURN(report.tables, tables_->GlobalStats());
  {
    TraceSpan span(ctx_.trace, "digest");
    HOTROW_ASSIGN_OR_RETURN(report.digest, tables_->Digest());
    HOTROW_ASSIGN_OR_RETURN(const Hash128 dense_hash, DenseHash());
    report.dense_hash = dense_hash.ToHex();
  }
  report.model = model_->name();
  report.weights_precision = options_.weights_precision;
  report.samples = samples_;
  report.steps = steps_;
  report.epochs = epochs_done_;
  report.threads = ctx_.pool == nullptr ? 1 : ctx_.pool->num_threads();
  report.device = DeviceName(ctx_.device);
  report.train_seconds = Seconds(train_ns_);
  report.step_ms_p50 = 1e-6 * step_ns_.Quantile(0.5);
  report.step_ms_p99 = 1e-6 * step_ns_.Quantile(0.99);
  report.step_ms_max = 1e-6 * static_cast<double>(step_ns_.max());
  if (epoch_samples_ > 0)
    report.train_logloss = epoch_loss_sum_ / static_cast<double>(epoch_samples_);
  report.resumed_from_step = first_step_;
  if (checkpoints_ != nullptr) {
    report.checkpoints = checkpoints_->stats();
    report.checkpoint = checkpoints_->newest_dir();
  }
  if (resumed_) report.resumed_step = start_->step;
  report.resumed_samples = resumed_samples_;
  report.valid = valid_;
  report.test = test_.metrics;
  report.best_epoch = best_epoch_;
  report.best_step = best_step_;
  report.stopped_early = stopped_early_;
  report.saved_step = saved_step_;
  report.best_auc = test_.best_auc;
  if (recorder_ != nullptr) {
    report.access_trace = access_trace_;
    report.access_status = recorder_->Close();
    AccessRecorder::SumOverRanks sum;
    if (many_ranks()) {
      sum = [this](std::span<double> numbers) { return control_->AllReduceSum(numbers); };
    }
    HOTROW_ASSIGN_OR_RETURN(report.mrc, recorder_->Curves(sum));
  }
  report.num_parameters = static_cast<int64_t>(model_->parameters().size());
  report.cache_bytes = collection_options_.cache_bytes;
  report.device_cache_bytes = collection_options_.device_cache_bytes;
  report.store_bytes = collection_options_.store_bytes;
  report.world_size = world_size_;
  HOTROW_ASSIGN_OR_RETURN(report.exchange_dense_bytes, SumOverRanks(dense_bytes_));
  report.stopped_by_signal = stop_signal();
  if (ctx_.trace != nullptr) report.stages = ctx_.trace->StageTotals();
  HOTROW_ASSIGN_OR_RETURN(report.peak_rss_bytes, LargestOfRanks(PeakResidentBytes()));
  HOTROW_ASSIGN_OR_RETURN(const int64_t cpu_us,
                          SumOverRanks(static_cast<int64_t>(1e6 * ProcessCpuSeconds())));
  report.cpu_seconds = 1e-6 * static_cast<double>(cpu_us);
  report.seconds = Seconds(NowNanos() - begin_ns_);
  return report;
}

}  // namespace

absl::StatusOr<TrainReport> RunTraining(const TrainerOptions& options, DataSource& data,
                                        const ModelFactory& factory, const ExecContext& ctx) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  Trainer trainer(options, data, ctx);
  const auto run = [&]() -> absl::StatusOr<TrainReport> {
    HOTROW_RETURN_IF_ERROR(trainer.Init(factory));
    HOTROW_RETURN_IF_ERROR(trainer.Run());
    HOTROW_ASSIGN_OR_RETURN(TrainReport report, trainer.Report());
    HOTROW_RETURN_IF_ERROR(trainer.Close());
    return report;
  };
  absl::StatusOr<TrainReport> report = run();
  // The others wait for this rank and should know why they do so in vain, before it leaves.
  if (!report.ok() && options.communicator != nullptr) {
    options.communicator->Abort(std::string(report.status().message()));
  }
  return report;
}

}  // namespace hotrow
