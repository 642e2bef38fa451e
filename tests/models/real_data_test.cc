// The counts and base rates of the real logs, read through --data's own words. The folder is that
// of HOTROW_DATA, or shared/data beside the project; without it the tests skip.

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "models/data/data_source.h"
#include "models/data/open_data_source.h"
#include "models/data/table_source.h"
#include "models/train/trainer.h"
#include "models/zoo/dlrm_model.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

std::string DataDir() {
  const char* dir = std::getenv("HOTROW_DATA");
  return dir != nullptr ? dir : HOTROW_SOURCE_DIR "/../shared/data";
}

struct SplitCounts {
  int64_t samples = 0;
  int64_t clicks = 0;
  int64_t lookups = 0;
  uint64_t max_key = 0;
  bool dense_finite = true;
};

absl::StatusOr<SplitCounts> Count(DataSource& source, Split split) {
  auto reader = source.OpenSplit(split, 0, 0);
  if (!reader.ok()) return reader.status();
  SplitCounts counts;
  CtrBatch batch;
  while (true) {
    const absl::Status status = (*reader)->Next(10'000, &batch);
    if (!status.ok()) return status;
    if (batch.batch_size == 0) return counts;
    counts.samples += batch.batch_size;
    counts.lookups += static_cast<int64_t>(batch.values.size());
    for (const float label : batch.labels) counts.clicks += label == 1;
    for (const uint64_t key : batch.values) counts.max_key = std::max(counts.max_key, key);
    for (const float x : batch.dense) {
      counts.dense_finite = counts.dense_finite && std::isfinite(x);
    }
  }
}

double Rate(std::initializer_list<SplitCounts> parts) {
  int64_t samples = 0;
  int64_t clicks = 0;
  for (const SplitCounts& part : parts) {
    samples += part.samples;
    clicks += part.clicks;
  }
  return static_cast<double>(clicks) / static_cast<double>(samples);
}

// Opens the data of this file or folder, or skips the test.
#define OPEN_OR_SKIP(source, kind, file)                                             \
  const std::string path = absl::StrCat(DataDir(), "/", file);                       \
  if (std::FILE* probe = std::fopen(path.c_str(), "r")) {                            \
    std::fclose(probe);                                                              \
  } else {                                                                           \
    GTEST_SKIP() << "no real data at " << path << "; set HOTROW_DATA to its folder"; \
  }                                                                                  \
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto source, OpenDataSource(absl::StrCat(kind, ":", path), 1))

TEST(RealDataTest, Frappe) {
  OPEN_OR_SKIP(source, "frappe", "frappe");
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto train, Count(*source, Split::kTrain));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto valid, Count(*source, Split::kValid));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto test, Count(*source, Split::kTest));
  EXPECT_EQ(train.samples, 202'027);
  EXPECT_EQ(valid.samples, 57'722);
  EXPECT_EQ(test.samples, 28'860);
  EXPECT_EQ(source->schema().train_samples, 202'027);
  EXPECT_EQ(train.lookups, 10 * train.samples);
  EXPECT_EQ(std::max({train.max_key, valid.max_key, test.max_key}), 5381u);
  EXPECT_EQ(source->schema().num_dense, 0);
  EXPECT_NEAR(Rate({train, valid, test}), 1.0 / 3, 0.001);
}

TEST(RealDataTest, MovieLens) {
  OPEN_OR_SKIP(source, "ml1m", "ml-1m/ml1m_ctr.csv.gz");
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto train, Count(*source, Split::kTrain));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto valid, Count(*source, Split::kValid));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto test, Count(*source, Split::kTest));
  EXPECT_EQ(train.samples + valid.samples + test.samples, 739'008);
  EXPECT_EQ(valid.samples, 73'900);  // remainders 8 and 9 of 739,008 samples
  EXPECT_EQ(test.samples, 73'900);
  EXPECT_NEAR(Rate({train, valid, test}), 0.7785, 0.0001);
  EXPECT_GT(train.lookups, 8 * train.samples);  // genres is a bag
  EXPECT_LT(train.lookups, 11 * train.samples);
}

TEST(RealDataTest, Criteo) {
  OPEN_OR_SKIP(source, "criteo", "criteo/train_10k.tsv.gz");
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto train, Count(*source, Split::kTrain));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto valid, Count(*source, Split::kValid));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto test, Count(*source, Split::kTest));
  EXPECT_EQ(train.samples, 8'000);
  EXPECT_EQ(valid.samples, 1'000);
  EXPECT_EQ(test.samples, 1'000);
  EXPECT_NEAR(Rate({train, valid, test}), 0.2182, 0.00005);
  EXPECT_EQ(train.lookups, 26 * train.samples);
  EXPECT_EQ(train.max_key, uint64_t{1} << 32);  // of a missing category
  EXPECT_TRUE(train.dense_finite);
}

// The two tasks of the data that multi-task models are compared on.
TEST(RealDataTest, CensusOfTwoTasks) {
  OPEN_OR_SKIP(source, "census-tasks", "census/census-income.gz");
  ASSERT_EQ(source->schema().labels.size(), 2u);
  int64_t samples = 0;
  double positives[2] = {};
  for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader, source->OpenSplit(split, 0, 0));
    CtrBatch batch;
    do {
      HOTROW_ASSERT_OK(reader->Next(10'000, &batch));
      samples += batch.batch_size;
      for (size_t i = 0; i < batch.labels.size(); ++i) positives[i % 2] += batch.labels[i];
    } while (batch.batch_size > 0);
  }
  EXPECT_EQ(samples, 99'762);
  EXPECT_NEAR(positives[0] / static_cast<double>(samples), 0.0620, 0.00005);
  EXPECT_NEAR(positives[1] / static_cast<double>(samples), 0.4325, 0.00005);
}

TEST(RealDataTest, Census) {
  OPEN_OR_SKIP(source, "census", "census/census-income.gz");
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto train, Count(*source, Split::kTrain));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto valid, Count(*source, Split::kValid));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto test, Count(*source, Split::kTest));
  EXPECT_EQ(train.samples + valid.samples + test.samples, 99'762);
  EXPECT_NEAR(Rate({train, valid, test}), 0.0620, 0.00005);
  EXPECT_EQ(train.lookups, 33 * train.samples);
  EXPECT_TRUE(train.dense_finite);
}

// Trains a small DLRM on the data, Adam throughout.
absl::StatusOr<TrainReport> TrainDlrm(DataSource& data, TrainerOptions options) {
  options.embedding_dim = 8;
  options.batch_size = 256;
  options.table_optimizer.kind = SparseOptimizerKind::kAdam;
  options.dense_optimizer.kind = DenseOptimizerKind::kAdam;
  options.store_bytes = int64_t{256} << 20;
  options.seed = 1;
  const ModelFactory factory =
      [&options](const DataSchema& schema) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
    return DlrmModel::Create({{.num_dense = schema.num_dense,
                               .num_sparse = static_cast<int32_t>(schema.features.size()),
                               .embedding_dim = options.embedding_dim,
                               .over_arch_layer_sizes = {32, 1},
                               .seed = options.seed,
                               .max_batch_size = options.batch_size},
                              {32, options.embedding_dim}});
  };
  return RunTraining(options, data, factory, {});
}

// 8,000 samples have little to teach, but a trainer that works can learn them by heart.
TEST(RealDataTest, CriteoCanBeOverfitted) {
  OPEN_OR_SKIP(source, "criteo", "criteo/train_10k.tsv.gz");
  TrainerOptions options;
  options.epochs = 6;
  options.table_optimizer.learning_rate = options.dense_optimizer.learning_rate = 0.01f;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, TrainDlrm(*source, options));
  EXPECT_EQ(report.samples, 6 * 8'000);
  // A constant prediction of the click rate 0.2182 has a logloss of 0.5247.
  EXPECT_LT(report.train_logloss, 0.05);
  EXPECT_GT(report.valid.logloss, 0.6);  // and by heart it is
}

TEST(RealDataTest, CensusTrains) {
  OPEN_OR_SKIP(source, "census", "census/census-income.gz");
  TrainerOptions options;
  options.table_optimizer.learning_rate = options.dense_optimizer.learning_rate = 0.002f;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, TrainDlrm(*source, options));
  EXPECT_GT(report.test.auc, 0.93);
  EXPECT_LT(report.test.ne, 0.65);
  EXPECT_NEAR(report.test.calibration, 1, 0.15);
}

}  // namespace
}  // namespace hotrow
