#include "models/batch_reader.h"

#include <atomic>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::HasSubstr;

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

class BatchReaderTest : public ::testing::TestWithParam<int32_t> {};

TEST_P(BatchReaderTest, WalksAllEpochsAndMarksTheirEnds) {
  CountingSource source;
  BatchReader reader(&source, {.epochs = 2, .batch_size = 4, .read_ahead = GetParam()});
  std::vector<std::vector<float>> seen;
  while (true) {
    HOTROW_ASSERT_OK_AND_ASSIGN(std::unique_ptr<BatchReader::Item> item, reader.Next());
    if (item == nullptr) break;
    seen.push_back(item->ends_epoch() ? std::vector<float>() : item->batch.labels);
    reader.Recycle(std::move(item));
  }
  const std::vector<std::vector<float>> expected = {
      {0, 1, 2, 3},         {4, 5, 6, 7},         {8, 9},     {},
      {100, 101, 102, 103}, {104, 105, 106, 107}, {108, 109}, {}};
  EXPECT_EQ(seen, expected);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<BatchReader::Item> end, reader.Next());
  EXPECT_EQ(end, nullptr);
}

TEST_P(BatchReaderTest, LimitsTheBatchesOfEachEpoch) {
  CountingSource source;
  BatchReader reader(&source,
                     {.epochs = 2, .batch_size = 4, .limit_batches = 1, .read_ahead = GetParam()});
  std::vector<int64_t> sizes;
  while (true) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<BatchReader::Item> item, reader.Next());
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
    HOTROW_ASSERT_OK_AND_ASSIGN(std::unique_ptr<BatchReader::Item> item, reader.Next());
    if (item == nullptr) break;
    seen.push_back(item->ends_epoch() ? std::vector<float>{static_cast<float>(item->epoch)}
                                      : item->batch.labels);
    reader.Recycle(std::move(item));
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

INSTANTIATE_TEST_SUITE_P(ReadAhead, BatchReaderTest, ::testing::Values(0, 1, 3));

}  // namespace
}  // namespace hotrow
