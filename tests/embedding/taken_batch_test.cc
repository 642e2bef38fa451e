#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/thread_pool.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/taken_batch_impl.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/embedding/training.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::internal {
namespace {

using test::Options;
using test::StatusIs;
using test::Table;
using testing::HasSubstr;

constexpr int64_t kSamples = 40'000;  // more than a thread takes at a time
constexpr int64_t kKeys = 1000;

// Two features of one lookup a sample.
class TakenBatchTest : public testing::Test {
 protected:
  TakenBatchTest() {
    EmbeddingCollectionOptions options = Options({Table("a", 8, {"f0", "f1"})});
    options.tables[0].num_embeddings = kKeys;
    options.max_batch_size = kSamples;
    plan_ = MakePlan(options, {});
    for (int64_t i = 0; i < 2 * kSamples; ++i) {
      ids_.push_back(static_cast<uint64_t>(i * 7 % kKeys));
      weights_.push_back(static_cast<float>(i));
    }
    for (int64_t i = 0; i <= 2 * kSamples; ++i) offsets_.push_back(i);
  }

  JaggedBatch Batch() const {
    return {.batch_size = kSamples, .values = ids_, .offsets = offsets_, .weights = weights_};
  }
  FeatureBatch Features() {
    features_.clear();
    const std::span<const uint64_t> ids(ids_);
    const std::span<const int64_t> bags(offsets_);
    for (const size_t f : {size_t{0}, size_t{1}}) {
      FeatureBags feature;
      feature.values = ids.subspan(f * kSamples, kSamples);
      feature.offsets = bags.first(kSamples + 1);
      feature.weights = std::span<const float>(weights_).subspan(f * kSamples, kSamples);
      features_.push_back(feature);
    }
    return {.batch_size = kSamples, .features = features_};
  }
  void ExpectGood(const TakenBatch& taken) const {
    EXPECT_EQ(taken.batch_size, kSamples);
    EXPECT_TRUE(std::equal(taken.values.begin(), taken.values.end(), ids_.begin(), ids_.end()));
    EXPECT_TRUE(
        std::equal(taken.offsets.begin(), taken.offsets.end(), offsets_.begin(), offsets_.end()));
    EXPECT_TRUE(
        std::equal(taken.weights.begin(), taken.weights.end(), weights_.begin(), weights_.end()));
  }

  Plan plan_;
  std::vector<uint64_t> ids_;
  std::vector<float> weights_;
  std::vector<int64_t> offsets_;
  std::vector<FeatureBags> features_;
  ThreadPool pool_{3};
};

TEST_F(TakenBatchTest, AnyNumberOfThreadsTakesAllOfIt) {
  for (const TakeArrays arrays : {TakeArrays::kCopy, TakeArrays::kInPlace}) {
    TakenBatch taken;
    for (ThreadPool* const pool : {static_cast<ThreadPool*>(nullptr), &pool_}) {
      HOTROW_ASSERT_OK(TakeBatch(plan_, kSamples, pool, Batch(), arrays, &taken));
      ExpectGood(taken);
      const FeatureBatch features = Features();
      HOTROW_ASSERT_OK(TakeBatch(plan_, kSamples, pool, features, {}, arrays, &taken));
      ExpectGood(taken);
      // A smaller one in the same memory, and without weights.
      HOTROW_ASSERT_OK(
          TakeBatch(plan_, kSamples, pool,
                    JaggedBatch{.batch_size = 1,
                                .values = std::span<const uint64_t>(ids_).first(2),
                                .offsets = std::span<const int64_t>(offsets_).first(3)},
                    arrays, &taken));
      EXPECT_EQ(taken.num_lookups(), 2);
      EXPECT_EQ(taken.offsets.size(), 3);
      EXPECT_TRUE(taken.weights.empty());
    }
  }
}

TEST_F(TakenBatchTest, WhatHasTheFormOfTheEngineMayStayWhereItIs) {
  const auto stay = [&](const auto& batch, auto... order) {
    TakenBatch taken;
    HOTROW_EXPECT_OK(
        TakeBatch(plan_, kSamples, &pool_, batch, order..., TakeArrays::kInPlace, &taken));
    const std::array<bool, 3> stayed = {taken.values.data() == ids_.data(),
                                        taken.offsets.data() == offsets_.data(),
                                        taken.weights.data() == weights_.data()};
    EXPECT_EQ(taken.in_place(), std::ranges::count(stayed, true) > 0);
    return stayed;
  };
  using Stay = std::array<bool, 3>;
  const std::span<const int32_t> own_order;
  EXPECT_EQ(stay(Batch()), (Stay{true, true, true}));
  EXPECT_EQ(stay(Features(), own_order), (Stay{true, false, true}));
  // The other way around they do not lie end to end.
  const std::vector<int32_t> turned = {1, 0};
  EXPECT_EQ(stay(Features(), std::span<const int32_t>(turned)), (Stay{false, false, false}));
  std::vector<int32_t> narrow(ids_.begin(), ids_.end());
  JaggedBatch batch = Batch();
  batch.values = std::span<const int32_t>(narrow);
  batch.offsets = {};
  const std::vector<int64_t> lengths(ids_.size(), 1);
  batch.lengths = std::span<const int64_t>(lengths);
  EXPECT_EQ(stay(batch), (Stay{false, false, true}));
  // Without weights of one feature those of the other do not do.
  FeatureBatch features = Features();
  features_[1].weights = {};
  EXPECT_EQ(stay(features, own_order), (Stay{true, false, false}));
}

TEST_F(TakenBatchTest, TheFirstWrongIdIsNamedWhoeverMeetsIt) {
  ids_[kSamples + 16'383] = kKeys + 5;
  ids_[kSamples + 39'999] = kKeys + 6;
  for (const TakeArrays arrays : {TakeArrays::kCopy, TakeArrays::kInPlace}) {
    TakenBatch taken;
    EXPECT_THAT(TakeBatch(plan_, kSamples, &pool_, Batch(), arrays, &taken),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("feature \"f1\", sample 16383: key 1005 is not in [0, 1000)")));
    EXPECT_THAT(TakeBatch(plan_, kSamples, &pool_, Features(), {}, arrays, &taken),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("sample 16383: key 1005")));
  }
}

TEST_F(TakenBatchTest, AWeightThatIsNotFiniteIsNamed) {
  weights_[kSamples + 20'000] = std::numeric_limits<float>::infinity();
  for (const TakeArrays arrays : {TakeArrays::kCopy, TakeArrays::kInPlace}) {
    TakenBatch taken;
    EXPECT_THAT(TakeBatch(plan_, kSamples, &pool_, Batch(), arrays, &taken),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("feature \"f1\", sample 20000: its weight is inf")));
  }
}

// Between the bags of two threads as well.
TEST_F(TakenBatchTest, OffsetsThatFallAreNamed) {
  for (const TakeArrays arrays : {TakeArrays::kCopy, TakeArrays::kInPlace}) {
    TakenBatch taken;
    for (const int64_t at : {1, 16'384, 16'385, 40'000}) {
      int64_t& offset = offsets_[static_cast<size_t>(at)];
      const int64_t good = offset;
      offset = at - 2;
      EXPECT_THAT(TakeBatch(plan_, kSamples, &pool_, Batch(), arrays, &taken),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           HasSubstr(absl::StrCat("sample ", (at - 1) % kSamples, ": ", at - 1,
                                                  " then ", at - 2))));
      offset = good;
    }
  }
}

}  // namespace
}  // namespace hotrow::internal
