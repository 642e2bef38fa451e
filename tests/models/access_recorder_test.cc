// What a run tells the planner: its spec, the accesses of its steps, what other caches would hit.

#include "models/train/access_recorder.h"
#include "models/data/open_data_source.h"

#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "comm/thread_communicator.h"
#include "gtest/gtest.h"
#include "models/train/trainer.h"
#include "models/zoo/dlrm_model.h"
#include "tests/support/faulty_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kLookups = 4 * 2;  // of a sample
constexpr char kSpec[] =
    "synthetic:tables=4,rows=20000,dense=2,hotness=2,samples=20000,valid=500,test=500,zipf=0.9";

TrainerOptions SmallOptions() {
  TrainerOptions options;
  options.batch_size = 256;
  options.embedding_dim = 4;
  options.table_optimizer.learning_rate = 0.05f;
  options.dense_optimizer.kind = DenseOptimizerKind::kAdam;
  options.dense_optimizer.learning_rate = 0.01f;
  options.seed = 3;
  options.store_bytes = int64_t{64} << 20;
  options.cache_bytes = kSmallestCache;
  options.prefetch_depth = 2;
  return options;
}

absl::StatusOr<TrainReport> RunOn(DataSource& data, const TrainerOptions& options) {
  const ModelFactory factory =
      [&](const DataSchema& schema) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
    return DlrmModel::Create({{.num_dense = schema.num_dense,
                               .num_sparse = static_cast<int32_t>(schema.features.size()),
                               .embedding_dim = options.embedding_dim,
                               .over_arch_layer_sizes = {5, 1},
                               .seed = options.seed,
                               .max_batch_size = options.batch_size},
                              {6, options.embedding_dim}});
  };
  return RunTraining(options, data, factory, {});
}

absl::StatusOr<TrainReport> Train(const TrainerOptions& options) {
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<DataSource> data, OpenDataSource(kSpec, 5));
  return RunOn(*data, options);
}

struct Trace {
  std::unique_ptr<AccessTraceReader> reader;
  std::vector<AccessTraceStep> steps;
};

Trace ReadTrace(const std::string& path, Env& env = PosixEnv()) {
  Trace trace;
  absl::StatusOr<std::unique_ptr<AccessTraceReader>> reader = AccessTraceReader::Open(env, path);
  HOTROW_EXPECT_OK(reader);
  if (!reader.ok()) return trace;
  trace.reader = *std::move(reader);
  for (AccessTraceStep step;;) {
    const absl::StatusOr<bool> more = trace.reader->Next(&step);
    HOTROW_EXPECT_OK(more);
    if (!more.ok() || !*more) return trace;
    trace.steps.push_back(step);
  }
}

TEST(AccessRecorderTest, PathsNameTheRankAndWhatWasResumed) {
  EXPECT_EQ(AccessTracePath("a/t", 0, 1, -1), "a/t");
  EXPECT_EQ(AccessTracePath("a/t", 3, 8, -1), "a/t.rank3");
  EXPECT_EQ(AccessTracePath("a/t", 0, 1, 0), "a/t.step0");
  EXPECT_EQ(AccessTracePath("a/t", 1, 2, 500), "a/t.rank1.step500");
}

// The trace of all keys has everything that the run asked of its tables, so the curves follow from
// it: the estimates to the bit, and the exact ones within the stated errors.
TEST(AccessRecorderTest, TheCurvesOfARunAreThoseOfItsTrace) {
  TrainerOptions options = SmallOptions();
  options.validation_freq_within_epoch = 20;  // evaluation must not be seen
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport plain, Train(options));
  EXPECT_FALSE(plain.mrc.has_value());
  EXPECT_EQ(nlohmann::json::parse(ReportToJson(plain)).count("mrc"), 0u);

  options.record_trace = test::TempDir() + "/trace";
  options.sample_rate = 1;
  options.mrc = true;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, Train(options));
  EXPECT_EQ(report.digest.hash, plain.digest.hash);
  EXPECT_EQ(report.dense_hash, plain.dense_hash);
  HOTROW_EXPECT_OK(report.access_status);
  EXPECT_EQ(report.access_trace, options.record_trace);

  const Trace trace = ReadTrace(options.record_trace);
  ASSERT_TRUE(trace.reader != nullptr && trace.reader->complete());
  EXPECT_EQ(trace.reader->sample_rate(), 1);
  ASSERT_EQ(trace.reader->tables().size(), 4u);
  ASSERT_EQ(std::ssize(trace.steps), report.steps);

  // One for each table, the last one for all.
  std::vector<LruCurve> exact(5, LruCurve(options.seed));
  std::vector<SampledLruCurve> sampled(
      5, SampledLruCurve({.sample_rate = AccessRecorder::kCurveSampleRate,
                          .keys_max = AccessRecorder::kCurveKeysMax,
                          .seed = options.seed}));
  int64_t samples = 0;
  int64_t unique_keys = 0;
  for (size_t i = 0; i < trace.steps.size(); ++i) {
    const AccessTraceStep& step = trace.steps[i];
    EXPECT_EQ(step.step, i + 1);
    samples += step.samples;
    ASSERT_EQ(step.tables.size(), 4u);
    int64_t lookups = 0;
    for (const AccessTraceStep::Table& table : step.tables) {
      EXPECT_EQ(std::ssize(table.keys), table.unique_keys);
      lookups += table.lookups;
      unique_keys += table.unique_keys;
      for (const uint64_t key : table.keys) {
        exact[table.table].Add(key);
        exact[4].Add(key, table.table);
        sampled[table.table].Add(key, table.table);
        sampled[4].Add(key, table.table);
      }
    }
    EXPECT_EQ(lookups, kLookups * step.samples);
  }
  EXPECT_EQ(samples, report.samples);
  EXPECT_EQ(unique_keys, report.tables.unique_keys);

  ASSERT_TRUE(report.mrc.has_value());
  ASSERT_EQ(report.mrc->tables.size(), 4u);
  for (size_t t = 0; t < 5; ++t) {
    const MissRatioCurve& curve = t < 4 ? report.mrc->tables[t] : report.mrc->all;
    SCOPED_TRACE(curve.name);
    EXPECT_EQ(curve.name, t < 4 ? trace.reader->tables()[t].name : "");
    EXPECT_EQ(curve.accesses, exact[t].accesses());
    EXPECT_NEAR(curve.sample_rate, AccessRecorder::kCurveSampleRate, 1e-6);
    EXPECT_NEAR(curve.distinct, static_cast<double>(exact[t].distinct()),
                0.15 * static_cast<double>(exact[t].distinct()));
    EXPECT_GT(curve.memory_bytes, 0);
    ASSERT_GE(curve.points.size(), 9u);
    int64_t before = 0;
    for (const MissRatioCurve::Point& point : curve.points) {
      EXPECT_GT(point.size, before);
      before = point.size;
      const auto size = static_cast<double>(point.size);
      EXPECT_NEAR(point.fraction, size / curve.distinct, 1e-12);
      EXPECT_NEAR(point.hit_rate, sampled[t].HitRate(size), 1e-12);
      EXPECT_NEAR(point.error, sampled[t].HitRateError(size), 1e-12);
      // A few times 1 / rate and less is not resolved. Twice the error is four standard errors.
      if (point.fraction < 0.09) continue;
      EXPECT_NEAR(point.hit_rate, exact[t].HitRate(point.size), 2 * point.error) << size;
      EXPECT_LT(point.error, 0.15) << size;
    }
  }

  const nlohmann::json json = nlohmann::json::parse(ReportToJson(report))["mrc"];
  EXPECT_EQ(json["policy"], "lru");
  EXPECT_EQ(json["accesses"], report.mrc->all.accesses);
  ASSERT_EQ(json["tables"].size(), 4u);
  EXPECT_EQ(json["tables"][2]["name"], report.mrc->tables[2].name);
  EXPECT_EQ(json["tables"][2]["distinct"], std::llround(report.mrc->tables[2].distinct));
  const nlohmann::json& point = json["tables"][2]["points"][8];
  EXPECT_EQ(point["size"], report.mrc->tables[2].points[8].size);
  EXPECT_EQ(point["hit_rate"], report.mrc->tables[2].points[8].hit_rate);
  EXPECT_EQ(point["error"], report.mrc->tables[2].points[8].error);
}

// A table smaller than what the curve resolves, and a run without a step.
TEST(AccessRecorderTest, CurvesOfLittle) {
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<AccessRecorder> recorder,
      AccessRecorder::Open({.tables = {"small", "idle"}, .curves = true, .seed = 1}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::optional<MissRatioCurves> none, recorder->Curves(nullptr));
  ASSERT_TRUE(none.has_value());
  EXPECT_EQ(none->all.accesses, 0);
  EXPECT_TRUE(none->all.points.empty());

  std::vector<RowKey> keys;
  for (uint64_t key = 0; key < 200; ++key) keys.push_back({key, 0});
  const std::vector<int32_t> lookups(keys.size(), 3);
  for (int64_t step = 1; step <= 10; ++step) {
    recorder->Add(0, keys, lookups);
    recorder->Add(1, {}, {});
    HOTROW_EXPECT_OK(recorder->EndStep(step, 600));
  }
  HOTROW_EXPECT_OK(recorder->Close());
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::optional<MissRatioCurves> curves,
                              recorder->Curves(nullptr));
  ASSERT_TRUE(curves.has_value());
  EXPECT_EQ(curves->tables[0].accesses, 2000);
  EXPECT_EQ(curves->all.accesses, 2000);
  ASSERT_FALSE(curves->tables[0].points.empty());
  EXPECT_NEAR(curves->tables[0].points.back().hit_rate, 0.9, 0.1);  // all but the first of ten
  EXPECT_LT(curves->tables[0].points.front().hit_rate, 0.2);
  EXPECT_TRUE(curves->tables[1].points.empty());
}

TEST(AccessRecorderTest, RanksRecordWhatTheyKeepAndAddUpTheirCurves) {
  const std::string dir = test::TempDir();
  TrainerOptions options = SmallOptions();
  options.mrc = true;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport one, Train(options));
  options.record_trace = dir + "/trace";
  options.sample_rate = 1;
  std::vector<absl::StatusOr<TrainReport>> reports(
      2, absl::StatusOr<TrainReport>(absl::UnknownError("did not run")));
  RunOnThreads(2, {.timeout_seconds = 60}, [&](Communicator& communicator) {
    TrainerOptions mine = options;
    mine.communicator = &communicator;
    reports[communicator.rank()] = Train(mine);
    return reports[communicator.rank()].status();
  });
  std::vector<Trace> traces;
  for (int rank = 0; rank < 2; ++rank) {
    HOTROW_ASSERT_OK(reports[rank].status());
    EXPECT_EQ(reports[rank]->access_trace, options.record_trace + ".rank" + std::to_string(rank));
    traces.push_back(ReadTrace(reports[rank]->access_trace));
    ASSERT_TRUE(traces[rank].reader != nullptr && traces[rank].reader->complete());
    ASSERT_EQ(std::ssize(traces[rank].steps), one.steps);
  }
  EXPECT_FALSE(*PosixEnv().Exists(options.record_trace));
  std::map<std::pair<uint32_t, uint64_t>, int> owner;
  int64_t accesses = 0;
  for (size_t i = 0; i < traces[0].steps.size(); ++i) {
    int64_t lookups = 0;
    for (int rank = 0; rank < 2; ++rank) {
      const AccessTraceStep& step = traces[rank].steps[i];
      EXPECT_EQ(step.step, i + 1);
      for (const AccessTraceStep::Table& table : step.tables) {
        accesses += table.unique_keys;
        lookups += table.lookups;  // one or two of each key: the ranks that ask for it
        EXPECT_GE(table.lookups, table.unique_keys);
        EXPECT_LE(table.lookups, 2 * table.unique_keys);
        for (const uint64_t key : table.keys) {
          ASSERT_EQ(owner.try_emplace({table.table, key}, rank).first->second, rank);
        }
      }
    }
    EXPECT_LE(lookups, kLookups * traces[0].steps[i].samples);
  }
  EXPECT_EQ(accesses, one.mrc->all.accesses);
  for (const absl::StatusOr<TrainReport>& report : reports) {
    ASSERT_TRUE(report->mrc.has_value());
    for (size_t t = 0; t < 5; ++t) {
      const MissRatioCurve& curve = t < 4 ? report->mrc->tables[t] : report->mrc->all;
      const MissRatioCurve& expected = t < 4 ? one.mrc->tables[t] : one.mrc->all;
      EXPECT_EQ(curve.accesses, expected.accesses);
      EXPECT_NEAR(curve.distinct, expected.distinct, 1e-6);  // the same sample, dealt out
      ASSERT_EQ(curve.points.size(), expected.points.size());
      for (size_t i = 0; i < curve.points.size(); ++i) {
        EXPECT_NEAR(curve.points[i].size, expected.points[i].size, 2);
        EXPECT_NEAR(curve.points[i].hit_rate, expected.points[i].hit_rate,
                    expected.points[i].error + 0.01);
      }
    }
  }
}

TEST(AccessRecorderTest, AResumedRunRecordsBesideWhatIsThere) {
  const std::string dir = test::TempDir();
  TrainerOptions options = SmallOptions();
  options.checkpoint_dir = dir + "/run";
  options.resume = true;
  options.mrc = true;
  options.record_trace = dir + "/trace";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport first, Train(options));
  EXPECT_EQ(first.access_trace, dir + "/trace");
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string before,
                              ReadFileToString(PosixEnv(), dir + "/trace"));
  options.epochs = 3;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport second, Train(options));
  EXPECT_EQ(second.access_trace, dir + "/trace.step" + std::to_string(first.steps));
  const Trace trace = ReadTrace(second.access_trace);
  ASSERT_EQ(std::ssize(trace.steps), second.steps - first.steps);
  EXPECT_EQ(trace.steps[0].step, static_cast<uint64_t>(first.steps) + 1);
  EXPECT_EQ(trace.steps.back().step, static_cast<uint64_t>(second.steps));
  EXPECT_EQ(*ReadFileToString(PosixEnv(), dir + "/trace"), before);
  // The curves are of the second run alone: two epochs after one.
  EXPECT_NEAR(static_cast<double>(second.mrc->all.accesses),
              2 * static_cast<double>(first.mrc->all.accesses),
              0.05 * static_cast<double>(first.mrc->all.accesses));
}

TEST(AccessRecorderTest, AFullDiskEndsTheTraceAndNotTheRun) {
  TrainerOptions options = SmallOptions();
  options.epochs = 2;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport plain, Train(options));
  test::FaultyEnv env;
  HOTROW_ASSERT_OK(env.CreateDirs("/d"));
  env.SetCapacity(1'500'000);  // the writer's buffer has 1 MiB
  options.env = &env;
  options.mrc = true;
  options.record_trace = "/d/trace";
  options.sample_rate = 1;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, Train(options));
  EXPECT_THAT(report.access_status, StatusIs(absl::StatusCode::kResourceExhausted,
                                             HasSubstr("--record_trace=/d/trace: ")));
  EXPECT_EQ(report.steps, plain.steps);
  EXPECT_EQ(report.digest.hash, plain.digest.hash);
  EXPECT_EQ(report.mrc->all.accesses, plain.tables.unique_keys);
  const Trace trace = ReadTrace("/d/trace", env);
  ASSERT_TRUE(trace.reader != nullptr);
  EXPECT_FALSE(trace.reader->complete());
  EXPECT_GT(trace.steps.size(), 10u);
  EXPECT_LT(std::ssize(trace.steps), report.steps);
}

// Data of which nothing says how many rows its tables have.
class UnboundedSource : public DataSource {
 public:
  explicit UnboundedSource(std::unique_ptr<DataSource> base)
      : base_(std::move(base)), schema_(base_->schema()) {
    for (DataFeature& feature : schema_.features) feature.num_embeddings = 0;
  }
  const DataSchema& schema() const override { return schema_; }
  absl::StatusOr<std::unique_ptr<DataReader>> OpenSplit(Split split, int64_t epoch,
                                                        int64_t first_sample) override {
    return base_->OpenSplit(split, epoch, first_sample);
  }

 private:
  std::unique_ptr<DataSource> base_;
  DataSchema schema_;
};

TEST(SaveSpecTest, SaysWhatTheRunIs) {
  TrainerOptions options = SmallOptions();
  options.save_spec = test::TempDir() + "/spec.json";
  options.limit_train_batches = 2;
  options.checkpoint_dir = test::TempDir() + "/run";
  options.checkpoint_every = 70;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, Train(options));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text,
                              ReadFileToString(PosixEnv(), options.save_spec));
  const nlohmann::json spec = nlohmann::json::parse(text);
  EXPECT_EQ(spec["batch_size"], 256);
  EXPECT_EQ(spec["ranks"], 1);
  EXPECT_EQ(spec["store"], "memory");
  EXPECT_EQ(spec["cache_bytes"], report.cache_bytes);  // the smallest, in bytes
  EXPECT_GT(report.cache_bytes, 0);
  EXPECT_EQ(spec["prefetch_depth"], 2);
  EXPECT_EQ(spec["checkpoint_interval_steps"], 70);
  EXPECT_EQ(spec["model"]["dense_features"], 2);
  EXPECT_EQ(spec["model"]["bottom"], nlohmann::json({6, 4}));
  EXPECT_EQ(spec["model"]["top"], nlohmann::json({5, 1}));
  EXPECT_EQ(spec["model"]["interaction"], "dot");
  EXPECT_EQ(spec["model"]["dense_optimizer"], "adam");
  ASSERT_EQ(spec["tables"].size(), 4u);
  EXPECT_EQ(spec["tables"][0]["rows"], 20000);
  EXPECT_EQ(spec["tables"][0]["dim"], 4);
  EXPECT_EQ(spec["tables"][0]["hotness"], 2);
}

TEST(SaveSpecTest, WhatCannotBeSavedIsRefusedBeforeAnythingIsMade) {
  const std::string dir = test::TempDir();
  TrainerOptions options = SmallOptions();
  options.store = StoreKind::kSsd;
  options.store_path = dir + "/store";
  options.store_bytes = 32 << 20;
  options.disk_bytes = 256 << 20;
  options.save_spec = dir + "/missing/spec.json";
  EXPECT_THAT(std::string(Train(options).status().message()),
              HasSubstr("--save_spec=" + options.save_spec + ": "));
  options.save_spec = dir + "/spec.json";
  HOTROW_ASSERT_OK_AND_ASSIGN(std::unique_ptr<DataSource> data, OpenDataSource(kSpec, 5));
  UnboundedSource unbounded(std::move(data));
  EXPECT_THAT(RunOn(unbounded, options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--save_spec="), HasSubstr("table "), HasSubstr("rows"))));
  EXPECT_FALSE(*PosixEnv().Exists(dir + "/store"));
  EXPECT_FALSE(*PosixEnv().Exists(dir + "/spec.json"));
}

}  // namespace
}  // namespace hotrow
