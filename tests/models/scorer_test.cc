#include "models/serving/scorer.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/metrics.h"
#include "models/data/open_data_source.h"
#include "models/saving/checkpoint.h"
#include "models/saving/dense_file.h"
#include "models/saving/manifest.h"
#include "models/saving/portable_model.h"
#include "models/serving/score_file.h"
#include "models/train/trainer.h"
#include "models/zoo/model_kinds.h"
#include "store/open.h"
#include "tests/models/scored_models.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::ExpectSameBits;
using test::kBatchSize;
using test::Kind;
using test::Kinds;
using test::kLines;
using test::OptionsOf;
using test::RecipeOf;
using test::ScoreAll;
using test::StatusIs;
using test::TestBatches;
using test::TheLog;
using test::Train;
using test::Views;
using test::WriteLog;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The logits of EmbeddingCollection::Evaluate and the model, as an evaluation of the trainer's that
// starts from the saved model has them.
absl::StatusOr<std::vector<float>> EvaluateAll(const Kind& kind, const std::string& data,
                                               const std::string& saved_dir,
                                               const std::vector<CtrBatch>& batches) {
  const TrainerOptions options = OptionsOf(kind);
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<DataSource> source, OpenDataSource(data, 5));
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<GraphModel> model,
                          CreateModelOfKind(RecipeOf(kind, options, source->schema())));
  HOTROW_ASSIGN_OR_RETURN(const SavedModel saved, ReadCheckpoint(PosixEnv(), saved_dir));
  HOTROW_ASSIGN_OR_RETURN(const DenseVectors dense, ReadSavedDense(PosixEnv(), saved));
  std::ranges::copy(dense.arrays().scoring(), model->parameters().begin());
  EmbeddingCollectionOptions tables_options =
      CollectionOptions(options, source->schema(), model->unpooled_features());
  tables_options.start.from = {{.snapshot = saved.parts[0].snapshot,
                                .store = StoreKind::kMemory,
                                .dir = saved.parts[0].tables_dir}};
  tables_options.start.steps = saved.step;
  HOTROW_ASSIGN_OR_RETURN(const auto tables, EmbeddingCollection::Create(tables_options, {}));
  std::vector<float> out;
  for (const CtrBatch& batch : batches) {
    std::vector<float> pooled(static_cast<size_t>(batch.batch_size * tables->pooled_dim()) + 1);
    EmbeddingOutput output = {.pooled = {pooled.data(), batch.batch_size, tables->pooled_dim()}};
    std::vector<std::vector<float>> rows;
    std::vector<CtrModel::Sequence> sequences;
    for (const int32_t f : model->unpooled_features()) {
      const int64_t* const offsets = batch.offsets.data() + f * batch.batch_size;
      const int64_t lookups = offsets[batch.batch_size] - offsets[0];
      rows.emplace_back(static_cast<size_t>(lookups * kind.columns));
      sequences.push_back({.rows = rows.back().data(), .offsets = offsets});
      output.unpooled.push_back({rows.back().data(), lookups, kind.columns});
    }
    HOTROW_RETURN_IF_ERROR(tables->Evaluate(batch.sparse(), output));
    std::vector<float> logits(static_cast<size_t>(batch.batch_size * model->num_tasks()));
    HOTROW_RETURN_IF_ERROR(model->Forward({},
                                          {.batch_size = batch.batch_size,
                                           .dense = batch.dense.data(),
                                           .embeddings = pooled.data(),
                                           .sequences = sequences},
                                          logits));
    out.insert(out.end(), logits.begin(), logits.end());
  }
  return out;
}

// The metrics that the trainer's evaluation makes of these logits.
void ExpectMetrics(const TrainReport& report, const std::vector<CtrBatch>& batches,
                   const std::vector<float>& logits, int32_t num_tasks) {
  std::vector<CtrMetrics> tasks;
  for (int32_t task = 0; task < num_tasks; ++task) {
    MetricsAccumulator metrics;
    size_t at = 0;
    for (const CtrBatch& batch : batches) {
      const size_t n = static_cast<size_t>(batch.batch_size * num_tasks);
      metrics.Add(std::span(logits).subspan(at, n), batch.labels, task, num_tasks);
      at += n;
    }
    tasks.push_back(metrics.Compute());
  }
  const CtrMetrics found = MeanOverTasks(tasks);
  EXPECT_EQ(found.samples, report.test.samples);
  EXPECT_EQ(found.auc, report.test.auc);
  EXPECT_EQ(found.logloss, report.test.logloss);
  EXPECT_EQ(found.calibration, report.test.calibration);
}

class ScorerTest : public testing::TestWithParam<Kind> {};

// The same raw lines through the trainer's evaluation and through the scorer.
TEST_P(ScorerTest, ScoresAreTheBitsOfTheTrainersEvaluation) {
  const Kind kind = GetParam();
  const std::string dir = test::TempDir();
  const std::string data = absl::StrCat("table:", WriteLog(dir, kind.two_labels()));
  TrainerOptions options = OptionsOf(kind);
  options.save_dir = dir + "/model";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, Train(kind, options, data));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto scorer, Scorer::Open({.model = options.save_dir,
                                                               .max_concurrency = 1,
                                                               .max_batch_size = kBatchSize}));
  EXPECT_EQ(scorer->model_name(), kind.name);
  EXPECT_EQ(scorer->step(), report.steps);
  EXPECT_EQ(scorer->rows(), report.rows());
  EXPECT_EQ(scorer->num_tasks(), kind.two_labels() ? 2 : 1);
  EXPECT_EQ(scorer->labels().size(), kind.two_labels() ? 2u : 1u);
  EXPECT_THAT(scorer->notes(), IsEmpty());
  EXPECT_THAT(scorer->line_columns(),
              ElementsAre("price", "age", "user", "friend", "item", "tags", "time"));

  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<CtrBatch> batches, TestBatches(data));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> logits, ScoreAll(*scorer, batches));
  ASSERT_EQ(logits.size(), 130u * static_cast<size_t>(scorer->num_tasks()));
  ExpectMetrics(report, batches, logits, scorer->num_tasks());
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> expected,
                              EvaluateAll(kind, data, options.save_dir, batches));
  ExpectSameBits(logits, expected);

  const std::vector<std::string> lines = TheLog().TestLines(scorer->line_columns());
  std::vector<float> of_lines(logits.size());
  HOTROW_ASSERT_OK(scorer->ScoreLines(Views(lines), of_lines));
  ExpectSameBits(of_lines, logits);
}

// A run with --serve_rows evaluates with the rows that are served.
TEST_P(ScorerTest, RowsAreServedAsTheRunReadThem) {
  const Kind kind = GetParam();
  const std::string dir = test::TempDir();
  const std::string data = absl::StrCat("table:", WriteLog(dir, kind.two_labels()));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<CtrBatch> batches, TestBatches(data));
  for (const ServingRows rows : {ServingRows::kFp16, ServingRows::kInt8}) {
    SCOPED_TRACE(std::string(WordOf(kServingRowsWords, rows)));
    TrainerOptions options = OptionsOf(kind);
    options.save_dir = absl::StrCat(dir, "/model-", std::string(WordOf(kServingRowsWords, rows)));
    options.serve_rows = rows;
    HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, Train(kind, options, data));
    const ScorerOptions scoring = {
        .model = options.save_dir, .max_concurrency = 1, .max_batch_size = kBatchSize};
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto scorer, Scorer::Open(scoring));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> logits, ScoreAll(*scorer, batches));
    ExpectMetrics(report, batches, logits, scorer->num_tasks());
    ScorerOptions said = scoring;
    said.rows = rows;
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto same, Scorer::Open(said));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> again, ScoreAll(*same, batches));
    ExpectSameBits(again, logits);
    said.rows = rows == ServingRows::kFp16 ? ServingRows::kInt8 : ServingRows::kFp16;
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto other, Scorer::Open(said));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> others, ScoreAll(*other, batches));
    EXPECT_NE(others, logits);
  }
}

// One user with all items of the test split, more than go through the dense part at once.
TEST_P(ScorerTest, CandidatesScoreAsWholeSamples) {
  const Kind kind = GetParam();
  const std::string dir = test::TempDir();
  const std::string data = absl::StrCat("table:", WriteLog(dir, kind.two_labels()));
  TrainerOptions options = OptionsOf(kind);
  options.save_dir = dir + "/model";
  options.limit_train_batches = 5;
  HOTROW_ASSERT_OK(Train(kind, options, data));
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto scorer,
      Scorer::Open({.model = options.save_dir, .max_concurrency = 1, .max_batch_size = 16}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<CtrBatch> batches, TestBatches(data));
  const CtrBatch& batch = batches[0];
  const int64_t n = batch.batch_size;
  const auto bag = [&](int64_t f, int64_t b) {
    const int64_t begin = batch.offsets[static_cast<size_t>(f * n + b)];
    const int64_t end = batch.offsets[static_cast<size_t>(f * n + b + 1)];
    return std::span(batch.values)
        .subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  };
  // Features of the user: none, some, those with the history, and all.
  for (const std::vector<int32_t>& user_features :
       {std::vector<int32_t>{}, {0, 1, 5}, {0, 3}, {0, 1, 2, 3, 4, 5}}) {
    for (const std::vector<int32_t>& user_dense : {std::vector<int32_t>{}, {1}, {0, 1}}) {
      SCOPED_TRACE(absl::StrCat(absl::StrJoin(user_features, ","), " and dense ",
                                absl::StrJoin(user_dense, ",")));
      // Sample 3 gives the user, every sample a candidate.
      CtrBatch whole, user, candidates;
      whole.batch_size = candidates.batch_size = n;
      user.batch_size = 1;
      for (CtrBatch* part : {&whole, &user, &candidates}) part->offsets = {0};
      const auto add = [](std::span<const uint64_t> keys, CtrBatch* to) {
        to->values.insert(to->values.end(), keys.begin(), keys.end());
        to->offsets.push_back(std::ssize(to->values));
      };
      for (int32_t f = 0; f < 6; ++f) {
        const bool of_user = std::ranges::count(user_features, f) > 0;
        if (of_user) add(bag(f, 3), &user);
        for (int64_t b = 0; b < n; ++b) {
          add(of_user ? bag(f, 3) : bag(f, b), &whole);
          if (!of_user) add(bag(f, b), &candidates);
        }
      }
      for (int64_t b = 0; b < n; ++b) {
        for (int32_t d = 0; d < 2; ++d) {
          const bool of_user = std::ranges::count(user_dense, d) > 0;
          const float own = batch.dense[static_cast<size_t>(2 * b + d)];
          const float users = batch.dense[static_cast<size_t>(2 * 3 + d)];
          whole.dense.push_back(of_user ? users : own);
          if (!of_user) candidates.dense.push_back(own);
          if (of_user && b == 0) user.dense.push_back(users);
        }
      }
      std::vector<float> expected(static_cast<size_t>(n * scorer->num_tasks()));
      HOTROW_ASSERT_OK(scorer->Score({.sparse = whole.sparse(), .dense = whole.dense}, expected));
      std::vector<float> found(expected.size(), -1);
      HOTROW_ASSERT_OK(scorer->ScoreCandidates({.num_candidates = n,
                                                .user_features = user_features,
                                                .user = user.sparse(),
                                                .candidates = candidates.sparse(),
                                                .user_dense_columns = user_dense,
                                                .user_dense = user.dense,
                                                .candidate_dense = candidates.dense},
                                               found));
      ExpectSameBits(found, expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ScorerTest, testing::ValuesIn(Kinds()),
                         [](const testing::TestParamInfo<Kind>& info) {
                           return absl::StrCat(info.param.name, info.index);
                         });

// A CPU has no TF32: what a GPU trained with it is scored in fp32. Whoever asks for it is told.
TEST(ScorerFormsTest, AModelOfTf32IsScoredInFp32) {
  const Kind kind = Kinds()[0];
  const std::string dir = test::TempDir();
  const std::string data = absl::StrCat("table:", WriteLog(dir, false));
  TrainerOptions options = OptionsOf(kind);
  options.precision = DensePrecision::kTf32;  // as the run says; its model here is one of the CPU
  options.save_dir = dir + "/saved";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, Train(kind, options, data));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<CtrBatch> batches, TestBatches(data));
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto scorer, Scorer::Open({.model = options.save_dir, .max_batch_size = kBatchSize}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> logits, ScoreAll(*scorer, batches));
  ExpectMetrics(report, batches, logits, 1);
  EXPECT_THAT(Scorer::Open({.model = options.save_dir, .precision = DensePrecision::kTf32}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tf32 is for GPUs")));
}

// Narrower products: near fp32, which the bound tells from products of wrong numbers, and with
// int8 the same bits however the samples are cut into calls.
TEST(ScorerFormsTest, NarrowerProductsStayNearFp32) {
  for (const Kind& kind : test::WideKinds()) {
    const std::string dir = test::TempDir();
    const std::string data = absl::StrCat("table:", WriteLog(dir, false));
    TrainerOptions options = OptionsOf(kind);
    options.save_dir = dir + "/saved";
    HOTROW_ASSERT_OK(Train(kind, options, data));
    std::vector<float> expected;
    for (const DensePrecision precision :
         {DensePrecision::kFp32, DensePrecision::kBf16, DensePrecision::kInt8}) {
      SCOPED_TRACE(absl::StrCat(kind.name, " ", std::string(DensePrecisionName(precision))));
      if (!CheckDensePrecision(precision).ok()) continue;
      HOTROW_ASSERT_OK_AND_ASSIGN(
          const auto scorer,
          Scorer::Open({.model = options.save_dir, .max_concurrency = 1, .precision = precision}));
      const std::vector<std::string> lines = TheLog().TestLines(scorer->line_columns());
      std::vector<float> logits(lines.size());
      HOTROW_ASSERT_OK(scorer->ScoreLines(Views(lines), logits));
      if (precision == DensePrecision::kFp32) {
        expected = logits;
        continue;
      }
      double sum = 0;
      for (size_t i = 0; i < logits.size(); ++i) sum += std::abs(logits[i] - expected[i]);
      EXPECT_LT(sum / static_cast<double>(logits.size()), 0.2);
      EXPECT_GT(sum, 0);
      if (precision != DensePrecision::kInt8) continue;
      std::vector<float> alone(lines.size());
      for (size_t i = 0; i < lines.size(); ++i) {
        const std::string_view line = lines[i];
        HOTROW_ASSERT_OK(scorer->ScoreLines({&line, 1}, std::span(alone).subspan(i, 1)));
      }
      ExpectSameBits(alone, logits);
    }
  }
}

// A checkpoint whose rows have missed steps, the model saved beside it, and its export.
TEST(ScorerFormsTest, CheckpointsAndExportsScoreAsTheSavedModel) {
  const Kind kind = Kinds()[0];
  const std::string dir = test::TempDir();
  const std::string data = absl::StrCat("table:", WriteLog(dir, false));
  for (const WeightsPrecision precision : {WeightsPrecision::kFp32, WeightsPrecision::kBf16}) {
    const std::string place = absl::StrCat(dir, "/", std::string(WeightsPrecisionName(precision)));
    TrainerOptions options = OptionsOf(kind);
    options.weights_precision = precision;
    options.schedule.lr_warmup_steps = 3;
    HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report,
                                test::TrainInAllForms(kind, options, data, place));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<CtrBatch> batches, TestBatches(data));
    for (const char* form : {"/saved", "/checkpoints", "/exported"}) {
      SCOPED_TRACE(form);
      HOTROW_ASSERT_OK_AND_ASSIGN(const auto scorer, Scorer::Open({.model = place + form,
                                                                   .max_concurrency = 1,
                                                                   .max_batch_size = kBatchSize}));
      EXPECT_THAT(scorer->notes(), IsEmpty());
      HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> logits, ScoreAll(*scorer, batches));
      ExpectMetrics(report, batches, logits, 1);
      std::vector<float> of_lines(logits.size());
      const std::vector<std::string> lines = TheLog().TestLines(scorer->line_columns());
      HOTROW_ASSERT_OK(scorer->ScoreLines(Views(lines), of_lines));
      ExpectSameBits(of_lines, logits);
    }
  }
}

// The store still has such rows; evaluation does not see them.
TEST(ScorerFormsTest, RowsThatHaveAgedAreNotThere) {
  const Kind kind = Kinds()[0];
  const std::string dir = test::TempDir();
  const std::string data = absl::StrCat("table:", WriteLog(dir, false));
  TrainerOptions options = OptionsOf(kind);
  options.ttl_steps = 4;
  options.save_dir = dir + "/saved";
  options.checkpoint_dir = dir + "/checkpoints";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, Train(kind, options, data));
  HOTROW_ASSERT_OK(ExportPortable({.checkpoint = options.save_dir, .dir = dir + "/exported"}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<CtrBatch> batches, TestBatches(data));
  for (const char* form : {"/saved", "/checkpoints", "/exported"}) {
    SCOPED_TRACE(form);
    HOTROW_ASSERT_OK_AND_ASSIGN(
        const auto scorer,
        Scorer::Open({.model = dir + form, .max_concurrency = 1, .max_batch_size = kBatchSize}));
    EXPECT_EQ(scorer->rows(), report.rows());
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> logits, ScoreAll(*scorer, batches));
    ExpectMetrics(report, batches, logits, 1);
  }
}

// A small model of generated data, without a schema of lines.
struct Generated {
  Kind kind = Kinds()[0];
  std::string dir = test::TempDir() + "/model";
  std::string data = "synthetic:tables=3,rows=50,dense=2,samples=500,valid=60,test=60";
  TrainReport report;

  void Train() {
    TrainerOptions options = OptionsOf(kind);
    options.save_dir = dir;
    HOTROW_ASSERT_OK_AND_ASSIGN(report, test::Train(kind, options, data));
  }
  // Changes the manifest and its checksum.
  void Edit(const std::function<void(nlohmann::ordered_json&)>& change) const {
    SavedModel saved;
    HOTROW_ASSERT_OK_AND_ASSIGN(saved, ReadSavedModel(PosixEnv(), dir));
    nlohmann::ordered_json json = nlohmann::ordered_json::parse(SavedModelManifest(saved));
    change(json);
    if (!json.contains("scoring")) saved.scoring.reset();
    saved.model = json["model"].get<std::string>();
    saved.shape.clear();
    for (const auto& [flag, value] : json["shape"].items()) saved.shape.emplace_back(flag, value);
    std::ofstream(dir + "/manifest.json") << SavedModelManifest(saved);
  }
};

TEST(ScorerFormsTest, ModelsOfOlderBuildsAreScoredFromBatches) {
  Generated model;
  model.Train();
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<CtrBatch> batches, TestBatches(model.data));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto now,
                              Scorer::Open({.model = model.dir, .max_batch_size = kBatchSize}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, ScoreAll(*now, batches));
  ExpectMetrics(model.report, batches, expected, 1);
  std::vector<float> logits(1);
  const std::string_view line = "1,2,3,4,5";
  EXPECT_THAT(now->ScoreLines({&line, 1}, logits),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("its data were no delimited text")));
  EXPECT_EQ(now->schema(), nullptr);

  model.Edit([](nlohmann::ordered_json& json) { json.erase("scoring"); });
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto older,
                              Scorer::Open({.model = model.dir, .max_batch_size = kBatchSize}));
  EXPECT_THAT(older->notes(), ElementsAre(HasSubstr("did not record how it evaluates")));
  EXPECT_THAT(older->labels(), IsEmpty());
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> found, ScoreAll(*older, batches));
  ExpectSameBits(found, expected);

  model.Edit([](nlohmann::ordered_json& json) { json["model"] = "mmoe"; });
  EXPECT_THAT(Scorer::Open({.model = model.dir}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("tasks"), HasSubstr("--init_from"))));
}

TEST(ScorerFormsTest, WhatCannotBeScoredIsNamed) {
  const auto refused = [](const char* what) {
    return StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(what));
  };
  EXPECT_THAT(Scorer::Open({}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("model")));
  EXPECT_THAT(Scorer::Open({.model = "/m", .max_batch_size = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_batch_size")));
  EXPECT_THAT(Scorer::Open({.model = test::TempDir()}), refused("there is no"));
  Generated model;
  model.Train();
  EXPECT_THAT(Scorer::Open({.model = model.dir, .memory_bytes = 1000}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("the budget is 1000")));
  model.Edit([](nlohmann::ordered_json& json) { json["shape"]["over_arch_layer_sizes"] = "3-1"; });
  EXPECT_THAT(Scorer::Open({.model = model.dir}), refused("dense parameters"));
  model.Edit([](nlohmann::ordered_json& json) { json["shape"]["younger_flag"] = "3"; });
  EXPECT_THAT(Scorer::Open({.model = model.dir}), refused("younger_flag"));
  model.Edit([](nlohmann::ordered_json& json) { json["model"] = "another"; });
  EXPECT_THAT(
      Scorer::Open({.model = model.dir}),
      refused("there is no model \"another\" here, only bst, dcn, deepfm, din, dlrm, hstu, mmoe"));
}

TEST(ScorerFormsTest, MalformedRequestsAreNamed) {
  Generated model;
  model.Train();
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto scorer,
                              Scorer::Open({.model = model.dir, .max_batch_size = kBatchSize}));
  const auto invalid = [](const char* what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  std::vector<uint64_t> keys = {1, 2, 3};
  const std::vector<int64_t> offsets = {0, 1, 2, 3};
  const std::vector<float> dense = {0.5f, 0.25f};
  std::vector<float> logits(1);
  const auto score = [&] {
    return scorer->Score({.sparse = {1, keys, offsets, {}}, .dense = dense}, logits);
  };
  HOTROW_EXPECT_OK(score());
  const float whole = logits[0];
  EXPECT_NEAR(ScoreProbability(whole), 1 / (1 + std::exp(-whole)), 1e-6);
  // Ids of other widths, and lengths.
  const std::vector<int32_t> narrow = {1, 2, 3};
  const std::vector<int32_t> lengths = {1, 1, 1};
  HOTROW_EXPECT_OK(scorer->Score(
      {.sparse = {.batch_size = 1, .values = narrow, .lengths = lengths}, .dense = dense}, logits));
  EXPECT_EQ(logits[0], whole);
  keys[2] = 50;
  EXPECT_THAT(score(), invalid("feature \"cat_2\", sample 0: key 50 is not in [0, 50)"));
  keys.pop_back();
  EXPECT_THAT(score(), invalid("the last offset must be the number of values"));
  keys.push_back(3);
  logits.resize(2);
  EXPECT_THAT(score(), invalid("logits: room for 2 numbers, expected 1 samples x 1 tasks"));
  logits.resize(1);
  EXPECT_THAT(scorer->Score({.sparse = {1, keys, offsets, {}}}, logits),
              invalid("dense: 0 numbers, expected 1 x 2"));
  const std::vector<int32_t> falling = {1, 0};
  EXPECT_THAT(scorer->ScoreCandidates({.num_candidates = 1, .user_features = falling}, logits),
              invalid("user_features: 0 behind 1"));
  // Nothing at all is a batch, too.
  HOTROW_EXPECT_OK(scorer->Score({.sparse = {0, {}, std::vector<int64_t>{0}, {}}}, {}));
}

TEST(ScorerFormsTest, BadLinesAreNamed) {
  const std::string dir = test::TempDir();
  const std::string data = absl::StrCat("table:", WriteLog(dir, false));
  TrainerOptions options = OptionsOf(Kinds()[0]);
  options.save_dir = dir + "/model";
  options.limit_train_batches = 2;
  HOTROW_ASSERT_OK(Train(Kinds()[0], options, data));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto scorer, Scorer::Open({.model = options.save_dir}));
  std::vector<std::string> lines = TheLog().TestLines(scorer->line_columns());
  lines.resize(3);
  std::vector<float> logits(3);
  HOTROW_ASSERT_OK(scorer->ScoreLines(Views(lines), logits));
  lines[1] = "1,2,nobody,4,5,6,7";
  EXPECT_THAT(scorer->ScoreLines(Views(lines), logits),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("line 2: column 3 (user)"), HasSubstr("nobody"))));
  lines[1] = "1,2";
  EXPECT_THAT(scorer->ScoreLines(Views(lines), logits),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected 7")));
}

// All scores of a file.
absl::StatusOr<std::vector<float>> ScoresOf(const Scorer& scorer, const std::string& path,
                                            int32_t threads) {
  std::vector<float> out;
  HOTROW_RETURN_IF_ERROR(ScoreFile(scorer, path, {.reader_threads = threads},
                                   [&](std::span<const float> logits) -> absl::Status {
                                     out.insert(out.end(), logits.begin(), logits.end());
                                     return absl::OkStatus();
                                   }));
  return out;
}

// The columns of a file may stand in any order; it need not have those of the labels.
TEST(ScorerFormsTest, FilesAreScoredInTheirOrder) {
  const Kind mmoe = Kinds()[8];
  const std::string dir = test::TempDir();
  const std::string data = absl::StrCat("table:", WriteLog(dir, mmoe.two_labels()));
  TrainerOptions options = OptionsOf(mmoe);
  options.save_dir = dir + "/model";
  options.limit_train_batches = 4;
  HOTROW_ASSERT_OK(Train(mmoe, options, data));
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto scorer, Scorer::Open({.model = options.save_dir, .max_batch_size = kBatchSize}));
  std::vector<float> expected(260);
  HOTROW_ASSERT_OK(scorer->ScoreLines(Views(TheLog().TestLines(scorer->line_columns())), expected));
  const std::vector<std::string> columns = {"item", "age",   "time",  "user",
                                            "tags", "price", "friend"};
  const std::string path = dir + "/lines.csv";
  std::ofstream(path) << absl::StrJoin(columns, ",") << "\n"
                      << absl::StrJoin(TheLog().TestLines(columns), "\n") << "\n";
  for (const int32_t threads : {1, 3}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> found, ScoresOf(*scorer, path, threads));
    ExpectSameBits(found, expected);
  }
  // The whole log, labels and all.
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> all, ScoresOf(*scorer, dir + "/log.csv", 1));
  EXPECT_EQ(all.size(), 2u * kLines);
  EXPECT_THAT(ScoresOf(*scorer, dir + "/log.csv", 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("reader_threads")));
  EXPECT_THAT(ScoresOf(*scorer, dir + "/none.csv", 1),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none.csv")));
}

// A model with a history of at most 6 values, tags. What a request asks for is checked before
// memory is taken for it: candidates times keys would be gigabytes.
TEST(ScorerFormsTest, SizesAreCheckedBeforeMemoryIsTaken) {
  const Kind din = Kinds()[7];
  const std::string dir = test::TempDir();
  TrainerOptions options = OptionsOf(din);
  options.save_dir = dir + "/model";
  options.limit_train_batches = 2;
  HOTROW_ASSERT_OK(Train(din, options, absl::StrCat("table:", WriteLog(dir, false))));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto scorer,
                              Scorer::Open({.model = options.save_dir, .max_concurrency = 1}));
  const int64_t n = 1024;
  const auto score = [&](int64_t length, ScoreDeadline deadline = kNoDeadline) {
    std::vector<uint64_t> user(static_cast<size_t>(length), 1), items(static_cast<size_t>(n), 2);
    user.insert(user.end(), {3, 3, 3, 6});  // the other features of the user, one key each
    std::vector<int64_t> ends(static_cast<size_t>(n) + 1);
    std::iota(ends.begin(), ends.end(), 0);
    // In the order of features: user, friend, item, tags, price_range, hour.
    const std::vector<int32_t> of_user = {0, 1, 3, 4, 5};
    const std::vector<int64_t> user_ends = {0, 1, 2, 2 + length, 3 + length, 4 + length};
    const std::vector<float> dense = {1, 2};
    const std::vector<int32_t> columns = {0, 1};
    std::vector<float> logits(static_cast<size_t>(n));
    return scorer->ScoreCandidates({.num_candidates = n,
                                    .user_features = of_user,
                                    .user = {1, user, user_ends, {}},
                                    .candidates = {n, items, ends, {}},
                                    .user_dense_columns = columns,
                                    .user_dense = dense},
                                   logits, nullptr, deadline);
  };
  HOTROW_EXPECT_OK(score(6));
  const auto peak_kib = [] {
    rusage usage = {};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const int64_t before = peak_kib();
  EXPECT_THAT(score(20'000),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("feature \"tags\", sample 0: 20000 values, at most 6"),
                             HasSubstr("max_hotness"))));
  EXPECT_LT(peak_kib() - before, 100 << 10);
  EXPECT_THAT(score(6, std::chrono::steady_clock::now()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("when 0 of 1024 were")));
  // Sessions are of the budget, which is refused at once where it has no room for them.
  EXPECT_THAT(
      Scorer::Open({.model = options.save_dir, .memory_bytes = 100'000, .max_concurrency = 2}),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("room for 2 calls at once needs")));
}

// As a server does that is told to end while it reads its model.
TEST(ScorerFormsTest, ReadingEndsAtTheNextRow) {
  Generated model;
  model.Train();
  ScorerOptions options = {.model = model.dir, .max_concurrency = 1};
  options.stop = std::make_shared<std::atomic<bool>>(true);
  EXPECT_THAT(Scorer::Open(options),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("was stopped")));
  *options.stop = false;
  HOTROW_EXPECT_OK(Scorer::Open(options));
}

// The same values, by text and by key, rare ones included; lines as files have them.
TEST(ScorerFormsTest, AValueMeansTheSameRowHoweverItComes) {
  const std::string dir = test::TempDir();
  TrainerOptions options = OptionsOf(Kinds()[0]);
  options.save_dir = dir + "/model";
  options.limit_train_batches = 8;
  HOTROW_ASSERT_OK(Train(Kinds()[0], options, absl::StrCat("table:", WriteLog(dir, false))));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto scorer, Scorer::Open({.model = options.save_dir}));
  ASSERT_NE(scorer->vocabulary(), nullptr);
  const auto by_key = [&](uint64_t item) {
    const std::vector<uint64_t> keys = {3, 4, item, 7, 2, 11};
    const std::vector<int64_t> ends = {0, 1, 2, 3, 4, 5, 6};
    const std::vector<float> dense = {1, 2};
    std::vector<float> logit(1, -1);
    HOTROW_EXPECT_OK(scorer->Score({.sparse = {1, keys, ends, {}}, .dense = dense}, logit));
    return logit[0];
  };
  const KeptKeys& kept = scorer->vocabulary()->tables().at(0);
  const float unknown = by_key(kept.unknown_key());
  EXPECT_EQ(by_key(0x123456789), unknown);
  EXPECT_NE(by_key(kept.keys()[0]), unknown);

  std::vector<std::string> lines = TheLog().TestLines(scorer->line_columns());
  lines.resize(3);
  std::vector<float> whole(3), found(3);
  HOTROW_ASSERT_OK(scorer->ScoreLines(Views(lines), whole));
  for (const char* const end : {"\n", "\r\n", "\r"}) {
    std::vector<std::string> ended = lines;
    for (std::string& line : ended) line += end;
    HOTROW_ASSERT_OK(scorer->ScoreLines(Views(ended), found));
    ExpectSameBits(found, whole);
  }
  const auto error = [&](const std::string& line) {
    std::vector<std::string> with = {lines[0], line, lines[2]};
    return std::string(scorer->ScoreLines(Views(with), found).message());
  };
  EXPECT_THAT(error(lines[1] + "\n\n"), HasSubstr("line 2: a line break at byte"));
  EXPECT_THAT(error(lines[1] + "\n" + lines[1]), HasSubstr("give each line as one text"));
  EXPECT_THAT(error(absl::StrJoin(scorer->line_columns(), ",")), HasSubstr("names of the columns"));
  EXPECT_THAT(error(""), HasSubstr("line 2: 1 column, expected 7"));
  // A file: each line has its score, or the file an error.
  const auto scores_of = [&](const std::string& text, int32_t threads) {
    std::ofstream(dir + "/lines.csv") << absl::StrJoin(scorer->line_columns(), ",") << "\n" << text;
    return ScoresOf(*scorer, dir + "/lines.csv", threads);
  };
  for (const int32_t threads : {1, 2}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto file,
                                scores_of(absl::StrJoin(lines, "\n") + "\n\n\n", threads));
    ExpectSameBits(file, whole);
    EXPECT_THAT(
        scores_of(absl::StrCat(lines[0], "\n\n", lines[1], "\n"), threads),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("lines.csv:3: the line is blank"), HasSubstr("remove it"))));
  }
}

// Public logs, if they are there (tests/models/real_data_test.cc).
std::string DataDir() {
  const char* const dir = std::getenv("HOTROW_DATA");
  return dir != nullptr ? dir : HOTROW_SOURCE_DIR "/../shared/data";
}

// Trains a little and scores the test split; the directory of the model.
void ExpectRealDataScoreAlike(const Kind& kind, const std::string& data, const std::string& dir) {
  TrainerOptions options = OptionsOf(kind);
  options.save_dir = dir;
  options.limit_train_batches = 40;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, Train(kind, options, data));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto scorer,
                              Scorer::Open({.model = dir, .max_batch_size = kBatchSize}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<CtrBatch> batches, TestBatches(data));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> logits, ScoreAll(*scorer, batches));
  ExpectMetrics(report, batches, logits, scorer->num_tasks());
}

TEST(ScorerRealDataTest, FrappeByEveryModel) {
  const std::string place = DataDir() + "/frappe";
  if (!std::filesystem::exists(place)) GTEST_SKIP() << "no real data at " << place;
  const std::string dir = test::TempDir();
  std::vector<Kind> kinds = Kinds();
  // One label and bags of one value: no data for some of them. All others with HOTROW_SLOW_TESTS.
  std::erase_if(kinds, [](const Kind& kind) {
    return kind.two_labels() || kind.shape[0].first == "history";
  });
  if (!test::RunsSlowTests()) kinds.resize(1);
  for (const Kind& kind : kinds) {
    SCOPED_TRACE(kind.name);
    const std::string data = "frappe:" + place;
    ExpectRealDataScoreAlike(kind, data, dir + "/model");
    HOTROW_ASSERT_OK_AND_ASSIGN(
        const auto scorer, Scorer::Open({.model = dir + "/model", .max_batch_size = kBatchSize}));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<CtrBatch> batches, TestBatches(data));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, ScoreAll(*scorer, batches));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> found,
                                ScoresOf(*scorer, place + "/test.csv", 1));
    ExpectSameBits(found, expected);
    std::filesystem::remove_all(dir + "/model");
  }
}

TEST(ScorerRealDataTest, CriteoAndItsLinesWithoutLabels) {
  const std::string file = DataDir() + "/criteo/train_10k.tsv.gz";
  const std::string unlabelled = DataDir() + "/criteo/test_10k_unlabeled.tsv.gz";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "no real data at " << file;
  const std::string dir = test::TempDir() + "/model";
  ExpectRealDataScoreAlike(Kinds()[0], "criteo:" + file, dir);
  if (!std::filesystem::exists(unlabelled)) return;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto scorer, Scorer::Open({.model = dir}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> scores, ScoresOf(*scorer, unlabelled, 2));
  EXPECT_EQ(scores.size(), 10'000u);
}

TEST(ScorerRealDataSlowTest, MovieLensAndCensus) {
  const std::string movies = DataDir() + "/ml-1m/ml1m_ctr.csv.gz";
  const std::string census = DataDir() + "/census/census-income.gz";
  if (!std::filesystem::exists(movies) || !std::filesystem::exists(census)) {
    GTEST_SKIP() << "no real data in " << DataDir();
  }
  for (const Kind& kind : Kinds()) {
    SCOPED_TRACE(kind.name);
    const std::string dir = test::TempDir() + "/model";
    if (kind.shape[0].first == "history") {
      Kind genres = kind;
      genres.shape[0].second = "genres:movie_id";
      ExpectRealDataScoreAlike(genres, "ml1m:" + movies, dir);
    } else if (kind.two_labels()) {
      ExpectRealDataScoreAlike(kind, "census-tasks:" + census, dir);
    } else {
      ExpectRealDataScoreAlike(kind, "ml1m:" + movies, dir);
    }
  }
}

TEST(ScorerFormsTest, ThreadsShareSessions) {
  Generated model;
  model.Train();
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto scorer,
      Scorer::Open({.model = model.dir, .max_concurrency = 2, .max_batch_size = kBatchSize}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<CtrBatch> batches, TestBatches(model.data));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, ScoreAll(*scorer, batches));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10; ++i) {
        HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> found, ScoreAll(*scorer, batches));
        ExpectSameBits(found, expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace hotrow
