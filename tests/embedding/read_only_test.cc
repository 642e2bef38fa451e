// Features whose lookups train no rows, and tables of such features alone.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "comm/thread_communicator.h"
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
using ::hotrow::test::StatusIs;
using ::hotrow::test::Table;
using ::hotrow::test::Train;
using ::testing::HasSubstr;

// "shared" is looked up by f0, which trains it, and by f1.
EmbeddingCollectionOptions SharedTable() {
  EmbeddingCollectionOptions options =
      Options({Table("shared", 5, {"f0", "f1"}, SparseOptimizerKind::kAdam),
               Table("other", 5, {"f2"}, SparseOptimizerKind::kAdam)});
  for (TableConfig& table : options.tables) table.max_hotness = 3;
  return options;
}

// Features f0, f1 and f2, a sample each.
Batch OneSample(uint64_t f0, uint64_t f1, uint64_t f2) {
  return {.batch_size = 1, .values = {f0, f1, f2}, .offsets = {0, 1, 2, 3}, .weights = {}};
}

absl::Status StepOn(EmbeddingCollection& tables, const Batch& batch) {
  HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, tables.Prefetch(batch.view()));
  std::vector<float> output(15);
  HOTROW_RETURN_IF_ERROR(step.Lookup({.pooled = test::RowsOf(tables, 1, output)}));
  const std::vector<float> gradient(15, 1.0f);
  return std::move(step).Update({.pooled = test::RowsOf(tables, 1, gradient)});
}

class ReadOnlyTest : public testing::TestWithParam<int64_t> {};  // cache.bytes
INSTANTIATE_TEST_SUITE_P(CacheBytes, ReadOnlyTest, testing::Values(0, 4 * kMiB));

TEST_P(ReadOnlyTest, LookupsOfAReadOnlyFeatureTrainNoRow) {
  EmbeddingCollectionOptions options = SharedTable();
  options.cache.bytes = GetParam();
  HOTROW_ASSERT_OK_AND_ASSIGN(auto plain, EmbeddingCollection::Create(options, {}));
  options.tables[0].read_only_features = {"f1"};
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
  const std::vector<uint64_t> keys = {1, 2, 3};
  const auto read = [&](EmbeddingCollection& from, bool* found) {
    std::vector<float> rows(15);
    HOTROW_EXPECT_OK(from.ReadRows("shared", keys, {rows.data(), 3, 5}, {found, 3}));
    return rows;
  };
  bool found[3];
  const std::vector<float> first = read(*tables, found);
  // Row 1 is looked up by f0, row 2 by both, row 3 by f1 alone.
  HOTROW_ASSERT_OK(StepOn(*tables, OneSample(1, 3, 9)));
  HOTROW_ASSERT_OK(StepOn(*tables, OneSample(2, 2, 9)));
  const std::vector<float> after = read(*tables, found);
  EXPECT_TRUE(found[0] && found[1]);
  EXPECT_FALSE(found[2]);
  for (int d = 0; d < 5; ++d) {
    EXPECT_NE(after[d], first[d]);
    EXPECT_NE(after[5 + d], first[5 + d]);
    EXPECT_EQ(after[10 + d], first[10 + d]);
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
  EXPECT_EQ(digest.tables[0].rows, 2);
  EXPECT_EQ(tables->Stats().initialised_rows, 3);  // and one of "other"
  // Without f1 the rows would be the same: its gradient is not part of theirs.
  HOTROW_ASSERT_OK(StepOn(*plain, OneSample(1, 77, 9)));
  HOTROW_ASSERT_OK(StepOn(*plain, OneSample(2, 77, 9)));
  const std::vector<float> expected = read(*plain, found);
  EXPECT_EQ(after, expected);
}

TEST_P(ReadOnlyTest, RowsOfAFrozenTableStayAsTheyAre) {
  const std::string dir = test::TempDir();
  EmbeddingCollectionOptions options = SharedTable();
  options.cache.bytes = GetParam();
  options.store = MemoryStorage{.memory_bytes = 64 * kMiB, .snapshot_dir = dir};
  CollectionDigest before;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
    for (uint64_t i = 0; i < 9; ++i) HOTROW_ASSERT_OK(StepOn(*tables, OneSample(i, i + 1, i)));
    HOTROW_ASSERT_OK_AND_ASSIGN(before, tables->Digest());
    HOTROW_ASSERT_OK(tables->snapshots().Prepare(1));
    HOTROW_ASSERT_OK(tables->snapshots().Commit(1));
    HOTROW_ASSERT_OK(tables->Close());
  }
  options.tables[0].read_only_features = {"f0", "f1"};
  // Frozen, it does not decay either.
  options.tables[0].optimizer.weight_decay = 0.5f;
  options.tables[0].optimizer.weight_decay_mode = WeightDecayMode::kTable;
  options.start.from = {{.snapshot = 1}};
  options.start.steps = 9;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
  EXPECT_TRUE(tables->learning_rates().empty());
  for (uint64_t i = 0; i < 9; ++i) HOTROW_ASSERT_OK(StepOn(*tables, OneSample(i, i + 50, i)));
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest after, tables->Digest());
  EXPECT_EQ(after.tables[0].hash, before.tables[0].hash);
  EXPECT_EQ(after.tables[0].rows, before.tables[0].rows);
  EXPECT_NE(after.tables[1].hash, before.tables[1].hash);
  EXPECT_EQ(tables->Stats().initialised_rows, 0);
}

TEST(ReadOnlyTiersTest, SameBitsWhateverTheTiers) {
  EmbeddingCollectionOptions options = SharedTable();
  options.tables[0].read_only_features = {"f1"};
  options.tables[0].weights_precision = WeightsPrecision::kBf16;
  const RunOptions run = {.num_features = 3};
  const RunResult expected = Train(options, run);
  HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t least, EmbeddingCollection::MinCacheBytes(options));
  for (const StoreKind store : {StoreKind::kMemory, StoreKind::kSsd}) {
    for (const int32_t depth : {0, 3}) {
      SCOPED_TRACE(absl::StrCat(std::string(StoreKindName(store)), " depth ", depth));
      EmbeddingCollectionOptions variant = options;
      PutStore(store, test::TempDir(), &variant);
      variant.cache.bytes = least;
      variant.prefetch_depth = depth;
      const RunResult got = Train(variant, run);
      EXPECT_EQ(got.digest.hash, expected.digest.hash);
      EXPECT_EQ(got.last_output, expected.last_output);
      EXPECT_EQ(got.stats.initialised_rows, expected.stats.initialised_rows);
    }
  }
}

TEST(ReadOnlyTiersTest, WhatDoesNotFitIsNamed) {
  EmbeddingCollectionOptions options = SharedTable();
  options.tables[0].read_only_features = {"f2"};
  EXPECT_THAT(EmbeddingCollection::Create(options, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("table \"shared\": read_only_features names \"f2\"")));
  options.tables[0].read_only_features = {"f1"};
  options.cache.device_bytes = kMiB;
  EXPECT_THAT(EmbeddingCollection::Create(options, {}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("table \"shared\"")));
  options.cache.device_bytes = 0;
  for (const absl::Status& status :
       RunOnThreads(2, {}, [&](Communicator& communicator) -> absl::Status {
         EmbeddingCollectionOptions mine = options;
         mine.ranks.communicator = &communicator;
         return EmbeddingCollection::Create(mine, {}).status();
       })) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("several ranks")));
  }
}

}  // namespace
}  // namespace hotrow
