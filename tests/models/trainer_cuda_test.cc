#include <cmath>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/device_stream.h"
#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "models/data/open_data_source.h"
#include "models/train/trainer.h"
#include "models/zoo/dcn_model.h"
#include "models/zoo/deepfm_model.h"
#include "models/zoo/din_model.h"
#include "models/zoo/dlrm_model.h"
#include "models/zoo/layers/model_graph.h"
#include "models/zoo/mmoe_model.h"
#include "models/zoo/pnn_model.h"
#include "models/zoo/wide_deep_model.h"
#include "models/zoo/xdeepfm_model.h"
#include "tests/models/late_holes.h"
#include "tests/models/two_labels.h"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

// Models in the trainer, with all that lies on the GPU: rows, parameters, both optimizers' state.
// What all models share is tested by way of dlrm, in dlrm_gpu_cli_test.cc.

namespace hotrow {
namespace {

constexpr int32_t kDim = 8;

using MakeModel = std::function<absl::StatusOr<std::unique_ptr<CtrModel>>(
    const ModelOptions& options, const ExecContext& ctx)>;

struct Kind {
  std::string name;
  int32_t table_columns;
  MakeModel make;
  bool two_labels = false;
  std::string data;  // what its data have beside the others'
  bool late_holes = false;
};
template <typename Model, typename Options>
Kind KindOf(const std::string& name) {
  return {name, static_cast<int32_t>(Options::TableColumns(kDim)),
          [](const ModelOptions& options,
             const ExecContext& ctx) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
            return Model::Create(Options{options}, ctx);
          }};
}
// A model whose tables have no column more.
template <typename Model, typename Options>
Kind PlainKindOf(const std::string& name) {
  return {name, kDim,
          [](const ModelOptions& options,
             const ExecContext& ctx) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
            return Model::Create(Options{options}, ctx);
          }};
}
Kind Pnn() {
  return {"pnn", kDim,
          [](const ModelOptions& options,
             const ExecContext& ctx) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
            return PnnModel::Create({options, PnnProducts::kBoth}, ctx);
          }};
}
// With shorter vectors, for each of their columns is a row of matrices.
Kind XDeepFm() {
  constexpr int32_t kColumns = 3;
  return {"xdeepfm", static_cast<int32_t>(XDeepFmOptions::TableColumns(kColumns)),
          [](ModelOptions options,
             const ExecContext& ctx) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
            options.embedding_dim = kColumns;
            return XDeepFmModel::Create({options, {2, 1}}, ctx);
          }};
}
// Two tasks over experts with batch norm.
Kind Mmoe() {
  return {"mmoe", kDim,
          [](const ModelOptions& options,
             const ExecContext& ctx) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
            MmoeOptions mmoe = {options, 2, 3, {16}};
            mmoe.batch_norm = true;
            return MmoeModel::Create(mmoe, ctx);
          },
          /*two_labels=*/true};
}
Kind DcnOfExperts() {
  return {"dcn_experts", kDim,
          [](const ModelOptions& options,
             const ExecContext& ctx) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
            DcnOptions dcn = {options};
            dcn.num_cross_layers = 1;
            dcn.low_rank_dim = 4;
            dcn.num_experts = 2;
            return DcnModel::Create(dcn, ctx);
          }};
}
Kind Din() {
  return {"din", kDim,
          [](const ModelOptions& options,
             const ExecContext& ctx) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
            DinOptions din = {options};
            for (int f = 0; f < options.num_sparse; ++f) {
              din.features.push_back({absl::StrCat("cat_", f), absl::StrCat("t_cat_", f), 3});
            }
            din.history = "cat_0:cat_1,cat_2:cat_1";
            din.attention_layer_sizes = {8};
            return DinModel::Create(din, ctx);
          },
          /*two_labels=*/false, ",hotness=0-3"};
}
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

class TrainerCudaTest : public testing::TestWithParam<Kind> {
 protected:
  static TrainerOptions SmallOptions() {
    TrainerOptions options;
    options.batch_size = 64;
    options.embedding_dim = GetParam().table_columns;
    options.table_optimizer.learning_rate = 0.05f;
    options.dense_optimizer.learning_rate = 0.01f;
    options.seed = 3;
    options.store_bytes = int64_t{64} << 20;
    options.epochs = 2;
    return options;
  }

  static TrainReport Train(Device device, TrainerOptions options) {
    options.device = device;
    if (device != Device::kCpu) options.device_cache_bytes = kSmallestCache;
    const auto run = [&]() -> absl::StatusOr<TrainReport> {
      HOTROW_ASSIGN_OR_RETURN(
          std::unique_ptr<DataSource> data,
          OpenDataSource(
              "synthetic:tables=3,rows=100,dense=2,samples=400,valid=64,test=320" + GetParam().data,
              5));
      if (GetParam().two_labels) data = std::make_unique<test::TwoLabels>(std::move(data));
      if (GetParam().late_holes) data = std::make_unique<test::LateHoles>(std::move(data));
      ThreadPool pool(1);
      DeviceStream stream;
      if (device != Device::kCpu) {
        HOTROW_ASSIGN_OR_RETURN(stream, DeviceStream::Create(device));
      }
      const ExecContext ctx = stream.On({.pool = &pool});
      return RunTraining(
          options, *data,
          [&](const DataSchema& schema) {
            return GetParam().make({.num_dense = schema.num_dense,
                                    .num_sparse = static_cast<int32_t>(schema.features.size()),
                                    .embedding_dim = kDim,
                                    .over_arch_layer_sizes = {16, 1},
                                    .dropout = 0.1f,
                                    .seed = options.seed,
                                    .max_batch_size = options.batch_size,
                                    .precision = options.precision},
                                   ctx);
          },
          ctx);
    };
    absl::StatusOr<TrainReport> report = run();
    HOTROW_EXPECT_OK(report);
    return report.ok() ? *std::move(report) : TrainReport();
  }
};

TEST_P(TrainerCudaTest, LearnsWhatTheCpuLearnsAndGoesOnWithTheBitsOfAnUnstoppedRun) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const TrainReport cpu = Train(Device::kCpu, SmallOptions());
  const TrainReport gpu = Train(Device::kCuda, SmallOptions());
  EXPECT_EQ(gpu.steps, 14);
  // All but the first one and the short ones at the ends of both epochs.
  EXPECT_EQ(gpu.graph_steps, 11);
  EXPECT_LT(gpu.train_logloss, 0.69);  // of guesses
  EXPECT_NEAR(gpu.test.auc, cpu.test.auc, 2e-3);
  EXPECT_NEAR(gpu.test.logloss, cpu.test.logloss, 1e-3);
  EXPECT_NEAR(gpu.train_logloss, cpu.train_logloss, 1e-3);

  TrainerOptions stopped = SmallOptions();
  stopped.checkpoint_dir = test::TempDir() + "/checkpoints";
  stopped.checkpoint_every = 5;
  stopped.prefetch_depth = 2;
  stopped.cuda_graph = false;
  stopped.epochs = 1;
  EXPECT_EQ(Train(Device::kCuda, stopped).steps, 7);
  stopped.epochs = 2;
  stopped.resume = true;
  const TrainReport resumed = Train(Device::kCuda, stopped);
  EXPECT_EQ(resumed.steps, gpu.steps);
  EXPECT_EQ(resumed.digest.hash, gpu.digest.hash);
  EXPECT_EQ(resumed.dense_hash, gpu.dense_hash);
  EXPECT_EQ(resumed.test.auc, gpu.test.auc);
  EXPECT_EQ(resumed.train_logloss, gpu.train_logloss);

  TrainerOptions bf16 = SmallOptions();
  bf16.precision = DensePrecision::kBf16;
  EXPECT_NEAR(Train(Device::kCuda, bf16).test.auc, cpu.test.auc, 1e-3);
}

class TrainerFp16CudaTest : public TrainerCudaTest {};
INSTANTIATE_TEST_SUITE_P(Models, TrainerFp16CudaTest,
                         testing::Values(PlainKindOf<DcnModel, DcnOptions>("dcn")),
                         [](const testing::TestParamInfo<Kind>& info) { return info.param.name; });

// Rows and dense parameters leave the same steps out, and both go on from a checkpoint with the
// scale that it had.
TEST_P(TrainerFp16CudaTest, LearnsWithAScaledLossThatFindsItsWayDown) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  TrainerOptions options = SmallOptions();
  options.precision = DensePrecision::kFp16;
  const TrainReport fp16 = Train(Device::kCuda, options);
  ASSERT_TRUE(fp16.loss_scale.has_value());
  EXPECT_EQ(fp16.loss_scale->scale, 65536);
  EXPECT_EQ(fp16.loss_scale->good_steps, fp16.steps);
  EXPECT_EQ(fp16.loss_scale->skipped_steps, 0);
  const TrainReport cpu = Train(Device::kCpu, SmallOptions());
  EXPECT_NEAR(fp16.test.auc, cpu.test.auc, 2e-3);
  EXPECT_NEAR(fp16.test.logloss, cpu.test.logloss, 1e-3);

  // The gradients of some of the first steps lie beyond fp16.
  options.loss_scale = 0x1p25f;
  options.max_gradient_norm = 1e6;  // whose norm is infinite in these steps
  const TrainReport high = Train(Device::kCuda, options);
  ASSERT_TRUE(high.loss_scale.has_value());
  const int64_t skipped = high.loss_scale->skipped_steps;
  EXPECT_GT(skipped, 0);
  EXPECT_LE(skipped, high.steps / 2);
  EXPECT_EQ(high.loss_scale->scale, std::ldexp(1.0, 25 - static_cast<int>(skipped)));
  EXPECT_TRUE(std::isfinite(high.test.logloss));
  EXPECT_NE(high.dense_hash, fp16.dense_hash);
  options.checkpoint_dir = test::TempDir() + "/checkpoints";
  options.checkpoint_every = 2;
  options.resume = true;
  options.epochs = 1;
  Train(Device::kCuda, options);
  options.epochs = 2;
  const TrainReport resumed = Train(Device::kCuda, options);
  EXPECT_EQ(resumed.digest.hash, high.digest.hash);
  EXPECT_EQ(resumed.dense_hash, high.dense_hash);
  EXPECT_EQ(resumed.loss_scale->scale, high.loss_scale->scale);
  EXPECT_EQ(resumed.loss_scale->skipped_steps, skipped);
}

// DLRM, whose vectors tensor cores take, over batches of which some have a bag without lookups.
Kind DlrmWithHoles() {
  constexpr int32_t kColumns = 16;
  Kind kind = {"dlrm", kColumns,
               [](ModelOptions options,
                  const ExecContext& ctx) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
                 options.embedding_dim = kColumns;
                 return DlrmModel::Create({options, {kColumns}}, ctx);
               }};
  kind.late_holes = true;
  return kind;
}
class FusedLookupCudaTest : public TrainerCudaTest {};
INSTANTIATE_TEST_SUITE_P(Models, FusedLookupCudaTest, testing::Values(DlrmWithHoles()),
                         [](const testing::TestParamInfo<Kind>& info) { return info.param.name; });

// Steps of both kinds follow each other, each as its own graph, and no bit shows which.
TEST_P(FusedLookupCudaTest, BatchesThatCannotBeFusedArePooled) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  TrainerOptions options = SmallOptions();
  options.precision = DensePrecision::kTf32;
  options.prefetch_depth = 2;
  const TrainReport fused = Train(Device::kCuda, options);
  EXPECT_EQ(fused.steps, 14);
  // Holes in batches 1 and 4 of both epochs; two of 14 are short, two each are not yet a graph.
  EXPECT_EQ(fused.fused_lookup_steps, 10);
  EXPECT_EQ(fused.graph_steps, 10);
  options.fuse_lookup = false;
  const TrainReport pooled = Train(Device::kCuda, options);
  EXPECT_EQ(pooled.fused_lookup_steps, 0);
  EXPECT_EQ(pooled.digest.hash, fused.digest.hash);
  EXPECT_EQ(pooled.dense_hash, fused.dense_hash);
  EXPECT_EQ(pooled.train_logloss, fused.train_logloss);
  EXPECT_EQ(pooled.test.auc, fused.test.auc);
}

// For models that differ from those above by their dense half only.
class BriefTrainerCudaTest : public TrainerCudaTest {};

TEST_P(BriefTrainerCudaTest, LearnsWhatTheCpuLearns) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  TrainerOptions options = SmallOptions();
  options.epochs = 1;
  options.limit_train_batches = 4;
  const TrainReport cpu = Train(Device::kCpu, options);
  const TrainReport gpu = Train(Device::kCuda, options);
  EXPECT_EQ(gpu.steps, 4);
  EXPECT_NEAR(gpu.test.auc, cpu.test.auc, 2e-3);
  EXPECT_NEAR(gpu.test.logloss, cpu.test.logloss, 1e-3);
  EXPECT_NEAR(gpu.train_logloss, cpu.train_logloss, 1e-4);
  ASSERT_EQ(gpu.tasks.size(), GetParam().two_labels ? 2u : 0u);
  ASSERT_EQ(cpu.tasks.size(), gpu.tasks.size());
  for (size_t task = 0; task < gpu.tasks.size(); ++task) {
    EXPECT_NEAR(gpu.tasks[task].test.auc, cpu.tasks[task].test.auc, 2e-3);
    EXPECT_NEAR(gpu.tasks[task].test.logloss, cpu.tasks[task].test.logloss, 1e-3);
  }
  // After so few steps logits lie close together, and a rounding changes the order of some.
  options.precision = DensePrecision::kBf16;
  EXPECT_NEAR(Train(Device::kCuda, options).test.auc, cpu.test.auc, 3e-3);
}

// Also where a whole batch, which is a graph, follows a short one, of which batch norm has kept
// other statistics.
TEST_P(BriefTrainerCudaTest, GoesOnWithTheBitsOfAnUnstoppedRunWhetherAsGraphsOrNot) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  TrainerOptions options = SmallOptions();
  options.batch_size = 96;
  const TrainReport whole = Train(Device::kCuda, options);
  EXPECT_EQ(whole.steps, 10);
  // All but the first one and the short ones; shapes of din follow from the batch.
  EXPECT_EQ(whole.graph_steps, GetParam().name == "din" ? 0 : 7);
  options.checkpoint_dir = test::TempDir() + "/checkpoints";
  options.cuda_graph = false;
  options.epochs = 1;
  EXPECT_EQ(Train(Device::kCuda, options).steps, 5);
  options.epochs = 2;
  options.resume = true;
  const TrainReport resumed = Train(Device::kCuda, options);
  EXPECT_EQ(resumed.steps, whole.steps);
  EXPECT_EQ(resumed.graph_steps, 0);
  EXPECT_EQ(resumed.digest.hash, whole.digest.hash);
  EXPECT_EQ(resumed.dense_hash, whole.dense_hash);
  EXPECT_EQ(resumed.test.auc, whole.test.auc);
}

INSTANTIATE_TEST_SUITE_P(Models, BriefTrainerCudaTest,
                         testing::Values(Mmoe(), DcnOfExperts(), Din()),
                         [](const testing::TestParamInfo<Kind>& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Models, TrainerCudaTest,
                         testing::Values(KindOf<DeepFmModel, DeepFmOptions>("deepfm"),
                                         KindOf<WideDeepModel, WideDeepOptions>("wide_deep"),
                                         PlainKindOf<DcnModel, DcnOptions>("dcn"), Pnn(),
                                         XDeepFm()),
                         [](const testing::TestParamInfo<Kind>& info) { return info.param.name; });

}  // namespace
}  // namespace hotrow
