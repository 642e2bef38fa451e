// Tables whose rows all decay in each step (WeightDecayMode::kTable).

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
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
using ::hotrow::test::ReferenceHashes;
using ::hotrow::test::RunOptions;
using ::hotrow::test::RunResult;
using ::hotrow::test::StatusIs;
using ::hotrow::test::Table;
using ::hotrow::test::TablesOfOneWidth;
using ::hotrow::test::Train;
using ::hotrow::test::Trainer;
using ::testing::HasSubstr;

// All but the last table decay as a whole.
EmbeddingCollectionOptions Decaying(EmbeddingCollectionOptions options) {
  for (size_t t = 0; t + 1 < options.tables.size(); ++t) {
    options.tables[t].optimizer.weight_decay = 0.05f;
    options.tables[t].optimizer.weight_decay_mode = WeightDecayMode::kTable;
  }
  return options;
}

// One sample for each of the keys, each with one lookup.
Batch OneEach(const std::vector<uint64_t>& keys) {
  Batch batch;
  batch.batch_size = std::ssize(keys);
  for (const uint64_t key : keys) {
    batch.values.push_back(key);
    batch.offsets.push_back(std::ssize(batch.values));
  }
  return batch;
}

class TableDecayTest
    : public testing::TestWithParam<std::tuple<SparseOptimizerKind, WeightsPrecision>> {};

// A table of 30 keys; `dense` looks all of them up in each step, with a gradient of zeros for those
// that the step of `lazy` does not have.
TEST_P(TableDecayTest, ReadsAndTrainsAsIfEveryStepUpdatedEveryRow) {
  constexpr int kKeys = 30;
  constexpr int kSteps = 40;
  constexpr int32_t kDim = 11;
  const auto [kind, precision] = GetParam();
  EmbeddingCollectionOptions options = Options({Table("t", kDim, {"f"}, kind)});
  options.tables[0].weights_precision = precision;
  options.tables[0].optimizer.weight_decay = 0.05f;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto dense, EmbeddingCollection::Create(options, {}));
  options.tables[0].optimizer.weight_decay_mode = WeightDecayMode::kTable;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto lazy, EmbeddingCollection::Create(options, {}));
  std::vector<uint64_t> all;
  for (uint64_t key = 0; key < kKeys; ++key) all.push_back(key);
  const auto read = [&](EmbeddingCollection& tables) {
    std::vector<float> rows(static_cast<size_t>(kKeys * kDim));
    HOTROW_EXPECT_OK(tables.ReadRows("t", all, {rows.data(), kKeys, kDim}));
    return rows;
  };
  const auto step_of = [&](EmbeddingCollection& tables, const std::vector<uint64_t>& keys,
                           const std::set<uint64_t>& touched, int i,
                           std::vector<float>* output) -> absl::Status {
    const Batch batch = OneEach(keys);
    output->assign(keys.size() * kDim, 0);
    HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, tables.Prefetch(batch.view()));
    HOTROW_RETURN_IF_ERROR(
        step.Lookup({.pooled = test::RowsOf(tables, batch.batch_size, *output)}));
    std::vector<float> gradient(output->size());
    for (size_t j = 0; j < gradient.size(); ++j) {
      const uint64_t key = keys[j / kDim];
      if (!touched.contains(key)) continue;
      gradient[j] = 0.2f * (*output)[j] + 0.01f * static_cast<float>((key * 7 + j % kDim + i) % 13);
    }
    return std::move(step).Update({.pooled = test::RowsOf(tables, batch.batch_size, gradient)},
                                  i < 4 ? 0.25f * static_cast<float>(i + 1) : 1);
  };
  RandomStream random(5, RandomPurpose::kTest);
  for (int i = 0; i < kSteps; ++i) {
    SCOPED_TRACE(i);
    std::set<uint64_t> touched;
    for (int k = 0; k < 4; ++k) touched.insert(random.Below(i < 25 ? kKeys / 2 : kKeys));
    if (i + 1 == kSteps) touched.insert(all.begin(), all.end());
    const std::vector<uint64_t> keys(touched.begin(), touched.end());
    std::vector<float> lazy_output;
    std::vector<float> dense_output;
    HOTROW_ASSERT_OK(step_of(*lazy, keys, touched, i, &lazy_output));
    HOTROW_ASSERT_OK(step_of(*dense, all, touched, i, &dense_output));
    for (size_t k = 0; k < keys.size(); ++k) {
      for (int32_t d = 0; d < kDim; ++d) {
        ASSERT_EQ(lazy_output[k * kDim + d], dense_output[keys[k] * kDim + d]) << "key " << keys[k];
      }
    }
    EXPECT_EQ(read(*lazy), read(*dense));
    if (i == 20) {
      HOTROW_ASSERT_OK(lazy->Settle());
    }
    // A step that comes to nothing leaves nothing.
    HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep cancelled, lazy->Prefetch(OneEach({1, 29}).view()));
    std::vector<float> ignored(2 * kDim);
    HOTROW_ASSERT_OK(cancelled.Lookup({.pooled = test::RowsOf(*lazy, 2, ignored)}));
  }
  // Now all rows are in both tables.
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest lazy_digest, lazy->Digest());
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest dense_digest, dense->Digest());
  EXPECT_EQ(lazy_digest.hash, dense_digest.hash);
  EXPECT_EQ(lazy_digest.tables[0].rows, kKeys);
  EXPECT_EQ(lazy->Stats().initialised_rows, kKeys);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, TableDecayTest,
    testing::Combine(testing::Values(SparseOptimizerKind::kSgd, SparseOptimizerKind::kAdagrad,
                                     SparseOptimizerKind::kRowWiseAdagrad,
                                     SparseOptimizerKind::kAdam, SparseOptimizerKind::kLamb),
                     testing::Values(WeightsPrecision::kFp32, WeightsPrecision::kBf16)),
    [](const auto& info) {
      return absl::StrCat(std::string(SparseOptimizerName(std::get<0>(info.param))), "_",
                          std::string(WeightsPrecisionName(std::get<1>(info.param))));
    });

TEST(TableDecayTiersTest, SameBitsWhateverTheCacheThePrefetchAndTheThreads) {
  const EmbeddingCollectionOptions options = Decaying(TablesOfOneWidth());
  const RunOptions run = {.steps = 20, .num_features = 3};
  const RunResult expected = Train(options, run);
  HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t least, EmbeddingCollection::MinCacheBytes(options));
  for (const StoreKind store : {StoreKind::kMemory, StoreKind::kSsd}) {
    for (const int32_t depth : {0, 3}) {
      SCOPED_TRACE(absl::StrCat(std::string(StoreKindName(store)), " depth ", depth));
      EmbeddingCollectionOptions variant = options;
      PutStore(store, test::TempDir(), &variant);
      variant.cache.bytes = least;
      variant.prefetch_depth = depth;
      RunOptions other = run;
      other.threads = 1 + depth;
      other.evaluate_every = 3;
      const RunResult got = Train(variant, other);
      EXPECT_EQ(got.digest.hash, expected.digest.hash);
      EXPECT_EQ(got.last_output, expected.last_output);
      EXPECT_EQ(got.stats.initialised_rows, expected.stats.initialised_rows);
    }
  }
}

TEST(TableDecayTiersTest, ARunThatStopsAndStartsHasTheBitsOfOneThatDoesNot) {
  constexpr int kSteps = 14;
  constexpr int kStop = 6;
  constexpr uint64_t kRows = 800;
  const std::vector<Hash128> want = ReferenceHashes(Decaying(TablesOfOneWidth()), kSteps, kRows);
  HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t least,
                              EmbeddingCollection::MinCacheBytes(TablesOfOneWidth()));
  for (const bool settles : {false, true}) {
    SCOPED_TRACE(settles);
    EmbeddingCollectionOptions options = Decaying(TablesOfOneWidth());
    options.cache.bytes = least;
    PutStore(StoreKind::kSsd, test::TempDir(), &options);
    std::vector<LearningRateRun> rates;
    std::vector<float> weights(100 * 20);
    std::vector<uint64_t> keys;
    for (uint64_t key = 0; key < 100; ++key) keys.push_back(key * 7);
    {
      HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
      Trainer trainer(tables.get(), 0, 0, kSteps, kRows);
      while (trainer.step() < kStop) HOTROW_ASSERT_OK(trainer.Step());
      if (settles) {
        HOTROW_ASSERT_OK(tables->Settle());
      }
      rates.assign(tables->learning_rates().begin(), tables->learning_rates().end());
      HOTROW_ASSERT_OK(tables->ReadRows("float", keys, {weights.data(), 100, 20}));
      HOTROW_ASSERT_OK(tables->snapshots().Prepare(kStop));
      HOTROW_ASSERT_OK(tables->snapshots().Commit(kStop));
      while (trainer.step() < kSteps) HOTROW_ASSERT_OK(trainer.Step());
      HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
      EXPECT_EQ(digest.hash, want[kSteps]);
      HOTROW_ASSERT_OK(tables->Close());
    }
    EXPECT_EQ(rates, (std::vector<LearningRateRun>{{kStop, 1.0f}}));
    options.start.from = {{.snapshot = kStop}};
    options.start.steps = kStop;
    options.start.learning_rates = rates;
    {
      HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
      HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest opened, tables->Digest());
      EXPECT_EQ(opened.hash, want[kStop]);
      Trainer trainer(tables.get(), 0, kStop, kSteps, kRows);
      while (trainer.step() < kSteps) HOTROW_ASSERT_OK(trainer.Step());
      HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest end, tables->Digest());
      EXPECT_EQ(end.hash, want[kSteps]);
      HOTROW_ASSERT_OK(tables->Close());
    }
    if (!settles) continue;
    // Settled rows need no learning rates to be read right.
    options.start.learning_rates.clear();
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest opened, tables->Digest());
    EXPECT_EQ(opened.hash, want[kStop]);
    std::vector<float> again(weights.size());
    bool found[100];
    HOTROW_ASSERT_OK(tables->ReadRows("float", keys, {again.data(), 100, 20}, found));
    int there = 0;
    for (size_t k = 0; k < keys.size(); ++k) {
      if (!found[k]) continue;
      ++there;
      for (size_t d = 0; d < 20; ++d) EXPECT_EQ(again[k * 20 + d], weights[k * 20 + d]);
    }
    EXPECT_GT(there, 3);
  }
}

TEST(TableDecayTiersTest, ForEachRowGivesWhatReadRowsGives) {
  const EmbeddingCollectionOptions options = Decaying(TablesOfOneWidth());
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
  Trainer trainer(tables.get(), 0, 0, 9, 500);
  while (trainer.step() < 9) HOTROW_ASSERT_OK(trainer.Step());
  std::vector<uint64_t> keys;
  std::vector<float> weights;
  HOTROW_ASSERT_OK(
      tables->ForEachRow("half", [&](uint64_t key, std::span<const float> row) -> absl::Status {
        keys.push_back(key);
        weights.insert(weights.end(), row.begin(), row.end());
        return absl::OkStatus();
      }));
  ASSERT_GT(keys.size(), 20u);
  std::vector<float> read(weights.size());
  HOTROW_ASSERT_OK(tables->ReadRows("half", keys, {read.data(), std::ssize(keys), 40}));
  EXPECT_EQ(read, weights);
}

// More rows than are copied at a time.
TEST(TableDecayTiersTest, ManyWideRowsAreReadAsReadRowsReadsThem) {
  constexpr int32_t kDim = 4096;
  constexpr int64_t kKeys = 700;
  EmbeddingCollectionOptions options =
      Options({Table("t", kDim, {"f"}, SparseOptimizerKind::kSgd)});
  options.tables[0].optimizer.weight_decay = 0.05f;
  options.tables[0].optimizer.weight_decay_mode = WeightDecayMode::kTable;
  options.max_batch_size = kKeys;
  ThreadPool pool(2);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {.pool = &pool}));
  std::vector<uint64_t> all;
  for (uint64_t key = 0; key < kKeys; ++key) all.push_back(key * 5);
  const auto step_of = [&](const std::vector<uint64_t>& keys) {
    const Batch batch = OneEach(keys);
    std::vector<float> values(keys.size() * kDim);
    HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep step, tables->Prefetch(batch.view()));
    HOTROW_ASSERT_OK(step.Lookup({.pooled = test::RowsOf(*tables, batch.batch_size, values)}));
    HOTROW_ASSERT_OK(
        std::move(step).Update({.pooled = test::RowsOf(*tables, batch.batch_size, values)}));
  };
  step_of(all);
  step_of({5});
  const auto digest = [&] {
    absl::StatusOr<CollectionDigest> got = tables->Digest();
    HOTROW_EXPECT_OK(got);
    EXPECT_EQ(got->tables[0].rows, kKeys);
    return got->hash;
  };
  const Hash128 unsettled = digest();
  std::vector<float> read(static_cast<size_t>(kKeys * kDim));
  HOTROW_ASSERT_OK(tables->ReadRows("t", all, {read.data(), kKeys, kDim}));
  std::set<uint64_t> seen;
  HOTROW_ASSERT_OK(
      tables->ForEachRow("t", [&](uint64_t key, std::span<const float> row) -> absl::Status {
        EXPECT_TRUE(seen.insert(key).second);
        EXPECT_TRUE(std::equal(row.begin(), row.end(), read.data() + key / 5 * kDim)) << key;
        return absl::OkStatus();
      }));
  EXPECT_EQ(std::ssize(seen), kKeys);
  int calls = 0;
  EXPECT_THAT(tables->ForEachRow("t",
                                 [&](uint64_t, std::span<const float>) -> absl::Status {
                                   return ++calls < 300 ? absl::OkStatus()
                                                        : absl::CancelledError("enough");
                                 }),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("enough")));
  EXPECT_EQ(calls, 300);
  HOTROW_ASSERT_OK(tables->Settle());
  EXPECT_EQ(digest(), unsettled);
}

TEST(TableDecayTiersTest, WhatDoesNotFitIsNamed) {
  EmbeddingCollectionOptions options = Decaying(TablesOfOneWidth());
  options.cache.device_bytes = kMiB;
  EXPECT_THAT(EmbeddingCollection::Create(options, {}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("table \"float\"")));
  options.cache.device_bytes = 0;
  options.start.learning_rates = {{3, 1.0f}, {3, 0.5f}};
  EXPECT_THAT(EmbeddingCollection::Create(options, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("start.learning_rates")));
}

}  // namespace
}  // namespace hotrow
