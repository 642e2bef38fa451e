#include "models/train/batch_reader.h"

#include <atomic>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "models/data/slice_batch.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kSamples = 10;

// Ten samples an epoch; the label is 100 * epoch + the sample's number. Fails at one batch.
class CountingSource : public DataSource {
 public:
  explicit CountingSource(int64_t fail_at_batch = -1) : fail_at_batch_(fail_at_batch) {}
  const DataSchema& schema() const override { return schema_; }
  absl::StatusOr<std::unique_ptr<DataReader>> OpenSplit(Split split, int64_t epoch,
                                                        int64_t first_sample) override {
    return std::make_unique<Reader>(this, epoch, first_sample);
  }
  int64_t batches_read() const { return batches_read_; }

 private:
  class Reader : public DataReader {
   public:
    Reader(CountingSource* source, int64_t epoch, int64_t first)
        : source_(source), epoch_(epoch), position_(first) {}
    absl::Status Next(int64_t max_batch_size, CtrBatch* batch) override {
      if (source_->batches_read_++ == source_->fail_at_batch_) {
        return absl::DataLossError("day_3.tsv: line 7 is torn");
      }
      batch->batch_size = std::min(max_batch_size, kSamples - position_);
      batch->labels.clear();
      for (int64_t i = 0; i < batch->batch_size; ++i) {
        batch->labels.push_back(static_cast<float>(100 * epoch_ + position_++));
      }
      return absl::OkStatus();
    }
    int64_t position() const override { return position_; }

   private:
    CountingSource* source_;
    int64_t epoch_;
    int64_t position_;
  };

  DataSchema schema_;
  const int64_t fail_at_batch_;
  std::atomic<int64_t> batches_read_{0};
};

// Two jagged features with weights and a dense one, made from the sample's number alone: sample i
// of epoch e has the label 100 e + i and (i + f) % 3 lookups of feature f.
class JaggedSource : public DataSource {
 public:
  JaggedSource() { schema_.features.resize(kFeatures); }
  const DataSchema& schema() const override { return schema_; }
  absl::StatusOr<std::unique_ptr<DataReader>> OpenSplit(Split split, int64_t epoch,
                                                        int64_t first_sample) override {
    return std::make_unique<Reader>(epoch, first_sample);
  }

  static constexpr int64_t kFeatures = 2;

 private:
  class Reader : public DataReader {
   public:
    Reader(int64_t epoch, int64_t first) : epoch_(epoch), position_(first) {}
    absl::Status Next(int64_t max_batch_size, CtrBatch* batch) override {
      *batch = CtrBatch();
      batch->batch_size = std::min(max_batch_size, kSamples - position_);
      batch->offsets.push_back(0);
      for (int64_t f = 0; f < kFeatures; ++f) {
        for (int64_t b = 0; b < batch->batch_size; ++b) {
          const int64_t i = position_ + b;
          for (int64_t k = 0; k < (i + f) % 3; ++k) {
            batch->values.push_back(static_cast<uint64_t>(1000 * epoch_ + 100 * f + 10 * i + k));
            batch->weights.push_back(static_cast<float>(10 * i + k) + 0.5f);
          }
          batch->offsets.push_back(static_cast<int64_t>(batch->values.size()));
        }
      }
      for (int64_t b = 0; b < batch->batch_size; ++b) {
        const auto label = static_cast<float>(100 * epoch_ + position_++);
        batch->labels.push_back(label);
        batch->dense.push_back(-label);
        batch->true_probability.push_back(label / 1024);
      }
      return absl::OkStatus();
    }
    int64_t position() const override { return position_; }

   private:
    int64_t epoch_;
    int64_t position_;
  };

  DataSchema schema_;
};

std::vector<float> LabelsOf(const BatchReader::Item& item) {
  return {item.batch.labels.begin(), item.batch.labels.end()};
}

class BatchReaderTest : public ::testing::TestWithParam<int32_t> {};

TEST_P(BatchReaderTest, WalksAllEpochsAndMarksTheirEnds) {
  CountingSource source;
  BatchReader reader(&source, {.epochs = 2, .batch_size = 4, .read_ahead = GetParam()});
  std::vector<std::vector<float>> seen;
  while (true) {
    HOTROW_ASSERT_OK_AND_ASSIGN(std::shared_ptr<BatchReader::Item> item, reader.Next());
    if (item == nullptr) break;
    seen.push_back(item->ends_epoch() ? std::vector<float>() : LabelsOf(*item));
  }
  const std::vector<std::vector<float>> expected = {
      {0, 1, 2, 3},         {4, 5, 6, 7},         {8, 9},     {},
      {100, 101, 102, 103}, {104, 105, 106, 107}, {108, 109}, {}};
  EXPECT_EQ(seen, expected);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<BatchReader::Item> end, reader.Next());
  EXPECT_EQ(end, nullptr);
}

TEST_P(BatchReaderTest, LimitsTheBatchesOfEachEpoch) {
  CountingSource source;
  BatchReader reader(&source,
                     {.epochs = 2, .batch_size = 4, .limit_batches = 1, .read_ahead = GetParam()});
  std::vector<int64_t> sizes;
  while (true) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<BatchReader::Item> item, reader.Next());
    if (item == nullptr) break;
    sizes.push_back(item->batch.batch_size);
  }
  EXPECT_EQ(sizes, (std::vector<int64_t>{4, 0, 4, 0}));
  EXPECT_EQ(source.batches_read(), 2);  // not one more than asked for
}

TEST_P(BatchReaderTest, BeginsInTheMiddleOfAnEpoch) {
  CountingSource source;
  BatchReader reader(&source, {.epochs = 3,
                               .batch_size = 4,
                               .limit_batches = 2,
                               .first_epoch = 1,
                               .first_sample = 4,
                               .first_batch = 1,
                               .read_ahead = GetParam()});
  std::vector<std::vector<float>> seen;
  while (true) {
    HOTROW_ASSERT_OK_AND_ASSIGN(std::shared_ptr<BatchReader::Item> item, reader.Next());
    if (item == nullptr) break;
    seen.push_back(item->ends_epoch() ? std::vector<float>{static_cast<float>(item->epoch)}
                                      : LabelsOf(*item));
  }
  const std::vector<std::vector<float>> expected = {
      {104, 105, 106, 107}, {1}, {200, 201, 202, 203}, {204, 205, 206, 207}, {2}};
  EXPECT_EQ(seen, expected);
}

TEST_P(BatchReaderTest, TellsAnErrorAfterTheBatchesBeforeItAndAgain) {
  CountingSource source(/*fail_at_batch=*/2);
  BatchReader reader(&source, {.batch_size = 4, .read_ahead = GetParam()});
  HOTROW_ASSERT_OK(reader.Next());
  HOTROW_ASSERT_OK(reader.Next());
  EXPECT_THAT(reader.Next(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("line 7")));
  EXPECT_THAT(reader.Next(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("line 7")));
}

TEST_P(BatchReaderTest, StopsInTheMiddle) {
  CountingSource source;
  {
    BatchReader reader(&source, {.epochs = 1000, .batch_size = 1, .read_ahead = GetParam()});
    HOTROW_ASSERT_OK(reader.Next());
  }
  EXPECT_LE(source.batches_read(), GetParam() + 2);  // bounded: no more than it may read ahead
}

TEST_P(BatchReaderTest, MemoryOfAnItemIsUsedAgainOnceNobodyHasIt) {
  CountingSource source;
  std::shared_ptr<BatchReader::Item> kept;
  {
    BatchReader reader(&source, {.epochs = 4, .batch_size = 4, .read_ahead = GetParam()});
    HOTROW_ASSERT_OK_AND_ASSIGN(kept, reader.Next());
    std::set<const BatchReader::Item*> seen;
    for (int i = 0; i < 12; ++i) {
      HOTROW_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<BatchReader::Item> item, reader.Next());
      EXPECT_NE(item, kept);
      seen.insert(item.get());
    }
    EXPECT_LE(seen.size(), static_cast<size_t>(GetParam()) + 2);
  }
  EXPECT_EQ(LabelsOf(*kept), (std::vector<float>{0, 1, 2, 3}));
}

std::vector<BatchReader::Item> ReadAll(BatchReader* reader) {
  std::vector<BatchReader::Item> items;
  while (true) {
    absl::StatusOr<std::shared_ptr<BatchReader::Item>> item = reader->Next();
    HOTROW_EXPECT_OK(item);
    if (!item.ok() || *item == nullptr) return items;
    items.push_back(**item);
  }
}

TEST_P(BatchReaderTest, RanksReadTheirSlicesOfTheSameBatches) {
  JaggedSource source;
  for (const int64_t batch_size : {1, 4, 10}) {
    // From the middle of the second epoch, two batches at most of each.
    BatchReaderOptions options = {.epochs = 4,
                                  .batch_size = batch_size,
                                  .limit_batches = 2,
                                  .first_epoch = 1,
                                  .first_sample = batch_size,
                                  .first_batch = 1,
                                  .keep_global_labels = true,
                                  .read_ahead = GetParam()};
    BatchReader whole_reader(&source, options);
    const std::vector<BatchReader::Item> whole = ReadAll(&whole_reader);
    ASSERT_GE(whole.size(), 5u);
    for (const BatchReader::Item& item : whole) {
      EXPECT_EQ(item.global_batch_size, item.ends_epoch() ? 0 : item.batch.batch_size);
      EXPECT_EQ(item.first_sample, 0);
      EXPECT_THAT(item.global_labels, IsEmpty());  // they are those of the batch
    }
    for (const int32_t world_size : {2, 3, 7}) {
      for (int32_t rank = 0; rank < world_size; ++rank) {
        SCOPED_TRACE(testing::Message()
                     << "batch size " << batch_size << ", rank " << rank << " of " << world_size);
        options.rank = rank;
        options.world_size = world_size;
        BatchReader reader(&source, options);
        const std::vector<BatchReader::Item> items = ReadAll(&reader);
        ASSERT_EQ(items.size(), whole.size());
        for (size_t i = 0; i < items.size(); ++i) {
          const BatchReader::Item& item = items[i];
          EXPECT_EQ(item.epoch, whole[i].epoch);
          ASSERT_EQ(item.ends_epoch(), whole[i].ends_epoch());
          EXPECT_EQ(item.global_batch_size, whole[i].global_batch_size);
          if (item.ends_epoch()) {
            EXPECT_EQ(item.batch.batch_size, 0);
            EXPECT_THAT(item.global_labels, IsEmpty());
            continue;
          }
          const int64_t size = whole[i].batch.batch_size;
          EXPECT_EQ(item.first_sample, size * rank / world_size);
          CtrBatch slice;
          SliceBatch(whole[i].batch, JaggedSource::kFeatures, size * rank / world_size,
                     size * (rank + 1) / world_size, &slice);
          EXPECT_EQ(item.batch.batch_size, slice.batch_size);
          EXPECT_EQ(item.batch.labels, slice.labels);
          EXPECT_EQ(item.batch.dense, slice.dense);
          EXPECT_EQ(item.batch.values, slice.values);
          EXPECT_EQ(item.batch.offsets, slice.offsets);
          EXPECT_EQ(item.batch.weights, slice.weights);
          EXPECT_EQ(item.batch.true_probability, slice.true_probability);
          EXPECT_EQ(item.global_labels, whole[i].batch.labels);
          EXPECT_EQ(item.global_true_probability, whole[i].batch.true_probability);
        }
      }
    }
  }
}

TEST_P(BatchReaderTest, AnEmptySliceDoesNotEndTheEpoch) {
  JaggedSource source;
  BatchReader reader(&source, {.epochs = 2,
                               .batch_size = 4,  // 4, 4, 2: the last leaves rank 0 of 3 without
                               .rank = 0,
                               .world_size = 3,
                               .read_ahead = GetParam()});
  std::vector<std::pair<int64_t, int64_t>> sizes;
  for (const BatchReader::Item& item : ReadAll(&reader)) {
    sizes.emplace_back(item.batch.batch_size, item.global_batch_size);
    EXPECT_THAT(item.global_labels, IsEmpty());  // nobody asked for them
    EXPECT_THAT(item.global_true_probability, IsEmpty());
  }
  const std::vector<std::pair<int64_t, int64_t>> expected = {{1, 4}, {1, 4}, {0, 2}, {0, 0},
                                                             {1, 4}, {1, 4}, {0, 2}, {0, 0}};
  EXPECT_EQ(sizes, expected);
}

INSTANTIATE_TEST_SUITE_P(ReadAhead, BatchReaderTest, ::testing::Values(0, 1, 3));

}  // namespace
}  // namespace hotrow
