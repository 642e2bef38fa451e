#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/thread_pool.h"
#include "embedding/batch_copy_impl.h"
#include "embedding/collection_plan_impl.h"
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
class BatchCopyTest : public testing::Test {
 protected:
  BatchCopyTest() {
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
  void ExpectGood(const BatchCopy& copy) const {
    EXPECT_EQ(copy.batch_size, kSamples);
    EXPECT_TRUE(std::equal(copy.values.begin(), copy.values.end(), ids_.begin(), ids_.end()));
    EXPECT_TRUE(
        std::equal(copy.offsets.begin(), copy.offsets.end(), offsets_.begin(), offsets_.end()));
    EXPECT_TRUE(
        std::equal(copy.weights.begin(), copy.weights.end(), weights_.begin(), weights_.end()));
  }

  Plan plan_;
  std::vector<uint64_t> ids_;
  std::vector<float> weights_;
  std::vector<int64_t> offsets_;
  std::vector<FeatureBags> features_;
  ThreadPool pool_{3};
};

TEST_F(BatchCopyTest, AnyNumberOfThreadsCopiesAllOfIt) {
  BatchCopy copy;
  for (ThreadPool* const pool : {static_cast<ThreadPool*>(nullptr), &pool_}) {
    HOTROW_ASSERT_OK(CopyBatch(plan_, kSamples, pool, Batch(), &copy));
    ExpectGood(copy);
    const FeatureBatch features = Features();
    HOTROW_ASSERT_OK(CopyBatch(plan_, kSamples, pool, features, {}, &copy));
    ExpectGood(copy);
    // A smaller one in the same memory, and without weights.
    HOTROW_ASSERT_OK(CopyBatch(plan_, kSamples, pool,
                               JaggedBatch{.batch_size = 1,
                                           .values = std::span<const uint64_t>(ids_).first(2),
                                           .offsets = std::span<const int64_t>(offsets_).first(3)},
                               &copy));
    EXPECT_EQ(copy.num_lookups(), 2);
    EXPECT_EQ(copy.offsets.size(), 3);
    EXPECT_TRUE(copy.weights.empty());
  }
}

TEST_F(BatchCopyTest, TheFirstWrongIdIsNamedWhoeverMeetsIt) {
  BatchCopy copy;
  ids_[kSamples + 16'383] = kKeys + 5;
  ids_[kSamples + 39'999] = kKeys + 6;
  EXPECT_THAT(CopyBatch(plan_, kSamples, &pool_, Batch(), &copy),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("feature \"f1\", sample 16383: key 1005 is not in [0, 1000)")));
  EXPECT_THAT(CopyBatch(plan_, kSamples, &pool_, Features(), {}, &copy),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("sample 16383: key 1005")));
}

// Between the bags of two threads as well.
TEST_F(BatchCopyTest, OffsetsThatFallAreNamed) {
  BatchCopy copy;
  for (const int64_t at : {1, 16'384, 16'385, 40'000}) {
    int64_t& offset = offsets_[static_cast<size_t>(at)];
    const int64_t good = offset;
    offset = at - 2;
    EXPECT_THAT(CopyBatch(plan_, kSamples, &pool_, Batch(), &copy),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("sample ", (at - 1) % kSamples, ": ", at - 1,
                                                " then ", at - 2))));
    offset = good;
  }
}

}  // namespace
}  // namespace hotrow::internal
