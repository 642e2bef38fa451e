#include "models/trainer.h"

#include <atomic>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "base/trace.h"
#include "gtest/gtest.h"
#include "models/dlrm_model.h"
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
    return DlrmModel::Create({.num_dense = schema.num_dense,
                              .num_sparse = static_cast<int32_t>(schema.features.size()),
                              .embedding_dim = options.embedding_dim,
                              .dense_arch_layer_sizes = {16, options.embedding_dim},
                              .over_arch_layer_sizes = {16, 1},
                              .seed = options.seed,
                              .max_batch_size = options.batch_size});
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

TEST(TrainerTest, OptionsAreChecked) {
  const auto error = [](auto change) {
    TrainerOptions options = SmallOptions();
    change(&options);
    const absl::Status status = options.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status.ToString();
    return std::string(status.message());
  };
  HOTROW_EXPECT_OK(SmallOptions().Validate());
  EXPECT_THAT(error([](TrainerOptions* o) { o->batch_size = 0; }), HasSubstr("--batch_size"));
  EXPECT_THAT(error([](TrainerOptions* o) { o->epochs = 0; }), HasSubstr("--epochs"));
  EXPECT_THAT(error([](TrainerOptions* o) { o->embedding_dim = 0; }), HasSubstr("--embedding_dim"));
  EXPECT_THAT(error([](TrainerOptions* o) { o->store_bytes = 0; }), HasSubstr("--store_bytes"));
  EXPECT_THAT(error([](TrainerOptions* o) { o->cache_bytes = -2; }), HasSubstr("--cache_bytes"));
  EXPECT_THAT(error([](TrainerOptions* o) { o->pooling = Pooling::kNone; }), HasSubstr("pooling"));
  EXPECT_THAT(error([](TrainerOptions* o) { o->table_optimizer.learning_rate = -1; }),
              HasSubstr("learning_rate"));
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
                                "threads",
                                "device",
                                "world_size",
                                "seconds",
                                "train_seconds",
                                "cpu_seconds",
                                "samples_per_second",
                                "step_ms",
                                "train",
                                "valid",
                                "test",
                                "tables_hash",
                                "dense_hash",
                                "rows",
                                "peak_rss_bytes",
                                "unique_keys_per_step",
                                "prefetch_waits",
                                "overflow_rows",
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
  EXPECT_EQ(KeysOf(json["checkpoints"]), (Keys{"count", "bytes", "ms"}));
  ASSERT_EQ(json["tables"].size(), 2u);
  EXPECT_EQ(KeysOf(json["tables"][0]), (Keys{"name", "rows", "dim", "row_bytes", "hash"}));
  ASSERT_EQ(json["tiers"].size(), 2u);
  EXPECT_EQ(KeysOf(json["tiers"][0]),
            (Keys{"name", "budget_bytes", "used_bytes", "peak_bytes", "lookups", "unique_hit_rate",
                  "hit_rate", "evictions", "dirty_writebacks", "ios", "rows_read", "rows_written",
                  "bytes_read", "bytes_written", "write_amplification", "snapshot_bytes"}));

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

}  // namespace
}  // namespace hotrow
