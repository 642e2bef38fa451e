#include "models/data/file_source.h"

#include <algorithm>
#include <numeric>
#include <thread>

#include "base/philox.h"
#include "models/data/table_source.h"
#include "models/train/batch_reader.h"
#include "tests/models/file_builders.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::MemEnv;
using test::StatusIs;
using test::WriteFileOrDie;
using ::testing::HasSubstr;

// A file whose sample i has key i, in a feature of one value, and i % 4 values i in a bag.
std::string NumberedText(int64_t samples) {
  std::string text = "y,id,bag\n";
  for (int64_t i = 0; i < samples; ++i) {
    absl::StrAppend(&text, i % 3 == 0 ? 1 : 0, ",", i, ",");
    for (int64_t j = 0; j < i % 4; ++j) absl::StrAppend(&text, i, "|");
    text += '\n';
  }
  return text;
}

TableSchema NumberedSchema(bool split_by_ten) {
  auto schema = ParseTableSchema(R"({"name": "numbered",
      "files": {"train": ["train"], "valid": ["valid"], "test": ["test"]}, "columns": [
        {"name": "y", "role": "label"}, {"name": "id", "role": "categorical", "key": "integer"},
        {"name": "bag", "role": "categorical", "key": "integer", "separator": "|"}]})",
                                 "/d/schema.json");
  HOTROW_CHECK(schema.ok());
  if (split_by_ten) {
    schema->files = {std::vector<std::string>{"/d/train"}, {}, {}};
    SplitByTen(&*schema);
  }
  return *std::move(schema);
}

constexpr int64_t kTrain = 1003;

class FileSourceTest : public testing::TestWithParam<bool> {  // P: in memory
 protected:
  FileSourceTest() {
    WriteFileOrDie(env_, "/d/train", NumberedText(kTrain));
    WriteFileOrDie(env_, "/d/valid", NumberedText(37));
    WriteFileOrDie(env_, "/d/test", NumberedText(5));
  }

  static FileSourceOptions Options(uint64_t seed) {
    FileSourceOptions options;
    options.seed = seed;
    if (!GetParam()) options.memory_bytes = 1000;
    options.window_samples = 100;
    return options;
  }

  std::unique_ptr<DataSource> Open(uint64_t seed, bool split_by_ten = false) {
    auto source = OpenTableSource(NumberedSchema(split_by_ten), Options(seed), env_);
    HOTROW_CHECK(source.ok());
    return *std::move(source);
  }

  // The ids from first_sample on, in batches of batch_size; checks that every batch but the last is
  // full and that labels and bags belong to the id.
  static std::vector<int64_t> Ids(DataSource& source, Split split, int64_t epoch,
                                  int64_t first_sample, int64_t batch_size) {
    std::vector<int64_t> ids;
    auto reader = source.OpenSplit(split, epoch, first_sample);
    HOTROW_CHECK(reader.ok());
    CtrBatch batch;
    bool full = true;
    while (true) {
      EXPECT_EQ((*reader)->position(), first_sample + static_cast<int64_t>(ids.size()));
      HOTROW_EXPECT_OK((*reader)->Next(batch_size, &batch));
      if (batch.batch_size == 0) break;
      EXPECT_TRUE(full);
      full = batch.batch_size == batch_size;
      EXPECT_EQ(batch.offsets.size(), static_cast<size_t>(2 * batch.batch_size + 1));
      for (int64_t b = 0; b < batch.batch_size; ++b) {
        const auto id = static_cast<int64_t>(batch.values[b]);
        ids.push_back(id);
        EXPECT_EQ(batch.labels[b], id % 3 == 0 ? 1 : 0);
        const int64_t begin = batch.offsets[batch.batch_size + b];
        const int64_t end = batch.offsets[batch.batch_size + b + 1];
        EXPECT_EQ(end - begin, id % 4);
        for (int64_t at = begin; at < end; ++at) {
          EXPECT_EQ(static_cast<int64_t>(batch.values[at]), id);
        }
      }
    }
    // The end stays the end.
    HOTROW_EXPECT_OK((*reader)->Next(batch_size, &batch));
    EXPECT_EQ(batch.batch_size, 0);
    return ids;
  }

  MemEnv env_;
};

std::vector<int64_t> Iota(int64_t n) {
  std::vector<int64_t> ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}
std::vector<int64_t> Sorted(std::vector<int64_t> ids) {
  std::sort(ids.begin(), ids.end());
  return ids;
}

TEST_P(FileSourceTest, TrainingIsAPermutationThatDependsOnSeedAndEpoch) {
  const auto source = Open(7);
  const auto ids = Ids(*source, Split::kTrain, 0, 0, 64);
  EXPECT_EQ(Sorted(ids), Iota(kTrain));
  EXPECT_NE(ids, Iota(kTrain));
  EXPECT_EQ(Ids(*source, Split::kTrain, 0, 0, 64), ids);
  EXPECT_EQ(Ids(*Open(7), Split::kTrain, 0, 0, 64), ids);
  EXPECT_NE(Ids(*source, Split::kTrain, 1, 0, 64), ids);
  EXPECT_NE(Ids(*Open(8), Split::kTrain, 0, 0, 64), ids);
  // The cut into batches, smaller and larger than a window, does not move a sample.
  for (const int64_t batch_size : {1, 7, 99, 100, 101, 350, 2000}) {
    EXPECT_EQ(Ids(*source, Split::kTrain, 0, 0, batch_size), ids) << batch_size;
  }
}

TEST_P(FileSourceTest, WindowsMixWithinThemselves) {
  const auto ids = Ids(*Open(7), Split::kTrain, 3, 0, 64);
  int64_t moved_far = 0;
  for (int64_t i = 0; i < kTrain; ++i) {
    if (GetParam()) {
      moved_far += std::abs(ids[i] - i) > 200;
    } else {
      EXPECT_EQ(ids[i] / 100, i / 100);
    }
  }
  if (GetParam()) {
    EXPECT_GT(moved_far, kTrain / 3);
  }
}

TEST_P(FileSourceTest, StartingLaterGivesTheSameSamples) {
  const auto source = Open(9);
  const auto ids = Ids(*source, Split::kTrain, 2, 0, 50);
  for (const int64_t first : {1, 50, 99, 100, 101, 555, 1000, 1002, 1003}) {
    EXPECT_EQ(Ids(*source, Split::kTrain, 2, first, 50),
              std::vector<int64_t>(ids.begin() + first, ids.end()))
        << first;
  }
  for (const int64_t first : {0, 1, 36, 37}) {
    const auto all = Iota(37);
    EXPECT_EQ(Ids(*source, Split::kValid, 0, first, 10),
              std::vector<int64_t>(all.begin() + first, all.end()));
  }
  constexpr auto kOutOfRange = absl::StatusCode::kOutOfRange;
  for (const int64_t first : {int64_t{1004}, int64_t{1100}, int64_t{5000}, int64_t{-1}}) {
    EXPECT_THAT(source->OpenSplit(Split::kTrain, 2, first),
                StatusIs(kOutOfRange, HasSubstr(absl::StrCat("first sample is ", first))));
  }
  EXPECT_THAT(source->OpenSplit(Split::kValid, 0, 38), StatusIs(kOutOfRange, HasSubstr("has 37")));
  EXPECT_THAT(source->OpenSplit(Split::kTrain, -1, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("epoch is -1")));
}

TEST_P(FileSourceTest, ValidationAndTestAreInFileOrder) {
  const auto source = Open(1);
  for (const int64_t epoch : {0, 5}) {
    EXPECT_EQ(Ids(*source, Split::kValid, epoch, 0, 10), Iota(37));
    EXPECT_EQ(Ids(*source, Split::kTest, epoch, 0, 5), Iota(5));
  }
}

TEST_P(FileSourceTest, SizesAreKnownInMemory) {
  const DataSchema schema = Open(1)->schema();
  EXPECT_EQ(schema.train_samples, GetParam() ? kTrain : 0);
  EXPECT_EQ(schema.valid_samples, GetParam() ? 37 : 0);
  EXPECT_EQ(schema.test_samples, GetParam() ? 5 : 0);
}

TEST_P(FileSourceTest, OneFileIsSplitByRemainder) {
  const auto source = Open(1, /*split_by_ten=*/true);
  std::vector<int64_t> expected[3];
  for (int64_t i = 0; i < kTrain; ++i) expected[i % 10 == 8 ? 1 : i % 10 == 9 ? 2 : 0].push_back(i);
  EXPECT_EQ(Sorted(Ids(*source, Split::kTrain, 0, 0, 64)), expected[0]);
  EXPECT_EQ(Ids(*source, Split::kValid, 0, 0, 64), expected[1]);
  EXPECT_EQ(Ids(*source, Split::kTest, 0, 0, 64), expected[2]);
  EXPECT_EQ(Ids(*source, Split::kTest, 0, 33, 64),
            std::vector<int64_t>(expected[2].begin() + 33, expected[2].end()));
}

TEST_P(FileSourceTest, ErrorsInTheDataAreReported) {
  // Far enough behind the start that finding out that the data is too large does not see it.
  std::string text = NumberedText(20'000);
  text[text.find(",18000,") + 1] = 'x';
  WriteFileOrDie(env_, "/d/train", text);
  const auto expected = StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("/d/train:18002: column 2 (id): found \"x8000\""));
  const auto source = OpenTableSource(NumberedSchema(false), Options(1), env_);
  if (GetParam()) {
    EXPECT_THAT(source, expected);
    return;
  }
  HOTROW_ASSERT_OK(source);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader, (*source)->OpenSplit(Split::kTrain, 0, 0));
  CtrBatch batch;
  absl::Status status;
  int64_t samples = 0;
  while (status.ok() && samples < 20'000) {
    status = reader->Next(50, &batch);
    if (status.ok()) samples += batch.batch_size;
  }
  EXPECT_THAT(status, expected);
  EXPECT_GE(samples, 17'800);
  EXPECT_LE(samples, 18'000);
  EXPECT_THAT((*source)->OpenSplit(Split::kTrain, 0, 19'000), expected);
}

TEST_P(FileSourceTest, ReadersOfOneSourceDoNotDisturbEachOther) {
  const auto source = Open(3);
  const auto expected = Ids(*source, Split::kTrain, 1, 0, 10);
  std::vector<std::thread> threads;
  std::vector<std::vector<int64_t>> ids(3);
  for (size_t t = 0; t < ids.size(); ++t) {
    threads.emplace_back([&, t] { ids[t] = Ids(*source, Split::kTrain, 1, 0, 10); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& one : ids) EXPECT_EQ(one, expected);
}

TEST_P(FileSourceTest, BatchReaderWalksIt) {
  const auto source = Open(3);
  BatchReader reader(source.get(), {.epochs = 2, .batch_size = 128, .read_ahead = 2});
  int64_t samples = 0;
  while (true) {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto item, reader.Next());
    if (item == nullptr) break;
    samples += item->batch.batch_size;
  }
  EXPECT_EQ(samples, 2 * kTrain);
}

INSTANTIATE_TEST_SUITE_P(MemoryAndStream, FileSourceTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Memory" : "Stream"; });

TEST(FileSourceLimitsTest, MemoryIsUsedUpToTheLimitAndNoFurther) {
  MemEnv env;
  WriteFileOrDie(env, "/d/train", NumberedText(1000));
  WriteFileOrDie(env, "/d/valid", NumberedText(10));
  WriteFileOrDie(env, "/d/test", NumberedText(10));
  const auto in_memory = [&](bool split_by_ten, int64_t memory_bytes) {
    const auto source = OpenTableSource(NumberedSchema(split_by_ten),
                                        {.memory_bytes = memory_bytes, .window_samples = 10}, env);
    HOTROW_CHECK(source.ok());
    return (*source)->schema().train_samples > 0;
  };
  for (const bool split_by_ten : {false, true}) {
    int64_t fits = 1 << 20;
    int64_t does_not = 0;
    ASSERT_TRUE(in_memory(split_by_ten, fits));
    ASSERT_FALSE(in_memory(split_by_ten, does_not));
    while (fits - does_not > 1) {
      const int64_t middle = (fits + does_not) / 2;
      (in_memory(split_by_ten, middle) ? fits : does_not) = middle;
    }
    // A sample has a label of 1 byte, two lengths of 2, a start of 8 and 2.5 values of 8 bytes.
    EXPECT_NEAR(static_cast<double>(fits), (split_by_ten ? 1000 : 1020) * (1 + 4 + 8 + 20), 100);
  }
}

TEST(FileSourceLimitsTest, BadOptionsAndEmptyTrainingAreErrors) {
  MemEnv env;
  WriteFileOrDie(env, "/d/train", NumberedText(3));
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(OpenTableSource(NumberedSchema(true), {.window_samples = 0}, env),
              StatusIs(invalid, HasSubstr("window_samples is 0")));
  EXPECT_THAT(OpenTableSource(NumberedSchema(true), {.memory_bytes = -1}, env),
              StatusIs(invalid, HasSubstr("memory_bytes is -1")));
  TableSchema schema = NumberedSchema(true);
  std::fill(schema.split_of.begin(), schema.split_of.end(), Split::kTest);
  EXPECT_THAT(OpenTableSource(schema, {}, env),
              StatusIs(invalid, HasSubstr("no sample goes to the training split")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto source, OpenTableSource(NumberedSchema(true), {}, env));
  EXPECT_EQ(source->schema().train_samples, 3);
  EXPECT_EQ(source->schema().valid_samples, 0);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader, source->OpenSplit(Split::kValid, 0, 0));
  CtrBatch batch;
  HOTROW_ASSERT_OK(reader->Next(10, &batch));
  EXPECT_EQ(batch.batch_size, 0);
  EXPECT_THAT(reader->Next(0, &batch), StatusIs(invalid, HasSubstr("max_batch_size is 0")));
}

// More samples than a block holds, so that indices cross blocks.
TEST(FileSourceLimitsTest, ManyBlocksInMemory) {
  MemEnv env;
  constexpr int64_t kSamples = 2 * SampleFiles::kBlockSamples + 77;
  std::string text = "y,id,bag\n";
  for (int64_t i = 0; i < kSamples; ++i) absl::StrAppend(&text, "0,", i, ",\n");
  WriteFileOrDie(env, "/d/train", text);
  WriteFileOrDie(env, "/d/valid", text);
  WriteFileOrDie(env, "/d/test", text);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto source,
                              OpenTableSource(NumberedSchema(false), {.seed = 1}, env));
  EXPECT_EQ(source->schema().train_samples, kSamples);
  for (const Split split : {Split::kTrain, Split::kValid}) {
    std::vector<bool> seen(kSamples);
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader, source->OpenSplit(split, 0, 0));
    CtrBatch batch;
    int64_t position = 0;
    while (true) {
      HOTROW_ASSERT_OK(reader->Next(10'000, &batch));
      if (batch.batch_size == 0) break;
      for (const uint64_t id : batch.values) {
        ASSERT_FALSE(seen[id]);
        seen[id] = true;
        if (split == Split::kValid) {
          ASSERT_EQ(static_cast<int64_t>(id), position);
        }
        ++position;
      }
    }
    EXPECT_EQ(position, kSamples);
  }
}

}  // namespace
}  // namespace hotrow
