// Tables whose rows lookups read as a serving model keeps them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "embedding/embedding_collection.h"
#include "embedding/serving/row_coding.h"
#include "embedding/serving/serving_rows.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/rows/row_layout.h"
#include "ops/rows/weights_precision.h"
#include "tests/embedding/rank_training.h"
#include "tests/embedding/training.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::hotrow::test::Batch;
using ::hotrow::test::kMiB;
using ::hotrow::test::RankRun;
using ::hotrow::test::RunOptions;
using ::hotrow::test::RunResult;
using ::hotrow::test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Options that serve "wide", of floats, and "also wide", of `precision`; "narrow" is read as it is.
EmbeddingCollectionOptions ServedAs(ServingRows form, WeightsPrecision precision) {
  EmbeddingCollectionOptions options = test::TwoWidths(SparseOptimizerKind::kRowWiseAdagrad);
  options.tables[0].serve_rows = form;
  options.tables[2].serve_rows = form;
  options.tables[2].weights_precision = precision;
  return options;
}

// What serving reads of a row with these weights.
std::vector<float> AsServed(const TableConfig& table, bool found, std::span<const float> weights) {
  const RowLayout layout =
      RowLayout::For(table.embedding_dim, table.optimizer.kind, table.weights_precision);
  const ServingRows form = ServingForm(table.serve_rows, layout);
  const bool has_codes = form == ServingRows::kInt8 || form == ServingRows::kInt4;
  std::vector<float> out(weights.begin(), weights.end());
  if (has_codes && !found) return out;
  std::vector<std::byte> row(static_cast<size_t>(layout.row_bytes));
  NarrowWeights(table.weights_precision, weights, row.data());
  std::vector<std::byte> kept(static_cast<size_t>(ServingRowBytes(form, layout)));
  HOTROW_EXPECT_OK(EncodeServingRow(form, layout, row.data(), out, kept.data()));
  HOTROW_EXPECT_OK(DecodeServingRow(form, layout, kept.data(), out));
  return out;
}

// Evaluation of all keys below `rows`, of which some have no row, against what ReadRows says.
absl::Status CheckAllReads(EmbeddingCollection& tables, const EmbeddingCollectionOptions& options,
                           int rank, uint64_t rows, int64_t* rounded) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<float> values, test::ReadAll(tables, rank, rows));
  std::vector<uint64_t> keys(rows);
  std::iota(keys.begin(), keys.end(), 0);
  for (const TableConfig& table : options.tables) {
    const int64_t dim = table.embedding_dim;
    std::vector<float> weights(rows * static_cast<uint64_t>(dim));
    const auto found = std::make_unique<bool[]>(rows);
    HOTROW_RETURN_IF_ERROR(tables.ReadRows(
        table.name, keys, {weights.data(), static_cast<int64_t>(rows), dim}, {found.get(), rows}));
    if (rank != 0) continue;
    for (const std::string& feature : table.feature_names) {
      HOTROW_ASSIGN_OR_RETURN(const ColumnRange columns, tables.ColumnsOf(feature));
      for (uint64_t key = 0; key < rows; ++key) {
        const std::span<const float> kept(weights.data() + key * static_cast<uint64_t>(dim),
                                          static_cast<size_t>(dim));
        const float* const read =
            values.data() + key * static_cast<uint64_t>(tables.pooled_dim()) + columns.first;
        const std::vector<float> got(read, read + dim);
        EXPECT_EQ(got, AsServed(table, found[key], kept)) << table.name << ", key " << key;
        if (!std::ranges::equal(got, kept)) ++*rounded;
      }
    }
  }
  return absl::OkStatus();
}

class ServeRowsTest : public testing::TestWithParam<std::tuple<ServingRows, WeightsPrecision>> {};

INSTANTIATE_TEST_SUITE_P(All, ServeRowsTest,
                         testing::Combine(testing::Values(ServingRows::kFp16, ServingRows::kBf16,
                                                          ServingRows::kInt8, ServingRows::kInt4),
                                          testing::Values(WeightsPrecision::kFp32,
                                                          WeightsPrecision::kBf16)),
                         [](const auto& info) {
                           return absl::StrCat(
                               std::string(WordOf(kServingRowsWords, std::get<0>(info.param))),
                               "_of_", std::string(WeightsPrecisionName(std::get<1>(info.param))));
                         });

TEST_P(ServeRowsTest, LookupsReadWhatServingReads) {
  const EmbeddingCollectionOptions options =
      ServedAs(std::get<0>(GetParam()), std::get<1>(GetParam()));
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    int64_t rounded = 0;
    test::ExpectAllOk(test::OnRanks(
        ranks, 2, [&](int) { return options; },
        [&](EmbeddingCollection& tables, int rank) -> absl::Status {
          HOTROW_RETURN_IF_ERROR(test::TrainSteps(tables, 0, rank, ranks, {.rows = 100}));
          return CheckAllReads(tables, options, rank, 160, &rounded);
        }));
    EXPECT_GT(rounded, 100);
  }
}

TEST_P(ServeRowsTest, TrainingReadsWhatEvaluationReads) {
  const EmbeddingCollectionOptions options =
      ServedAs(std::get<0>(GetParam()), std::get<1>(GetParam()));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, EmbeddingCollection::Create(options, {}));
  std::vector<float> gradient;
  for (uint64_t step = 0; step < 6; ++step) {
    const Batch batch = test::RandomBatch(step, 4, 32, 3, 60, step % 2 == 1);
    std::vector<float> evaluated(static_cast<size_t>(32 * tables->pooled_dim()));
    std::vector<float> looked_up(evaluated.size());
    HOTROW_ASSERT_OK(
        tables->Evaluate(batch.view(), {.pooled = test::RowsOf(*tables, 32, evaluated)}));
    HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep next, tables->Prefetch(batch.view()));
    HOTROW_ASSERT_OK(next.Lookup({.pooled = test::RowsOf(*tables, 32, looked_up)}));
    EXPECT_EQ(looked_up, evaluated) << "step " << step;
    test::FillGradient(looked_up, step, &gradient);
    HOTROW_ASSERT_OK(std::move(next).Update({.pooled = test::RowsOf(*tables, 32, gradient)}));
  }
}

// Where gradients do not depend on what was read, rows do not, either.
TEST_P(ServeRowsTest, UpdatesKeepAllBits) {
  const auto train = [](const EmbeddingCollectionOptions& options) -> absl::StatusOr<Hash128> {
    HOTROW_ASSIGN_OR_RETURN(const auto tables, EmbeddingCollection::Create(options, {}));
    for (uint64_t step = 0; step < 6; ++step) {
      const Batch batch = test::RandomBatch(step, 4, 32, 3, 60, false);
      std::vector<float> floats(static_cast<size_t>(32 * tables->pooled_dim()));
      HOTROW_ASSIGN_OR_RETURN(EmbeddingStep next, tables->Prefetch(batch.view()));
      HOTROW_RETURN_IF_ERROR(next.Lookup({.pooled = test::RowsOf(*tables, 32, floats)}));
      for (size_t i = 0; i < floats.size(); ++i) {
        floats[i] = 0.01f * static_cast<float>((i * 7 + step * 13) % 11) - 0.05f;
      }
      HOTROW_RETURN_IF_ERROR(std::move(next).Update({.pooled = test::RowsOf(*tables, 32, floats)}));
    }
    HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables->Digest());
    return digest.hash;
  };
  const auto [form, precision] = GetParam();
  HOTROW_ASSERT_OK_AND_ASSIGN(const Hash128 rounded, train(ServedAs(form, precision)));
  HOTROW_ASSERT_OK_AND_ASSIGN(const Hash128 plain,
                              train(ServedAs(ServingRows::kAsTrained, precision)));
  EXPECT_EQ(rounded, plain);
}

TEST_P(ServeRowsTest, SameBitsWhateverTheCacheThePrefetchAndTheThreads) {
  const auto [form, precision] = GetParam();
  const EmbeddingCollectionOptions options = ServedAs(form, precision);
  const RunOptions run = {.num_features = 4};
  const RunResult expected = test::Train(options, run);
  EXPECT_FALSE(test::Train(ServedAs(ServingRows::kAsTrained, precision), run).digest.hash ==
               expected.digest.hash);
  HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t least, EmbeddingCollection::MinCacheBytes(options));
  for (const int64_t cache_bytes : {int64_t{0}, least}) {
    for (const int32_t depth : {0, 3}) {
      SCOPED_TRACE(absl::StrCat("cache_bytes=", cache_bytes, " prefetch_depth=", depth));
      EmbeddingCollectionOptions variant = options;
      variant.cache.bytes = cache_bytes;
      variant.prefetch_depth = depth;
      RunOptions other = run;
      other.threads = 1 + depth;
      other.evaluate_every = depth;
      const RunResult got = test::Train(variant, other);
      EXPECT_EQ(got.digest.hash, expected.digest.hash);
      EXPECT_EQ(got.last_output, expected.last_output);
    }
  }
}

// With rows that age, and with tables that decay as a whole, copies of rows are what is rounded.
TEST(ServeRowsLifeTest, AgedAndDecayedRowsAreReadAsServed) {
  EmbeddingCollectionOptions options = ServedAs(ServingRows::kInt8, WeightsPrecision::kFp32);
  options.tables[0].ttl_steps = 3;
  options.tables[2].optimizer.weight_decay = 0.05f;
  options.tables[2].optimizer.weight_decay_mode = WeightDecayMode::kTable;
  int64_t rounded = 0;
  test::ExpectAllOk(test::OnRanks(
      1, 1, [&](int) { return options; },
      [&](EmbeddingCollection& tables, int rank) -> absl::Status {
        HOTROW_RETURN_IF_ERROR(test::TrainSteps(tables, 0, rank, 1, {.rows = 200}));
        return CheckAllReads(tables, options, rank, 260, &rounded);
      }));
  EXPECT_GT(rounded, 100);
}

// Weights too far apart for a code, on their way to infinity: a loss will say what is wrong.
TEST(ServeRowsLifeTest, WeightsWithoutACodeAreReadAsTheyAre) {
  const EmbeddingCollectionOptions options = ServedAs(ServingRows::kInt8, WeightsPrecision::kFp32);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, EmbeddingCollection::Create(options, {}));
  std::vector<float> weights(24, 0.5f);
  weights[3] = 3e38f;
  weights[4] = -3e38f;
  const std::vector<uint64_t> keys = {5};
  HOTROW_ASSERT_OK(tables->WriteRows("wide", keys, {weights.data(), 1, 24}));
  Batch batch;
  batch.batch_size = 1;
  batch.values = {5, 5, 5, 5};
  batch.offsets = {0, 1, 2, 3, 4};
  std::vector<float> out(static_cast<size_t>(tables->pooled_dim()));
  HOTROW_ASSERT_OK(tables->Evaluate(batch.view(), {.pooled = test::RowsOf(*tables, 1, out)}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const ColumnRange columns, tables->ColumnsOf("f0"));
  const float* const read = out.data() + columns.first;
  EXPECT_EQ(std::vector<float>(read, read + 24), weights);
}

TEST(ServeRowsLifeTest, ADeviceCacheIsRefusedByName) {
  EmbeddingCollectionOptions options = ServedAs(ServingRows::kInt4, WeightsPrecision::kFp32);
  options.cache.device_bytes = 16 * kMiB;
  EXPECT_THAT(EmbeddingCollection::Create(options, {}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("table \"wide\""), HasSubstr("serve_rows int4"))));
}

}  // namespace
}  // namespace hotrow
