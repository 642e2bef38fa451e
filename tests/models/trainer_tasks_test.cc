// Training models of several tasks.

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "comm/thread_communicator.h"
#include "gtest/gtest.h"
#include "models/data/open_data_source.h"
#include "models/saving/training_state.h"
#include "models/train/trainer.h"
#include "models/zoo/mmoe_model.h"
#include "tests/models/checkpoint_test_util.h"
#include "tests/models/two_labels.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

TrainerOptions SmallOptions() {
  TrainerOptions options;
  options.batch_size = 64;
  options.embedding_dim = 8;
  options.table_optimizer.kind = SparseOptimizerKind::kAdam;
  options.table_optimizer.learning_rate = 0.01f;
  options.dense_optimizer.kind = DenseOptimizerKind::kAdam;
  options.dense_optimizer.learning_rate = 0.005f;
  options.seed = 3;
  options.store_bytes = int64_t{64} << 20;
  return options;
}

absl::StatusOr<TrainReport> Train(const TrainerOptions& options, const ExecContext& ctx = {}) {
  HOTROW_ASSIGN_OR_RETURN(
      std::unique_ptr<DataSource> base,
      OpenDataSource("synthetic:tables=3,rows=100,dense=3,samples=4000,valid=500,test=1000", 5));
  test::TwoLabels data(std::move(base));
  const ModelFactory factory =
      [&](const DataSchema& schema) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
    MmoeOptions mmoe = {{.num_dense = schema.num_dense,
                         .num_sparse = static_cast<int32_t>(schema.features.size()),
                         .embedding_dim = options.embedding_dim,
                         .over_arch_layer_sizes = {8, 1},
                         .batch_norm = true,
                         .seed = options.seed,
                         .max_batch_size = options.batch_size}};
    mmoe.num_tasks = static_cast<int32_t>(schema.labels.size());
    mmoe.num_experts = 2;
    mmoe.expert_layer_sizes = {16};
    return MmoeModel::Create(mmoe);
  };
  return RunTraining(options, data, factory, ctx);
}

TEST(TrainerTasksTest, EachTaskIsLearntAndReported) {
  TrainerOptions options = SmallOptions();
  test::Output output;
  options.out = output.file();
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, Train(options));
  ASSERT_EQ(report.tasks.size(), 2u);
  EXPECT_EQ(report.tasks[0].label, "click");
  EXPECT_EQ(report.tasks[1].label, "positive");
  EXPECT_GT(report.tasks[0].test.auc, 0.55);
  EXPECT_LT(report.tasks[0].test.auc, 0.9);
  EXPECT_GT(report.tasks[1].test.auc, 0.95);
  EXPECT_EQ(report.tasks[1].valid.samples, 500);
  EXPECT_DOUBLE_EQ(report.test.auc, (report.tasks[0].test.auc + report.tasks[1].test.auc) / 2);
  EXPECT_DOUBLE_EQ(report.valid.logloss,
                   (report.tasks[0].valid.logloss + report.tasks[1].valid.logloss) / 2);
  EXPECT_THAT(output.Text(), AllOf(HasSubstr("; AUC of click 0."), HasSubstr(", positive 0.9")));
  const nlohmann::json json = nlohmann::json::parse(ReportToJson(report), nullptr, false);
  ASSERT_EQ(json["tasks"].size(), 2u);
  EXPECT_EQ(json["tasks"][1]["label"], "positive");
  EXPECT_EQ(json["tasks"][1]["test"]["auc"], report.tasks[1].test.auc);
  EXPECT_THAT(FormatSummary(report), HasSubstr("  positive"));
}

TEST(TrainerTasksTest, WeightsSayWhichTaskCounts) {
  TrainerOptions options = SmallOptions();
  options.task_weights = {1, 1};
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport ones, Train(options));
  options.task_weights = {};
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport none, Train(options));
  EXPECT_EQ(ones.dense_hash, none.dense_hash);
  EXPECT_EQ(ones.train_logloss, none.train_logloss);
  options.task_weights = {1, 0};
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport first, Train(options));
  EXPECT_LT(first.tasks[1].test.auc, 0.9);
  EXPECT_LT(first.train_logloss, none.train_logloss);
}

TEST(TrainerTasksTest, TheScheduleGoesByOneTaskOrTheMean) {
  TrainerOptions options = SmallOptions();
  options.epochs = 6;
  options.dense_optimizer.learning_rate = 0.05f;
  options.schedule.early_stop_patience = 1;
  std::vector<int64_t> best;
  for (const char* task : {"", "click", "positive"}) {
    options.validation_task = task;
    HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, Train(options));
    EXPECT_GT(report.best_epoch, 0);
    ASSERT_EQ(report.tasks.size(), 2u);
    EXPECT_EQ(report.tasks[0].test.samples, 1000);
    best.push_back(report.best_step);
  }
  EXPECT_NE(best[1], best[2]);
}

TEST(TrainerTasksTest, RanksTrainAndMeasureTheSame) {
  const TrainerOptions options = SmallOptions();
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport one, Train(options));
  std::vector<absl::StatusOr<TrainReport>> reports(3, absl::UnknownError("did not run"));
  RunOnThreads(3, {.timeout_seconds = 60}, [&](Communicator& communicator) {
    TrainerOptions mine = options;
    mine.communicator = &communicator;
    reports[static_cast<size_t>(communicator.rank())] = Train(mine);
    return reports[static_cast<size_t>(communicator.rank())].status();
  });
  for (const auto& report : reports) {
    HOTROW_ASSERT_OK(report);
    EXPECT_EQ(report->dense_hash, reports[0]->dense_hash);
    ASSERT_EQ(report->tasks.size(), 2u);
    for (size_t task = 0; task < 2; ++task) {
      EXPECT_EQ(report->tasks[task].test.auc, reports[0]->tasks[task].test.auc);
      EXPECT_NEAR(report->tasks[task].test.auc, one.tasks[task].test.auc, 0.01);
    }
  }
}

TEST(TrainerTasksTest, GoesOnFromACheckpointWithTheMetricsOfEachTask) {
  test::MemEnv env;
  TrainerOptions options = SmallOptions();
  options.env = &env;
  options.checkpoint_dir = "/checkpoints";
  options.checkpoint_in_background = false;
  options.resume = true;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport first, Train(options));
  // Nothing is left to train: what is reported comes from the checkpoint and from test data.
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport again, Train(options));
  EXPECT_EQ(again.resumed_step, first.steps);
  EXPECT_EQ(again.dense_hash, first.dense_hash);
  ASSERT_EQ(again.tasks.size(), 2u);
  EXPECT_EQ(again.tasks[1].valid.auc, first.tasks[1].valid.auc);
  EXPECT_EQ(again.tasks[1].test.auc, first.tasks[1].test.auc);
  options.task_weights = {1, 2};
  EXPECT_THAT(Train(options), StatusIs(absl::StatusCode::kFailedPrecondition,
                                       HasSubstr("--task_weights was \"\" and is 1,2")));
}

TEST(TrainerTasksTest, TheStateOfTrainingHoldsMetricsOfTasks) {
  TrainingState state;
  EXPECT_EQ(TrainingStateToJson(state).find("valid_tasks"), std::string::npos);
  state.valid_tasks = {{.samples = 3, .auc = 0.25}, {.samples = 3, .auc = 0.75}};
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainingState read,
                              TrainingStateFromJson(TrainingStateToJson(state)));
  ASSERT_EQ(read.valid_tasks.size(), 2u);
  EXPECT_EQ(read.valid_tasks[1].auc, 0.75);
  EXPECT_TRUE(read.test_tasks.empty());
}

TEST(TrainerTasksTest, WhatDoesNotFitNamesTheFlagAndTheLabels) {
  TrainerOptions options = SmallOptions();
  options.task_weights = {1, 2, 3};
  EXPECT_THAT(Train(options), StatusIs(absl::StatusCode::kInvalidArgument,
                                       AllOf(HasSubstr("--task_weights has 3 numbers"),
                                             HasSubstr("2 labels (click, positive)"))));
  options = SmallOptions();
  options.validation_task = "buy";
  EXPECT_THAT(Train(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--validation_task=buy"), HasSubstr("click, positive"))));
}

}  // namespace
}  // namespace hotrow
