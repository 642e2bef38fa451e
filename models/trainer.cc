#include "models/trainer.h"

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
#include "base/buffer.h"
#include "base/check.h"
#include "base/env.h"
#include "base/hash.h"
#include "base/math.h"
#include "base/metrics.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "base/trace.h"
#include "models/batch_reader.h"
#include "models/mllog.h"
#include "models/progress.h"
#include "models/saved_model.h"
#include "ops/bce_loss.h"
#include "ops/row_layout.h"

namespace hotrow {
namespace {

constexpr int32_t kReadAhead = 2;  // batches: one being made while one waits
constexpr int64_t kTextEveryNanos = 100'000'000;
constexpr int64_t kNormGrain = 1 << 14;  // floats summed in one piece

absl::Status FlagError(const char* flag, const char* limit, int64_t value) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " must be ", limit, ", is ", value));
}

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
        policy_(options.schedule),
        mllog_([this](std::string_view line) { PrintLine(line); }) {}

  absl::Status Init(const ModelFactory& factory);
  // Trains, saves and tests as the options say.
  absl::Status Run();
  absl::StatusOr<TrainReport> Report();

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

  bool stopped() const { return options_.stop_signal != nullptr && *options_.stop_signal != 0; }
  bool quiet() const { return options_.out == nullptr; }
  bool mllog() const { return options_.mllog && !quiet(); }
  bool stops_early() const { return options_.schedule.early_stop_patience > 0; }
  // Step number of optimizers and dropout for the step to come.
  uint32_t StepNumber() const { return static_cast<uint32_t>(first_step_ + steps_ + 1); }
  int64_t TotalSamples() const;
  BatchReaderOptions ReaderOptions(Split split) const;
  SavedModel Description() const;
  absl::Status CreateTables();
  absl::Status AllocateBuffers();
  absl::Status LoadDense();
  void PrintHeader() const;
  void PrintLine(std::string_view line);
  void LogSettings();

  absl::Status Train();
  absl::Status Test();
  absl::Status Save();
  absl::Status FillPipeline(BatchReader* reader);
  absl::Status Step(InFlight* now);
  absl::Status ApplyDenseUpdate(float learning_rate_factor);
  absl::StatusOr<double> Loss(const CtrBatch& batch);
  absl::Status NotFinite(const char* what) const;
  absl::StatusOr<Evaluation> Evaluate(Split split, Progress* progress);
  absl::Status Validate(int64_t epoch);
  double EpochsSoFar() const;
  void ShowProgress();
  Hash128 DenseHash();

  const TrainerOptions& options_;
  Env& env_;
  DataSource& data_;
  const DataSchema& schema_;
  const ExecContext ctx_;
  const int64_t begin_ns_ = NowNanos();

  std::unique_ptr<CtrModel> model_;
  EmbeddingCollectionOptions collection_options_;
  std::unique_ptr<EmbeddingCollection> tables_;
  HostBuffer<float> momentum1_;  // of the dense optimizer
  HostBuffer<float> momentum2_;
  HostBuffer<float> clipped_;  // a gradient that was too long, scaled

  std::optional<SavedModel> init_;  // of init_from
  std::unique_ptr<SavedModelWriter> writer_;
  int64_t first_step_ = 0;  // steps that init_ had seen
  int64_t saved_step_ = -1;

  HostBuffer<float> embeddings_;          // [B, E]
  HostBuffer<float> embedding_gradient_;  // [B, E]
  HostBuffer<float> logits_;              // [B]
  HostBuffer<float> logit_gradient_;      // [B]

  // Declared after tables_: steps must not outlive them.
  std::deque<InFlight> pipeline_;
  int64_t outstanding_ = 0;  // steps in pipeline_
  bool data_ended_ = false;

  int64_t steps_ = 0;
  int64_t samples_ = 0;
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
                          .optimizer = std::string(SparseOptimizerName(table.optimizer.kind))});
  }
  out.dense_optimizer = std::string(DenseOptimizerName(options_.dense_optimizer.kind));
  out.num_parameters = static_cast<int64_t>(model_->parameters().size());
  out.store = std::string(StoreKindName(options_.store));
  return out;
}

absl::Status Trainer::CreateTables() {
  collection_options_ = CollectionOptions(options_, schema_);
  collection_options_.env = &env_;
  if (writer_ != nullptr) collection_options_.snapshot_dir = writer_->tables_dir();
  if (init_.has_value()) {
    HOTROW_RETURN_IF_ERROR(CheckSavedModelFits(*init_, Description(), options_.init_from));
    collection_options_.open_at = init_->snapshot;
    collection_options_.open_dir = SavedTablesDir(options_.init_from);
    collection_options_.open_steps = first_step_ = init_->step;
  }
  HOTROW_ASSIGN_OR_RETURN(const int64_t min_cache_bytes,
                          EmbeddingCollection::MinCacheBytes(collection_options_));
  if (options_.cache_bytes == kSmallestCache) collection_options_.cache_bytes = min_cache_bytes;
  const int64_t cache_bytes = collection_options_.cache_bytes;
  if (cache_bytes > 0 && cache_bytes < min_cache_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "--cache_bytes=", cache_bytes, " is too small: the rows of one step of ",
        options_.batch_size, " samples need ", min_cache_bytes, " (", FormatBytes(min_cache_bytes),
        "); raise it, use --cache_bytes=min, or lower --batch_size"));
  }
  HOTROW_ASSIGN_OR_RETURN(tables_, EmbeddingCollection::Create(collection_options_, ctx_));
  if (!init_.has_value()) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables_->Digest());
  return CheckSavedTables(*init_, digest, options_.init_from);
}

absl::Status Trainer::LoadDense() {
  DenseArrays<float> dense = {.parameters = model_->parameters()};
  if (init_->dense_optimizer == DenseOptimizerName(options_.dense_optimizer.kind)) {
    dense.momentum1 = momentum1_.span();
    dense.momentum2 = momentum2_.span();
  }
  return ReadSavedDense(env_, options_.init_from, *init_, dense);
}

absl::Status Trainer::AllocateBuffers() {
  const int64_t floats = options_.batch_size * tables_->pooled_dim();
  HOTROW_ASSIGN_OR_RETURN(embeddings_, HostBuffer<float>::Create(floats, HugePages::kTry));
  HOTROW_ASSIGN_OR_RETURN(embedding_gradient_, HostBuffer<float>::Create(floats, HugePages::kTry));
  HOTROW_ASSIGN_OR_RETURN(logits_, HostBuffer<float>::Create(options_.batch_size));
  HOTROW_ASSIGN_OR_RETURN(logit_gradient_, HostBuffer<float>::Create(options_.batch_size));
  const auto num_parameters = static_cast<int64_t>(model_->parameters().size());
  const int32_t state_arrays = DenseStateArrays(options_.dense_optimizer.kind);
  if (state_arrays >= 1) {
    HOTROW_ASSIGN_OR_RETURN(momentum1_, HostBuffer<float>::Create(num_parameters, HugePages::kTry));
  }
  if (state_arrays >= 2) {
    HOTROW_ASSIGN_OR_RETURN(momentum2_, HostBuffer<float>::Create(num_parameters, HugePages::kTry));
  }
  if (options_.max_gradient_norm > 0) {
    HOTROW_ASSIGN_OR_RETURN(clipped_, HostBuffer<float>::Create(num_parameters, HugePages::kTry));
  }
  return absl::OkStatus();
}

absl::Status Trainer::Init(const ModelFactory& factory) {
  if (mllog()) LogSettings();
  if (!options_.init_from.empty()) {
    HOTROW_ASSIGN_OR_RETURN(init_, ReadSavedModel(env_, options_.init_from));
  }
  HOTROW_ASSIGN_OR_RETURN(model_, factory(schema_));
  if (!options_.save_dir.empty()) {
    HOTROW_ASSIGN_OR_RETURN(writer_, SavedModelWriter::Open(&env_, options_.save_dir));
  }
  HOTROW_RETURN_IF_ERROR(CreateTables());
  HOTROW_RETURN_IF_ERROR(AllocateBuffers());
  if (init_.has_value()) HOTROW_RETURN_IF_ERROR(LoadDense());
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
  const int64_t row_bytes =
      RowLayout::For(options_.embedding_dim, options_.table_optimizer.kind).row_bytes;

  std::string text = absl::StrFormat("%s on %s\n", std::string(model_->name()), schema_.name);
  absl::StrAppendFormat(
      &text, "  data     %s train, %s validation, %s test samples; %d features, %d dense\n",
      FormatCount(schema_.train_samples), FormatCount(schema_.valid_samples),
      FormatCount(schema_.test_samples), schema_.features.size(), schema_.num_dense);
  absl::StrAppendFormat(&text, "  model    %s dense parameters, %s\n",
                        FormatCount(static_cast<int64_t>(model_->parameters().size())),
                        std::string(DenseOptimizerName(options_.dense_optimizer.kind)));
  absl::StrAppendFormat(&text, "  tables   %d of %d columns, %s: %d bytes a row%s\n",
                        collection_options_.tables.size(), options_.embedding_dim,
                        std::string(SparseOptimizerName(options_.table_optimizer.kind)), row_bytes,
                        rows_known ? absl::StrFormat(", up to %s rows (%s)", FormatCount(rows),
                                                     FormatBytes(rows * row_bytes))
                                   : std::string());
  absl::StrAppend(&text, "  tiers    ");
  if (collection_options_.cache_bytes > 0) {
    absl::StrAppendFormat(&text, "cache of %s over ", FormatBytes(collection_options_.cache_bytes));
  }
  absl::StrAppendFormat(&text, "%s of up to %s\n", std::string(StoreKindName(options_.store)),
                        FormatBytes(options_.store_bytes));
  if (init_.has_value()) {
    int64_t saved_rows = 0;
    for (const SavedModel::Table& table : init_->tables) saved_rows += table.rows;
    absl::StrAppendFormat(&text, "  from     %s: step %s, %s rows\n", options_.init_from,
                          FormatCount(init_->step), FormatCount(saved_rows));
    const std::string kind(DenseOptimizerName(options_.dense_optimizer.kind));
    if (init_->dense_optimizer != kind) {
      absl::StrAppendFormat(&text,
                            "           the state of %s starts anew: the saved model has that of "
                            "%s\n",
                            kind, init_->dense_optimizer);
    }
  }
  absl::StrAppendFormat(&text, "  run      batch %s, prefetch %d, %d threads on the %s\n\n",
                        FormatCount(options_.batch_size), options_.prefetch_depth,
                        ctx_.pool == nullptr ? 1 : ctx_.pool->num_threads(),
                        std::string(DeviceName(ctx_.device)));
  std::fputs(text.c_str(), options_.out);
  std::fflush(options_.out);
}

// Reads and prefetches until prefetch_depth steps wait behind the one to be computed.
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
    if (!next.item->ends_epoch()) {
      TraceSpan span(ctx_.trace, "prefetch");
      HOTROW_ASSIGN_OR_RETURN(next.step, tables_->Prefetch(next.item->batch.sparse()));
      ++outstanding_;
    }
    pipeline_.push_back(std::move(next));
  }
  return absl::OkStatus();
}

absl::Status Trainer::NotFinite(const char* what) const {
  return absl::OutOfRangeError(absl::StrFormat(
      "step %d: the %s is not a finite number, training has diverged; lower --learning_rate (%g "
      "for tables, %g for dense parameters)",
      steps_ + 1, what, options_.table_optimizer.learning_rate,
      options_.dense_optimizer.learning_rate));
}

absl::StatusOr<double> Trainer::Loss(const CtrBatch& batch) {
  TraceSpan span(ctx_.trace, "loss");
  double loss = 0;
  HOTROW_RETURN_IF_ERROR(BceWithLogits(ctx_, {.logits = logits_.data(),
                                              .labels = batch.labels.data(),
                                              .batch_size = batch.batch_size,
                                              .gradient = logit_gradient_.data(),
                                              .loss = &loss}));
  if (!std::isfinite(loss)) return NotFinite("training loss");
  return loss;
}

absl::Status Trainer::ApplyDenseUpdate(float learning_rate_factor) {
  TraceSpan span(ctx_.trace, "dense_update");
  DenseTensor all = {.parameters = model_->parameters(),
                     .gradients = model_->gradients(),
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

absl::Status Trainer::Step(InFlight* now) {
  const CtrBatch& batch = now->item->batch;
  if (now->item->epoch != epoch_) {
    epoch_ = now->item->epoch;
    steps_in_epoch_ = 0;
    epoch_samples_ = 0;
    epoch_loss_sum_ = 0;
    if (mllog()) mllog_.Start("epoch_start", {{"epoch_num", epoch_ + 1}});
  }
  const auto factor =
      static_cast<float>(ScheduleFactor(options_.schedule, steps_ + 1) * policy_.factor());
  {
    TraceSpan span(ctx_.trace, "lookup");
    HOTROW_RETURN_IF_ERROR(tables_->Lookup(*now->step, {.pooled = embeddings_.data()}));
  }
  {
    TraceSpan span(ctx_.trace, "forward");
    HOTROW_RETURN_IF_ERROR(model_->Forward(ctx_,
                                           {.batch_size = batch.batch_size,
                                            .dense = batch.dense.data(),
                                            .embeddings = embeddings_.data(),
                                            .training = true,
                                            .step = StepNumber()},
                                           logits_.span().first(batch.batch_size)));
  }
  HOTROW_ASSIGN_OR_RETURN(const double loss, Loss(batch));
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
  HOTROW_RETURN_IF_ERROR(ApplyDenseUpdate(factor));

  ++steps_;
  ++steps_in_epoch_;
  samples_ += batch.batch_size;
  epoch_samples_ += batch.batch_size;
  epoch_loss_sum_ += loss * static_cast<double>(batch.batch_size);
  // Over the last hundred steps or so, the mean of all steps while there are fewer.
  recent_loss_ += (loss - recent_loss_) / static_cast<double>(std::min<int64_t>(steps_, 100));
  return absl::OkStatus();
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
      const std::span<float> logits = logits_.span().first(batch.batch_size);
      HOTROW_RETURN_IF_ERROR(tables_->Evaluate(batch.sparse(), {.pooled = embeddings_.data()}));
      HOTROW_RETURN_IF_ERROR(model_->Forward(ctx,
                                             {.batch_size = batch.batch_size,
                                              .dense = batch.dense.data(),
                                              .embeddings = embeddings_.data()},
                                             logits));
      if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) {
        return NotFinite("model's prediction");
      }
      metrics.Add(logits, batch.labels);
      samples += batch.batch_size;
      if (progress != nullptr) progress->Update(samples, "");
      if (!batch.true_probability.empty()) {
        true_probabilities.insert(true_probabilities.end(), batch.true_probability.begin(),
                                  batch.true_probability.end());
        labels.insert(labels.end(), batch.labels.begin(), batch.labels.end());
      }
    }
    reader.Recycle(std::move(item));
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
  const ValidationPolicy::Verdict verdict = policy_.Observe(evaluation.metrics.auc);
  if (!stops_early()) {
    valid_ = evaluation.metrics;
  } else if (verdict.better) {
    HOTROW_ASSIGN_OR_RETURN(const Evaluation test, Evaluate(Split::kTest, /*progress=*/nullptr));
    if (!test.complete) return absl::OkStatus();
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
  TraceSpan span(ctx_.trace, "save");
  HOTROW_RETURN_IF_ERROR(writer_->Save(Description(), *tables_,
                                       {.parameters = model_->parameters(),
                                        .momentum1 = momentum1_.span(),
                                        .momentum2 = momentum2_.span()}));
  saved_step_ = tables_->steps();
  return absl::OkStatus();
}

void Trainer::ShowProgress() {
  if (progress_ == nullptr) return;
  const int64_t now = NowNanos();
  if (now < next_text_ns_) return;
  next_text_ns_ = now + kTextEveryNanos;
  std::string text = absl::StrFormat("loss %.4f", recent_loss_);
  if (collection_options_.cache_bytes > 0) {
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

absl::Status Trainer::Train() {
  BatchReaderOptions reader_options = ReaderOptions(Split::kTrain);
  reader_options.epochs = options_.epochs;
  reader_options.limit_batches = options_.limit_train_batches;
  reader_options.trace = ctx_.trace;
  BatchReader reader(&data_, reader_options);

  int64_t validated_step = -1;
  while (!stopped() && !stopped_early_) {
    const int64_t begin = NowNanos();
    HOTROW_RETURN_IF_ERROR(FillPipeline(&reader));
    if (pipeline_.empty()) break;
    InFlight now = std::move(pipeline_.front());
    pipeline_.pop_front();
    bool validate = false;
    if (now.item->ends_epoch()) {
      ++epochs_done_;
      validate = validated_step != steps_;
      train_ns_ += NowNanos() - begin;
      if (mllog()) mllog_.End("epoch_stop", {{"epoch_num", now.item->epoch + 1}});
    } else {
      --outstanding_;
      HOTROW_RETURN_IF_ERROR(Step(&now));
      const int64_t nanos = NowNanos() - begin;
      train_ns_ += nanos;
      step_ns_.Add(nanos);
      const int64_t every = options_.validation_freq_within_epoch;
      validate = every > 0 && steps_in_epoch_ % every == 0;
      ShowProgress();
    }
    if (validate) {
      HOTROW_RETURN_IF_ERROR(Validate(now.item->epoch));
      validated_step = steps_;
    }
    reader.Recycle(std::move(now.item));
  }
  pipeline_.clear();
  outstanding_ = 0;
  return absl::OkStatus();
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
Hash128 Trainer::DenseHash() {
  Hash128 hash;
  uint64_t array = 0;
  for (const std::span<const float> floats :
       {std::span<const float>(model_->parameters()), std::span<const float>(momentum1_.span()),
        std::span<const float>(momentum2_.span())}) {
    hash += HashBytes(array++, 0, std::as_bytes(floats));
  }
  return hash;
}

absl::StatusOr<TrainReport> Trainer::Report() {
  TrainReport report;
  // Before the digest, whose flush would add write-backs.
  report.tables = tables_->Stats();
  {
    TraceSpan span(ctx_.trace, "digest");
    HOTROW_ASSIGN_OR_RETURN(report.digest, tables_->Digest());
    report.dense_hash = DenseHash().ToHex();
  }
  report.model = model_->name();
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
  report.valid = valid_;
  report.test = test_.metrics;
  report.best_epoch = best_epoch_;
  report.best_step = best_step_;
  report.stopped_early = stopped_early_;
  report.saved_step = saved_step_;
  report.best_auc = test_.best_auc;
  report.num_parameters = static_cast<int64_t>(model_->parameters().size());
  report.cache_bytes = collection_options_.cache_bytes;
  report.store_bytes = collection_options_.store_bytes;
  if (options_.stop_signal != nullptr) report.stopped_by_signal = *options_.stop_signal;
  if (ctx_.trace != nullptr) report.stages = ctx_.trace->StageTotals();
  report.peak_rss_bytes = PeakResidentBytes();
  report.cpu_seconds = ProcessCpuSeconds();
  report.seconds = Seconds(NowNanos() - begin_ns_);
  return report;
}

}  // namespace

absl::Status TrainerOptions::Validate() const {
  if (batch_size < 1) return FlagError("batch_size", "at least 1", batch_size);
  if (epochs < 1) return FlagError("epochs", "at least 1", epochs);
  if (limit_train_batches < 0) {
    return FlagError("limit_train_batches", "at least 0", limit_train_batches);
  }
  if (validation_freq_within_epoch < 0) {
    return FlagError("validation_freq_within_epoch", "at least 0", validation_freq_within_epoch);
  }
  if (embedding_dim < 1) return FlagError("embedding_dim", "at least 1", embedding_dim);
  if (pooling == Pooling::kNone) {
    return absl::InvalidArgumentError("--pooling must be sum or mean: models take pooled features");
  }
  if (store_bytes < 1) return FlagError("store_bytes", "at least 1", store_bytes);
  if (cache_bytes < 0 && cache_bytes != kSmallestCache) {
    return FlagError("cache_bytes", "at least 0", cache_bytes);
  }
  HOTROW_RETURN_IF_ERROR(table_optimizer.Validate());
  if (initializer.has_value()) HOTROW_RETURN_IF_ERROR(initializer->Validate());
  if (!(max_gradient_norm >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max_gradient_norm must be at least 0, is ", max_gradient_norm));
  }
  HOTROW_RETURN_IF_ERROR(schedule.Validate());
  return dense_optimizer.Validate();
}

EmbeddingCollectionOptions CollectionOptions(const TrainerOptions& options,
                                             const DataSchema& schema) {
  EmbeddingCollectionOptions out;
  std::map<std::string, size_t> position_of;
  for (const DataFeature& feature : schema.features) {
    const auto [at, is_new] = position_of.try_emplace(feature.table, out.tables.size());
    if (is_new) {
      TableConfig table;
      table.name = feature.table;
      table.embedding_dim = options.embedding_dim;
      table.pooling = options.pooling;
      table.optimizer = options.table_optimizer;
      table.num_embeddings = feature.num_embeddings;
      table.max_hotness = feature.max_hotness;
      out.tables.push_back(std::move(table));
    }
    // Features that share a table may have bounds of their own: the table takes the widest, and
    // none where one feature has none.
    const auto widest = [](int64_t a, int64_t b) { return a == 0 || b == 0 ? 0 : std::max(a, b); };
    TableConfig& table = out.tables[at->second];
    table.num_embeddings = widest(table.num_embeddings, feature.num_embeddings);
    table.max_hotness = widest(table.max_hotness, feature.max_hotness);
    table.feature_names.push_back(feature.name);
    out.feature_order.push_back(feature.name);
  }
  for (TableConfig& table : out.tables) {
    // A table without bound has no number of rows to go by; 0.01 is what 10,000 rows would give.
    table.initializer = options.initializer.value_or(
        table.num_embeddings > 0 ? Initializer::UniformOfRows(table.num_embeddings)
                                 : Initializer{InitializerKind::kUniform, 0.01f});
  }
  out.seed = options.seed;
  out.max_batch_size = options.batch_size;
  out.store = options.store;
  out.store_bytes = options.store_bytes;
  out.cache_bytes = std::max<int64_t>(options.cache_bytes, 0);
  out.cache_policy = options.cache_policy;
  out.prefetch_depth = options.prefetch_depth;
  return out;
}

absl::StatusOr<TrainReport> RunTraining(const TrainerOptions& options, DataSource& data,
                                        const ModelFactory& factory, const ExecContext& ctx) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  Trainer trainer(options, data, ctx);
  HOTROW_RETURN_IF_ERROR(trainer.Init(factory));
  HOTROW_RETURN_IF_ERROR(trainer.Run());
  return trainer.Report();
}

}  // namespace hotrow
