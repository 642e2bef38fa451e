#include "embedding/rows/gradient_clip_impl.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "comm/thread_communicator.h"
#include "embedding/embedding_collection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/embedding/training.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::hotrow::test::Batch;
using ::hotrow::test::Options;
using ::hotrow::test::StatusIs;
using ::hotrow::test::Table;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Two tables of two columns whose rows begin at 0, with SGD at rate 1: after a step a row is the
// negative of its gradient.
EmbeddingCollectionOptions Zeros() {
  EmbeddingCollectionOptions options = Options({Table("a", 2, {"f0"}, SparseOptimizerKind::kSgd),
                                                Table("b", 2, {"f1"}, SparseOptimizerKind::kSgd)});
  for (TableConfig& table : options.tables) {
    table.optimizer.learning_rate = 1;
    table.initializer = {InitializerKind::kZeros, 0};
  }
  return options;
}

// A step of samples that each look up their number in both tables; gradient: [samples, 4], of which
// this rank has those from `first` on. Returns the rows of sample 0 and 1: of a, then of b.
absl::StatusOr<std::vector<float>> RowsAfter(EmbeddingCollection& tables, uint64_t first,
                                             const std::vector<float>& gradient) {
  const auto n = static_cast<int64_t>(gradient.size() / 4);
  Batch batch;
  batch.batch_size = n;
  for (int f = 0; f < 2; ++f) {
    for (int64_t i = 0; i < n; ++i) {
      batch.values.push_back(first + static_cast<uint64_t>(i));
      batch.offsets.push_back(std::ssize(batch.values));
    }
  }
  HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, tables.Prefetch(batch.view()));
  std::vector<float> output(gradient.size());
  HOTROW_RETURN_IF_ERROR(step.Lookup({.pooled = test::RowsOf(tables, n, output)}));
  HOTROW_RETURN_IF_ERROR(std::move(step).Update({.pooled = test::RowsOf(tables, n, gradient)}));
  std::vector<float> rows(8);
  const std::vector<uint64_t> keys = {0, 1};
  HOTROW_RETURN_IF_ERROR(tables.ReadRows("a", keys, {rows.data(), 2, 2}));
  HOTROW_RETURN_IF_ERROR(tables.ReadRows("b", keys, {rows.data() + 4, 2, 2}));
  return rows;
}

std::vector<float> Negative(std::vector<float> x) {
  for (float& f : x) f = -f;
  return x;
}

// Sample by sample: two columns of a, two of b.
const std::vector<float> kGradient = {3, 4, 0.3f, 0.4f, 0, 1, 6, 8};
const std::vector<float> kByTable = {3, 4, 0, 1, 0.3f, 0.4f, 6, 8};

TEST(GradientClipTest, LongRowsAreScaledAndOthersStay) {
  EmbeddingCollectionOptions options = Zeros();
  options.tables[0].max_row_gradient_norm = 2.5f;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> rows, RowsAfter(*tables, 0, kGradient));
  // Row 0 of a has norm 5; b has no limit.
  EXPECT_EQ(rows, Negative({1.5f, 2, 0, 1, 0.3f, 0.4f, 6, 8}));
}

TEST(GradientClipTest, AllRowsTogetherAreScaledOnAnyNumberOfRanks) {
  double squares = 0;
  for (const float g : kGradient) squares += static_cast<double>(g) * static_cast<double>(g);
  EmbeddingCollectionOptions options = Zeros();
  options.max_gradient_norm = 2;
  std::vector<float> expected = Negative(kByTable);
  for (float& f : expected) f *= static_cast<float>(2 / std::sqrt(squares));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> rows, RowsAfter(*tables, 0, kGradient));
  EXPECT_THAT(rows, testing::Pointwise(testing::FloatNear(1e-6f), expected));
  // A sample on each rank.
  std::vector<std::vector<float>> of_ranks(2);
  for (const absl::Status& status :
       RunOnThreads(2, {}, [&](Communicator& communicator) -> absl::Status {
         EmbeddingCollectionOptions mine = options;
         mine.ranks.communicator = &communicator;
         HOTROW_ASSIGN_OR_RETURN(auto shared, EmbeddingCollection::Create(mine, {}));
         const auto rank = static_cast<size_t>(communicator.rank());
         const auto begin = kGradient.begin() + static_cast<int64_t>(4 * rank);
         HOTROW_ASSIGN_OR_RETURN(of_ranks[rank], RowsAfter(*shared, rank, {begin, begin + 4}));
         return absl::OkStatus();
       })) {
    HOTROW_EXPECT_OK(status);
  }
  EXPECT_THAT(of_ranks[0], testing::Pointwise(testing::FloatNear(1e-6f), expected));
  EXPECT_EQ(of_ranks[1], of_ranks[0]);
  // Shorter than the limit: as it is.
  options.max_gradient_norm = 100;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto others, EmbeddingCollection::Create(options, {}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<float> whole, RowsAfter(*others, 0, kGradient));
  EXPECT_EQ(whole, Negative(kByTable));
}

TEST(GradientClipTest, WhatIsNotFiniteIsNamed) {
  EmbeddingCollectionOptions options = Zeros();
  options.tables[1].max_row_gradient_norm = 1;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
  std::vector<float> gradient = kGradient;
  gradient[7] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(RowsAfter(*tables, 0, gradient),
              StatusIs(absl::StatusCode::kOutOfRange,
                       AllOf(HasSubstr("key 1 of table \"b\""), HasSubstr("not finite"))));
  EXPECT_EQ(tables->steps(), 0);  // nothing has changed
  options.tables[1].max_row_gradient_norm = -1;
  EXPECT_THAT(EmbeddingCollection::Create(options, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_row_gradient_norm")));
  options = Zeros();
  options.max_gradient_norm = 1;
  options.cache.device_bytes = 1 << 20;
  EXPECT_THAT(EmbeddingCollection::Create(options, {}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("max_gradient_norm")));
}

}  // namespace
}  // namespace hotrow
