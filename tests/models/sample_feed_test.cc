#include "models/data/sample_feed.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "base/philox.h"
#include "models/data/table_reader.h"
#include "models/data/table_source.h"
#include "tests/models/file_builders.h"
#include "tests/support/failing_threads.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::FailingThreads;
using test::Gzip;
using test::MemEnv;
using test::StatusIs;
using test::WriteFileOrDie;
using ::testing::HasSubstr;

constexpr int64_t kBlockBytes = 200;  // a few records
constexpr int32_t kThreads[] = {1, 2, 3, 8};

TableSchema Schema() {
  auto schema = ParseTableSchema(R"({"name": "log", "quotes": true, "files": {"train": ["a"]},
      "columns": [
        {"name": "y", "role": "label", "values": {"0": 0, "1": 1, "?": "drop"}},
        {"name": "x", "role": "dense"},
        {"name": "key", "role": "categorical", "key": "integer"},
        {"name": "bag", "role": "categorical", "key": "hash", "separator": "|"}]})",
                                 "schema");
  HOTROW_CHECK(schema.ok());
  return *std::move(schema);
}

// Records of all kinds: dropped ones, empty lines, quotes over several lines, bags of any size.
std::string RandomRecords(RandomStream& random, int64_t records) {
  std::string text = random.Below(2) == 0 ? "y,x,key,bag\n" : "bag,key,unused,x,y\r\n";
  const bool reversed = text[0] == 'b';
  for (int64_t i = 0; i < records; ++i) {
    if (random.Below(20) == 0) text += "\n";
    const char* const label = random.Below(10) == 0 ? "?" : random.Below(2) == 0 ? "0" : "1";
    const std::string x = absl::StrCat(random.Below(1000), ".5");
    const std::string key = absl::StrCat(random.Below(100'000));
    std::string bag;
    for (uint64_t n = random.Below(4); n > 0; --n) absl::StrAppend(&bag, "v", random.Below(9), "|");
    if (random.Below(8) == 0) bag = absl::StrCat("\"two\nlines, ", bag, "\"");
    absl::StrAppend(&text, reversed ? absl::StrCat(bag, ",", key, ",,", x, ",", label)
                                    : absl::StrCat(label, ",", x, ",", key, ",", bag));
    if (i + 1 < records || random.Below(2) == 0) text += random.Below(4) == 0 ? "\r\n" : "\n";
  }
  return text;
}

// Everything that a feed says: each sample with its place, then how it ended.
struct Told {
  std::vector<std::string> samples;
  absl::Status status;
};

std::string TextOf(const std::string& place, float label, float dense, const uint64_t* values,
                   const uint16_t* lengths) {
  std::string text = absl::StrCat(place, " ", label, " ", dense, " ", values[0], " |");
  for (int i = 0; i < lengths[1]; ++i) absl::StrAppend(&text, " ", values[1 + i]);
  return text;
}

Told FromReader(const TableSchema& schema, const std::vector<std::string>& paths, Env& env) {
  TableReader reader(&schema, paths, OpenTextFrom(env));
  Told told;
  Sample sample;
  while (true) {
    const absl::StatusOr<bool> found = reader.Next(&sample);
    told.status = found.status();
    if (!found.ok() || !*found) return told;
    told.samples.push_back(TextOf(reader.TextOf(reader.place()), sample.label, sample.dense[0],
                                  sample.values.data(), sample.lengths.data()));
  }
}

Told FromFeed(const TableSchema& schema, const std::vector<std::string>& paths, Env& env,
              int32_t threads) {
  const auto feed = NewSampleFeed(&schema, paths, OpenTextFrom(env), nullptr, threads, kBlockBytes);
  Told told;
  while (true) {
    const absl::StatusOr<const ParsedSamples*> parsed = feed->Next();
    told.status = parsed.status();
    if (!parsed.ok() || *parsed == nullptr) {
      // The end stays the end, and an error stays.
      const absl::StatusOr<const ParsedSamples*> again = feed->Next();
      EXPECT_EQ(again.status(), told.status);
      if (again.ok()) {
        EXPECT_EQ(*again, nullptr);
      }
      return told;
    }
    const SampleBlock& samples = (*parsed)->samples;
    EXPECT_GT(samples.size(), 0);
    EXPECT_EQ(samples.size(), std::ssize((*parsed)->places));
    for (int64_t i = 0; i < samples.size(); ++i) {
      const uint16_t single[] = {1, 1};
      const uint16_t* const lengths = samples.lengths(i);
      told.samples.push_back(TextOf(feed->TextOf((*parsed)->places[static_cast<size_t>(i)]),
                                    samples.label(i), samples.dense(i)[0], samples.values(i),
                                    lengths == nullptr ? single : lengths));
    }
  }
}

TEST(SampleFeedTest, SamplesAndPlacesAreThoseOfTheReaderWhateverTheThreads) {
  const TableSchema schema = Schema();
  for (const uint64_t seed : test::Seeds(20)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    MemEnv env;
    std::vector<std::string> paths;
    for (uint64_t n = 1 + random.Below(4); n > 0; --n) {
      paths.push_back(absl::StrCat("/log", n));
      const std::string text = RandomRecords(random, 1 + static_cast<int64_t>(random.Below(200)));
      const bool gzip = random.Below(3) == 0;
      WriteFileOrDie(env, gzip ? paths.back() + ".gz" : paths.back(), gzip ? Gzip(text) : text);
    }
    const Told expected = FromReader(schema, paths, env);
    HOTROW_ASSERT_OK(expected.status);
    // A part without samples changes nothing.
    WriteFileOrDie(env, "/empty", random.Below(2) == 0 ? "" : "y,x,key,bag\n\n");
    paths.insert(paths.begin() + static_cast<std::ptrdiff_t>(random.Below(paths.size() + 1)),
                 "/empty");
    EXPECT_EQ(FromReader(schema, paths, env).samples, expected.samples);
    for (const int32_t threads : kThreads) {
      const Told told = FromFeed(schema, paths, env, threads);
      HOTROW_EXPECT_OK(told.status);
      EXPECT_EQ(told.samples, expected.samples) << threads;
    }
  }
}

// Two things are wrong, so that a thread may find the second one first.
TEST(SampleFeedTest, TheFirstErrorIsTheSameWhateverTheThreads) {
  const TableSchema schema = Schema();
  std::string many = "y,x,key,bag\n";
  for (int i = 0; i < 200; ++i) absl::StrAppend(&many, i % 2, ",1,", i, ",a\n");
  struct Case {
    std::string first;
    std::string second;
    const char* message;
  };
  const std::string gzip = Gzip(many);
  const Case cases[] = {
      {many + "1,x,3,a\n" + many.substr(12) + "1,2,3\n", many, "/1:202: column 2 (x): found \"x\""},
      {many + "1,2,3\n" + "2,1,3,a\n", many, "/1:202: 3 columns, expected 4"},
      {many, many + "?,1,no,a\n" + many.substr(12), "/2:202: column 3 (key): found \"no\""},
      {many + "1,2,3,\"a\n" + many.substr(12), many, "/1:202: a quote is opened and not closed"},
      {many + "0,1,oops,b\n1,2,3,\"a\n" + many.substr(12), many, "/1:202: column 3 (key)"},
      {"", "y,x,key,bag\n\n", "/2: all 2 files of the split are empty, expected samples"},
      {many, "y,x,bag\n1,2,3\n", "/2:1: there is no column \"key\""},
      {many, gzip.substr(0, gzip.size() - 3), "truncated"},
  };
  for (const Case& c : cases) {
    MemEnv env;
    WriteFileOrDie(env, "/1", c.first);
    WriteFileOrDie(env, "/2", c.second);
    const Told expected = FromReader(schema, {"/1", "/2"}, env);
    EXPECT_THAT(expected.status, StatusIs(expected.status.code(), HasSubstr(c.message)));
    EXPECT_FALSE(expected.status.ok());
    for (const int32_t threads : kThreads) {
      const Told told = FromFeed(schema, {"/1", "/2"}, env, threads);
      EXPECT_EQ(told.status, expected.status) << threads;
      EXPECT_EQ(told.samples, expected.samples) << threads;
    }
  }
  MemEnv env;
  WriteFileOrDie(env, "/1", many);
  for (const int32_t threads : kThreads) {
    const Told told = FromFeed(schema, {"/1", "/none"}, env, threads);
    EXPECT_THAT(told.status,
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("/none: no such file")));
    EXPECT_EQ(told.samples.size(), 200u);
  }
}

// Lines without end; counts what is read of them.
class EndlessText : public ByteStream {
 public:
  explicit EndlessText(std::atomic<int64_t>* bytes) : bytes_(bytes) {}
  absl::StatusOr<int64_t> Read(std::span<std::byte> bytes) override {
    constexpr std::string_view kLine = "1,2,3,a\n";
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(kLine[at_++ % kLine.size()]);
    *bytes_ += std::ssize(bytes);
    return std::ssize(bytes);
  }

 private:
  std::atomic<int64_t>* const bytes_;
  size_t at_ = 0;
};

TEST(SampleFeedTest, EndsWhereverItsUserStopsAndReadsNoFurtherThanItsBlocks) {
  TableSchema schema = Schema();
  schema.header = false;
  schema.column_names = {"y", "x", "key", "bag"};
  constexpr int64_t kBytes = 10'000;
  for (const int32_t threads : {1, 2, 4}) {
    for (int taken = 0; taken < 12; ++taken) {
      std::atomic<int64_t> bytes = 0;
      {
        const auto feed = NewSampleFeed(
            &schema, {"/endless"},
            [&](const std::string&) {
              return absl::StatusOr<std::unique_ptr<ByteStream>>(
                  std::make_unique<EndlessText>(&bytes));
            },
            nullptr, threads, kBytes);
        for (int i = 0; i < taken; ++i) {
          const absl::StatusOr<const ParsedSamples*> parsed = feed->Next();
          HOTROW_ASSERT_OK(parsed);
          ASSERT_NE(*parsed, nullptr);
        }
      }
      // What a line reader holds, and all blocks; records lose their line end.
      const int64_t blocks = taken + 2 * threads;
      EXPECT_LE(bytes, LineReader::kBlockBytes + (blocks + 1) * (kBytes + 8) * 8 / 7)
          << threads << " " << taken;
    }
  }
}

TEST(SampleFeedTest, OneThreadIsTheCallersAndThoseThatAreMissingAreAnError) {
  const TableSchema schema = Schema();
  MemEnv env;
  WriteFileOrDie(env, "/1", "y,x,key,bag\n1,2,3,a\n");
  for (const int64_t good : {0, 1, 3}) {
    FailingThreads failing(good);
    EXPECT_EQ(FromFeed(schema, {"/1"}, env, 1).samples.size(), 1u);
    const Told told = FromFeed(schema, {"/1"}, env, 4);
    EXPECT_THAT(told.status,
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("--reader_threads")));
    EXPECT_EQ(failing.refused(), 1);
  }
}

// ---- The same of a whole source: windows, splits by sample number, values that are counted.

// Some 350 bytes a record, so that there are several blocks.
std::string PaddedLog(int64_t records) {
  const std::string padding(320, '.');
  std::string text = "y,padding,site,bag\n";
  RandomStream random(3, RandomPurpose::kTest);
  for (int64_t i = 0; i < records; ++i) {
    absl::StrAppend(&text, random.Below(2), ",", padding, ",", random.Below(200), ",");
    for (uint64_t n = random.Below(4); n > 0; --n) absl::StrAppend(&text, random.Below(9), "|");
    text += "\n";
  }
  return text;
}

std::vector<float> AllOf(DataSource& source, Split split) {
  std::vector<float> all;
  const auto reader = source.OpenSplit(split, 1, 0);
  HOTROW_CHECK(reader.ok());
  CtrBatch batch;
  do {
    HOTROW_CHECK((*reader)->Next(300, &batch).ok());
    for (const float label : batch.labels) all.push_back(label);
    for (const uint64_t value : batch.values) all.push_back(static_cast<float>(value));
    for (const int64_t offset : batch.offsets) all.push_back(static_cast<float>(offset));
  } while (batch.batch_size > 0);
  return all;
}

TEST(SampleFeedTest, ASourceIsTheSameWhateverTheThreads) {
  MemEnv env;
  WriteFileOrDie(env, "/a", PaddedLog(4000));
  WriteFileOrDie(env, "/b", PaddedLog(1000));
  for (const bool split_by_number : {false, true}) {
    const std::string files =
        split_by_number
            ? R"("files": ["/a", "/b"], "split": {"modulo": 10, "valid": [3], "test": [7, 8]})"
            : R"("files": {"train": ["/a", "/b"], "valid": ["/b"], "test": ["/b"]})";
    HOTROW_ASSERT_OK_AND_ASSIGN(
        const TableSchema schema,
        ParseTableSchema(absl::StrCat(R"({"name": "log", )", files, R"(, "columns": [
            {"name": "y", "role": "label"},
            {"name": "site", "role": "categorical", "key": "integer", "min_count": 20},
            {"name": "bag", "role": "categorical", "key": "integer", "separator": "|"}]})"),
                         "/schema"));
    for (const int64_t memory : {int64_t{0}, int64_t{1} << 30}) {
      std::optional<std::string> vocabulary;
      std::vector<float> expected[3];
      for (const int32_t threads : {1, 2, 5}) {
        HOTROW_ASSERT_OK_AND_ASSIGN(
            const auto source,
            OpenTableSource(schema,
                            {.seed = 5,
                             .memory_bytes = memory,
                             .window_samples = 700,
                             .threads = {.opening = threads, .reading = threads}},
                            env));
        if (!vocabulary.has_value()) vocabulary = source->vocabulary()->Encode();
        EXPECT_EQ(source->vocabulary()->Encode(), *vocabulary);
        for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
          std::vector<float> all = AllOf(*source, split);
          EXPECT_GT(all.size(), 1000u);
          auto& first = expected[static_cast<size_t>(split)];
          if (threads > 1) {
            EXPECT_TRUE(all == first) << threads;
          } else {
            first = std::move(all);
          }
        }
        // From the middle on, which skips.
        HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader, source->OpenSplit(Split::kTrain, 1, 2345));
        CtrBatch batch;
        HOTROW_ASSERT_OK(reader->Next(1, &batch));
        EXPECT_EQ(batch.batch_size, 1);
      }
    }
  }
}

TEST(SampleFeedTest, BadNumbersOfThreadsAreErrors) {
  MemEnv env;
  for (const int32_t bad : {0, -1, kMaxReaderThreads + 1}) {
    EXPECT_THAT(OpenTableSource(Schema(), {.threads = {.reading = bad}}, env),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("reader_threads is ", bad))));
  }
}

}  // namespace
}  // namespace hotrow
