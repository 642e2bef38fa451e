#include "models/train/trainer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "base/trace.h"
#include "gtest/gtest.h"
#include "models/data/open_data_source.h"
#include "models/saving/dense_file.h"
#include "models/saving/manifest.h"
#include "models/saving/saved_model.h"
#include "models/train/trainer_settings.h"
#include "models/zoo/dlrm_model.h"
#include "models/zoo/model_parts.h"
#include "ops/rows/row_layout.h"
#include "tests/models/checkpoint_test_util.h"
#include "tests/models/model_test_util.h"
#include "tests/support/failing_threads.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

TrainerOptions SmallOptions(int32_t dim = 8) {
  TrainerOptions options;
  options.batch_size = 64;
  options.embedding_dim = dim;
  options.table_optimizer.learning_rate = 0.05f;
  options.dense_optimizer.kind = DenseOptimizerKind::kAdagrad;
  options.dense_optimizer.learning_rate = 0.05f;
  options.seed = 3;
  options.store_bytes = int64_t{64} << 20;
  return options;
}

ModelFactory SmallDlrm(const TrainerOptions& options) {
  return [options](const DataSchema& schema) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
    return DlrmModel::Create({{.num_dense = schema.num_dense,
                               .num_sparse = static_cast<int32_t>(schema.features.size()),
                               .embedding_dim = options.embedding_dim,
                               .over_arch_layer_sizes = {16, 1},
                               .seed = options.seed,
                               .max_batch_size = options.batch_size},
                              {16, options.embedding_dim}});
  };
}

absl::StatusOr<TrainReport> RunOn(const std::string& spec, const TrainerOptions& options,
                                  const ExecContext& ctx = {}) {
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<DataSource> data, OpenDataSource(spec, 5));
  return RunTraining(options, *data, SmallDlrm(options), ctx);
}

// A data source whose training reader calls back before each batch.
class WatchedSource : public DataSource {
 public:
  WatchedSource(std::unique_ptr<DataSource> base,
                std::function<absl::Status(int64_t batch)> on_train_batch)
      : base_(std::move(base)), on_train_batch_(std::move(on_train_batch)) {}
  const DataSchema& schema() const override { return base_->schema(); }
  absl::StatusOr<std::unique_ptr<DataReader>> OpenSplit(Split split, int64_t epoch,
                                                        int64_t first_sample) override {
    HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<DataReader> reader,
                            base_->OpenSplit(split, epoch, first_sample));
    if (split != Split::kTrain) return reader;
    return std::make_unique<Reader>(this, std::move(reader));
  }

 private:
  class Reader : public DataReader {
   public:
    Reader(WatchedSource* source, std::unique_ptr<DataReader> base)
        : source_(source), base_(std::move(base)) {}
    absl::Status Next(int64_t max_batch_size, CtrBatch* batch) override {
      HOTROW_RETURN_IF_ERROR(source_->on_train_batch_(source_->batches_++));
      return base_->Next(max_batch_size, batch);
    }
    int64_t position() const override { return base_->position(); }

   private:
    WatchedSource* source_;
    std::unique_ptr<DataReader> base_;
  };

  std::unique_ptr<DataSource> base_;
  std::function<absl::Status(int64_t)> on_train_batch_;
  int64_t batches_ = 0;
};

TEST(TrainerTest, LearnsThePlantedModel) {
  TrainerOptions options = SmallOptions();
  options.epochs = 2;
  options.validation_freq_within_epoch = 100;
  const std::string spec = "synthetic:tables=4,rows=100,dense=4,samples=20000,valid=2000,test=5000";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, RunOn(spec, options));
  EXPECT_EQ(report.samples, 40000);
  EXPECT_EQ(report.steps, 2 * 313);
  EXPECT_EQ(report.epochs, 2);
  EXPECT_EQ(report.test.samples, 5000);
  EXPECT_EQ(report.valid.samples, 2000);
  EXPECT_GT(report.best_auc, 0.75);
  EXPECT_GT(report.test.auc, report.best_auc - 0.06);
  EXPECT_LT(report.test.auc, report.best_auc + 0.01);
  EXPECT_LT(report.test.ne, 0.9);
  EXPECT_NEAR(report.test.calibration, 1, 0.1);
  EXPECT_GT(report.train_seconds, 0);
  EXPECT_LT(report.train_seconds, report.seconds);
  EXPECT_GT(report.rows(), 200);
  EXPECT_LE(report.rows(), 400);
  EXPECT_EQ(report.rows(), report.tables.initialised_rows);

  options.epochs = 1;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport shorter, RunOn(spec, options));
  EXPECT_LT(report.train_logloss, shorter.train_logloss);
}

// Half the bytes of weights cost next to nothing, since rounding has no bias.
TEST(TrainerTest, WeightsOf16BitsLearnTheSame) {
  TrainerOptions options = SmallOptions();
  options.epochs = 2;
  const std::string spec = "synthetic:tables=4,rows=100,dense=4,samples=20000,valid=500,test=5000";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport whole, RunOn(spec, options));
  for (const WeightsPrecision precision : {WeightsPrecision::kFp16, WeightsPrecision::kBf16}) {
    const std::string name(WeightsPrecisionName(precision));
    options.weights_precision = precision;
    test::Output output;
    options.out = output.file();
    HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport narrow, RunOn(spec, options));
    EXPECT_NEAR(narrow.test.auc, whole.test.auc, 0.002) << name;
    EXPECT_FALSE(narrow.digest.hash == whole.digest.hash) << name;
    EXPECT_EQ(narrow.rows(), whole.rows());
    EXPECT_LT(narrow.digest.tables[0].row_bytes, whole.digest.tables[0].row_bytes);
    EXPECT_THAT(output.Text(), HasSubstr(absl::StrCat(" columns in ", name, ", ")));
    const nlohmann::json json = nlohmann::json::parse(ReportToJson(narrow), nullptr, false);
    EXPECT_EQ(json["tables"][0]["weights_precision"], name);
    EXPECT_EQ(
        json["tables"][0]["row_bytes"],
        RowLayout::For(options.embedding_dim, options.table_optimizer.kind, precision).row_bytes);
    // Rounding is a function of seed, table, key, step and column, not of where a row lies.
    TrainerOptions cached = options;
    cached.out = nullptr;
    cached.cache_bytes = kSmallestCache;
    cached.prefetch_depth = 2;
    HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport same, RunOn(spec, cached));
    EXPECT_TRUE(same.digest.hash == narrow.digest.hash) << name;
  }
}

// Promise 1: caches and prefetching change speed, never a bit.
TEST(TrainerTest, CacheSizeAndPrefetchDepthMoveNoBit) {
  struct Case {
    int32_t dim;
    SparseOptimizerKind optimizer;
  };
  const std::vector<Case> cases = {{1, SparseOptimizerKind::kRowWiseAdagrad},
                                   {17, SparseOptimizerKind::kAdam},
                                   {64, SparseOptimizerKind::kFtrl},
                                   {17, SparseOptimizerKind::kSgd}};
  const std::string spec =
      "synthetic:tables=3,rows=400,dense=2,shared=2,hotness=0-3,samples=2500,valid=200,test=200";
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DataSource> data, OpenDataSource(spec, 5));
  for (const Case& c : cases) {
    TrainerOptions options = SmallOptions(c.dim);
    options.batch_size = 48;
    options.table_optimizer.kind = c.optimizer;
    options.table_optimizer.weight_decay = 1e-4f;
    HOTROW_ASSERT_OK_AND_ASSIGN(
        const int64_t min_cache_bytes,
        EmbeddingCollection::MinCacheBytes(CollectionOptions(options, data->schema())));
    std::string tables_hash;
    std::string dense_hash;
    int64_t evictions = 0;
    for (const int64_t cache_bytes :
         {int64_t{0}, kSmallestCache, min_cache_bytes + min_cache_bytes / 3, int64_t{8} << 20}) {
      for (const int32_t depth : {0, 1, 4}) {
        SCOPED_TRACE(testing::Message()
                     << "dim " << c.dim << ", optimizer " << SparseOptimizerName(c.optimizer)
                     << ", cache_bytes " << cache_bytes << ", prefetch_depth " << depth);
        options.cache_bytes = cache_bytes;
        options.prefetch_depth = depth;
        HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report,
                                    RunTraining(options, *data, SmallDlrm(options), {}));
        EXPECT_EQ(report.steps, 53);  // 2500 / 48, rounded up
        if (tables_hash.empty()) {
          tables_hash = report.digest.hash.ToHex();
          dense_hash = report.dense_hash;
        }
        EXPECT_EQ(report.digest.hash.ToHex(), tables_hash);
        EXPECT_EQ(report.dense_hash, dense_hash);
        evictions += report.tables.tiers.front().evictions;
      }
    }
    EXPECT_GT(evictions, 0) << "the caches were never full: nothing was tested";
  }
}

TEST(TrainerTest, TheSmallestCacheHoldsATableOfBagsOfAnySize) {
  TrainerOptions options = SmallOptions();
  options.cache_bytes = kSmallestCache;
  DataSchema schema;
  schema.features = {{.name = "user", .table = "user", .max_hotness = 1},
                     {.name = "words", .table = "words", .num_embeddings = 5000}};
  EmbeddingCollectionOptions tables = CollectionOptions(options, schema);
  HOTROW_ASSERT_OK(ResolveBudgets(options, Device::kCpu, &tables));
  EXPECT_GT(tables.cache.bytes, int64_t{5000} * 4 * options.embedding_dim);
  EXPECT_EQ(tables.tables[1].max_hotness, 0);
}

TEST(TrainerTest, PoolSizePolicyAndValidationMoveNoBit) {
  const std::string spec = "synthetic:tables=3,rows=300,dense=2,samples=2000,valid=300,test=100";
  TrainerOptions options = SmallOptions();
  options.cache_bytes = kSmallestCache;
  options.prefetch_depth = 1;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport expected, RunOn(spec, options));
  const auto expect_same = [&](const TrainReport& report) {
    EXPECT_EQ(report.digest.hash, expected.digest.hash);
    EXPECT_EQ(report.dense_hash, expected.dense_hash);
    EXPECT_EQ(report.test.auc, expected.test.auc);
  };
  {
    ThreadPool pool(3);  // batches are then read ahead, too
    HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, RunOn(spec, options, {.pool = &pool}));
    EXPECT_EQ(report.threads, 3);
    expect_same(report);
  }
  options.cache_policy = CachePolicy::kLfu;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport lfu, RunOn(spec, options));
  expect_same(lfu);
  options.validation_freq_within_epoch = 1;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport validated, RunOn(spec, options));
  expect_same(validated);
  // And the hashes do see a difference where there is one.
  options.seed = 4;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport other, RunOn(spec, options));
  EXPECT_NE(other.digest.hash, expected.digest.hash);
  EXPECT_NE(other.dense_hash, expected.dense_hash);
}

TEST(TrainerTest, LimitTrainBatchesCountsPerEpoch) {
  TrainerOptions options = SmallOptions();
  options.limit_train_batches = 3;
  options.epochs = 2;
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const TrainReport report,
      RunOn("synthetic:tables=2,rows=50,dense=1,samples=2000,valid=0,test=100", options));
  EXPECT_EQ(report.steps, 6);
  EXPECT_EQ(report.samples, 6 * 64);
  EXPECT_EQ(report.epochs, 2);
  EXPECT_EQ(report.valid.samples, 0);
}

TEST(TrainerTest, TrainsWithoutDenseFeatures) {
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const TrainReport report,
      RunOn("synthetic:tables=3,rows=50,dense=0,samples=5000,valid=0,test=2000", SmallOptions()));
  EXPECT_GT(report.test.auc, 0.6);
}

TEST(TrainerTest, ASignalEndsTrainingAfterTheCurrentStep) {
  HOTROW_ASSERT_OK_AND_ASSIGN(
      std::unique_ptr<DataSource> base,
      OpenDataSource("synthetic:tables=2,rows=50,dense=1,samples=64000,valid=64,test=100", 5));
  std::atomic<int> signal{0};
  WatchedSource data(std::move(base), [&signal](int64_t batch) {
    if (batch == 5) signal = 2;
    return absl::OkStatus();
  });
  TrainerOptions options = SmallOptions();
  options.stop_signal = &signal;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report,
                              RunTraining(options, data, SmallDlrm(options), {}));
  EXPECT_EQ(report.steps, 6);
  EXPECT_EQ(report.samples, 6 * 64);
  EXPECT_EQ(report.epochs, 0);
  EXPECT_EQ(report.stopped_by_signal, 2);
  EXPECT_EQ(report.test.samples, 0);
  EXPECT_GT(report.rows(), 0);
  EXPECT_THAT(FormatSummary(report), HasSubstr("Stopped by SIGINT after step 6"));
}

TEST(TrainerTest, ErrorsOfTheDataComeThrough) {
  HOTROW_ASSERT_OK_AND_ASSIGN(
      std::unique_ptr<DataSource> base,
      OpenDataSource("synthetic:tables=2,rows=50,dense=1,samples=6400,valid=0,test=0", 5));
  WatchedSource data(std::move(base), [](int64_t batch) {
    return batch == 3 ? absl::DataLossError("day_3.tsv: line 7 is torn") : absl::OkStatus();
  });
  TrainerOptions options = SmallOptions();
  options.prefetch_depth = 2;  // with steps still outstanding
  EXPECT_THAT(RunTraining(options, data, SmallDlrm(options), {}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("line 7")));
}

TEST(TrainerTest, DivergenceNamesTheStepAndTheRemedy) {
  TrainerOptions options = SmallOptions();
  options.dense_optimizer.kind = DenseOptimizerKind::kSgd;
  options.dense_optimizer.learning_rate = 1e30f;
  EXPECT_THAT(RunOn("synthetic:tables=2,rows=50,dense=1,samples=6400,valid=0,test=0", options),
              StatusIs(absl::StatusCode::kOutOfRange,
                       AllOf(HasSubstr("step "), HasSubstr("lower --learning_rate"))));
}

TEST(TrainerTest, ACacheTooSmallForOneStepIsRefused) {
  TrainerOptions options = SmallOptions();
  options.cache_bytes = 100;
  EXPECT_THAT(RunOn("synthetic:tables=2,rows=50,dense=1,samples=640", options),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("--cache_bytes=100"), HasSubstr("--batch_size"))));
}

// A model whose validation AUCs are given: tenths / 10 each, the last one from then on. The test
// data that is evaluated after a validation gets the same.
class ScriptedModel : public CtrModel {
 public:
  ScriptedModel(std::vector<int>* tenths, std::vector<float>* first_parameters)
      : tenths_(*tenths), first_parameters_(*first_parameters) {}

  std::string_view name() const override { return "scripted"; }
  DenseLayers layers() const override { return {}; }
  absl::Status Forward(const ExecContext& ctx, const Input& input,
                       std::span<float> logits) override {
    HOTROW_RETURN_IF_ERROR(AwaitEmbeddings(input));
    if (input.training) {
      first_parameters_.push_back(parameters_[0]);
      trained_ = true;
      std::fill(logits.begin(), logits.end(), 0.0f);
      return absl::OkStatus();
    }
    if (trained_) ++validation_;  // the first evaluation after a step is a validation
    trained_ = false;
    const int tenths = tenths_[std::min<size_t>(validation_, tenths_.size()) - 1];
    // The dense feature is the label (LabelledSource).
    for (int64_t b = 0; b < input.batch_size; ++b) {
      const bool right = b % 10 < tenths;
      logits[b] = input.dense[b] > 0 ? (right ? 1.0f : -1.0f) : 0.0f;
    }
    return absl::OkStatus();
  }
  absl::Status Backward(const ExecContext& ctx, std::span<float> logit_gradient,
                        float* embedding_gradient, const BackwardHooks& hooks) override {
    std::fill_n(embedding_gradient, logit_gradient.size() * 2, 0.0f);
    HOTROW_RETURN_IF_ERROR(EmbeddingGradientReady(hooks));
    return GradientsReady(hooks, 0, static_cast<int64_t>(gradients_.size()));
  }
  std::span<float> parameters() override { return parameters_; }
  std::span<float> mutable_gradients() override { return gradients_; }
  std::span<const float> gradients() const override { return gradients_; }

 private:
  std::vector<int>& tenths_;
  std::vector<float>& first_parameters_;
  size_t validation_ = 0;
  bool trained_ = false;
  std::vector<float> parameters_ = std::vector<float>(16, 0.0f);
  std::vector<float> gradients_ = {-3.0f, 0, 0, 4.0f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
};

// One table of 2 columns, one dense feature that is the label, labels in runs of ten.
class LabelledSource : public DataSource {
 public:
  LabelledSource(int64_t train_samples, int64_t valid_samples) {
    schema_.name = "labelled";
    schema_.num_dense = 1;
    schema_.features = {{.name = "id", .table = "ids", .num_embeddings = 4, .max_hotness = 1}};
    schema_.train_samples = train_samples;
    schema_.valid_samples = valid_samples;
    schema_.test_samples = 40;
  }
  const DataSchema& schema() const override { return schema_; }
  absl::StatusOr<std::unique_ptr<DataReader>> OpenSplit(Split split, int64_t epoch,
                                                        int64_t first_sample) override {
    return std::make_unique<Reader>(split == Split::kTrain   ? schema_.train_samples
                                    : split == Split::kValid ? schema_.valid_samples
                                                             : schema_.test_samples);
  }

 private:
  class Reader : public DataReader {
   public:
    explicit Reader(int64_t samples) : samples_(samples) {}
    absl::Status Next(int64_t max_batch_size, CtrBatch* batch) override {
      *batch = CtrBatch();
      batch->offsets = {0};
      while (batch->batch_size < max_batch_size && at_ < samples_) {
        const float label = static_cast<float>(at_ / 10 % 2);
        batch->labels.push_back(label);
        batch->dense.push_back(label);
        batch->values.push_back(static_cast<uint64_t>(at_ % 4));
        batch->offsets.push_back(++batch->batch_size);
        ++at_;
      }
      return absl::OkStatus();
    }
    int64_t position() const override { return at_; }

   private:
    int64_t samples_;
    int64_t at_ = 0;
  };
  DataSchema schema_;
};

struct ScriptedRun {
  TrainReport report;
  std::vector<float> first_parameters;  // of each step, before it
};

// Trains with plain SGD of rate 1 and the constant gradient (-3, 0, 0, 4), of norm 5: the first
// parameter grows by 3 times the rate's factor in each step.
absl::StatusOr<ScriptedRun> RunScripted(TrainerOptions options, std::vector<int> tenths,
                                        int64_t valid_samples = 40) {
  options.batch_size = 40;
  options.embedding_dim = 2;
  options.dense_optimizer.kind = DenseOptimizerKind::kSgd;
  options.dense_optimizer.learning_rate = 1;
  LabelledSource data(80, valid_samples);  // two steps an epoch
  ScriptedRun run;
  const ModelFactory factory = [&](const DataSchema& schema) {
    return std::make_unique<ScriptedModel>(&tenths, &run.first_parameters);
  };
  HOTROW_ASSIGN_OR_RETURN(run.report, RunTraining(options, data, factory, {}));
  return run;
}

TEST(TrainerTest, EarlyStoppingReportsTheBestValidation) {
  TrainerOptions options = SmallOptions();
  options.epochs = 100;
  options.schedule.early_stop_patience = 2;
  HOTROW_ASSERT_OK_AND_ASSIGN(const ScriptedRun run, RunScripted(options, {5, 7, 6, 9, 8, 8, 10}));
  EXPECT_EQ(run.report.epochs, 6);
  EXPECT_EQ(run.report.steps, 12);
  EXPECT_EQ(run.report.best_epoch, 4);
  EXPECT_EQ(run.report.best_step, 8);
  EXPECT_TRUE(run.report.stopped_early);
  EXPECT_DOUBLE_EQ(run.report.valid.auc, 0.9);
  EXPECT_DOUBLE_EQ(run.report.test.auc, 0.9);
  EXPECT_THAT(FormatSummary(run.report),
              AllOf(HasSubstr("Stopped after epoch 6"), HasSubstr("epoch 4, step 8")));
  // The rate did not change: 3 a step.
  EXPECT_EQ(run.first_parameters.back(), 33.0f);
}

TEST(TrainerTest, WithoutEarlyStoppingTheEndIsReported) {
  TrainerOptions options = SmallOptions();
  options.epochs = 3;
  options.schedule.lr_plateau_patience = 1;
  options.schedule.lr_plateau_factor = 0.5;
  HOTROW_ASSERT_OK_AND_ASSIGN(const ScriptedRun run, RunScripted(options, {9, 8, 7}));
  EXPECT_EQ(run.report.epochs, 3);
  EXPECT_EQ(run.report.best_epoch, 0);
  EXPECT_FALSE(run.report.stopped_early);
  EXPECT_DOUBLE_EQ(run.report.valid.auc, 0.7);
  EXPECT_DOUBLE_EQ(run.report.test.auc, 0.7);
  EXPECT_EQ(run.first_parameters, (std::vector<float>{0, 3, 6, 9, 12, 13.5}));
}

// Ten samples are of one class, so there is no AUC that anything could go by.
TEST(TrainerTest, NothingIsDecidedByAValidationOfOneClass) {
  TrainerOptions options = SmallOptions();
  options.epochs = 6;
  options.schedule.early_stop_patience = 1;
  options.schedule.lr_plateau_patience = 1;
  options.schedule.lr_plateau_factor = 0.5;
  HOTROW_ASSERT_OK_AND_ASSIGN(const ScriptedRun run,
                              RunScripted(options, {5, 4, 3}, /*valid_samples=*/10));
  EXPECT_EQ(run.report.epochs, 6);
  EXPECT_EQ(run.report.best_epoch, 0);
  EXPECT_FALSE(run.report.stopped_early);
  EXPECT_EQ(run.first_parameters.back(), 33.0f);
  const auto json = nlohmann::json::parse(ReportToJson(run.report));
  EXPECT_TRUE(json["valid"]["auc"].is_null());
  EXPECT_TRUE(json["valid"]["logloss"].is_number());
  EXPECT_THAT(FormatSummary(run.report), HasSubstr("validation AUC none (one class)"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const ScriptedRun without,
                              RunScripted(SmallOptions(), {5}, /*valid_samples=*/0));
  EXPECT_TRUE(nlohmann::json::parse(ReportToJson(without.report))["valid"].is_null());
}

TEST(TrainerTest, KeepBestReportsTheBestValidationOfAWholeRun) {
  TrainerOptions options = SmallOptions();
  options.epochs = 5;
  options.keep_best = true;
  HOTROW_ASSERT_OK_AND_ASSIGN(const ScriptedRun run, RunScripted(options, {5, 9, 6, 7, 8}));
  EXPECT_EQ(run.report.epochs, 5);
  EXPECT_EQ(run.report.best_epoch, 2);
  EXPECT_FALSE(run.report.stopped_early);
  EXPECT_DOUBLE_EQ(run.report.valid.auc, 0.9);
  EXPECT_DOUBLE_EQ(run.report.test.auc, 0.9);
  EXPECT_THAT(RunScripted(options, {9}, /*valid_samples=*/0).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--keep_best"), HasSubstr("validation data"))));
}

TEST(TrainerTest, ScheduleAndPlateauMultiplyTheRate) {
  TrainerOptions options = SmallOptions();
  options.epochs = 4;
  options.validation_freq_within_epoch = 1;
  options.schedule = {.lr_warmup_steps = 2,
                      .lr_decay_start = 4,
                      .lr_decay_steps = 4,
                      .lr_plateau_factor = 0.5,
                      .lr_plateau_patience = 5};
  HOTROW_ASSERT_OK_AND_ASSIGN(const ScriptedRun run, RunScripted(options, {9}));
  // Factors of the schedule for steps 1 to 7: 1/2 1 1 1 9/16 1/4 1/16. The sixth validation is the
  // fifth without a better AUC, so the rate of step 7 is halved.
  const std::vector<float> expected = {0,
                                       1.5f,
                                       4.5f,
                                       7.5f,
                                       10.5f,
                                       10.5f + 27.0f / 16,
                                       10.5f + 27.0f / 16 + 0.75f,
                                       10.5f + 27.0f / 16 + 0.75f + 3.0f / 32};
  EXPECT_EQ(run.first_parameters, expected);
}

TEST(TrainerTest, LongGradientsAreScaledToTheNorm) {
  TrainerOptions options = SmallOptions();
  options.max_gradient_norm = 2.5;  // half of what it is
  HOTROW_ASSERT_OK_AND_ASSIGN(const ScriptedRun shorter, RunScripted(options, {9}));
  EXPECT_EQ(shorter.first_parameters, (std::vector<float>{0, 1.5f}));
  options.max_gradient_norm = 5;
  HOTROW_ASSERT_OK_AND_ASSIGN(const ScriptedRun whole, RunScripted(options, {9}));
  EXPECT_EQ(whole.first_parameters, (std::vector<float>{0, 3}));
}

TEST(TrainerTest, PatienceWithoutValidationDataIsRefused) {
  for (const bool early_stop : {false, true}) {
    TrainerOptions options = SmallOptions();
    (early_stop ? options.schedule.early_stop_patience : options.schedule.lr_plateau_patience) = 1;
    EXPECT_THAT(
        RunScripted(options, {9}, /*valid_samples=*/0).status(),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr(early_stop ? "--early_stop_patience" : "--lr_plateau_patience"),
                       HasSubstr("validation data"))));
  }
}

// The schedule reaches the tables, too: with a rate of almost nothing they stay as they begin.
TEST(TrainerTest, TheScheduleHoldsForTablesAndDenseAlike) {
  const std::string spec = "synthetic:tables=2,rows=50,dense=1,samples=640,valid=64,test=64";
  TrainerOptions options = SmallOptions();
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport constant, RunOn(spec, options));
  options.schedule.lr_warmup_steps = 5;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport warmed, RunOn(spec, options));
  EXPECT_NE(warmed.digest.hash, constant.digest.hash);
  EXPECT_NE(warmed.dense_hash, constant.dense_hash);
  options.schedule = {.lr_plateau_patience = 100};  // never reached: nothing moves
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport same, RunOn(spec, options));
  EXPECT_EQ(same.digest.hash, constant.digest.hash);
  EXPECT_EQ(same.dense_hash, constant.dense_hash);
}

TEST(TrainerTest, ALossThatIsNotFiniteNamesWhereItComesFrom) {
  TrainerOptions options = SmallOptions();
  options.initializer = Initializer{InitializerKind::kConstant, 2e38f};
  EXPECT_THAT(
      RunOn("synthetic:tables=2,rows=50,hotness=4,dense=1,samples=64,valid=0,test=64", options)
          .status(),
      StatusIs(
          absl::StatusCode::kOutOfRange,
          AllOf(HasSubstr("step 1: the training loss is not a finite number"),
                HasSubstr("the sum of 4 finite rows from id"), HasSubstr("feature \""),
                HasSubstr("(table \""), HasSubstr("is not finite: updates before this step"))));
}

// Rows of 1e5 give dot products of some 1e11.
TEST(TrainerTest, ANumberThatIsNotFiniteNamesTheStepAndTheLayer) {
  TrainerOptions options = SmallOptions();
  options.initializer = Initializer{InitializerKind::kConstant, 1e5f};
  options.max_gradient_norm = 1;
  // The weights of the layers of the top MLP, without biases.
  const auto message = [&](float first, float second) {
    const ModelFactory factory =
        [&](const DataSchema& schema) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
      HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<CtrModel> model, SmallDlrm(options)(schema));
      auto& graph = static_cast<GraphModel&>(*model);
      const Mlp& top = *test::FindMlp(graph, "top");
      float* const parameters = graph.parameters().data() + graph.FindPart("top").offset;
      std::fill_n(parameters, top.num_parameters(), 0.0f);
      std::fill_n(parameters + top.weight_offset(0), 16 * top.input_size(), first);
      std::fill_n(parameters + top.weight_offset(1), 16, second);
      return model;
    };
    auto data = OpenDataSource("synthetic:tables=2,rows=50,dense=1,samples=640,valid=0,test=0", 5);
    HOTROW_EXPECT_OK(data);
    const absl::Status status = RunTraining(options, **data, factory, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
    return std::string(status.message());
  };
  EXPECT_THAT(message(1e-9f, std::numeric_limits<float>::quiet_NaN()),
              AllOf(HasSubstr("step 1: the training loss is not a finite number"),
                    HasSubstr("a parameter of layer \"top/1\" is not finite")));
  EXPECT_THAT(message(1e30f, 1),
              AllOf(HasSubstr("step 1: the training loss is not a finite number"),
                    HasSubstr("layer \"top/0\" is the first whose output is not")));
  EXPECT_THAT(message(1, 1e30f), HasSubstr("layer \"top/1\" is the first whose output is not"));
  // The loss is finite, and the gradient of the first weights 1e30 times 1e11.
  EXPECT_THAT(
      message(2e-38f, 1e30f),
      AllOf(HasSubstr("step 1: the gradient of the dense parameters is not a finite number"),
            HasSubstr("layer \"top/0\" is the first whose gradient is not finite")));
}

TEST(TrainerTest, AFrozenTableStaysWhileTheOthersTrain) {
  const std::string spec = "synthetic:tables=2,rows=50,dense=1,samples=640,valid=0,test=64";
  TrainerOptions options = SmallOptions();
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport all, RunOn(spec, options));
  ASSERT_EQ(all.digest.tables.size(), 2u);
  options.frozen_tables = all.digest.tables[1].name;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport frozen, RunOn(spec, options));
  EXPECT_GT(frozen.digest.tables[0].rows, 0);
  EXPECT_EQ(frozen.digest.tables[1].rows, 0);
  options.frozen_tables = "nowhere";
  EXPECT_THAT(RunOn(spec, options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--frozen_tables: the data have no \"nowhere\""),
                             HasSubstr(all.digest.tables[0].name))));
}

// Table and dense weight decay are two settings.
TEST(TrainerTest, EachWeightDecayMovesItsOwn) {
  const std::string spec =
      "synthetic:tables=2,rows=50,dense=1,samples=64,valid=0,test=64";  // a step
  TrainerOptions options = SmallOptions();
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport none, RunOn(spec, options));
  options.table_optimizer.weight_decay = 0.1f;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport tables, RunOn(spec, options));
  EXPECT_NE(tables.digest.hash, none.digest.hash);
  EXPECT_EQ(tables.dense_hash, none.dense_hash);
  options = SmallOptions();
  options.dense_optimizer.weight_decay = 0.1f;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport dense, RunOn(spec, options));
  EXPECT_EQ(dense.digest.hash, none.digest.hash);
  EXPECT_NE(dense.dense_hash, none.dense_hash);
}

// Two data sources of one form, as the epochs of one run.
class ChainedSource : public DataSource {
 public:
  ChainedSource(DataSource* first, DataSource* second) : sources_{first, second} {}
  const DataSchema& schema() const override { return sources_[0]->schema(); }
  absl::StatusOr<std::unique_ptr<DataReader>> OpenSplit(Split split, int64_t epoch,
                                                        int64_t first_sample) override {
    DataSource* const source = sources_[split == Split::kTrain ? epoch : 1];
    return source->OpenSplit(split, 0, first_sample);
  }

 private:
  DataSource* sources_[2];
};

class InitFromTest : public ::testing::Test {
 protected:
  InitFromTest() {
    options_ = SmallOptions();
    options_.table_optimizer.kind = SparseOptimizerKind::kAdam;
    options_.table_optimizer.learning_rate = 0.01f;
    options_.dense_optimizer.kind = DenseOptimizerKind::kAdam;
    options_.dense_optimizer.learning_rate = 0.01f;
    options_.cache_bytes = kSmallestCache;
    options_.prefetch_depth = 2;
    options_.env = &env_;
  }
  // Data of one form; the seed makes them others.
  static std::unique_ptr<DataSource> Data(uint64_t seed) {
    return *OpenDataSource(
        "synthetic:tables=3,rows=400,dense=2,shared=2,hotness=0-3,samples=1500,valid=200,test=200",
        seed);
  }
  // A DLRM with dropout, whose draws depend on the step.
  ModelFactory Dlrm() const {
    return [options =
                options_](const DataSchema& schema) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
      return DlrmModel::Create({{.num_dense = schema.num_dense,
                                 .num_sparse = static_cast<int32_t>(schema.features.size()),
                                 .embedding_dim = options.embedding_dim,
                                 .over_arch_layer_sizes = {16, 1},
                                 .dropout = 0.25f,
                                 .seed = options.seed,
                                 .max_batch_size = options.batch_size},
                                {16, options.embedding_dim}});
    };
  }
  absl::StatusOr<TrainReport> Run(DataSource& data) {
    return RunTraining(options_, data, Dlrm(), {});
  }

  test::MemEnv env_;
  TrainerOptions options_;
};

TEST_F(InitFromTest, GoingOnGivesTheBitsOfARunWithoutAStop) {
  const std::unique_ptr<DataSource> a = Data(5);
  const std::unique_ptr<DataSource> b = Data(6);
  ChainedSource both(a.get(), b.get());
  options_.epochs = 2;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport whole, Run(both));

  options_.epochs = 1;
  options_.save_dir = "/day1";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport first, Run(*a));
  EXPECT_EQ(first.saved_step, 24);  // 1500 / 64, rounded up
  EXPECT_EQ(first.resumed_from_step, 0);
  options_.init_from = "/day1";
  options_.save_dir = "/day2";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport second, Run(*b));
  EXPECT_EQ(second.resumed_from_step, 24);
  EXPECT_EQ(second.steps, 24);
  EXPECT_EQ(second.saved_step, 48);
  EXPECT_EQ(second.digest.hash, whole.digest.hash);
  EXPECT_EQ(second.dense_hash, whole.dense_hash);
  EXPECT_EQ(second.test.auc, whole.test.auc);
  EXPECT_GT(second.tables.initialised_rows, 0) << "no new id came: nothing was tested";
  EXPECT_NE(first.digest.hash, whole.digest.hash);

  // From the directory and into it, without a cache: the same again.
  options_.save_dir = "/day1";
  options_.cache_bytes = 0;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport in_place, Run(*b));
  EXPECT_EQ(in_place.digest.hash, whole.digest.hash);
  EXPECT_EQ(in_place.dense_hash, whole.dense_hash);
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadSavedModel(env_, "/day1"));
  EXPECT_EQ(saved.step, 48);
}

TEST_F(InitFromTest, AnotherDenseOptimizerStartsItsStateAnew) {
  const std::unique_ptr<DataSource> data = Data(5);
  options_.save_dir = "/saved";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport first, Run(*data));
  options_.save_dir.clear();
  options_.init_from = "/saved";
  options_.dense_optimizer.kind = DenseOptimizerKind::kAdagrad;
  std::FILE* const out = std::tmpfile();
  options_.out = out;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport second, Run(*data));
  std::rewind(out);
  std::string text(1 << 14, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), out));
  std::fclose(out);
  EXPECT_THAT(text,
              AllOf(HasSubstr("from     /saved: step 24"),
                    HasSubstr("the state of adagrad starts from zero: the saved model has that "
                              "of adam")));
  EXPECT_EQ(second.resumed_from_step, 24);
}

TEST_F(InitFromTest, WhatDoesNotFitIsRefused) {
  const std::unique_ptr<DataSource> data = Data(5);
  options_.save_dir = "/saved";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport first, Run(*data));
  options_.save_dir.clear();
  options_.init_from = "/nowhere";
  EXPECT_THAT(Run(*data), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("/nowhere")));
  options_.init_from = "/saved";
  options_.table_optimizer.kind = SparseOptimizerKind::kSgd;
  EXPECT_THAT(Run(*data), StatusIs(absl::StatusCode::kFailedPrecondition,
                                   AllOf(HasSubstr("table "), HasSubstr("--optimizer=adam"))));
  options_.table_optimizer.kind = SparseOptimizerKind::kAdam;
  options_.embedding_dim = 4;
  EXPECT_THAT(Run(*data), StatusIs(absl::StatusCode::kFailedPrecondition,
                                   AllOf(HasSubstr("8 columns"), HasSubstr("--embedding_dim"))));
}

TEST_F(InitFromTest, WithEarlyStoppingTheBestModelIsSaved) {
  options_.schedule.early_stop_patience = 2;
  options_.epochs = 100;
  options_.save_dir = "/best";
  HOTROW_ASSERT_OK_AND_ASSIGN(const ScriptedRun run, RunScripted(options_, {5, 7, 6, 6}));
  EXPECT_EQ(run.report.steps, 8);
  EXPECT_EQ(run.report.best_step, 4);
  EXPECT_EQ(run.report.saved_step, 4);
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadSavedModel(env_, "/best"));
  EXPECT_EQ(saved.step, 4);
  std::vector<float> parameters(16);
  HOTROW_ASSERT_OK(ReadSavedDense(env_, saved, {.parameters = parameters}));
  EXPECT_EQ(parameters[0], 12.0f);  // 3 a step
}

TEST_F(InitFromTest, AStoppedRunSavesWhatItHas) {
  std::atomic<int> signal{0};
  WatchedSource data(Data(5), [&signal](int64_t batch) {
    if (batch == 5) signal = 2;
    return absl::OkStatus();
  });
  options_.stop_signal = &signal;
  options_.schedule.early_stop_patience = 3;
  options_.prefetch_depth = 0;
  options_.save_dir = "/saved";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, Run(data));
  EXPECT_EQ(report.steps, 6);
  EXPECT_EQ(report.saved_step, 6);
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadSavedModel(env_, "/saved"));
  EXPECT_EQ(saved.step, 6);
}

// The lines of a run with mllog, by key.
TEST(TrainerTest, MllogLinesStandAlone) {
  std::FILE* const out = std::tmpfile();
  TrainerOptions options = SmallOptions();
  options.out = out;
  options.mllog = true;
  options.epochs = 2;
  options.validation_freq_within_epoch = 1;
  HOTROW_ASSERT_OK_AND_ASSIGN(const ScriptedRun run, RunScripted(options, {5, 7, 6, 9}));
  std::rewind(out);
  std::string text(1 << 16, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), out));
  std::fclose(out);
  std::vector<std::string> keys;
  std::vector<double> epochs;
  std::vector<double> aucs;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(":::MLLOG") == std::string::npos) continue;
    ASSERT_EQ(line.find(":::MLLOG {"), 0u) << line;
    const nlohmann::json json = nlohmann::json::parse(line.substr(9), nullptr, false);
    ASSERT_TRUE(json.is_object()) << line;
    keys.push_back(json["key"]);
    if (json["key"] == "global_batch_size") {
      EXPECT_EQ(json["value"], 40);
    }
    if (json["key"] == "eval_accuracy") {
      aucs.push_back(json["value"]);
      epochs.push_back(json["metadata"]["epoch_num"]);
    }
    if (json["key"] == "run_stop") {
      EXPECT_EQ(json["metadata"]["status"], "success");
    }
  }
  EXPECT_EQ(aucs, (std::vector<double>{0.5, 0.7, 0.6, 0.9}));
  EXPECT_EQ(epochs, (std::vector<double>{0.5, 1, 1.5, 2}));
  const auto at = std::find(keys.begin(), keys.end(), "run_start");
  EXPECT_EQ(
      std::vector<std::string>(at, keys.end()),
      (std::vector<std::string>{
          "run_start", "epoch_start", "eval_start", "eval_accuracy", "eval_stop", "eval_start",
          "eval_accuracy", "eval_stop", "epoch_stop", "epoch_start", "eval_start", "eval_accuracy",
          "eval_stop", "eval_start", "eval_accuracy", "eval_stop", "epoch_stop", "run_stop"}));
  for (const char* const key : {"init_start", "init_stop", "seed", "train_samples",
                                "opt_base_learning_rate", "lr_decay_start_steps"}) {
    EXPECT_EQ(std::count(keys.begin(), keys.end(), key), 1) << key;
  }
}

TEST(TrainerTest, AFailedRunLogsThatItWasAborted) {
  std::FILE* const out = std::tmpfile();
  TrainerOptions options = SmallOptions();
  options.out = out;
  options.mllog = true;
  options.schedule.early_stop_patience = 1;
  EXPECT_FALSE(RunScripted(options, {9}, /*valid_samples=*/0).ok());
  std::rewind(out);
  std::string text(1 << 16, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), out));
  std::fclose(out);
  EXPECT_THAT(text, HasSubstr("\"run_stop\",\"value\":null,\"metadata\":{\"status\":\"aborted\"}"));
}

TEST(TrainerTest, OptionsAreChecked) {
  const auto error = [](auto change) {
    TrainerOptions options = SmallOptions();
    change(&options);
    absl::Status status = CheckLowerBounds(options);
    if (status.ok()) status = options.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status.ToString();
    return std::string(status.message());
  };
  HOTROW_EXPECT_OK(CheckLowerBounds(SmallOptions()));
  HOTROW_EXPECT_OK(SmallOptions().Validate());
  EXPECT_THAT(error([](TrainerOptions* o) { o->batch_size = 0; }), HasSubstr("--batch_size"));
  EXPECT_THAT(error([](TrainerOptions* o) { o->epochs = 0; }), HasSubstr("--epochs"));
  EXPECT_THAT(error([](TrainerOptions* o) { o->embedding_dim = 0; }), HasSubstr("--embedding_dim"));
  EXPECT_THAT(error([](TrainerOptions* o) { o->store_bytes = 0; }), HasSubstr("--store_bytes"));
  EXPECT_THAT(error([](TrainerOptions* o) { o->cache_bytes = -2; }), HasSubstr("--cache_bytes"));
  EXPECT_THAT(error([](TrainerOptions* o) { o->pooling = Pooling::kNone; }), HasSubstr("pooling"));
  EXPECT_THAT(error([](TrainerOptions* o) { o->table_optimizer.learning_rate = -1; }),
              HasSubstr("learning_rate"));
  EXPECT_THAT(error([](TrainerOptions* o) { o->max_gradient_norm = -1; }),
              HasSubstr("--max_gradient_norm"));
  EXPECT_THAT(error([](TrainerOptions* o) { o->schedule.lr_warmup_steps = -1; }),
              HasSubstr("--lr_warmup_steps"));
}

TEST(TrainerTest, FeaturesOfOneTableShareIt) {
  DataSchema schema;
  schema.features = {{.name = "item", .table = "items", .num_embeddings = 10, .max_hotness = 1},
                     {.name = "user", .table = "users", .num_embeddings = 7, .max_hotness = 1},
                     {.name = "history", .table = "items", .num_embeddings = 12, .max_hotness = 0}};
  const EmbeddingCollectionOptions options = CollectionOptions(SmallOptions(), schema);
  ASSERT_EQ(options.tables.size(), 2u);
  EXPECT_EQ(options.tables[0].name, "items");
  EXPECT_EQ(options.tables[0].feature_names, (std::vector<std::string>{"item", "history"}));
  EXPECT_EQ(options.tables[0].num_embeddings, 12);
  EXPECT_EQ(options.tables[0].max_hotness, 0);  // one of them has no bound
  EXPECT_NEAR(options.tables[0].initializer.value, 1 / std::sqrt(12.0), 1e-6);
  EXPECT_EQ(options.tables[1].max_hotness, 1);
  EXPECT_EQ(options.feature_order, (std::vector<std::string>{"item", "user", "history"}));
}

std::set<std::string> KeysOf(const nlohmann::json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

TEST(ReportTest, JsonHasEveryFieldByItsName) {
  TraceRecorder trace(/*keep_events=*/false);
  TrainerOptions options = SmallOptions();
  options.cache_bytes = kSmallestCache;
  HOTROW_ASSERT_OK_AND_ASSIGN(
      TrainReport report,
      RunOn("synthetic:tables=2,rows=200,dense=1,samples=1000,valid=100,test=100", options,
            {.trace = &trace}));
  report.flags = {{"batch_size", int64_t{64}}, {"eps", 0.5}, {"report", std::string("a\"b\xff")}};
  const nlohmann::json json = nlohmann::json::parse(ReportToJson(report));
  using Keys = std::set<std::string>;
  EXPECT_EQ(KeysOf(json), (Keys{"model",
                                "flags",
                                "samples",
                                "steps",
                                "epochs",
                                "resumed_from_step",
                                "best_epoch",
                                "best_step",
                                "threads",
                                "device",
                                "world_size",
                                "seconds",
                                "train_seconds",
                                "cpu_seconds",
                                "samples_per_second",
                                "step_ms",
                                "train",
                                "graph_steps",
                                "fused_lookup_steps",
                                "unfused_products",
                                "valid",
                                "test",
                                "tables_hash",
                                "dense_hash",
                                "rows",
                                "peak_rss_bytes",
                                "unique_keys_per_step",
                                "prefetch_waits",
                                "lookup_waits",
                                "transfer",
                                "device_index",
                                "overflow_rows",
                                "exchange",
                                "initialised_rows",
                                "admission_rejected",
                                "expired_rows",
                                "tables",
                                "tiers",
                                "stages",
                                "checkpoints"}));
  EXPECT_EQ(KeysOf(json["step_ms"]), (Keys{"p50", "p99", "max"}));
  EXPECT_EQ(KeysOf(json["train"]), (Keys{"logloss"}));
  EXPECT_EQ(KeysOf(json["valid"]), (Keys{"auc", "logloss", "ne", "calibration"}));
  EXPECT_EQ(KeysOf(json["test"]), (Keys{"auc", "logloss", "ne", "calibration", "best_auc"}));
  report.best_auc = 0;  // real data do not know it
  EXPECT_EQ(KeysOf(nlohmann::json::parse(ReportToJson(report))["test"]),
            (Keys{"auc", "logloss", "ne", "calibration"}));
  EXPECT_EQ(KeysOf(json["checkpoints"]),
            (Keys{"count", "early", "bytes", "ms", "commit_ms", "pause_ms", "resumed_step"}));
  ASSERT_EQ(json["tables"].size(), 2u);
  EXPECT_EQ(KeysOf(json["tables"][0]),
            (Keys{"name", "rows", "dim", "weights_precision", "row_bytes", "hash"}));
  ASSERT_EQ(json["tiers"].size(), 2u);
  EXPECT_EQ(KeysOf(json["tiers"][0]),
            (Keys{"name", "budget_bytes", "used_bytes", "peak_bytes", "lookups", "unique_hit_rate",
                  "hit_rate", "evictions", "dirty_writebacks", "ios", "rows_read", "rows_written",
                  "bytes_read", "bytes_written", "write_amplification", "snapshot_bytes",
                  "disk_budget_bytes", "disk_used_bytes", "index_bytes"}));

  EXPECT_EQ(json["model"], "dlrm");
  EXPECT_EQ(json["flags"]["batch_size"], 64);
  EXPECT_EQ(json["flags"]["eps"], 0.5);
  EXPECT_EQ(json["samples"], 1000);
  EXPECT_EQ(json["steps"], 16);
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_EQ(json["world_size"], 1);
  EXPECT_EQ(json["tables_hash"], report.digest.hash.ToHex());
  EXPECT_EQ(json["tables_hash"].get<std::string>().size(), 32u);
  EXPECT_GT(json["samples_per_second"], 0);
  EXPECT_GT(json["cpu_seconds"], 0);
  EXPECT_GT(json["peak_rss_bytes"], 1 << 20);
  EXPECT_GT(json["unique_keys_per_step"], 0);
  EXPECT_LE(json["unique_keys_per_step"], 128);
  EXPECT_LE(json["step_ms"]["p50"], json["step_ms"]["max"]);
  EXPECT_EQ(json["tiers"][0]["name"], "cache");
  EXPECT_EQ(json["tiers"][0]["lookups"], 2000);
  EXPECT_GT(json["tiers"][0]["hit_rate"], 0);
  EXPECT_LE(json["tiers"][0]["used_bytes"], json["tiers"][0]["budget_bytes"]);
  EXPECT_EQ(json["tiers"][1]["name"], "memory");
  std::set<std::string> stages;
  for (const auto& stage : json["stages"]) stages.insert(stage["name"]);
  for (const char* const name : {"data", "prefetch", "lookup", "forward", "loss", "backward",
                                 "update", "dense_update", "evaluate"}) {
    EXPECT_TRUE(stages.contains(name)) << name;
  }
}

TEST(ReportTest, FormatsNumbers) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(-123456), "-123,456");
  EXPECT_EQ(FormatCount(INT64_MIN), "-9,223,372,036,854,775,808");
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(int64_t{64} << 20), "64.0 MiB");
  EXPECT_EQ(FormatBytes(int64_t{5} << 50), "5120.0 TiB");
}

TEST(ReportTest, SummaryOfAnEmptyRunHasNoNonsense) {
  const std::string summary = FormatSummary(TrainReport());
  EXPECT_THAT(summary, ::testing::Not(HasSubstr("nan")));
  EXPECT_THAT(summary, HasSubstr("not evaluated"));
}

// Nothing is said where there are none.
TEST(ReportTest, ProductsThatAreNotFusedAreNamed) {
  TrainReport report;
  EXPECT_THAT(FormatSummary(report), ::testing::Not(HasSubstr("products")));
  report.unfused_products = {"a product [2, 3], ReLU: NaNs are treated otherwise", "another one"};
  EXPECT_THAT(FormatSummary(report), HasSubstr("NaNs are treated otherwise"));
  const nlohmann::json json = nlohmann::json::parse(ReportToJson(report));
  EXPECT_EQ(json["unfused_products"], nlohmann::json(report.unfused_products));
}

// Each thread of a run in turn cannot be made, alone or with all that follow: an error that says
// so, or, where the work can be done without, the bits of any other run.
TEST(TrainerTest, ThreadsThatCannotBeMadeAreAnError) {
  TrainerOptions options = test::SmallRun();
  options.epochs = 1;
  options.limit_train_batches = 6;
  options.validation_freq_within_epoch = 0;
  options.store = StoreKind::kSsd;
  options.disk_bytes = int64_t{16} << 20;
  options.cache_bytes = kSmallestCache;
  options.prefetch_depth = 1;
  options.checkpoint_every = 3;
  const auto run = [&]() -> absl::StatusOr<TrainReport> {
    // The real files' queue may have threads, too, but takes its time.
    test::MemEnv env;
    const std::string dir = test::RunsSlowTests() ? test::TempDir() : "/run";
    TrainerOptions here = options;
    if (!test::RunsSlowTests()) here.env = &env;
    here.store_path = dir + "/rows";
    here.checkpoint_dir = dir + "/checkpoints";
    ThreadPool pool(3);
    return test::RunSmall(here, {.pool = &pool});
  };
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport whole, run());
  for (const int64_t bad : {int64_t{1}, test::FailingThreads::kAllOthers}) {
    int64_t errors = 0;
    for (int64_t good = 0;; ++good) {
      SCOPED_TRACE(testing::Message() << good << " threads, then " << bad << " fail");
      const test::FailingThreads threads(good, bad);
      const absl::StatusOr<TrainReport> report = run();
      if (report.ok()) {
        ASSERT_EQ(test::EndOf(*report), test::EndOf(whole));
      } else {
        ASSERT_THAT(report, StatusIs(absl::StatusCode::kUnavailable,
                                     AllOf(HasSubstr("the system has no thread for "),
                                           HasSubstr("ulimit -u"))));
        ++errors;
      }
      if (threads.refused() == 0) break;
      ASSERT_LT(good, 1000);
    }
    EXPECT_GE(errors, 5) << "were any refused?";
  }
}

}  // namespace
}  // namespace hotrow
