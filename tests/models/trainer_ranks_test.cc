// Training on several ranks, which are threads of this process. ranks_cli_test runs processes.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "comm/thread_communicator.h"
#include "gtest/gtest.h"
#include "models/data/open_data_source.h"
#include "models/saving/manifest.h"
#include "models/saving/saved_model.h"
#include "models/train/trainer.h"
#include "models/zoo/bst_model.h"
#include "models/zoo/din_model.h"
#include "models/zoo/dlrm_model.h"
#include "tests/support/failing_threads.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// Jagged features, a shared table, a last batch of other size.
constexpr char kSpec[] =
    "synthetic:tables=3,rows=300,dense=3,shared=2,hotness=0-3,samples=2500,valid=330,test=700";

TrainerOptions SmallOptions() {
  TrainerOptions options;
  options.batch_size = 64;
  options.embedding_dim = 8;
  options.table_optimizer.kind = SparseOptimizerKind::kSgd;
  options.table_optimizer.learning_rate = 0.5f;
  options.dense_optimizer.kind = DenseOptimizerKind::kSgd;
  options.dense_optimizer.learning_rate = 0.1f;
  options.seed = 3;
  options.store_bytes = int64_t{64} << 20;
  return options;
}

ModelFactory SmallDlrm(const TrainerOptions& options, bool batch_norm = false) {
  return [=](const DataSchema& schema) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
    return DlrmModel::Create({{.num_dense = schema.num_dense,
                               .num_sparse = static_cast<int32_t>(schema.features.size()),
                               .embedding_dim = options.embedding_dim,
                               .over_arch_layer_sizes = {16, 1},
                               .dropout = 0.1f,
                               .batch_norm = batch_norm,
                               .seed = options.seed,
                               .max_batch_size = options.batch_size},
                              {16, options.embedding_dim}});
  };
}

// A model over a history that shares a table with its target.
template <typename Options>
ModelFactory OverHistory(const TrainerOptions& options, const Options& own,
                         absl::StatusOr<std::unique_ptr<GraphModel>> (*create)(
                             const Options& options, const ExecContext& ctx)) {
  return [=](const DataSchema& schema) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
    Options model = own;
    model.num_dense = schema.num_dense;
    model.num_sparse = static_cast<int32_t>(schema.features.size());
    model.embedding_dim = options.embedding_dim;
    model.over_arch_layer_sizes = {16, 1};
    model.dropout = 0.1f;
    model.seed = options.seed;
    model.max_batch_size = options.batch_size;
    model.history = "cat_0:cat_1";
    for (const DataFeature& feature : schema.features) {
      model.features.push_back({feature.name, feature.table, feature.max_hotness});
    }
    return create(model, {});
  };
}
ModelFactory SmallDin(const TrainerOptions& options) {
  DinOptions own;
  own.attention_layer_sizes = {8};
  return OverHistory(options, own, DinModel::Create);
}
ModelFactory SmallBst(const TrainerOptions& options) {
  BstOptions own;
  own.num_heads = 2;
  return OverHistory(options, own, BstModel::Create);
}

using FactoryOf = std::function<ModelFactory(const TrainerOptions& options)>;
ModelFactory PlainDlrm(const TrainerOptions& options) { return SmallDlrm(options); }
ModelFactory NormedDlrm(const TrainerOptions& options) {
  return SmallDlrm(options, /*batch_norm=*/true);
}

// What each rank returns.
std::vector<absl::StatusOr<TrainReport>> RunRanks(
    int world_size, const std::function<TrainerOptions(int rank)>& options_of, int threads = 1,
    const char* spec = kSpec, const FactoryOf& factory_of = PlainDlrm) {
  std::vector<absl::StatusOr<TrainReport>> reports(
      world_size, absl::StatusOr<TrainReport>(absl::UnknownError("did not run")));
  RunOnThreads(world_size, {.timeout_seconds = 60}, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    TrainerOptions options = options_of(rank);
    options.communicator = &communicator;
    ThreadPool pool(threads);
    absl::StatusOr<std::unique_ptr<DataSource>> data = OpenDataSource(spec, 5);
    HOTROW_EXPECT_OK(data);
    reports[rank] = RunTraining(options, **data, factory_of(options), {.pool = &pool});
    return reports[rank].status();
  });
  return reports;
}

// The report of rank 0; the others must say the same of what is common.
TrainReport RunAlike(int world_size, const TrainerOptions& options, int threads = 1,
                     const char* spec = kSpec, const FactoryOf& factory_of = PlainDlrm) {
  const auto reports = RunRanks(
      world_size, [&](int) { return options; }, threads, spec, factory_of);
  for (const auto& report : reports) {
    HOTROW_EXPECT_OK(report);
    if (!report.ok()) return {};
    EXPECT_EQ(report->digest.hash, reports[0]->digest.hash);
    EXPECT_EQ(report->dense_hash, reports[0]->dense_hash);
    EXPECT_EQ(report->test.auc, reports[0]->test.auc);
    EXPECT_EQ(report->valid.logloss, reports[0]->valid.logloss);
    EXPECT_EQ(report->train_logloss, reports[0]->train_logloss);
    EXPECT_EQ(report->tables.exchange_ids_bytes, reports[0]->tables.exchange_ids_bytes);
  }
  return *reports[0];
}

TEST(TrainerRanksTest, TrainToTheModelOfOneRank) {
  TrainerOptions options = SmallOptions();
  options.epochs = 4;
  const TrainReport one = RunAlike(1, options);
  EXPECT_GT(one.test.auc, 0.57);
  for (const int ranks : {2, 3, 8}) {
    SCOPED_TRACE(ranks);
    const TrainReport many = RunAlike(ranks, options);
    EXPECT_EQ(many.world_size, ranks);
    EXPECT_EQ(many.steps, one.steps);
    EXPECT_EQ(many.samples, one.samples);
    EXPECT_EQ(many.test.samples, one.test.samples);
    EXPECT_EQ(many.rows(), one.rows());
    EXPECT_EQ(many.tables.initialised_rows, one.tables.initialised_rows);
    // Rounding apart: sums are made in other orders.
    EXPECT_NEAR(many.test.auc, one.test.auc, 1e-4);
    EXPECT_NEAR(many.test.logloss, one.test.logloss, 1e-5);
    EXPECT_NEAR(many.train_logloss, one.train_logloss, 1e-5);
    EXPECT_EQ(many.best_auc, one.best_auc);
    EXPECT_GT(many.exchange_dense_bytes, 0);
    EXPECT_GT(many.tables.exchange_forward_bytes, 0);
    EXPECT_GT(many.tables.exchange_evaluation_bytes, 0);
  }
}

// Its statistics are those of whole batches, so ranks train what one rank does; and again the same
// bits.
TEST(TrainerRanksTest, BatchNormSeesTheWholeBatch) {
  const TrainerOptions options = SmallOptions();
  const TrainReport one = RunAlike(1, options, 1, kSpec, NormedDlrm);
  EXPECT_NE(one.dense_hash, RunAlike(1, options).dense_hash);
  for (const int ranks : {2, 5}) {
    SCOPED_TRACE(ranks);
    const TrainReport many = RunAlike(ranks, options, 1, kSpec, NormedDlrm);
    EXPECT_NEAR(many.test.auc, one.test.auc, 1e-3);
    EXPECT_NEAR(many.test.logloss, one.test.logloss, 1e-4);
    EXPECT_NEAR(many.train_logloss, one.train_logloss, 1e-4);
    const TrainReport again = RunAlike(ranks, options, 2, kSpec, NormedDlrm);
    EXPECT_EQ(again.dense_hash, many.dense_hash);
    EXPECT_EQ(again.digest.hash, many.digest.hash);
  }
}

TEST(TrainerRanksTest, HistoriesTravelRowByRow) {
  const TrainerOptions options = SmallOptions();
  for (const auto& factory_of : {SmallDin, SmallBst}) {
    const TrainReport one = RunAlike(1, options, 1, kSpec, factory_of);
    for (const int ranks : {2, 5}) {
      SCOPED_TRACE(ranks);
      const TrainReport many = RunAlike(ranks, options, 1, kSpec, factory_of);
      EXPECT_EQ(many.rows(), one.rows());
      EXPECT_NEAR(many.test.auc, one.test.auc, 1e-3);
      EXPECT_NEAR(many.train_logloss, one.train_logloss, 1e-4);
      const TrainReport again = RunAlike(ranks, options, 2, kSpec, factory_of);
      EXPECT_EQ(again.dense_hash, many.dense_hash);
      EXPECT_EQ(again.digest.hash, many.digest.hash);
    }
  }
}

// Row-wise Adagrad divides by the root of a row's mean square, so that its longest column moves by
// more than the rate: beyond what fp32 holds. The table that is pooled stays as it is.
TEST(TrainerRanksTest, ARowOfAHistoryThatIsNotFiniteIsNamed) {
  TrainerOptions options = SmallOptions();
  options.table_optimizer.kind = SparseOptimizerKind::kRowWiseAdagrad;
  options.table_optimizer.learning_rate = 3e38f;
  options.frozen_tables = "t_cat_2";
  const auto reports = RunRanks(
      1, [&](int) { return options; }, 1, kSpec, SmallDin);
  EXPECT_THAT(reports[0].status(),
              StatusIs(absl::StatusCode::kOutOfRange,
                       AllOf(HasSubstr("step 2: the training loss is not a finite number"),
                             ContainsRegex("feature \"cat_[01]\" of sample [0-9]+ of the batch"),
                             ContainsRegex("id [0-9]+\\) is not finite"))));
}

// The weights of all rows that keys of this data can have: of a saved model, or untrained.
absl::StatusOr<std::vector<float>> AllWeights(const TrainerOptions& options, const char* spec,
                                              const std::string& saved_dir) {
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<DataSource> data, OpenDataSource(spec, 5));
  EmbeddingCollectionOptions tables = CollectionOptions(options, data->schema());
  if (!saved_dir.empty()) {
    HOTROW_ASSIGN_OR_RETURN(const SavedModel saved, ReadSavedModel(PosixEnv(), saved_dir));
    for (const SavedModel::Part& part : saved.parts) {
      tables.start.from.push_back(
          {.snapshot = part.snapshot, .store = StoreKind::kMemory, .dir = part.tables_dir});
    }
    tables.start.steps = saved.step;
  }
  // Sample k looks up key k of every feature.
  int64_t keys = 0;
  for (const DataFeature& feature : data->schema().features) {
    keys = std::max(keys, feature.num_embeddings);
  }
  std::vector<uint64_t> values;
  std::vector<int64_t> offsets = {0};
  for (const DataFeature& feature : data->schema().features) {
    for (int64_t key = 0; key < keys; ++key) {
      values.push_back(static_cast<uint64_t>(std::min(key, feature.num_embeddings - 1)));
      offsets.push_back(std::ssize(values));
    }
  }
  tables.max_batch_size = keys;
  HOTROW_ASSIGN_OR_RETURN(const auto collection, EmbeddingCollection::Create(tables, {}));
  std::vector<float> weights(static_cast<size_t>(keys * collection->pooled_dim()));
  HOTROW_RETURN_IF_ERROR(collection->Evaluate(
      {keys, values, offsets, {}}, {.pooled = {weights.data(), keys, collection->pooled_dim()}}));
  HOTROW_RETURN_IF_ERROR(collection->Close());
  return weights;
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

TEST(TrainerRanksTest, After200StepsTheTablesAreThoseOfOneRankButForRounding) {
  constexpr char kLong[] =
      "synthetic:tables=3,rows=300,dense=3,shared=2,hotness=0-3,samples=12800,valid=330,test=700";
  TrainerOptions options = SmallOptions();
  options.table_optimizer.learning_rate = 5;  // rows go further than they were from 0
  const auto untrained = AllWeights(options, kLong, "");
  HOTROW_ASSERT_OK(untrained);
  std::vector<float> of_one;
  double moved = 0;
  double auc_of_one = 0;
  for (const int ranks : {1, 2, 4, 8}) {
    SCOPED_TRACE(ranks);
    options.save_dir = test::TempDir();
    const TrainReport report = RunAlike(ranks, options, /*threads=*/1, kLong);
    EXPECT_EQ(report.steps, 200);
    const auto weights = AllWeights(options, kLong, options.save_dir);
    HOTROW_ASSERT_OK(weights);
    if (ranks == 1) {
      of_one = *weights;
      auc_of_one = report.test.auc;
      EXPECT_GT(auc_of_one, 0.57);
      moved = Distance(of_one, *untrained);
      EXPECT_GT(moved, 1);
      continue;
    }
    const double distance = Distance(*weights, of_one);
    EXPECT_LE(distance, 1e-5 * moved);
    EXPECT_GT(distance, 0) << "are these runs of several ranks?";
    EXPECT_NEAR(report.test.auc, auc_of_one, 5e-4);
  }
}

TEST(TrainerRanksTest, RunsRepeatBitForBitWhateverTheTiers) {
  TrainerOptions options = SmallOptions();
  options.table_optimizer.kind = SparseOptimizerKind::kAdam;
  options.table_optimizer.learning_rate = 0.01f;
  options.dense_optimizer.kind = DenseOptimizerKind::kAdam;
  options.dense_optimizer.learning_rate = 0.01f;
  options.max_gradient_norm = 0.05;
  const TrainReport expected = RunAlike(3, options);
  EXPECT_EQ(RunAlike(3, options).digest.hash, expected.digest.hash);
  for (const StoreKind store : {StoreKind::kMemory, StoreKind::kSsd}) {
    for (const int32_t depth : {0, 2}) {
      TrainerOptions other = options;
      other.store = store;
      if (store == StoreKind::kSsd) {
        other.store_path = test::TempDir();
        other.store_bytes = 2 << 20;
        other.disk_bytes = 64 << 20;
      }
      other.cache_bytes = kSmallestCache;
      other.prefetch_depth = depth;
      other.validation_freq_within_epoch = 9;
      const TrainReport report = RunAlike(3, other, 2);
      EXPECT_EQ(report.digest.hash, expected.digest.hash);
      EXPECT_EQ(report.dense_hash, expected.dense_hash);
      EXPECT_EQ(report.test.auc, expected.test.auc);
    }
  }
}

TEST(TrainerRanksTest, ExchangeTypesCostLittleAccuracyAndManyBytesLess) {
  TrainerOptions options = SmallOptions();
  options.epochs = 4;
  const TrainReport fp32 = RunAlike(4, options);
  options.exchange_forward = options.exchange_backward = ExchangeType::kInt8;
  for (const ExchangeRounding rounding :
       {ExchangeRounding::kNearest, ExchangeRounding::kStochastic}) {
    options.exchange_rounding = rounding;
    const TrainReport int8 = RunAlike(4, options);
    EXPECT_NE(int8.digest.hash, fp32.digest.hash);
    EXPECT_NEAR(int8.test.auc, fp32.test.auc, 5e-3);
    // A row of 8 columns: 12 bytes instead of 32.
    EXPECT_EQ(int8.tables.exchange_forward_bytes * 32, fp32.tables.exchange_forward_bytes * 12);
    EXPECT_EQ(int8.tables.exchange_backward_bytes * 32, fp32.tables.exchange_backward_bytes * 12);
    EXPECT_EQ(int8.tables.exchange_evaluation_bytes, fp32.tables.exchange_evaluation_bytes);
  }
}

// A checkpoint of any number of ranks goes on on any number.
TEST(TrainerRanksTest, CheckpointsMoveBetweenNumbersOfRanks) {
  struct Case {
    int before;
    int after;
  };
  for (const StoreKind store : {StoreKind::kMemory, StoreKind::kSsd}) {
    TrainerOptions options = SmallOptions();
    options.store = store;
    options.cache_bytes = kSmallestCache;
    options.prefetch_depth = 1;
    options.checkpoint_every = 7;
    const auto in = [&](const std::string& dir) {
      TrainerOptions out = options;
      out.checkpoint_dir = dir + "/saved";
      if (store == StoreKind::kSsd) {
        out.store_path = dir + "/rows";
        out.store_bytes = 2 << 20;
        out.disk_bytes = 64 << 20;
      }
      return out;
    };
    for (const Case c : {Case{4, 4}, Case{4, 1}, Case{4, 3}, Case{4, 8}, Case{1, 4}}) {
      // What a rank reads of the parts of others is the same in any store.
      if (store == StoreKind::kSsd && c.before == 4 && c.after % 4 != 3) continue;
      SCOPED_TRACE(
          absl::StrCat(std::string(StoreKindName(store)), ": ", c.before, " to ", c.after));
      const std::string dir = test::TempDir();
      TrainerOptions first = in(dir);
      const TrainReport before = RunAlike(c.before, first);
      EXPECT_GE(before.checkpoints.count, 2);
      // What is loaded is what was there: nothing is left to train.
      TrainerOptions again = first;
      again.resume = true;
      const TrainReport loaded = RunAlike(c.after, again);
      EXPECT_EQ(loaded.resumed_step, before.steps);
      EXPECT_EQ(loaded.digest.hash, before.digest.hash);
      EXPECT_EQ(loaded.dense_hash, before.dense_hash);
      again.epochs = 2;
      const TrainReport further = RunAlike(c.after, again);
      EXPECT_EQ(further.steps, 2 * before.steps);
      // As one that was never interrupted, up to the order of sums.
      TrainerOptions straight = in(test::TempDir());
      straight.epochs = 2;
      const TrainReport whole = RunAlike(c.before, straight);
      EXPECT_NEAR(further.test.logloss, whole.test.logloss, 1e-5);
      if (c.before == c.after) {
        EXPECT_EQ(further.digest.hash, whole.digest.hash);
      }
    }
  }
}

TEST(TrainerRanksTest, ASignalOfOneRankStopsAllAtTheSameStep) {
  const std::string dir = test::TempDir();
  TrainerOptions options = SmallOptions();
  options.epochs = 1000;
  options.checkpoint_dir = dir;
  options.checkpoint_every = 0;
  std::vector<std::atomic<int>> signals(3);
  std::thread sender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    signals[1] = SIGTERM;
  });
  const auto reports = RunRanks(3, [&](int rank) {
    TrainerOptions out = options;
    out.stop_signal = &signals[rank];
    return out;
  });
  sender.join();
  for (const auto& report : reports) {
    HOTROW_ASSERT_OK(report);
    EXPECT_EQ(report->stopped_by_signal, SIGTERM);
    EXPECT_GT(report->steps, 0);
    EXPECT_LT(report->steps, 40000);
    EXPECT_EQ(report->steps, reports[0]->steps);
    EXPECT_EQ(report->digest.hash, reports[0]->digest.hash);
    EXPECT_EQ(report->checkpoint, reports[0]->checkpoint);
  }
}

// The last of the ranks has other options, or other data.
std::vector<absl::Status> RunUnlike(const TrainerOptions& most, const TrainerOptions& last,
                                    const std::string& last_data = kSpec) {
  constexpr int kRanks = 3;
  // Long: nothing is to wait for it.
  return RunOnThreads(kRanks, {.timeout_seconds = 600}, [&](Communicator& communicator) {
    const bool is_last = communicator.rank() == kRanks - 1;
    TrainerOptions options = is_last ? last : most;
    options.communicator = &communicator;
    absl::StatusOr<std::unique_ptr<DataSource>> data =
        OpenDataSource(is_last ? last_data : kSpec, 5);
    HOTROW_EXPECT_OK(data);
    return RunTraining(options, **data, SmallDlrm(options), {}).status();
  });
}

TEST(TrainerRanksTest, OtherOptionsOfARankAreNamedBeforeTheFirstStep) {
  struct Case {
    std::function<void(TrainerOptions*)> change;
    std::string text;
  };
  using O = TrainerOptions;
  const std::string dir = test::TempDir();
  const std::vector<Case> cases = {
      {[](O* o) { o->seed = 4; }, "--seed is 3 on ranks 0, 1 and 4 on rank 2"},
      {[](O* o) { o->batch_size = 65; }, "--batch_size is 64 on ranks 0, 1 and 65"},
      {[](O* o) { o->epochs = 2; }, "--epochs is 1 "},
      {[](O* o) { o->limit_train_batches = 9; }, "--limit_train_batches is 0 "},
      {[](O* o) { o->validation_freq_within_epoch = 7; }, "--validation_freq_within_epoch is 0 "},
      {[](O* o) { o->embedding_dim = 4; }, "--embedding_dim is 8 "},
      {[](O* o) { o->weights_precision = WeightsPrecision::kBf16; }, "--weights_precision is fp32"},
      {[](O* o) { o->pooling = Pooling::kMean; }, "--pooling is sum on ranks 0, 1 and mean"},
      {[](O* o) { o->table_optimizer.kind = SparseOptimizerKind::kAdam; }, "--optimizer is sgd "},
      {[](O* o) { o->table_optimizer.learning_rate = 2; }, "--learning_rate is 0.5 "},
      {[](O* o) { o->table_optimizer.beta1 = 0.5f; }, "table_optimizer.beta1 is 0.9 "},
      {[](O* o) { o->table_optimizer.weight_decay = 0.5f; }, "--table_weight_decay is 0 "},
      {[](O* o) {
         o->initializer = Initializer{InitializerKind::kZeros, 0};
       },
       "--initializer is uniform_rows on ranks 0, 1 and zeros on rank 2"},
      {[](O* o) { o->dense_optimizer.kind = DenseOptimizerKind::kAdam; }, "--dense_optimizer is "},
      {[](O* o) { o->dense_optimizer.learning_rate = 2; },
       "--dense_learning_rate is 0.1 on ranks 0, 1 and 2 on rank 2"},
      {[](O* o) { o->dense_optimizer.eps = 0.5f; }, "dense_optimizer.eps is "},
      {[](O* o) { o->dense_optimizer.weight_decay = 0.5f; }, "--weight_decay is 0 "},
      {[](O* o) { o->max_gradient_norm = 1; }, "--max_gradient_norm is 0 "},
      {[](O* o) { o->schedule.lr_warmup_steps = 1; }, "--lr_warmup_steps is 0 "},
      {[](O* o) { o->schedule.early_stop_patience = 1; }, "--early_stop_patience is 0 "},
      {[](O* o) { o->schedule.validation_min_delta = 1; }, "schedule.validation_min_delta is "},
      {[](O* o) { o->exchange_forward = ExchangeType::kInt8; }, "--exchange_forward is fp32 "},
      {[](O* o) { o->exchange_backward = ExchangeType::kBf16; }, "--exchange_backward is fp32 "},
      {[](O* o) { o->exchange_rounding = ExchangeRounding::kStochastic; },
       "--exchange_rounding is nearest "},
      {[&](O* o) { o->checkpoint_dir = dir; }, "--checkpoint_dir is not given on ranks 0, 1 and "},
      {[&](O* o) { o->save_dir = dir; }, "--save_dir is not given "},
      {[](O* o) { o->checkpoint_every = 7; }, "--checkpoint_every is 0 "},
      {[](O* o) { o->keep_checkpoints = 7; }, "--keep_checkpoints is 2 "},
      {[](O* o) { o->cache_bytes = kSmallestCache; },
       "--cache_bytes is 0 on ranks 0, 1 and not 0 on rank 2"},
      {[](O* o) { o->mrc = true; }, "--mrc is false on ranks 0, 1 and true"},
      {[](O* o) {
         o->shape = {{"layers", "3"}};
       },
       "--layers is unknown on ranks 0, 1 and 3 on rank 2"},
      {[](O* o) {
         o->settings = {{"dropout", "0.3"}};
       },
       "--dropout is unknown"},
      {[&](O* o) {
         o->store = StoreKind::kSsd;
         o->store_path = dir;
         o->disk_bytes = 64 << 20;
         o->cache_bytes = kSmallestCache;
       },
       "--store is memory on ranks 0, 1 and ssd on rank 2"},
  };
  for (const Case& c : cases) {
    TrainerOptions other = SmallOptions();
    c.change(&other);
    for (const absl::Status& status : RunUnlike(SmallOptions(), other)) {
      EXPECT_THAT(status.message(), AllOf(HasSubstr("the ranks differ: "), HasSubstr(c.text)));
      EXPECT_EQ(status.message().find('\n'), absl::string_view::npos);
    }
  }
}

TEST(TrainerRanksTest, OtherDataOfARankAreNamedBeforeTheFirstStep) {
  // The same numbers of everything, with other samples.
  const std::string zipf =
      "synthetic:tables=3,rows=300,dense=3,shared=2,hotness=0-3,samples=2500,valid=330,test=700,"
      "zipf=0.5";
  for (const absl::Status& status : RunUnlike(SmallOptions(), SmallOptions(), zipf)) {
    EXPECT_THAT(status.message(), AllOf(HasSubstr("--data, generated is "), HasSubstr("zipf=1.05"),
                                        HasSubstr("zipf=0.5,"), HasSubstr("on rank 2")));
  }
  const std::string fewer =
      "synthetic:tables=3,rows=300,dense=3,shared=2,hotness=0-3,samples=2500,valid=329,test=700";
  for (const absl::Status& status : RunUnlike(SmallOptions(), SmallOptions(), fewer)) {
    EXPECT_THAT(status.message(),
                HasSubstr("--data, samples is 2500 train, 330 validation, 700 test on ranks 0, 1 "
                          "and 2500 train, 329 validation, 700 test on rank 2"));
  }
}

// What no option tells of: the factory of one rank makes other parameters.
TEST(TrainerRanksTest, AnotherModelOfARankIsNamed) {
  const auto statuses = RunOnThreads(2, {.timeout_seconds = 600}, [&](Communicator& communicator) {
    TrainerOptions options = SmallOptions();
    options.communicator = &communicator;
    absl::StatusOr<std::unique_ptr<DataSource>> data = OpenDataSource(kSpec, 5);
    HOTROW_EXPECT_OK(data);
    TrainerOptions of_model = options;
    of_model.seed += static_cast<uint64_t>(communicator.rank());
    return RunTraining(options, **data, SmallDlrm(of_model), {}).status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status.message(), AllOf(HasSubstr("the hash of the first dense parameters is "),
                                        HasSubstr(" on rank 0 and "), HasSubstr(" on rank 1")));
  }
}

// How large tiers are, what leaves them first and how far ahead is prefetched are a rank's own.
TEST(TrainerRanksTest, SizesOfTiersMayDifferBetweenRanks) {
  const TrainReport expected = RunAlike(2, SmallOptions());
  const auto reports = RunRanks(2, [](int rank) {
    TrainerOptions options = SmallOptions();
    options.cache_bytes = kSmallestCache;
    if (rank == 0) return options;
    options.store_bytes *= 2;
    options.cache_bytes = 4 << 20;
    options.cache_policy = CachePolicy::kLfu;
    options.prefetch_depth = 2;
    return options;
  });
  for (const auto& report : reports) {
    HOTROW_ASSERT_OK(report);
    EXPECT_EQ(report->digest.hash, expected.digest.hash);
    EXPECT_EQ(report->dense_hash, expected.dense_hash);
  }
}

TEST(TrainerRanksTest, WhatFailsOnOneRankIsSaidByAll) {
  const auto reports = RunRanks(3, [](int rank) {
    TrainerOptions options = SmallOptions();
    options.cache_bytes = rank == 2 ? 4096 : kSmallestCache;
    return options;
  });
  EXPECT_THAT(reports[2], StatusIs(absl::StatusCode::kResourceExhausted,
                                   HasSubstr("--cache_bytes=4096 is too small")));
  for (const int rank : {0, 1}) {
    EXPECT_THAT(reports[rank].status().message(),
                AllOf(HasSubstr("rank 2"), HasSubstr("--cache_bytes=4096 is too small")));
  }
}

// Some thread of some rank cannot be made: all ranks end, and none waits for the timeout.
TEST(TrainerRanksTest, ThreadsThatCannotBeMadeEndAllRanks) {
  TrainerOptions options = SmallOptions();
  options.limit_train_batches = 4;
  options.prefetch_depth = 1;
  options.cache_bytes = kSmallestCache;
  const TrainReport whole = RunAlike(2, options);
  int64_t errors = 0;
  for (int64_t good = 0;; ++good) {
    SCOPED_TRACE(testing::Message() << "thread " << good << " fails");
    const test::FailingThreads threads(good, 1);
    std::vector<absl::StatusOr<TrainReport>> reports(
        2, absl::StatusOr<TrainReport>(absl::UnknownError("did not run")));
    const auto statuses = RunOnThreads(2, {.timeout_seconds = 600}, [&](Communicator& c) {
      TrainerOptions mine = options;
      mine.communicator = &c;
      absl::StatusOr<std::unique_ptr<DataSource>> data = OpenDataSource(kSpec, 5);
      HOTROW_EXPECT_OK(data);
      reports[c.rank()] = RunTraining(mine, **data, SmallDlrm(mine), {});
      return reports[c.rank()].status();
    });
    if (statuses[0].ok() && statuses[1].ok()) {
      for (const auto& report : reports) {
        HOTROW_ASSERT_OK(report);
        ASSERT_EQ(report->digest.hash, whole.digest.hash);
      }
    } else {
      ++errors;
      for (const absl::Status& status : statuses) {
        ASSERT_THAT(status.message(), HasSubstr("the system has no thread for "));
      }
    }
    if (threads.refused() == 0) break;
    ASSERT_LT(good, 1000);
  }
  EXPECT_GE(errors, 10) << "were any refused?";
}

}  // namespace
}  // namespace hotrow
