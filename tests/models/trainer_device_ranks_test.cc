// Training on several ranks whose row caches lie on devices, and sums of their dense gradients: on
// GPUs where there are enough, and as the same tiers in host memory everywhere. Ranks are threads
// of this process.

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/device_stream.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "comm/thread_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/open_data_source.h"
#include "models/train/dense_sums_impl.h"
#include "models/train/trainer.h"
#include "models/zoo/din_model.h"
#include "models/zoo/dlrm_model.h"
#include "tests/support/gpu_test.h"
#include "tests/support/lagging_streams.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#if HOTROW_HAVE_CUDA
#include "tests/comm/device_ranks.h"
#endif

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Empty, or why this machine cannot run so many ranks on that device.
std::string WhyNot(Device device, int world_size) {
  if (device == Device::kCpu) return "";
#if HOTROW_HAVE_CUDA
  return test::WhyNotOnDevices(world_size);
#else
  return absl::StrCat("this build has no CUDA for ", world_size, " ranks");
#endif
}

std::vector<absl::Status> RunOn(Device device, int world_size, const CommunicatorOptions& options,
                                const std::function<absl::Status(Communicator&)>& rank_main) {
#if HOTROW_HAVE_CUDA
  if (device == Device::kCuda) return test::RunOnDevices(world_size, options, rank_main);
#endif
  EXPECT_EQ(device, Device::kCpu);
  return RunOnThreads(world_size, options, rank_main);
}

// --- Sums

struct SumsKind {
  Device device = Device::kCpu;
  int world_size = 1;
};

class DenseSumsTest : public testing::TestWithParam<SumsKind> {
 protected:
  void SetUp() override {
    const std::string why = WhyNot(GetParam().device, GetParam().world_size);
    if (!why.empty()) GTEST_SKIP() << why;
    // As late as those of a GPU.
    if (GetParam().device == Device::kCpu) lagging_.emplace(std::chrono::microseconds(300));
  }

  std::optional<test::LaggingStreams> lagging_;
};

INSTANTIATE_TEST_SUITE_P(Ranks, DenseSumsTest,
                         testing::Values(SumsKind{Device::kCpu, 1}, SumsKind{Device::kCpu, 2},
                                         SumsKind{Device::kCpu, 5}, SumsKind{Device::kCuda, 2},
                                         SumsKind{Device::kCuda, 5}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.device == Device::kCpu ? "Host" : "Gpu",
                                               info.param.world_size);
                         });

// Several at a time, as a step has them; some with fewer floats than ranks.
TEST_P(DenseSumsTest, HaveTheBitsOfTheHostsAllReduce) {
  const Device device = GetParam().device;
  const std::vector<int64_t> sizes = {1000, 3, 1, 4097, 0, 62};
  constexpr int64_t kFloats = 5163;
  const auto statuses = RunOn(device, GetParam().world_size, {}, [&](Communicator& c) {
    return [&]() -> absl::Status {
      HOTROW_ASSIGN_OR_RETURN(auto sums, DenseSums::Create(c, device, kFloats));
      DeviceStream stream;
      if (device != Device::kCpu) {
        HOTROW_ASSIGN_OR_RETURN(stream, DeviceStream::Create(device));
      }
      DeviceMemory<float> values;
      DeviceMemory<float> summed;
      HOTROW_RETURN_IF_ERROR(values.Reserve(kFloats, {device, stream.get()}));
      HOTROW_RETURN_IF_ERROR(summed.Reserve(kFloats, {device, stream.get()}));
      const ExecContext ctx = stream.On({});
      RandomStream random(static_cast<uint64_t>(c.rank()) + 1, RandomPurpose::kTest);
      for (int step = 0; step < 3; ++step) {
        std::vector<float> mine(kFloats);
        for (float& x : mine) {
          x = static_cast<float>(random.Uniform() - 0.5) * (random.Below(3) == 0 ? 1e6f : 1e-2f);
        }
        HOTROW_RETURN_IF_ERROR(stream.Copy(values.data(), mine.data(), kFloats * 4));
        int64_t begin = 0;
        for (const int64_t size : sizes) {
          HOTROW_RETURN_IF_ERROR(sums->Start(
              ctx, values.data() + begin,
              summed.span().subspan(static_cast<size_t>(begin), static_cast<size_t>(size))));
          begin += size;
        }
        HOTROW_RETURN_IF_ERROR(sums->Finish(ctx));
        std::vector<float> got(kFloats);
        HOTROW_RETURN_IF_ERROR(stream.Copy(got.data(), summed.data(), kFloats * 4));
        HOTROW_RETURN_IF_ERROR(stream.Wait());
        HOTROW_RETURN_IF_ERROR(sums->status());
        HOTROW_RETURN_IF_ERROR(c.AllReduceSum(std::span(mine)));
        EXPECT_EQ(got, mine) << "rank " << c.rank() << " step " << step;
      }
      return absl::OkStatus();
    }();
  });
  for (const absl::Status& status : statuses) HOTROW_EXPECT_OK(status);
}

// --- Runs

TrainerOptions SmallOptions() {
  TrainerOptions options;
  options.batch_size = 64;
  options.embedding_dim = 8;
  options.table_optimizer.kind = SparseOptimizerKind::kAdam;
  options.table_optimizer.learning_rate = 0.01f;
  options.dense_optimizer.kind = DenseOptimizerKind::kAdam;
  options.dense_optimizer.learning_rate = 0.01f;
  options.seed = 3;
  options.store_bytes = int64_t{64} << 20;
  return options;
}

// Jagged features, a shared table, a last batch of other size; of one sample, so that a rank has
// none of it.
const char* Spec() {
  return test::kEmulatedGpu
             ? "synthetic:tables=3,rows=120,dense=3,shared=2,hotness=0-3,samples=385,valid=70,"
               "test=130"
             : "synthetic:tables=3,rows=300,dense=3,shared=2,hotness=0-3,samples=1281,valid=330,"
               "test=700";
}

// Data whose reader says nothing at this training batch, as long as `others` run.
class SilentSource : public DataSource {
 public:
  SilentSource(std::unique_ptr<DataSource> data, int64_t batch, const std::atomic<int>& others)
      : data_(std::move(data)), batch_(batch), others_(others) {}
  const DataSchema& schema() const override { return data_->schema(); }
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Identity() const override {
    return data_->Identity();
  }
  absl::StatusOr<std::unique_ptr<DataReader>> OpenSplit(Split split, int64_t epoch,
                                                        int64_t first_sample) override {
    HOTROW_ASSIGN_OR_RETURN(auto reader, data_->OpenSplit(split, epoch, first_sample));
    if (split != Split::kTrain) return reader;
    return std::make_unique<Reader>(std::move(reader), batch_, others_);
  }

 private:
  class Reader : public DataReader {
   public:
    Reader(std::unique_ptr<DataReader> reader, int64_t batch, const std::atomic<int>& others)
        : reader_(std::move(reader)), left_(batch), others_(others) {}
    absl::Status Next(int64_t max_batch_size, CtrBatch* batch) override {
      for (int i = 0; left_ == 0 && i < 12000 && others_ > 0; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      --left_;
      return reader_->Next(max_batch_size, batch);
    }
    int64_t position() const override { return reader_->position(); }

   private:
    const std::unique_ptr<DataReader> reader_;
    int64_t left_;
    const std::atomic<int>& others_;
  };

  const std::unique_ptr<DataSource> data_;
  const int64_t batch_;
  const std::atomic<int>& others_;
};

// What is wrong with the last rank.
struct LastRank {
  uint64_t other_seed = 0;    // of its model, beside that of the options
  int64_t silent_at = -1;     // training batch that it never reads
  std::atomic<int> others{};  // ranks that still run
};

enum class Model { kDlrm, kDlrmWithBatchNorm, kDin };

absl::StatusOr<std::unique_ptr<CtrModel>> NewModel(Model model, const DataSchema& schema,
                                                   const TrainerOptions& options, uint64_t seed,
                                                   const ExecContext& ctx) {
  const ModelOptions common = {.num_dense = schema.num_dense,
                               .num_sparse = static_cast<int32_t>(schema.features.size()),
                               .embedding_dim = options.embedding_dim,
                               .over_arch_layer_sizes = {16, 1},
                               .dropout = 0.1f,
                               .batch_norm = model == Model::kDlrmWithBatchNorm,
                               .seed = seed,
                               .max_batch_size = options.batch_size,
                               .precision = options.precision};
  if (model != Model::kDin) {
    return DlrmModel::Create({common, {16, options.embedding_dim}}, ctx);
  }
  DinOptions din = {common};
  for (const DataFeature& feature : schema.features) {
    din.features.push_back({feature.name, feature.table, feature.max_hotness});
  }
  din.history = absl::StrCat(schema.features[0].name, ":", schema.features[1].name);
  din.attention_layer_sizes = {8};
  return DinModel::Create(din, ctx);
}

// What each rank returns.
std::vector<absl::StatusOr<TrainReport>> RunRanks(
    Device device, int world_size, const std::function<TrainerOptions(int rank)>& options_of,
    double timeout_seconds = 60, LastRank* last = nullptr, Model model = Model::kDlrm) {
  if (last != nullptr) last->others = world_size - 1;
  std::vector<absl::StatusOr<TrainReport>> reports(
      static_cast<size_t>(world_size),
      absl::StatusOr<TrainReport>(absl::UnknownError("did not run")));
  RunOn(device, world_size, {.timeout_seconds = timeout_seconds}, [&](Communicator& communicator) {
    absl::StatusOr<TrainReport>& report = reports[static_cast<size_t>(communicator.rank())];
    report = [&]() -> absl::StatusOr<TrainReport> {
      TrainerOptions options = options_of(communicator.rank());
      options.device = device;
      options.communicator = &communicator;
      ThreadPool pool(1);
      HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<DataSource> data, OpenDataSource(Spec(), 5));
      const bool is_last = last != nullptr && communicator.rank() == world_size - 1;
      if (is_last && last->silent_at >= 0) {
        data = std::make_unique<SilentSource>(std::move(data), last->silent_at, last->others);
      }
      DeviceStream stream;
      if (device != Device::kCpu) {
        HOTROW_ASSIGN_OR_RETURN(stream, DeviceStream::Create(device));
      }
      const ExecContext ctx = stream.On({.pool = &pool});
      const auto make_model =
          [&](const DataSchema& schema) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
        const uint64_t seed = options.seed + (is_last ? last->other_seed : 0);
        return NewModel(model, schema, options, seed, ctx);
      };
      return RunTraining(options, *data, make_model, ctx);
    }();
    if (last != nullptr) --last->others;
    return report.status();
  });
  return reports;
}

// The report of rank 0; the others must say the same of what is common.
TrainReport RunAlike(Device device, int world_size, const TrainerOptions& options,
                     Model model = Model::kDlrm) {
  const auto reports = RunRanks(
      device, world_size, [&](int) { return options; }, 60, nullptr, model);
  for (const auto& report : reports) {
    HOTROW_EXPECT_OK(report);
    if (!report.ok()) return {};
    EXPECT_EQ(report->digest.hash, reports[0]->digest.hash);
    EXPECT_EQ(report->dense_hash, reports[0]->dense_hash);
    EXPECT_EQ(report->test.auc, reports[0]->test.auc);
    EXPECT_EQ(report->train_logloss, reports[0]->train_logloss);
    EXPECT_EQ(report->loss_scale.has_value(), reports[0]->loss_scale.has_value());
    if (!report->loss_scale.has_value()) continue;
    EXPECT_EQ(report->loss_scale->scale, reports[0]->loss_scale->scale);
    EXPECT_EQ(report->loss_scale->good_steps, reports[0]->loss_scale->good_steps);
    EXPECT_EQ(report->loss_scale->skipped_steps, reports[0]->loss_scale->skipped_steps);
  }
  return *reports[0];
}

void ExpectSameEnd(const TrainReport& a, const TrainReport& b) {
  EXPECT_EQ(a.digest.hash, b.digest.hash);
  EXPECT_EQ(a.dense_hash, b.dense_hash);
  EXPECT_EQ(a.steps, b.steps);
  EXPECT_EQ(a.test.auc, b.test.auc);
  EXPECT_EQ(a.valid.logloss, b.valid.logloss);
  EXPECT_EQ(a.train_logloss, b.train_logloss);
}

TrainerOptions OnSsd(TrainerOptions options) {
  options.store = StoreKind::kSsd;
  options.store_path = test::TempDir();
  options.store_bytes = 2 << 20;
  options.disk_bytes = 64 << 20;
  return options;
}

TEST(TrainerDeviceRanksTest, StagedTiersHaveTheBitsOfRanksOnTheHost) {
  TrainerOptions options = SmallOptions();
  options.exchange_backward = ExchangeType::kFp16;
  for (const int ranks : {2, 3}) {
    SCOPED_TRACE(ranks);
    const TrainReport want = RunAlike(Device::kCpu, ranks, options);
    TrainerOptions staged = OnSsd(options);
    staged.device_cache_bytes = kSmallestCache;
    staged.prefetch_depth = 2;
    staged.validation_freq_within_epoch = 5;
    const TrainReport got = RunAlike(Device::kCpu, ranks, staged);
    EXPECT_EQ(got.digest.hash, want.digest.hash);
    EXPECT_EQ(got.dense_hash, want.dense_hash);
    EXPECT_EQ(got.test.auc, want.test.auc);
    EXPECT_EQ(got.tables.exchange_forward_bytes, want.tables.exchange_forward_bytes);
  }
}

// A rank that hangs in the middle of training, in its first steps and later.
void ExpectARankThatHangsIsNamed(Device device, const TrainerOptions& options,
                                 double timeout_seconds) {
  for (const int64_t batch : {int64_t{1}, int64_t{4}}) {
    SCOPED_TRACE(batch);
    LastRank last{.silent_at = batch};
    const auto reports = RunRanks(
        device, 3, [&](int) { return options; }, timeout_seconds, &last);
    for (const int rank : {0, 1}) {
      EXPECT_THAT(reports[static_cast<size_t>(rank)].status(),
                  StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 2")))
          << rank;
    }
    EXPECT_FALSE(reports[2].ok());
  }
}

TEST(TrainerDeviceRanksTest, ARankThatHangsEndsTheOthersAndIsNamed) {
  TrainerOptions options = SmallOptions();
  options.device_cache_bytes = kSmallestCache;
  ExpectARankThatHangsIsNamed(Device::kCpu, options, /*timeout_seconds=*/1);
}

TEST(TrainerDeviceRanksTest, ResidualsAreRefusedInOneLine) {
  TrainerOptions options = SmallOptions();
  options.exchange_backward = ExchangeType::kInt8;
  options.exchange_feedback_bytes = 1 << 20;
  options.device_cache_bytes = kSmallestCache;
  for (const auto& report : RunRanks(Device::kCpu, 2, [&](int) { return options; })) {
    EXPECT_THAT(report.status(),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("--exchange_feedback is ")));
  }
}

class GpuRanksTest : public testing::Test {
 protected:
  static constexpr int kRanks = 2;

  void SetUp() override {
    const std::string why = WhyNot(Device::kCuda, kRanks);
    if (!why.empty()) GTEST_SKIP() << why;
    options_.device_cache_bytes = kSmallestCache;
  }

  TrainerOptions options_ = SmallOptions();
};

// The bits of a GPU are its own: its GEMMs add in another order.
TEST_F(GpuRanksTest, LearnWhatRanksOnTheHostLearnAndRepeat) {
  TrainerOptions on_host = options_;
  on_host.device_cache_bytes = 0;
  on_host.max_gradient_norm = options_.max_gradient_norm = 0.05;
  const TrainReport host = RunAlike(Device::kCpu, kRanks, on_host);
  const TrainReport gpu = RunAlike(Device::kCuda, kRanks, options_);
  if (HasFailure()) return;
  EXPECT_EQ(gpu.world_size, kRanks);
  EXPECT_EQ(gpu.steps, host.steps);
  EXPECT_EQ(gpu.rows(), host.rows());
  EXPECT_NEAR(gpu.test.logloss, host.test.logloss, 1e-3);
  EXPECT_NEAR(gpu.train_logloss, host.train_logloss, 1e-4);
  EXPECT_EQ(gpu.exchange_dense_bytes, host.exchange_dense_bytes);
  EXPECT_EQ(gpu.tables.exchange_forward_bytes, host.tables.exchange_forward_bytes);
  // But they repeat, with any tiers.
  TrainerOptions other = OnSsd(options_);
  other.prefetch_depth = 2;
  ExpectSameEnd(RunAlike(Device::kCuda, kRanks, other), gpu);
}

// Whose sums are the host's, over all ranks.
TEST_F(GpuRanksTest, BatchNormSeesTheBatchOfAllRanks) {
  options_.limit_train_batches = 3;
  TrainerOptions on_host = options_;
  on_host.device_cache_bytes = 0;
  const TrainReport host = RunAlike(Device::kCpu, kRanks, on_host, Model::kDlrmWithBatchNorm);
  const TrainReport gpu = RunAlike(Device::kCuda, kRanks, options_, Model::kDlrmWithBatchNorm);
  EXPECT_EQ(gpu.steps, 3);
  EXPECT_NEAR(gpu.test.logloss, host.test.logloss, 1e-3);
  EXPECT_NEAR(gpu.train_logloss, host.train_logloss, 1e-4);
}

// Whose rows reach the model one by one, over all ranks.
TEST_F(GpuRanksTest, HistoriesOfOtherRanksRowsAreLookedAt) {
  options_.limit_train_batches = 3;
  TrainerOptions on_host = options_;
  on_host.device_cache_bytes = 0;
  const TrainReport host = RunAlike(Device::kCpu, kRanks, on_host, Model::kDin);
  const TrainReport gpu = RunAlike(Device::kCuda, kRanks, options_, Model::kDin);
  EXPECT_EQ(gpu.steps, 3);
  EXPECT_NEAR(gpu.test.logloss, host.test.logloss, 1e-3);
  EXPECT_NEAR(gpu.train_logloss, host.train_logloss, 1e-4);
  EXPECT_EQ(gpu.rows(), host.rows());
  ExpectSameEnd(RunAlike(Device::kCuda, kRanks, options_, Model::kDin), gpu);
}

TEST_F(GpuRanksTest, ACheckpointGoesOnWithTheSameBits) {
  options_.epochs = 2;
  const TrainReport whole = RunAlike(Device::kCuda, kRanks, options_);
  TrainerOptions saving = options_;
  saving.checkpoint_dir = test::TempDir() + "/checkpoints";
  saving.checkpoint_every = 3;
  saving.resume = true;
  // Ends with a checkpoint.
  saving.epochs = 1;
  RunAlike(Device::kCuda, kRanks, saving);
  saving.epochs = 2;
  ExpectSameEnd(RunAlike(Device::kCuda, kRanks, saving), whole);
}

// The gradients of the first steps lie beyond fp16, of one rank's samples or of another's: all
// leave the same steps out, rows and dense parameters, and go on from a checkpoint with the scale
// of then.
TEST_F(GpuRanksTest, Fp16HasOneScaleOfAllRanks) {
  // Which moves as far as the gradient says: Adam would not notice one that is still scaled.
  options_.dense_optimizer.kind = DenseOptimizerKind::kSgd;
  options_.dense_optimizer.learning_rate = 0.1f;
  TrainerOptions on_host = options_;
  on_host.device_cache_bytes = 0;
  const TrainReport host = RunAlike(Device::kCpu, kRanks, on_host);
  options_.precision = DensePrecision::kFp16;
  const TrainReport plain = RunAlike(Device::kCuda, kRanks, options_);
  if (HasFailure()) return;
  ASSERT_TRUE(plain.loss_scale.has_value());
  EXPECT_EQ(plain.loss_scale->skipped_steps, 0);
  EXPECT_NEAR(plain.test.auc, host.test.auc, 2e-3);
  EXPECT_NEAR(plain.test.logloss, host.test.logloss, 1e-3);

  options_.loss_scale = 0x1p25f;
  options_.epochs = 2;
  const TrainReport high = RunAlike(Device::kCuda, kRanks, options_);
  ASSERT_TRUE(high.loss_scale.has_value());
  EXPECT_GT(high.loss_scale->skipped_steps, 0);
  EXPECT_LE(high.loss_scale->skipped_steps, high.steps / 2);
  EXPECT_TRUE(std::isfinite(high.test.logloss));
  options_.checkpoint_dir = test::TempDir() + "/checkpoints";
  options_.checkpoint_every = 2;
  options_.resume = true;
  options_.epochs = 1;
  RunAlike(Device::kCuda, kRanks, options_);
  options_.epochs = 2;
  const TrainReport resumed = RunAlike(Device::kCuda, kRanks, options_);
  ExpectSameEnd(resumed, high);
  EXPECT_EQ(resumed.loss_scale->scale, high.loss_scale->scale);
  EXPECT_EQ(resumed.loss_scale->skipped_steps, high.loss_scale->skipped_steps);
}

// A signal of one rank ends all behind the same step.
TEST_F(GpuRanksTest, ASignalToOneRankStopsAll) {
  std::atomic<int> signal = SIGTERM;
  const auto reports = RunRanks(Device::kCuda, kRanks, [&](int rank) {
    TrainerOptions options = options_;
    if (rank == 1) options.stop_signal = &signal;
    return options;
  });
  for (const auto& report : reports) {
    HOTROW_ASSERT_OK(report);
    EXPECT_EQ(report->stopped_by_signal, SIGTERM);
    EXPECT_EQ(report->steps, reports[0]->steps);
    EXPECT_LE(report->steps, 3);
  }
}

TEST_F(GpuRanksTest, AnotherModelOfARankIsNamed) {
  LastRank last{.other_seed = 1};
  for (const auto& report : RunRanks(
           Device::kCuda, kRanks, [&](int) { return options_; }, 60, &last)) {
    EXPECT_THAT(std::string(report.status().message()),
                AllOf(HasSubstr("the hash of the first dense parameters is "),
                      HasSubstr(" on rank 0 and "), HasSubstr(" on rank 1")));
  }
}

TEST_F(GpuRanksTest, ARankThatHangsEndsTheOthersAndIsNamed) {
  if (const std::string why = WhyNot(Device::kCuda, 3); !why.empty()) GTEST_SKIP() << why;
  ExpectARankThatHangsIsNamed(Device::kCuda, options_, /*timeout_seconds=*/5);
}

TEST_F(GpuRanksTest, ARankThatLeavesIsNamed) {
  const auto reports = RunRanks(Device::kCuda, kRanks, [&](int rank) {
    TrainerOptions options = options_;
    // Its own alone: it takes no part in anything behind that.
    if (rank == 1) options.store_bytes = 1;
    return options;
  });
  EXPECT_FALSE(reports[1].ok());
  EXPECT_THAT(std::string(reports[0].status().message()), HasSubstr("rank 1"));
}

}  // namespace
}  // namespace hotrow
