#include "models/data/slice_batch.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "base/philox.h"
#include "gtest/gtest.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

CtrBatch RandomBatch(RandomStream& random, int64_t batch_size, int64_t num_features,
                     int64_t num_dense, bool weighted, bool knows_probability) {
  CtrBatch batch;
  batch.batch_size = batch_size;
  for (int64_t i = 0; i < batch_size * num_dense; ++i) batch.dense.push_back(random.Normal());
  batch.offsets.push_back(0);
  for (int64_t bag = 0; bag < num_features * batch_size; ++bag) {
    const uint64_t hotness = random.Below(4);  // a quarter of the bags is empty
    for (uint64_t i = 0; i < hotness; ++i) {
      batch.values.push_back(random.Next64());
      if (weighted) batch.weights.push_back(random.Normal());
    }
    batch.offsets.push_back(static_cast<int64_t>(batch.values.size()));
  }
  for (int64_t b = 0; b < batch_size; ++b) {
    batch.labels.push_back(random.Normal());
    if (knows_probability) batch.true_probability.push_back(random.Normal());
  }
  return batch;
}

// The batches end to end, bag by bag.
CtrBatch Join(const std::vector<CtrBatch>& parts, int64_t num_features) {
  CtrBatch whole;
  const auto append = [](const auto& from, auto* to) {
    to->insert(to->end(), from.begin(), from.end());
  };
  for (const CtrBatch& part : parts) {
    whole.batch_size += part.batch_size;
    append(part.dense, &whole.dense);
    append(part.labels, &whole.labels);
    append(part.true_probability, &whole.true_probability);
  }
  whole.offsets.push_back(0);
  for (int64_t f = 0; f < num_features; ++f) {
    for (const CtrBatch& part : parts) {
      for (int64_t b = 0; b < part.batch_size; ++b) {
        const auto bag = static_cast<size_t>(f * part.batch_size + b);
        for (int64_t at = part.offsets.at(bag); at < part.offsets.at(bag + 1); ++at) {
          whole.values.push_back(part.values.at(static_cast<size_t>(at)));
          if (!part.weights.empty()) {
            whole.weights.push_back(part.weights.at(static_cast<size_t>(at)));
          }
        }
        whole.offsets.push_back(static_cast<int64_t>(whole.values.size()));
      }
    }
  }
  return whole;
}

void ExpectEqual(const CtrBatch& got, const CtrBatch& want) {
  EXPECT_EQ(got.batch_size, want.batch_size);
  EXPECT_EQ(got.dense, want.dense);
  EXPECT_EQ(got.labels, want.labels);
  EXPECT_EQ(got.values, want.values);
  EXPECT_EQ(got.offsets, want.offsets);
  EXPECT_EQ(got.weights, want.weights);
  EXPECT_EQ(got.true_probability, want.true_probability);
}

TEST(SliceBatchTest, SlicesPutTogetherAreTheWhole) {
  for (const uint64_t seed : test::Seeds(3)) {
    RandomStream random(seed, RandomPurpose::kTest);
    CtrBatch slice;  // one for all, so that what is left of the last slice would show
    for (int64_t world_size = 1; world_size <= 9; ++world_size) {
      for (int64_t batch_size = 0; batch_size <= 20; ++batch_size) {
        const bool weighted = random.Below(2) == 0;
        const bool knows_probability = random.Below(2) == 0;
        const auto num_features = static_cast<int64_t>(random.Below(4));
        const auto num_dense = static_cast<int64_t>(random.Below(3));
        SCOPED_TRACE(testing::Message()
                     << "HOTROW_TEST_SEED=" << seed << ": " << batch_size << " samples of "
                     << num_features << " features on " << world_size << " ranks"
                     << (weighted ? ", weighted" : ""));
        const CtrBatch whole =
            RandomBatch(random, batch_size, num_features, num_dense, weighted, knows_probability);
        std::vector<CtrBatch> parts;
        for (int64_t rank = 0; rank < world_size; ++rank) {
          const int64_t begin = SliceBegin(batch_size, rank, world_size);
          const int64_t end = SliceBegin(batch_size, rank + 1, world_size);
          SliceBatch(whole, num_features, begin, end, &slice);
          EXPECT_EQ(slice.batch_size, end - begin);
          EXPECT_EQ(slice.offsets.size(), static_cast<size_t>(num_features * (end - begin) + 1));
          EXPECT_EQ(slice.offsets.back(), static_cast<int64_t>(slice.values.size()));
          parts.push_back(slice);
        }
        ASSERT_NO_FATAL_FAILURE(ExpectEqual(Join(parts, num_features), whole));
      }
    }
  }
}

TEST(SliceBatchTest, HandWorkedSlice) {
  // Feature 0: {1}, {}, {2, 3}; feature 1: {4, 5}, {6}, {}.
  const CtrBatch whole = {.batch_size = 3,
                          .dense = {10, 11, 20, 21, 30, 31},
                          .labels = {0, 1, 0.5f},
                          .values = {1, 2, 3, 4, 5, 6},
                          .offsets = {0, 1, 1, 3, 5, 6, 6},
                          .weights = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f},
                          .true_probability = {0.7f, 0.8f, 0.9f}};
  CtrBatch slice;
  SliceBatch(whole, 2, 1, 3, &slice);
  ExpectEqual(slice, {.batch_size = 2,
                      .dense = {20, 21, 30, 31},
                      .labels = {1, 0.5f},
                      .values = {2, 3, 6},
                      .offsets = {0, 0, 2, 3, 3},
                      .weights = {0.2f, 0.3f, 0.6f},
                      .true_probability = {0.8f, 0.9f}});
  SliceBatch(whole, 2, 1, 1, &slice);
  ExpectEqual(slice, {.batch_size = 0, .offsets = {0}});
}

TEST(SliceBatchTest, KeepsTheMemoryOfTheSliceBefore) {
  RandomStream random(1, RandomPurpose::kTest);
  const CtrBatch whole = RandomBatch(random, 20, 3, 2, true, true);
  CtrBatch slice;
  SliceBatch(whole, 3, 0, 20, &slice);
  const uint64_t* const values = slice.values.data();
  const int64_t* const offsets = slice.offsets.data();
  const float* const dense = slice.dense.data();
  SliceBatch(whole, 3, 7, 7, &slice);
  SliceBatch(whole, 3, 5, 20, &slice);
  EXPECT_EQ(slice.values.data(), values);
  EXPECT_EQ(slice.offsets.data(), offsets);
  EXPECT_EQ(slice.dense.data(), dense);
}

TEST(SliceBatchTest, SliceBeginIsExact) {
  for (int64_t world_size = 1; world_size <= 9; ++world_size) {
    for (int64_t batch_size = 0; batch_size <= 40; ++batch_size) {
      for (int64_t rank = 0; rank <= world_size; ++rank) {
        ASSERT_EQ(SliceBegin(batch_size, rank, world_size), batch_size * rank / world_size);
      }
    }
  }
  // Where the product would not fit 64 bits.
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  constexpr int64_t kRanks = 1 << 30;
  EXPECT_EQ(SliceBegin(kLargest, kRanks, kRanks), kLargest);
  EXPECT_EQ(SliceBegin(kLargest, kRanks / 2, kRanks), kLargest / 2);
}

}  // namespace
}  // namespace hotrow
