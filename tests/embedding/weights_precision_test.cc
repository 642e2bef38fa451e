// Tables whose rows keep their weights in 16 bits, beside others of 32.

#include "ops/rows/weights_precision.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "embedding/embedding_collection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/embedding/trainer.h"
#include "tests/embedding/training.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::hotrow::test::Batch;
using ::hotrow::test::kMiB;
using ::hotrow::test::Options;
using ::hotrow::test::PutStore;
using ::hotrow::test::RunOptions;
using ::hotrow::test::RunResult;
using ::hotrow::test::Table;
using ::hotrow::test::TablesOfOneWidth;
using ::hotrow::test::Train;
using ::hotrow::test::Trainer;

WeightsPrecision OtherOf(WeightsPrecision precision) {
  return precision == WeightsPrecision::kFp16 ? WeightsPrecision::kBf16 : WeightsPrecision::kFp16;
}

// A table of `precision`, one of the other 16 bits with rows as wide, and one of 32 bits.
EmbeddingCollectionOptions MixedTables(WeightsPrecision precision, int32_t dim,
                                       SparseOptimizerKind kind) {
  EmbeddingCollectionOptions options =
      Options({Table("half", dim, {"f0", "f1"}, kind), Table("float", 17, {"f2"}, kind),
               Table("other", dim, {"f3"}, kind)});
  options.tables[0].weights_precision = precision;
  options.tables[2].weights_precision = OtherOf(precision);
  for (TableConfig& table : options.tables) table.max_hotness = 3;
  return options;
}

class PrecisionBitsTest
    : public testing::TestWithParam<std::tuple<WeightsPrecision, SparseOptimizerKind, int32_t>> {};

TEST_P(PrecisionBitsTest, SameWhateverTheCacheThePrefetchAndTheThreads) {
  const auto [precision, kind, dim] = GetParam();
  const EmbeddingCollectionOptions options = MixedTables(precision, dim, kind);
  const RunOptions run = {.num_features = 4};
  const RunResult expected = Train(options, run);
  EXPECT_GT(expected.stats.initialised_rows, 300);
  HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t least, EmbeddingCollection::MinCacheBytes(options));
  for (const int64_t cache_bytes : {int64_t{0}, least, 16 * kMiB}) {
    for (const int32_t depth : {0, 2, 4}) {
      SCOPED_TRACE(absl::StrCat("cache_bytes=", cache_bytes, " prefetch_depth=", depth));
      EmbeddingCollectionOptions variant = options;
      variant.cache.bytes = cache_bytes;
      variant.prefetch_depth = depth;
      RunOptions other = run;
      other.threads = depth == 4 ? 4 : 1 + depth;  // 4: the pipeline uses the pool
      other.evaluate_every = depth;
      const RunResult got = Train(variant, other);
      EXPECT_EQ(got.digest.hash, expected.digest.hash);
      EXPECT_EQ(got.last_output, expected.last_output);
      EXPECT_EQ(got.stats.initialised_rows, expected.stats.initialised_rows);
      for (const TierStats& tier : got.stats.tiers) {
        EXPECT_LE(tier.used_bytes, tier.budget_bytes) << tier.name;
      }
      if (cache_bytes == least) {
        EXPECT_GT(got.stats.tiers.back().rows_read, 0);
      }
    }
  }
}

TEST_P(PrecisionBitsTest, OneTableDoesNotChangeItsNeighbours) {
  const auto [precision, kind, dim] = GetParam();
  const EmbeddingCollectionOptions options = MixedTables(precision, dim, kind);
  EmbeddingCollectionOptions wide = options;
  wide.tables[0].weights_precision = WeightsPrecision::kFp32;
  const RunOptions run = {.num_features = 4};
  const CollectionDigest got = Train(options, run).digest;
  const CollectionDigest with_fp32 = Train(wide, run).digest;
  ASSERT_EQ(got.tables.size(), 3u);
  // Gradients depend on outputs column by column, so tables do not meet.
  EXPECT_EQ(got.tables[1].hash, with_fp32.tables[1].hash);
  EXPECT_EQ(got.tables[2].hash, with_fp32.tables[2].hash);
  EXPECT_FALSE(got.tables[0].hash == with_fp32.tables[0].hash);
  EXPECT_LE(got.tables[0].row_bytes, with_fp32.tables[0].row_bytes);
  EXPECT_EQ(got.tables[0].row_bytes, got.tables[2].row_bytes);
  if (kind == SparseOptimizerKind::kSgd && dim == 64) {
    // 2 or 4 bytes a weight, the last step, and up to a multiple of 16.
    EXPECT_EQ(got.tables[0].row_bytes, 144);
    EXPECT_EQ(with_fp32.tables[0].row_bytes, 272);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, PrecisionBitsTest,
    testing::Combine(testing::Values(WeightsPrecision::kFp16, WeightsPrecision::kBf16),
                     testing::Values(SparseOptimizerKind::kSgd, SparseOptimizerKind::kAdam,
                                     SparseOptimizerKind::kRowWiseAdagrad,
                                     SparseOptimizerKind::kFtrl),
                     testing::Values(1, 17, 64)),
    [](const auto& info) {
      return absl::StrCat(std::string(WeightsPrecisionName(std::get<0>(info.param))), "_",
                          std::string(SparseOptimizerName(std::get<1>(info.param))), "_",
                          std::get<2>(info.param));
    });

// --- Stores and snapshots

class PrecisionStoresTest : public testing::TestWithParam<StoreKind> {};

INSTANTIATE_TEST_SUITE_P(All, PrecisionStoresTest,
                         testing::Values(StoreKind::kMemory, StoreKind::kSsd
#ifdef HOTROW_HAVE_ROCKSDB
                                         ,
                                         StoreKind::kRocksDb
#endif
                                         ),
                         [](const auto& info) { return std::string(StoreKindName(info.param)); });

// The rounding of a step depends on its number, so a run that starts from a snapshot goes on as if
// it had never stopped.
TEST_P(PrecisionStoresTest, ARunThatStopsAndStartsHasTheBitsOfOneThatDoesNot) {
  constexpr int kSteps = 14;
  constexpr int kStop = 6;
  constexpr uint64_t kRows = 800;
  const std::vector<Hash128> want = test::ReferenceHashes(TablesOfOneWidth(), kSteps, kRows);
  HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t least,
                              EmbeddingCollection::MinCacheBytes(TablesOfOneWidth()));
  for (const int32_t depth : {0, 3}) {
    SCOPED_TRACE(depth);
    const std::string dir = test::TempDir();
    EmbeddingCollectionOptions options = TablesOfOneWidth();
    options.cache.bytes = least;
    options.prefetch_depth = depth;
    PutStore(GetParam(), dir, &options);
    {
      HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
      HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest empty, tables->Digest());
      EXPECT_EQ(empty.tables[0].row_bytes, empty.tables[1].row_bytes);
      EXPECT_EQ(empty.tables[0].row_bytes, empty.tables[2].row_bytes);
      Trainer trainer(tables.get(), depth, 0, kSteps, kRows);
      while (trainer.step() < kStop) HOTROW_ASSERT_OK(trainer.Step());
      HOTROW_ASSERT_OK(tables->snapshots().Begin(kStop));
      HOTROW_ASSERT_OK(trainer.Step());  // changes rows that the snapshot still has to write
      HOTROW_ASSERT_OK(tables->snapshots().Wait());
      HOTROW_ASSERT_OK(tables->snapshots().Commit(kStop));
      while (trainer.step() < kSteps) HOTROW_ASSERT_OK(trainer.Step());
      HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
      EXPECT_EQ(digest.hash, want[kSteps]);
      HOTROW_ASSERT_OK(tables->Close());
    }
    // In place, and copied into a store of memory.
    for (const bool copied : {true, false}) {
      SCOPED_TRACE(copied);
      EmbeddingCollectionOptions again = copied ? TablesOfOneWidth() : options;
      again.start.from = {{.snapshot = kStop}};
      if (copied) again.start.from = {{.snapshot = kStop, .store = GetParam(), .dir = dir}};
      again.start.steps = kStop;
      HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(again, {}));
      HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest opened, tables->Digest());
      EXPECT_EQ(opened.hash, want[kStop]);
      Trainer trainer(tables.get(), again.prefetch_depth, kStop, kSteps, kRows);
      while (trainer.step() < kSteps) HOTROW_ASSERT_OK(trainer.Step());
      HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest end, tables->Digest());
      EXPECT_EQ(end.hash, want[kSteps]);
    }
  }
}

// --- Values

// To the nearest number of so many bits, ties to even; for normal numbers of the format.
float Nearest(float x, int bits) {
  int exponent = 0;
  std::frexp(x, &exponent);
  const float unit = std::ldexp(1.0f, exponent - bits);
  return std::nearbyint(x / unit) * unit;
}

// Each of `n` keys from `first` on in its own sample, for each of `features`.
Batch OneKeyEach(uint64_t first, int64_t n, int features) {
  Batch batch;
  batch.batch_size = n;
  for (int f = 0; f < features; ++f) {
    for (int64_t i = 0; i < n; ++i) {
      batch.values.push_back(first + static_cast<uint64_t>(i));
      batch.offsets.push_back(std::ssize(batch.values));
    }
  }
  return batch;
}

TEST(PrecisionTest, AnUnseenKeyReadsItsInitialRowRounded) {
  constexpr int64_t kKeys = 50;
  EmbeddingCollectionOptions options =
      Options({Table("half", 40, {"f0"}), Table("brain", 7, {"f1"})});
  // Uniform in +-0.5; the few numbers near zero that are subnormal in fp16 are only looked at.
  for (TableConfig& table : options.tables) {
    table.initializer = {InitializerKind::kUniform, 0.5f};
  }
  const Batch batch = OneKeyEach(1000, kKeys, 2);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto wide, EmbeddingCollection::Create(options, {}));
  std::vector<float> want(static_cast<size_t>(kKeys) * 47);
  HOTROW_ASSERT_OK(
      wide->Evaluate(batch.view(), {.pooled = test::RowsOf(*wide, batch.batch_size, want)}));
  int changed = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::abs(want[i]) < 0x1p-13f) want[i] = 0;
    const float rounded = Nearest(want[i], i % 47 < 40 ? 11 : 8);
    changed += rounded != want[i] ? 1 : 0;
    want[i] = rounded;
  }
  EXPECT_GT(changed, 2000);

  options.tables[0].weights_precision = WeightsPrecision::kFp16;
  options.tables[1].weights_precision = WeightsPrecision::kBf16;
  for (const int64_t cache_bytes : {int64_t{0}, kMiB}) {
    options.cache.bytes = cache_bytes;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
    std::vector<float> seen(want.size(), -1);
    HOTROW_ASSERT_OK(
        tables->Evaluate(batch.view(), {.pooled = test::RowsOf(*tables, batch.batch_size, seen)}));
    std::vector<float> output(want.size(), -1);
    HOTROW_ASSERT_OK_AND_ASSIGN(auto step, tables->Prefetch(batch.view()));
    HOTROW_ASSERT_OK(step.Lookup({.pooled = test::RowsOf(*tables, step.batch_size(), output)}));
    EXPECT_EQ(output, seen);
    for (size_t i = 0; i < want.size(); ++i) {
      if (want[i] == 0) {
        EXPECT_LT(std::abs(seen[i]), 0x1p-12f) << i;
      } else {
        ASSERT_EQ(seen[i], want[i]) << i;
      }
    }
  }
}

// Tables of SGD whose rows all start at 1 and get one gradient again and again.
class Drift {
 public:
  static constexpr int32_t kDim = 16;

  Drift(WeightsPrecision precision, int num_tables, int64_t keys) : keys_(keys) {
    std::vector<TableConfig> tables;
    for (int t = 0; t < num_tables; ++t) {
      tables.push_back(
          Table(absl::StrCat("t", t), kDim, {absl::StrCat("f", t)}, SparseOptimizerKind::kSgd));
      tables.back().optimizer.learning_rate = 1;
      tables.back().initializer = {InitializerKind::kConstant, 1};
      tables.back().weights_precision = precision;
    }
    auto created = EmbeddingCollection::Create(Options(tables), {});
    HOTROW_EXPECT_OK(created);
    tables_ = *std::move(created);
    batch_ = OneKeyEach(7, keys, num_tables);
    output_.resize(static_cast<size_t>(keys * tables_->pooled_dim()));
  }

  // Adds `update` to every weight.
  absl::Status Step(float update) {
    const std::vector<float> gradient(output_.size(), -update);
    HOTROW_ASSIGN_OR_RETURN(auto step, tables_->Prefetch(batch_.view()));
    HOTROW_RETURN_IF_ERROR(
        step.Lookup({.pooled = test::RowsOf(*tables_, step.batch_size(), output_)}));
    return std::move(step).Update({.pooled = test::RowsOf(*tables_, step.batch_size(), gradient)});
  }

  // [keys, tables * kDim]
  absl::StatusOr<std::vector<float>> Weights() {
    std::vector<float> values(output_.size());
    HOTROW_RETURN_IF_ERROR(tables_->Evaluate(
        batch_.view(), {.pooled = test::RowsOf(*tables_, batch_.batch_size, values)}));
    return values;
  }

 private:
  int64_t keys_;
  std::unique_ptr<EmbeddingCollection> tables_;
  Batch batch_;
  std::vector<float> output_;
};

double Mean(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

TEST(PrecisionTest, SmallUpdatesAreNotLostOnAverage) {
  constexpr int kSteps = 300;
  for (const WeightsPrecision precision : {WeightsPrecision::kFp16, WeightsPrecision::kBf16}) {
    SCOPED_TRACE(WeightsPrecisionName(precision));
    // Above 1 the numbers of the format lie so far apart.
    const double unit = precision == WeightsPrecision::kFp16 ? 0x1p-10 : 0x1p-7;
    // To the nearest, a tenth of that would be lost each time, and weights would stay at 1.
    const auto update = static_cast<float>(unit / 10);
    Drift drift(precision, 1, 64);
    for (int i = 0; i < kSteps; ++i) HOTROW_ASSERT_OK(drift.Step(update));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> weights, drift.Weights());
    // Each step of each weight is a draw that adds a unit with probability 0.1.
    const double deviation = unit * std::sqrt(kSteps * 0.1 * 0.9);
    EXPECT_NEAR(Mean(weights), 1 + kSteps * unit / 10,
                6 * deviation / std::sqrt(static_cast<double>(weights.size())));
    const auto [least, most] = std::minmax_element(weights.begin(), weights.end());
    EXPECT_GT(*least, 1 + kSteps * unit / 10 - 6 * deviation);
    EXPECT_LT(*most, 1 + kSteps * unit / 10 + 6 * deviation);
    EXPECT_LT(*least, *most);
  }
}

TEST(PrecisionTest, TableKeyColumnAndStepAreRoundedIndependently) {
  constexpr int kTables = 3;
  constexpr int64_t kKeys = 64;
  constexpr size_t kWidth = kTables * Drift::kDim;
  Drift drift(WeightsPrecision::kFp16, kTables, kKeys);
  HOTROW_ASSERT_OK(drift.Step(0x1p-11f));  // half of the way
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> first, drift.Weights());
  HOTROW_ASSERT_OK(drift.Step(0x1p-11f));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> second, drift.Weights());
  // Which draws went up, of the first step and of the second.
  std::vector<bool> up[2];
  for (size_t i = 0; i < first.size(); ++i) {
    ASSERT_TRUE(first[i] == 1 || first[i] == 1 + 0x1p-10f) << first[i];
    up[0].push_back(first[i] > 1);
    up[1].push_back(second[i] > first[i]);
  }
  // How often the draws at i and at i + distance agree: half of the time if they have nothing to do
  // with each other.
  const auto agreement = [](const std::vector<bool>& a, const std::vector<bool>& b,
                            size_t distance) {
    const size_t n = a.size() - distance;
    int equal = 0;
    for (size_t i = 0; i < n; ++i) equal += a[i] == b[i + distance] ? 1 : 0;
    return (equal - 0.5 * static_cast<double>(n)) / std::sqrt(0.25 * static_cast<double>(n));
  };
  for (const auto& draws : up) {
    EXPECT_LT(std::abs(agreement(draws, draws, 1)), 5) << "columns";
    EXPECT_LT(std::abs(agreement(draws, draws, Drift::kDim)), 5) << "tables";
    EXPECT_LT(std::abs(agreement(draws, draws, kWidth)), 5) << "keys";
    const auto share = static_cast<double>(std::count(draws.begin(), draws.end(), true));
    EXPECT_NEAR(share, 0.5 * kWidth * kKeys, 5 * std::sqrt(0.25 * kWidth * kKeys));
  }
  EXPECT_LT(std::abs(agreement(up[0], up[1], 0)), 5) << "steps";
}

TEST(PrecisionTest, TrainingTracksFp32) {
  for (const SparseOptimizerKind kind :
       {SparseOptimizerKind::kSgd, SparseOptimizerKind::kRowWiseAdagrad}) {
    EmbeddingCollectionOptions options = Options({Table("a", 16, {"f0", "f1"}, kind)});
    const auto train = [&](WeightsPrecision precision, int steps) {
      options.tables[0].weights_precision = precision;
      // The last output is that of the tables before the last step.
      return Train(options, {.steps = steps, .num_features = 2, .rows = 200}).last_output;
    };
    const auto distance = [](const std::vector<float>& a, const std::vector<float>& b) {
      EXPECT_EQ(a.size(), b.size());
      double sum = 0;
      for (size_t i = 0; i < a.size(); ++i) {
        sum += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
      }
      return std::sqrt(sum);
    };
    const std::vector<float> want = train(WeightsPrecision::kFp32, 60);
    const double size = distance(want, std::vector<float>(want.size()));
    ASSERT_GT(size, 0.1);
    // A step in the last bit is at most 2^-10 and 2^-7 of a weight; some tens of steps of a row add
    // up like a random walk.
    const double fp16 = distance(train(WeightsPrecision::kFp16, 60), want) / size;
    const double bf16 = distance(train(WeightsPrecision::kBf16, 60), want) / size;
    EXPECT_GT(fp16, 0);
    EXPECT_LT(fp16, 0.004);
    EXPECT_GT(bf16, fp16);
    EXPECT_LT(bf16, 0.032);
  }
}

}  // namespace
}  // namespace hotrow
