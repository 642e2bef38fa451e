#include "embedding/embedding_collection.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/thread_pool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/embedding/training.h"
#include "tests/support/colliding_keys.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::hotrow::test::Batch;
using ::hotrow::test::FillGradient;
using ::hotrow::test::kMiB;
using ::hotrow::test::Options;
using ::hotrow::test::RandomBatch;
using ::hotrow::test::RunOptions;
using ::hotrow::test::RunResult;
using ::hotrow::test::StatusIs;
using ::hotrow::test::Table;
using ::hotrow::test::Train;
using ::testing::AllOf;
using ::testing::HasSubstr;

// --- Against a reference in double
// ---------------------------------------------------------------------------

// SGD and Adagrad over a map of rows; the initial rows are asked of the collection itself by
// evaluation.
class Reference {
 public:
  Reference(EmbeddingCollection* tables, const EmbeddingCollectionOptions& options)
      : tables_(tables), options_(options) {
    for (size_t t = 0; t < options.tables.size(); ++t) {
      for (const std::string& name : options.tables[t].feature_names) table_of_[name] = t;
    }
  }

  struct Row {
    std::vector<double> w;
    std::vector<double> s;
  };

  Row& At(size_t feature, uint64_t key) {
    const size_t t = TableOf(feature);
    auto [it, added] = rows_.try_emplace({t, key});
    if (added) {
      it->second.w = Initial(feature, key);
      it->second.s.assign(it->second.w.size(), 0.0);
    }
    return it->second;
  }

  size_t TableOf(size_t feature) const { return table_of_.at(tables_->feature_names()[feature]); }
  int32_t Dim(size_t feature) const { return options_.tables[TableOf(feature)].embedding_dim; }

  // [B, sum of dims]
  std::vector<double> Forward(const Batch& batch) {
    std::vector<double> output;
    output.assign(static_cast<size_t>(batch.batch_size * tables_->pooled_dim()), 0.0);
    int64_t column = 0;
    for (size_t f = 0; f < static_cast<size_t>(tables_->num_features()); ++f) {
      for (int64_t b = 0; b < batch.batch_size; ++b) {
        for (int64_t j = Begin(batch, f, b); j < Begin(batch, f, b + 1); ++j) {
          const Row& row = At(f, batch.values[j]);
          for (int32_t d = 0; d < Dim(f); ++d) {
            output[b * tables_->pooled_dim() + column + d] += Scale(batch, f, b, j) * row.w[d];
          }
        }
      }
      column += Dim(f);
    }
    return output;
  }

  void Backward(const Batch& batch, const std::vector<float>& gradient) {
    std::map<std::pair<size_t, uint64_t>, std::vector<double>> sums;
    int64_t column = 0;
    for (size_t f = 0; f < static_cast<size_t>(tables_->num_features()); ++f) {
      for (int64_t b = 0; b < batch.batch_size; ++b) {
        for (int64_t j = Begin(batch, f, b); j < Begin(batch, f, b + 1); ++j) {
          std::vector<double>& sum = sums[{TableOf(f), batch.values[j]}];
          sum.resize(Dim(f));
          for (int32_t d = 0; d < Dim(f); ++d) {
            sum[d] += Scale(batch, f, b, j) *
                      static_cast<double>(gradient[b * tables_->pooled_dim() + column + d]);
          }
        }
      }
      column += Dim(f);
    }
    for (const auto& [id, g] : sums) {
      Row& row = rows_.at(id);
      const SparseOptimizerConfig& config = options_.tables[id.first].optimizer;
      for (size_t d = 0; d < g.size(); ++d) {
        if (config.kind == SparseOptimizerKind::kSgd) {
          row.w[d] -= config.learning_rate * g[d];
        } else {
          row.s[d] += g[d] * g[d];
          row.w[d] -= config.learning_rate * g[d] / (std::sqrt(row.s[d]) + config.eps);
        }
      }
    }
  }

  size_t num_rows() const { return rows_.size(); }

 private:
  static int64_t Begin(const Batch& batch, size_t f, int64_t b) {
    return batch.offsets[f * batch.batch_size + b];
  }
  double Scale(const Batch& batch, size_t f, int64_t b, int64_t j) const {
    const double weight = batch.weights.empty() ? 1.0 : static_cast<double>(batch.weights[j]);
    const bool mean = options_.tables[TableOf(f)].pooling == Pooling::kMean;
    return mean ? weight / static_cast<double>(Begin(batch, f, b + 1) - Begin(batch, f, b))
                : weight;
  }
  // One sample whose feature f has the key once: evaluation returns the row itself. The key is new
  // to the reference, so no update has touched it.
  std::vector<double> Initial(size_t feature, uint64_t key) {
    Batch batch;
    batch.batch_size = 1;
    batch.values = {key};
    int64_t column = 0;
    batch.offsets.assign(1, 0);
    for (size_t f = 0; f < static_cast<size_t>(tables_->num_features()); ++f) {
      if (f < feature) column += Dim(f);
      batch.offsets.push_back(f >= feature ? 1 : 0);
    }
    std::vector<float> output(static_cast<size_t>(tables_->pooled_dim()));
    HOTROW_EXPECT_OK(tables_->Evaluate(
        batch.view(), {.pooled = test::RowsOf(*tables_, batch.batch_size, output)}));
    return {output.begin() + column, output.begin() + column + Dim(feature)};
  }

  EmbeddingCollection* tables_;
  EmbeddingCollectionOptions options_;
  std::map<std::string, size_t> table_of_;
  std::map<std::pair<size_t, uint64_t>, Row> rows_;
};

class ReferenceTest
    : public testing::TestWithParam<std::tuple<SparseOptimizerKind, int64_t, bool>> {};

TEST_P(ReferenceTest, TrainingMatchesDenseTables) {
  const auto [kind, cache_bytes, weighted] = GetParam();
  EmbeddingCollectionOptions options =
      Options({Table("a", 4, {"f0", "f2"}, kind), Table("b", 17, {"f1"}, kind),
               Table("c", 1, {"f3"}, kind)});
  options.tables[1].pooling = Pooling::kMean;
  options.feature_order = {"f0", "f1", "f2", "f3"};
  options.cache.bytes = cache_bytes;
  ExecContext ctx;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, ctx));
  Reference reference(tables.get(), options);
  ASSERT_EQ(tables->pooled_dim(), 4 + 17 + 4 + 1);

  for (int i = 0; i < 15; ++i) {
    SCOPED_TRACE(absl::StrCat("step ", i));
    const Batch batch = RandomBatch(static_cast<uint64_t>(i) + 1, 4, 32, 3, 60, weighted);
    const std::vector<double> expected = reference.Forward(batch);
    HOTROW_ASSERT_OK_AND_ASSIGN(auto step, tables->Prefetch(batch.view()));
    std::vector<float> output(expected.size(), -1.0f);
    HOTROW_ASSERT_OK(step.Lookup({.pooled = test::RowsOf(*tables, step.batch_size(), output)}));
    for (size_t k = 0; k < output.size(); ++k) {
      // Float errors of earlier steps are carried along; 1e-4 is some hundred roundings.
      ASSERT_NEAR(output[k], expected[k], 1e-4 * (1 + std::abs(expected[k]))) << "column " << k;
    }
    std::vector<float> gradient(output.size());
    for (size_t k = 0; k < output.size(); ++k) {
      gradient[k] = static_cast<float>(0.2 * expected[k]) +
                    0.1f * static_cast<float>((k + 3u * i) % 5) - 0.2f;
    }
    HOTROW_ASSERT_OK(
        std::move(step).Update({.pooled = test::RowsOf(*tables, step.batch_size(), gradient)}));
    reference.Backward(batch, gradient);
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
  int64_t rows = 0;
  for (const TableDigest& table : digest.tables) rows += table.rows;
  EXPECT_EQ(rows, static_cast<int64_t>(reference.num_rows()));
  EXPECT_EQ(tables->Stats().initialised_rows, rows);
}

INSTANTIATE_TEST_SUITE_P(All, ReferenceTest,
                         testing::Combine(testing::Values(SparseOptimizerKind::kSgd,
                                                          SparseOptimizerKind::kAdagrad),
                                          testing::Values(0, kMiB), testing::Bool()));

// --- Same bits
// -------------------------------------------------------------------------------------------------

class SameBitsTest : public testing::TestWithParam<std::tuple<SparseOptimizerKind, int32_t>> {};

TEST_P(SameBitsTest, WhateverTheCacheThePrefetchAndTheThreads) {
  const auto [kind, dim] = GetParam();
  EmbeddingCollectionOptions options =
      Options({Table("wide", 64, {"f0"}, kind), Table("odd", dim, {"f1", "f2"}, kind),
               Table("one", 1, {"f3"}, kind)});
  for (TableConfig& table : options.tables) table.max_hotness = 3;
  const RunOptions run = {.num_features = 4};
  const RunResult expected = Train(options, run);
  EXPECT_GT(expected.stats.initialised_rows, 300);

  HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t least, EmbeddingCollection::MinCacheBytes(options));
  for (const int64_t cache_bytes : {int64_t{0}, least, least + least / 3, 16 * kMiB}) {
    for (const int32_t depth : {0, 1, 4}) {
      for (const CachePolicy policy : {CachePolicy::kLru, CachePolicy::kLfu}) {
        SCOPED_TRACE(absl::StrCat("cache_bytes=", cache_bytes, " prefetch_depth=", depth));
        EmbeddingCollectionOptions variant = options;
        variant.cache.bytes = cache_bytes;
        variant.prefetch_depth = depth;
        variant.cache.policy = policy;
        RunOptions threads = run;
        threads.threads = depth == 4 ? 4 : 1 + depth;  // 4: the pipeline uses the pool
        const RunResult got = Train(variant, threads);
        EXPECT_EQ(got.digest.hash, expected.digest.hash);
        EXPECT_EQ(got.last_output, expected.last_output);
        EXPECT_EQ(got.stats.initialised_rows, expected.stats.initialised_rows);
        for (size_t t = 0; t < expected.digest.tables.size(); ++t) {
          EXPECT_EQ(got.digest.tables[t].rows, expected.digest.tables[t].rows);
        }
        for (const TierStats& tier : got.stats.tiers)
          EXPECT_LE(tier.used_bytes, tier.budget_bytes) << tier.name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, SameBitsTest,
                         testing::Combine(testing::Values(SparseOptimizerKind::kSgd,
                                                          SparseOptimizerKind::kAdam,
                                                          SparseOptimizerKind::kRowWiseAdagrad,
                                                          SparseOptimizerKind::kFtrl),
                                          testing::Values(1, 17, 64)));

TEST(EmbeddingCollectionTest, ASmallCacheEvictsAndReadsBack) {
  EmbeddingCollectionOptions options = Options({Table("a", 16, {"f0", "f1"})});
  options.tables[0].max_hotness = 2;
  HOTROW_ASSERT_OK_AND_ASSIGN(options.cache.bytes, EmbeddingCollection::MinCacheBytes(options));
  const RunResult result =
      Train(options, {.steps = 60, .num_features = 2, .max_hotness = 2, .rows = 5000});
  ASSERT_EQ(result.stats.tiers.size(), 2u);
  const TierStats& cache = result.stats.tiers[0];
  const TierStats& store = result.stats.tiers[1];
  EXPECT_EQ(cache.name, "cache");
  EXPECT_EQ(store.name, "memory");
  EXPECT_GT(cache.evictions, 0);
  EXPECT_GT(cache.dirty_writebacks, 0);
  EXPECT_GT(store.rows_read, 0);
  EXPECT_EQ(cache.unique_keys, result.stats.unique_keys);
  EXPECT_EQ(store.unique_keys, cache.unique_keys - cache.unique_hits);
  EXPECT_EQ(store.lookups, cache.lookups - cache.lookup_hits);
  EXPECT_EQ(store.rows_read, store.unique_hits);
}

// Waits for something that another thread does; false when it does not within a minute.
bool Eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 60'000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

TEST(EmbeddingCollectionTest, PrefetchWaitsWhenPinnedRowsLeaveNoRoom) {
  EmbeddingCollectionOptions options = Options({Table("a", 8, {"f0"})});
  options.tables[0].max_hotness = 8;
  options.prefetch_depth = 4;
  const RunOptions run = {
      .steps = 20, .num_features = 1, .max_hotness = 8, .rows = 100'000, .batch_size = 64};
  HOTROW_ASSERT_OK_AND_ASSIGN(options.cache.bytes, EmbeddingCollection::MinCacheBytes(options));
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
    // Distinct keys, 512 a step: two steps have no room side by side.
    std::vector<EmbeddingStep> steps;
    std::vector<float> output(512);
    for (uint64_t i = 0; i < 3; ++i) {
      Batch batch;
      batch.batch_size = 64;
      for (uint64_t j = 0; j < 512; ++j) batch.values.push_back(512 * i + j);
      for (int64_t b = 1; b <= 64; ++b) batch.offsets.push_back(8 * b);
      HOTROW_ASSERT_OK_AND_ASSIGN(steps.emplace_back(), tables->Prefetch(batch.view()));
    }
    ASSERT_TRUE(Eventually([&] { return tables->Stats().prefetch_waits == 1; }));
    // Evaluation goes by the waiting step.
    const Batch other = RandomBatch(1, 1, 20, 3, 5000, false);
    HOTROW_ASSERT_OK(tables->Evaluate(other.view(),
                                      {.pooled = test::RowsOf(*tables, other.batch_size, output)}));
    // Cancelling the first makes room for the second; then it is the third that waits, and
    // cancelling one that waits lets go of it.
    steps[0] = EmbeddingStep();
    ASSERT_TRUE(Eventually([&] { return tables->Stats().prefetch_waits == 2; }));
    steps[2] = EmbeddingStep();
    HOTROW_ASSERT_OK(
        steps[1].Lookup({.pooled = test::RowsOf(*tables, steps[1].batch_size(), output)}));
    EXPECT_EQ(steps[1].num_unique_keys(), 512);
    HOTROW_ASSERT_OK(std::move(steps[1]).Update(
        {.pooled = test::RowsOf(*tables, steps[1].batch_size(), output)}));
    EXPECT_EQ(tables->Stats().initialised_rows, 512);
  }
  const RunResult narrow = Train(options, run);
  options.cache.bytes = 16 * kMiB;
  const RunResult wide = Train(options, run);
  EXPECT_EQ(wide.stats.prefetch_waits, 0);
  EXPECT_EQ(narrow.digest.hash, wide.digest.hash);
  EXPECT_EQ(narrow.stats.tiers[0].unique_keys, wide.stats.tiers[0].unique_keys)
      << "a second try counted keys twice";
}

// --- Evaluation
// ------------------------------------------------------------------------------------------------

TEST(EmbeddingCollectionTest, EvaluationLeavesNoTrace) {
  EmbeddingCollectionOptions options =
      Options({Table("a", 16, {"f0", "f1"}), Table("b", 3, {"f2"})});
  for (const int64_t cache_bytes : {int64_t{0}, int64_t{120'000}}) {
    options.cache.bytes = cache_bytes;
    RunOptions run = {.steps = 20, .num_features = 3, .rows = 3000};
    const RunResult without = Train(options, run);
    run.evaluate_every = 1;
    const RunResult with = Train(options, run);
    EXPECT_EQ(with.digest.hash, without.digest.hash);
    EXPECT_GT(with.stats.evaluation_lookups, 0);
    for (size_t t = 0; t < with.stats.tiers.size(); ++t) {
      const TierStats& a = with.stats.tiers[t];
      const TierStats& b = without.stats.tiers[t];
      EXPECT_EQ(a.unique_keys, b.unique_keys);
      EXPECT_EQ(a.unique_hits, b.unique_hits);
      EXPECT_EQ(a.lookup_hits, b.lookup_hits);
      EXPECT_EQ(a.evictions, b.evictions);
      EXPECT_EQ(a.dirty_writebacks, b.dirty_writebacks);
      EXPECT_EQ(a.rows_written, b.rows_written);
    }
  }
}

class EvaluationTest : public testing::TestWithParam<WeightsPrecision> {};

INSTANTIATE_TEST_SUITE_P(All, EvaluationTest,
                         testing::Values(WeightsPrecision::kFp32, WeightsPrecision::kFp16,
                                         WeightsPrecision::kBf16),
                         [](const auto& info) {
                           return std::string(WeightsPrecisionName(info.param));
                         });

TEST_P(EvaluationTest, ReadsWhatALookupWouldReadAlsoInSlices) {
  EmbeddingCollectionOptions options =
      Options({Table("a", 16, {"f0", "f1"}), Table("b", 3, {"f2"})});
  options.tables[1].pooling = Pooling::kNone;
  for (TableConfig& table : options.tables) table.weights_precision = GetParam();
  options.cache.bytes = 100'000;
  // 80 or 48 bytes a row of table a: some ten or twenty lookups a slice.
  options.evaluation_staging_bytes = 1000;
  ExecContext ctx;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, ctx));
  for (int i = 0; i < 5; ++i) {
    const Batch batch = RandomBatch(static_cast<uint64_t>(i), 3, 40, 3, 200, true);
    const int64_t unpooled_lookups = batch.offsets.back() - batch.offsets[80];
    const size_t pooled_size = static_cast<size_t>(40 * tables->pooled_dim());
    std::vector<float> seen(pooled_size, -1);
    std::vector<float> seen_rows(unpooled_lookups * 3, -1);
    HOTROW_ASSERT_OK(
        tables->Evaluate(batch.view(), {.pooled = test::RowsOf(*tables, batch.batch_size, seen),
                                        .unpooled = {{seen_rows.data(), unpooled_lookups, 3}}}));
    HOTROW_ASSERT_OK_AND_ASSIGN(auto step, tables->Prefetch(batch.view()));
    std::vector<float> output(pooled_size, -2);
    std::vector<float> rows(unpooled_lookups * 3, -2);
    HOTROW_ASSERT_OK(step.Lookup({.pooled = test::RowsOf(*tables, step.batch_size(), output),
                                  .unpooled = {{rows.data(), unpooled_lookups, 3}}}));
    EXPECT_EQ(seen, output);
    EXPECT_EQ(seen_rows, rows);
    std::vector<float> gradient;
    FillGradient(output, static_cast<uint64_t>(i), &gradient);
    HOTROW_ASSERT_OK(
        std::move(step).Update({.pooled = test::RowsOf(*tables, step.batch_size(), gradient),
                                .unpooled = {{rows.data(), unpooled_lookups, 3}}}));
  }
}

TEST(EmbeddingCollectionTest, OneSampleTooLargeForTheStagingAreaIsNamed) {
  EmbeddingCollectionOptions options = Options({Table("a", 16, {"f0"})});
  options.evaluation_staging_bytes = 200;
  ExecContext ctx;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, ctx));
  Batch batch;
  batch.batch_size = 2;
  batch.values = {1, 2, 3, 4, 5};
  batch.offsets = {0, 1, 5};
  std::vector<float> output(32);
  EXPECT_THAT(
      tables->Evaluate(batch.view(), {.pooled = test::RowsOf(*tables, batch.batch_size, output)}),
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr("evaluation_staging_bytes"), HasSubstr("sample 1"))));
}

// --- Keys, steps, order
// ------------------------------------------------------------------------------------------

TEST(EmbeddingCollectionTest, EveryKeyIsLegalAndEqualKeysOfTwoTablesAreTwoRows) {
  EmbeddingCollectionOptions options = Options({Table("a", 4, {"f0"}), Table("b", 4, {"f1"})});
  for (const int64_t cache_bytes : {int64_t{0}, int64_t{100'000}}) {
    options.cache.bytes = cache_bytes;
    ExecContext ctx;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, ctx));
    Batch batch;
    batch.batch_size = 3;
    batch.values = {0, UINT64_MAX, 5, 0, UINT64_MAX, 5};
    batch.offsets = {0, 1, 2, 3, 4, 5, 6};
    std::vector<float> output(24);
    HOTROW_ASSERT_OK_AND_ASSIGN(auto step, tables->Prefetch(batch.view()));
    EXPECT_EQ(step.num_unique_keys(), 6);
    HOTROW_ASSERT_OK(step.Lookup({.pooled = test::RowsOf(*tables, step.batch_size(), output)}));
    EXPECT_NE(std::memcmp(&output[0], &output[4], 16), 0) << "tables must not share a row";
    HOTROW_ASSERT_OK(
        std::move(step).Update({.pooled = test::RowsOf(*tables, step.batch_size(), output)}));
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
    EXPECT_EQ(digest.tables[0].rows, 3);
    EXPECT_EQ(digest.tables[1].rows, 3);
    EXPECT_FALSE(digest.tables[0].hash == digest.tables[1].hash);
  }
}

TEST(EmbeddingCollectionTest, RowsOnlyPrefetchedOrLookedUpDoNotJoin) {
  EmbeddingCollectionOptions options = Options({Table("a", 4, {"f0"})});
  options.cache.bytes = 100'000;
  ExecContext ctx;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, ctx));
  const Batch batch = RandomBatch(1, 1, 20, 3, 50, false);
  std::vector<float> output(80);
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto step, tables->Prefetch(batch.view()));
    HOTROW_ASSERT_OK(step.Lookup({.pooled = test::RowsOf(*tables, step.batch_size(), output)}));
  }  // cancelled
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
  EXPECT_EQ(digest.tables[0].rows, 0);
  EXPECT_EQ(digest.hash, Hash128());
  EXPECT_EQ(tables->steps(), 0);
  // The cancelled step's pins are gone, so a new step may begin and the old rows are as they were.
  HOTROW_ASSERT_OK_AND_ASSIGN(auto step, tables->Prefetch(batch.view()));
  std::vector<float> again(80);
  HOTROW_ASSERT_OK(step.Lookup({.pooled = test::RowsOf(*tables, step.batch_size(), again)}));
  EXPECT_EQ(again, output);
}

TEST(EmbeddingCollectionTest, ARateThatIsNoneIsRefusedAndNoRowJoins) {
  for (const int64_t cache_bytes : {int64_t{0}, int64_t{100'000}}) {
    SCOPED_TRACE(cache_bytes);
    EmbeddingCollectionOptions options = Options({Table("a", 4, {"f0"})});
    options.cache.bytes = cache_bytes;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
    const Batch batch = RandomBatch(1, 1, 20, 3, 50, false);
    std::vector<float> output(80);
    for (const float factor : {-1.0f, INFINITY, NAN}) {
      HOTROW_ASSERT_OK_AND_ASSIGN(auto step, tables->Prefetch(batch.view()));
      const auto rows = test::RowsOf(*tables, step.batch_size(), output);
      HOTROW_ASSERT_OK(step.Lookup({.pooled = rows}));
      EXPECT_THAT(
          std::move(step).Update({.pooled = rows}, factor),
          StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("learning_rate_factor must")));
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
    EXPECT_EQ(digest.tables[0].rows, 0);
    EXPECT_EQ(tables->steps(), 0);
  }
}

TEST(EmbeddingCollectionTest, CancelledPrefetchesLeaveNoPins) {
  EmbeddingCollectionOptions options = Options({Table("a", 8, {"f0"})});
  options.tables[0].max_hotness = 4;
  HOTROW_ASSERT_OK_AND_ASSIGN(options.cache.bytes, EmbeddingCollection::MinCacheBytes(options));
  ExecContext ctx;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, ctx));
  for (int i = 0; i < 200; ++i) {
    // Were pins left behind, the cache of one step would soon be full of them.
    const Batch batch = RandomBatch(static_cast<uint64_t>(i), 1, 64, 4, 1'000'000, false);
    HOTROW_ASSERT_OK_AND_ASSIGN(auto step, tables->Prefetch(batch.view()));
  }
}

TEST(EmbeddingCollectionTest, StepsOutOfOrderAreRefused) {
  EmbeddingCollectionOptions options = Options({Table("a", 4, {"f0"})});
  options.prefetch_depth = 1;
  ExecContext ctx;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, ctx));
  const Batch batch = RandomBatch(1, 1, 4, 2, 50, false);
  std::vector<float> output(16);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto first, tables->Prefetch(batch.view()));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto second, tables->Prefetch(batch.view()));
  EXPECT_THAT(tables->Prefetch(batch.view()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("prefetch_depth")));
  EXPECT_THAT(second.Lookup({.pooled = test::RowsOf(*tables, second.batch_size(), output)}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("oldest")));
  first = EmbeddingStep();
  HOTROW_ASSERT_OK(second.Lookup({.pooled = test::RowsOf(*tables, second.batch_size(), output)}));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto third, tables->Prefetch(batch.view()));
  EXPECT_THAT(
      std::move(third).Update({.pooled = test::RowsOf(*tables, third.batch_size(), output)}),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("looked up")));
  HOTROW_EXPECT_OK(
      std::move(second).Update({.pooled = test::RowsOf(*tables, second.batch_size(), output)}));
  EXPECT_THAT(std::move(EmbeddingStep()).Update({}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no step")));
}

TEST(EmbeddingCollectionTest, EmptyBatchesPass) {
  for (const int64_t cache_bytes : {int64_t{0}, int64_t{100'000}}) {
    EmbeddingCollectionOptions options = Options({Table("a", 4, {"f0", "f1"})});
    options.cache.bytes = cache_bytes;
    ExecContext ctx;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, ctx));
    Batch none;    // no samples
    Batch hollow;  // two samples without a single lookup
    hollow.batch_size = 2;
    hollow.offsets.assign(5, 0);
    for (const Batch& batch : {none, hollow}) {
      std::vector<float> output(16, 3.0f);
      HOTROW_ASSERT_OK_AND_ASSIGN(auto step, tables->Prefetch(batch.view()));
      HOTROW_ASSERT_OK(step.Lookup({.pooled = test::RowsOf(*tables, step.batch_size(), output)}));
      for (int64_t i = 0; i < batch.batch_size * 8; ++i) EXPECT_EQ(output[i], 0.0f);
      HOTROW_ASSERT_OK(
          std::move(step).Update({.pooled = test::RowsOf(*tables, step.batch_size(), output)}));
      HOTROW_ASSERT_OK(tables->Evaluate(
          batch.view(), {.pooled = test::RowsOf(*tables, batch.batch_size, output)}));
    }
  }
}

// --- Refusals
// ----------------------------------------------------------------------------------------------------

TEST(EmbeddingCollectionTest, MalformedBatchesAreNamed) {
  EmbeddingCollectionOptions options = Options({Table("a", 4, {"user", "item"})});
  options.tables[0].num_embeddings = 100;
  ExecContext ctx;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, ctx));
  const auto prefetch = [&](Batch batch) { return tables->Prefetch(batch.view()).status(); };
  Batch good;
  good.batch_size = 2;
  good.values = {1, 2, 3, 4};
  good.offsets = {0, 1, 2, 3, 4};
  HOTROW_EXPECT_OK(prefetch(good));

  Batch batch = good;
  batch.offsets.pop_back();
  EXPECT_THAT(prefetch(batch), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("offsets")));
  batch = good;
  batch.offsets = {0, 1, 2, 1, 4};
  EXPECT_THAT(prefetch(batch), StatusIs(absl::StatusCode::kInvalidArgument,
                                        AllOf(HasSubstr("\"item\""), HasSubstr("sample 0"))));
  batch = good;
  batch.offsets[0] = 1;
  EXPECT_THAT(prefetch(batch),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("offsets[0]")));
  batch = good;
  batch.offsets = {0, 1, 2, 3, 3};
  EXPECT_THAT(prefetch(batch),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("last offset")));
  batch = good;
  batch.weights = {1.0f};
  EXPECT_THAT(prefetch(batch), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("weights")));
  batch = good;
  batch.values[3] = 100;
  EXPECT_THAT(prefetch(batch),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("\"item\""), HasSubstr("sample 1"), HasSubstr("key 100"))));
  batch = good;
  batch.batch_size = -1;
  EXPECT_THAT(prefetch(batch),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("batch_size")));
  batch = good;
  batch.batch_size = 65;
  EXPECT_THAT(prefetch(batch),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_batch_size")));
  HOTROW_EXPECT_OK(prefetch(good));
}

TEST(EmbeddingCollectionTest, ACacheTooSmallForOneStepIsRefused) {
  EmbeddingCollectionOptions options = Options({Table("a", 64, {"f0"})});
  options.tables[0].max_hotness = 4;
  ExecContext ctx;
  HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t least, EmbeddingCollection::MinCacheBytes(options));
  options.cache.bytes = least - 1;
  EXPECT_THAT(EmbeddingCollection::Create(options, ctx),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("cache"), HasSubstr(absl::StrCat(least)),
                             HasSubstr(absl::StrCat(least - 1)))));
  // With hotness unknown the batch that does not fit is refused, and the next one that fits goes
  // on.
  options.tables[0].max_hotness = 0;
  options.cache.bytes = 60'000;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, ctx));
  const Batch large = RandomBatch(1, 1, 64, 40, 1'000'000, false);
  EXPECT_THAT(tables->Prefetch(large.view()),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("cache"), HasSubstr("60000"))));
  const Batch small = RandomBatch(2, 1, 8, 1, 1000, false);
  HOTROW_EXPECT_OK(tables->Prefetch(small.view()));
}

// A cache holds 64 of them, and as many more as its overflow has room for.
TEST(EmbeddingCollectionTest, ABatchOfKeysChosenToCollideIsRefusedByNameAndOthersGoOn) {
  constexpr uint64_t kKeys = 20'000;
  EmbeddingCollectionOptions options = Options({Table("a", 8, {"f0"})});
  options.cache.bytes = 16 * kMiB;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
  Batch colliding;
  colliding.batch_size = 1;
  for (uint64_t i = 0; i < kKeys; ++i) {
    colliding.values.push_back(test::KeyWithHashLo(uint64_t{77} << 32 | i, 0).key);
  }
  colliding.offsets.push_back(kKeys);
  EXPECT_THAT(tables->Prefetch(colliding.view()),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("20000 distinct rows"), HasSubstr("chosen to"))));
  Batch few = colliding;
  few.values.resize(64);
  few.offsets.back() = 64;
  std::vector<float> output(8);
  for (const Batch& batch : {few, RandomBatch(2, 1, 1, 1, 1000, false)}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto step, tables->Prefetch(batch.view()));
    HOTROW_ASSERT_OK(step.Lookup({.pooled = test::RowsOf(*tables, step.batch_size(), output)}));
    HOTROW_ASSERT_OK(
        std::move(step).Update({.pooled = test::RowsOf(*tables, step.batch_size(), output)}));
  }
}

TEST(EmbeddingCollectionTest, AFullStoreRefusesTheStepAndKeepsTheTables) {
  EmbeddingCollectionOptions options = Options({Table("a", 64, {"f0"}), Table("b", 3, {"f1"})});
  std::get<MemoryStorage>(options.store).memory_bytes = 512 << 10;
  options.name_option = [](std::string_view path) { return "<" + std::string(path) + ">"; };
  ExecContext ctx;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, ctx));
  std::vector<float> output(static_cast<size_t>(64 * tables->pooled_dim()));
  absl::Status status;
  Hash128 before;
  int64_t initialised = 0;
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
    before = digest.hash;
    initialised = tables->Stats().initialised_rows;
    const Batch batch = RandomBatch(static_cast<uint64_t>(i), 2, 64, 4, 1'000'000, false);
    HOTROW_ASSERT_OK_AND_ASSIGN(auto step, tables->Prefetch(batch.view()));
    HOTROW_ASSERT_OK(step.Lookup({.pooled = test::RowsOf(*tables, step.batch_size(), output)}));
    status = std::move(step).Update({.pooled = test::RowsOf(*tables, step.batch_size(), output)});
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                               AllOf(HasSubstr("524288"), HasSubstr("<store.memory_bytes>"))));
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest after, tables->Digest());
  EXPECT_EQ(after.hash, before);
  EXPECT_EQ(tables->Stats().initialised_rows, initialised);
  EXPECT_EQ(after.tables[0].rows + after.tables[1].rows, initialised);
}

TEST(EmbeddingCollectionTest, BadOptionsAreNamed) {
  const EmbeddingCollectionOptions good = Options({Table("a", 4, {"f0"}), Table("b", 4, {"f1"})});
  HOTROW_EXPECT_OK(good.Validate());
  EmbeddingCollectionOptions bad = good;
  bad.tables.clear();
  EXPECT_THAT(bad.Validate(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tables")));
  bad = good;
  bad.tables[1].name = "a";
  EXPECT_THAT(bad.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("table \"a\"")));
  bad = good;
  bad.tables[1].embedding_dim = 0;
  EXPECT_THAT(bad.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("embedding_dim")));
  bad = good;
  bad.tables[1].feature_names = {"f0"};
  EXPECT_THAT(bad.Validate(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"f0\"")));
  bad = good;
  bad.tables[1].optimizer.learning_rate = -1;
  EXPECT_THAT(bad.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("learning_rate")));
  bad = good;
  bad.feature_order = {"f0", "f9"};
  EXPECT_THAT(bad.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("feature_order")));
  bad = good;
  bad.max_batch_size = 0;
  EXPECT_THAT(bad.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_batch_size")));
  bad = good;
  bad.prefetch_depth = -1;
  EXPECT_THAT(bad.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("EmbeddingCollectionOptions.prefetch_depth=-1: takes a whole "
                                 "number from 0 to 32")));
  bad = good;
  std::get<MemoryStorage>(bad.store).memory_bytes = 0;
  EXPECT_THAT(bad.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("memory_bytes")));
  EXPECT_THAT(ParseStoreKind("tape"), StatusIs(absl::StatusCode::kInvalidArgument,
                                               AllOf(HasSubstr("\"tape\""), HasSubstr("memory"))));
}

}  // namespace
}  // namespace hotrow
