#include "models/data/sample_block.h"

#include <algorithm>

#include "base/philox.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kLastKey = ~uint64_t{0};

TEST(SampleBlockTest, BatchIsFeatureMajor) {
  SampleBlock block(2, 3);
  block.Append({.label = 1, .dense = {1, 2}, .values = {10, 20, 30}, .lengths = {1, 1, 1}});
  block.Append({.label = 0, .dense = {3, 4}, .values = {21, 0, kLastKey}, .lengths = {0, 1, 2}});
  block.Append({.label = 1, .dense = {5, 6}, .values = {12, 22, 32}, .lengths = {1, 1, 1}});
  const SampleRef refs[] = {{&block, 2}, {&block, 1}, {&block, 0}};
  CtrBatch batch;
  batch.weights = {1};
  batch.true_probability = {1};
  GatherSamples(refs, 2, 3, &batch);
  EXPECT_EQ(batch.batch_size, 3);
  EXPECT_THAT(batch.labels, ElementsAre(1, 0, 1));
  EXPECT_THAT(batch.dense, ElementsAre(5, 6, 3, 4, 1, 2));
  EXPECT_THAT(batch.values, ElementsAre(12, 10, 22, 21, 20, 32, 0, kLastKey, 30));
  EXPECT_THAT(batch.offsets, ElementsAre(0, 1, 1, 2, 3, 4, 5, 6, 8, 9));
  EXPECT_THAT(batch.weights, IsEmpty());
  EXPECT_THAT(batch.true_probability, IsEmpty());

  GatherSamples({}, 2, 3, &batch);
  EXPECT_EQ(batch.batch_size, 0);
  EXPECT_THAT(batch.offsets, ElementsAre(0));
  EXPECT_THAT(batch.values, IsEmpty());
}

TEST(SampleBlockTest, OneValueABagTakesNoLengths) {
  SampleBlock block(1, 2);
  const Sample single = {.label = 1, .dense = {1}, .values = {1, 2}, .lengths = {1, 1}};
  for (int i = 0; i < 10; ++i) block.Append(single);
  EXPECT_EQ(block.bytes(), 10 * (1 + 4 + 16));
  EXPECT_EQ(block.lengths(3), nullptr);
  block.Append({.label = 0, .dense = {1}, .values = {}, .lengths = {0, 0}});
  EXPECT_GT(block.bytes(), 11 * (1 + 4));
  ASSERT_NE(block.lengths(3), nullptr);
  EXPECT_EQ(block.lengths(3)[1], 1);
  EXPECT_EQ(block.lengths(10)[1], 0);
  EXPECT_EQ(block.values(9)[1], 2u);
  block.Clear();
  EXPECT_EQ(block.size(), 0);
  EXPECT_EQ(block.bytes(), 0);
  block.Append(single);
  EXPECT_EQ(block.lengths(0), nullptr);
}

// Also whether lengths are kept: what a split takes decides whether it stays in memory.
TEST(SampleBlockTest, ARangeIsAppendedAsIfSampleAfterSample) {
  for (const uint64_t seed : test::Seeds(50)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    const auto num_dense = static_cast<int32_t>(random.Below(3));
    const auto num_features = static_cast<int32_t>(random.Below(4));
    // Every bag of the second block has one value, those of the first not.
    SampleBlock blocks[] = {{num_dense, num_features, 2}, {num_dense, num_features, 2}};
    std::vector<Sample> samples_of[2];
    const uint64_t rare = 1 + random.Below(10);  // one sample in so many has other bags
    for (uint64_t n = 2 + random.Below(60); n > 0; --n) {
      const uint64_t which = n % 2;
      Sample sample;
      sample.label = static_cast<float>(random.Below(2));
      sample.more_labels = {static_cast<float>(random.Below(2))};
      for (int i = 0; i < num_dense; ++i) sample.dense.push_back(random.Normal());
      const bool single = which == 1 || random.Below(rare) > 0;
      for (int f = 0; f < num_features; ++f) {
        sample.lengths.push_back(single ? 1 : static_cast<uint16_t>(random.Below(4)));
        for (int j = 0; j < sample.lengths.back(); ++j) sample.values.push_back(random.Next64());
      }
      blocks[which].Append(sample);
      samples_of[which].push_back(sample);
    }
    SampleBlock by_range(num_dense, num_features, 2);
    SampleBlock one_by_one(num_dense, num_features, 2);
    for (int n = 0; n < 6; ++n) {
      const uint64_t which = random.Below(2);
      const std::vector<Sample>& samples = samples_of[which];
      const uint64_t end = random.Below(samples.size() + 1);
      const uint64_t begin = random.Below(end + 1);
      by_range.Append(blocks[which], static_cast<int64_t>(begin), static_cast<int64_t>(end));
      for (uint64_t i = begin; i < end; ++i) one_by_one.Append(samples[i]);
      ASSERT_EQ(by_range.size(), one_by_one.size());
      ASSERT_EQ(by_range.bytes(), one_by_one.bytes());
      for (int64_t i = 0; i < by_range.size(); ++i) {
        const uint16_t* const lengths = one_by_one.lengths(i);
        ASSERT_EQ(by_range.lengths(i) == nullptr, lengths == nullptr);
        int64_t values = num_features;
        if (lengths != nullptr) {
          values = 0;
          for (int f = 0; f < num_features; ++f) {
            ASSERT_EQ(by_range.lengths(i)[f], lengths[f]);
            values += lengths[f];
          }
        }
        ASSERT_TRUE(
            std::equal(one_by_one.values(i), one_by_one.values(i) + values, by_range.values(i)));
        ASSERT_TRUE(
            std::equal(one_by_one.dense(i), one_by_one.dense(i) + num_dense, by_range.dense(i)));
        ASSERT_TRUE(std::equal(one_by_one.labels(i), one_by_one.labels(i) + 2, by_range.labels(i)));
      }
    }
  }
}

TEST(SampleBlockTest, RandomSamplesComeBack) {
  for (const uint64_t seed : test::Seeds(20)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    const auto num_dense = static_cast<int32_t>(random.Below(4));
    const auto num_features = static_cast<int32_t>(random.Below(5));
    // A block with lengths beside one without, in one batch.
    SampleBlock blocks[] = {{num_dense, num_features}, {num_dense, num_features}};
    std::vector<Sample> samples[2];
    for (int which = 0; which < 2; ++which) {
      for (uint64_t n = random.Below(30); n > 0; --n) {
        Sample sample;
        sample.label = static_cast<float>(random.Below(2));
        for (int i = 0; i < num_dense; ++i) sample.dense.push_back(random.Normal());
        for (int f = 0; f < num_features; ++f) {
          sample.lengths.push_back(which == 0 ? 1 : static_cast<uint16_t>(random.Below(4)));
          for (int j = 0; j < sample.lengths.back(); ++j) sample.values.push_back(random.Next64());
        }
        blocks[which].Append(sample);
        samples[which].push_back(sample);
      }
    }
    std::vector<SampleRef> refs;
    std::vector<const Sample*> expected;
    for (int n = 0; n < 40; ++n) {
      const uint64_t which = random.Below(2);
      if (samples[which].empty()) continue;
      const uint64_t index = random.Below(samples[which].size());
      refs.push_back({&blocks[which], static_cast<int64_t>(index)});
      expected.push_back(&samples[which][index]);
    }
    CtrBatch batch;
    GatherSamples(refs, num_dense, num_features, &batch);
    size_t at = 0;
    for (int f = 0; f < num_features; ++f) {
      for (size_t b = 0; b < refs.size(); ++b) {
        size_t from = 0;
        for (int g = 0; g < f; ++g) from += expected[b]->lengths[g];
        ASSERT_EQ(batch.offsets[f * refs.size() + b], static_cast<int64_t>(at));
        for (int j = 0; j < expected[b]->lengths[f]; ++j, ++at) {
          ASSERT_EQ(batch.values[at], expected[b]->values[from + j]);
        }
      }
    }
    EXPECT_EQ(batch.values.size(), at);
    for (size_t b = 0; b < refs.size(); ++b) {
      EXPECT_EQ(batch.labels[b], expected[b]->label);
      for (int i = 0; i < num_dense; ++i) {
        EXPECT_EQ(batch.dense[b * num_dense + i], expected[b]->dense[i]);
      }
    }
  }
}

}  // namespace
}  // namespace hotrow
