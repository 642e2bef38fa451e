#include "models/data/windowed_source.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "models/data/growing_source.h"
#include "models/data/packed_source.h"
#include "models/data/row_parser.h"
#include "models/data/synthetic.h"
#include "models/data/table_schema_text.h"
#include "models/data/table_source.h"
#include "models/data/time_parts.h"
#include "models/saving/packed_writer.h"
#include "tests/models/file_builders.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::MemEnv;
using test::StatusIs;
using test::WriteFileOrDie;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kDay = 86'400;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(TimeFormatTest, ATextIsAPointInTime) {
  struct Case {
    const char* format;
    const char* text;
    int64_t seconds;
  };
  for (const Case& c : std::vector<Case>{{"unix", "978300760", 978300760},
                                         {"unix", "-0.5", -1},
                                         {"unix_ms", "978300760999", 978300760},
                                         {"iso8601", "2000-12-31 22:12:40", 978300760},
                                         {"iso8601", "2000-12-31T22:12:40.9Z", 978300760},
                                         {"iso8601", "2001-01-01T00:12:40+02:00", 978300760},
                                         {"iso8601", "2000-12-31T17:42:40-0430", 978300760},
                                         {"iso8601", "1969-12-31", -kDay},
                                         {"iso8601", "2000-03-01", 951868800},
                                         {"iso8601", "0000-01-01", -62'167'219'200},
                                         {"%y%m%d%H", "00123122", 978300000}}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const TimeFormat format, TimeFormat::Parse(c.format));
    int64_t seconds = 0;
    EXPECT_TRUE(format.Seconds(c.text, &seconds)) << c.text;
    EXPECT_EQ(seconds, c.seconds) << c.text;
  }
  int64_t seconds = 0;
  EXPECT_FALSE(TimeFormat().Seconds("2000-13-31", &seconds));
  EXPECT_FALSE(TimeFormat().Seconds("2000-12-31T22:12:40+02:60", &seconds));
  EXPECT_EQ(TimeText(978300760), "2000-12-31 22:12:40");
  EXPECT_EQ(TimeText(-kDay), "1969-12-31");
}

TEST(TimeFormatTest, ALengthOfTimeReadsBackInItsLargestUnit) {
  const std::pair<const char*, std::pair<int64_t, const char*>> cases[] = {
      {"1d", {kDay, "1d"}},   {"24h", {kDay, "1d"}}, {"90s", {90, "90s"}},
      {"30m", {1800, "30m"}}, {"120s", {120, "2m"}}, {"36h", {129'600, "36h"}}};
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(ParseDuration(text), expected.first) << text;
    EXPECT_EQ(DurationText(expected.first), expected.second);
  }
  for (const char* const text :
       {"", "d", "0d", "-1d", "1", "1w", "1.5h", "1 d", "1dd", "9223372036854775807d"}) {
    EXPECT_FALSE(ParseDuration(text).has_value()) << text;
  }
}

// Samples 0, 1, 2, ... at these times, from number `first` on.
std::string Text(const std::vector<int64_t>& times, int64_t first = 0) {
  std::string text = "y,t,id\n";
  for (const int64_t time : times) {
    absl::StrAppend(&text, first % 3 == 0 ? 1 : 0, ",", time, ",", first, "\n");
    ++first;
  }
  return text;
}

// The ids of an epoch from a sample on.
std::vector<uint64_t> Ids(DataSource& source, int64_t epoch, int64_t first,
                          int64_t batch_size = 2) {
  const auto reader = source.OpenSplit(Split::kTrain, epoch, first);
  HOTROW_EXPECT_OK(reader);
  if (!reader.ok()) return {};
  std::vector<uint64_t> ids;
  CtrBatch batch;
  while (true) {
    HOTROW_EXPECT_OK((*reader)->Next(batch_size, &batch));
    if (batch.batch_size == 0) break;
    ids.insert(ids.end(), batch.values.begin(), batch.values.end());
    EXPECT_EQ((*reader)->position(), first + std::ssize(ids));
  }
  HOTROW_EXPECT_OK((*reader)->Next(batch_size, &batch));
  EXPECT_EQ(batch.batch_size, 0);
  return ids;
}

// The ways to hold samples.
enum class Form { kMemory, kStream, kPacked };

class WindowedSourceTest : public testing::TestWithParam<Form> {
 protected:
  static absl::StatusOr<TableSchema> Schema(const char* column = "t") {
    return ParseTableSchema(
        absl::StrCat(R"({"name": "timed", "files": {"train": ["a", "b"]}, "columns": [
          {"name": "y", "role": "label"},
          {"name": "id", "role": "categorical", "key": "integer"},
          {"name": "when", "column": ")",
                     column, R"(", "role": "time", "time_format": "unix"}]})"),
        "/d/schema.json");
  }
  // Files a and b.
  absl::StatusOr<std::unique_ptr<DataSource>> Open(const std::vector<int64_t>& a,
                                                   const std::vector<int64_t>& b) {
    WriteFileOrDie(env_, "/d/a", Text(a));
    WriteFileOrDie(env_, "/d/b", Text(b, std::ssize(a)));
    return OpenAs(GetParam(), *Schema());
  }
  absl::StatusOr<std::unique_ptr<DataSource>> OpenAs(Form form, const TableSchema& schema) {
    FileSourceOptions options = {.in_order = true};
    if (form != Form::kMemory) options.memory_bytes = 0;
    auto text = OpenTableSource(schema, options, env_);
    if (form != Form::kPacked || !text.ok()) return text;
    const auto packed =
        PackData(**text, {.dir = "/packed", .block_samples = 2, .source = "timed", .env = &env_});
    if (!packed.ok()) return packed.status();
    return OpenPackedSource({"/packed"}, options, env_);
  }

  MemEnv env_;
};

TEST_P(WindowedSourceTest, EpochsAreTheWindowsThatHaveSamples) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto data,
                              Open({10, 20, kDay - 1, 2 * kDay, 2 * kDay, 2 * kDay + 7},
                                   {3 * kDay - 1, 3 * kDay, 3 * kDay + 9}));
  WindowedSource source(data.get(), kDay);
  HOTROW_ASSERT_OK(source.Read());
  ASSERT_EQ(source.windows().size(), 3u);
  const int64_t numbers[] = {0, 2, 3};
  const int64_t begins[] = {0, 3, 7};
  const int64_t samples[] = {3, 4, 2};
  for (size_t k = 0; k < 3; ++k) {
    EXPECT_EQ(source.windows()[k].number, numbers[k]);
    EXPECT_EQ(source.windows()[k].first_sample, begins[k]);
    EXPECT_EQ(source.windows()[k].samples, samples[k]);
  }
  EXPECT_EQ(source.schema().train_samples, 9);
  EXPECT_EQ(source.NameOf(2), "1970-01-03");
  EXPECT_THAT(Ids(source, 0, 0), ElementsAre(0, 1, 2));
  EXPECT_THAT(Ids(source, 1, 0), ElementsAre(3, 4, 5, 6));
  EXPECT_THAT(Ids(source, 2, 0), ElementsAre(7, 8));
  EXPECT_THAT(Ids(source, 1, 0, 3), ElementsAre(3, 4, 5, 6));
  EXPECT_THAT(Ids(source, 1, 3), ElementsAre(6));
  EXPECT_THAT(Ids(source, 1, 4), IsEmpty());
  EXPECT_THAT(Ids(source, 2, 2), IsEmpty());
  EXPECT_THAT(source.OpenSplit(Split::kTrain, 1, 5),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("1970-01-03 has 4 samples")));
  EXPECT_THAT(source.OpenSplit(Split::kTrain, 3, 0), StatusIs(kInvalid, HasSubstr("window 3")));

  // A rank's slices of a batch that the window's end cuts short.
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader, source.OpenSplit(Split::kTrain, 1, 1));
  CtrBatch slice;
  HOTROW_ASSERT_OK_AND_ASSIGN(int64_t size, reader->NextSlice(8, 1, 2, &slice));
  EXPECT_EQ(size, 3);
  EXPECT_THAT(slice.values, ElementsAre(5, 6));
  HOTROW_ASSERT_OK_AND_ASSIGN(size, reader->NextSlice(8, 1, 2, &slice));
  EXPECT_EQ(size, 0);
}

TEST_P(WindowedSourceTest, WindowsBeginAtMultiplesAlsoBefore1970) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto data, Open({-kDay - 1, -kDay, -1}, {0}));
  WindowedSource source(data.get(), kDay);
  HOTROW_ASSERT_OK(source.Read());
  ASSERT_EQ(source.windows().size(), 3u);
  EXPECT_EQ(source.windows()[0].number, -2);
  EXPECT_EQ(source.windows()[1].number, -1);
  EXPECT_EQ(source.windows()[1].samples, 2);
  EXPECT_EQ(source.windows()[2].number, 0);
}

TEST_P(WindowedSourceTest, TimeThatRunsBackwardsIsNamedWithBothPlacesAndTimes) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto data, Open({10, 20, kDay + 5}, {kDay + 4, kDay + 6}));
  WindowedSource source(data.get(), kDay);
  const bool packed = GetParam() == Form::kPacked;
  EXPECT_THAT(source.Read(),
              StatusIs(kInvalid, AllOf(HasSubstr(packed ? "/packed/train.pack, sample 3 is of"
                                                        : "/d/b:2 is of 1970-01-02 00:00:04"),
                                       HasSubstr(packed ? "/packed/train.pack, sample 2, of"
                                                        : "/d/a:4, of 1970-01-02 00:00:05"),
                                       HasSubstr("sort the lines by time"))));
}

INSTANTIATE_TEST_SUITE_P(Forms, WindowedSourceTest,
                         testing::Values(Form::kMemory, Form::kStream, Form::kPacked));

class TimedTextTest : public WindowedSourceTest {};
INSTANTIATE_TEST_SUITE_P(Stream, TimedTextTest, testing::Values(Form::kStream));

TEST_P(TimedTextTest, AColumnThatIsNotThereAndATextThatIsNoTimeAreNamed) {
  WriteFileOrDie(env_, "/d/a", "y,t,id\n1,5,0\n0,soon,1\n");
  WriteFileOrDie(env_, "/d/b", "y,t,id\n1,,2\n");
  const auto read = [&](const TableSchema& schema) {
    const auto data = OpenAs(Form::kStream, schema);
    return data.ok() ? WindowedSource(data->get(), kDay).Read() : data.status();
  };
  EXPECT_THAT(read(*Schema("hour")),
              StatusIs(kInvalid, AllOf(HasSubstr("/d/a:1"), HasSubstr("no column \"hour\""))));
  EXPECT_THAT(read(*Schema()),
              StatusIs(kInvalid, AllOf(HasSubstr("/d/a:3"), HasSubstr("found \"soon\", expected"),
                                       HasSubstr("whole seconds since 1970"))));
  WriteFileOrDie(env_, "/d/a", "y,t,id\n1,5,0\n");
  EXPECT_THAT(read(*Schema()),
              StatusIs(kInvalid, AllOf(HasSubstr("/d/b:2"), HasSubstr("found \"\", expected"))));
  TableSchema without = *Schema();
  without.time.reset();
  EXPECT_THAT(read(without),
              StatusIs(kInvalid, AllOf(HasSubstr("--window=1d"), HasSubstr("have no time"),
                                       HasSubstr("\"role\": \"time\""))));
  // Lines to score need no time.
  TableSchema lines = *Schema("hour");
  lines.reads_labels = false;
  HOTROW_EXPECT_OK(RowParser::Create(lines, std::vector<std::string>{"id"}));
}

TEST_P(TimedTextTest, AModelKeepsTheColumnOfTimes) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const TableSchema back,
                              ParseTableSchemaText(TableSchemaText(*Schema()), "a model"));
  ASSERT_TRUE(back.time.has_value());
  EXPECT_EQ(back.time->name, "when");
  EXPECT_EQ(back.time->column, "t");
  EXPECT_EQ(back.time->format.text(), "unix");
  EXPECT_THAT(ParseTableSchemaText(R"({"columns": [
                {"name": "a", "role": "time", "time_format": "unix"},
                {"name": "b", "role": "time", "time_format": "unix"}]})",
                                   "a model"),
              StatusIs(kInvalid, HasSubstr("columns[1]: a second column")));
  EXPECT_THAT(ParseTableSchemaText(R"({"columns": [{"name": "a", "role": "time"}]})", "a model"),
              StatusIs(kInvalid, HasSubstr("\"time_format\" is missing")));
}

TEST_P(TimedTextTest, FilesThatComeBehindTheOthersAreWindowsOnceThoseAreWhole) {
  TableSchema schema = *Schema();
  schema.files[0] = {"/d/part*"};
  WriteFileOrDie(env_, "/d/part1", Text({10, 20, kDay + 1}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto data, GrowingSource::Open([&](const SavedVocabulary*) {
                                return OpenAs(Form::kStream, schema);
                              }));
  WindowedSource source(data.get(), kDay, /*grows=*/true);
  HOTROW_ASSERT_OK(source.Read());
  EXPECT_EQ(source.windows().size(), 1u);
  HOTROW_ASSERT_OK_AND_ASSIGN(bool more, source.Grow());
  EXPECT_FALSE(more);
  WriteFileOrDie(env_, "/d/part2", Text({kDay + 5}, 3));
  HOTROW_ASSERT_OK_AND_ASSIGN(more, source.Grow());
  EXPECT_FALSE(more);
  EXPECT_THAT(Ids(source, 0, 0), ElementsAre(0, 1));
  WriteFileOrDie(env_, "/d/part3", Text({3 * kDay}, 4));
  HOTROW_ASSERT_OK_AND_ASSIGN(more, source.Grow());
  EXPECT_TRUE(more);
  ASSERT_EQ(source.windows().size(), 2u);
  EXPECT_EQ(source.windows()[1].samples, 2);
  EXPECT_THAT(Ids(source, 1, 0), ElementsAre(2, 3));
  // One in front of them would move all places.
  WriteFileOrDie(env_, "/d/part0", Text({0}));
  EXPECT_THAT(source.Grow(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      AllOf(HasSubstr("the last sample was /d/part3:2"),
                                            HasSubstr("in its place is /d/part2:2"))));
}

// Who edits the schema of a run that follows would change what is trained.
TEST_P(TimedTextTest, ASchemaThatChangesMeanwhileIsRefused) {
  TableSchema schema = *Schema();
  schema.files[0] = {"/d/part*"};
  WriteFileOrDie(env_, "/d/part1", Text({10, 20}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto data, GrowingSource::Open([&](const SavedVocabulary*) {
                                return OpenAs(Form::kStream, schema);
                              }));
  WriteFileOrDie(env_, "/d/part2", Text({kDay}, 2));
  HOTROW_ASSERT_OK_AND_ASSIGN(const bool more, data->Grow());
  EXPECT_TRUE(more);
  WriteFileOrDie(env_, "/d/part3", Text({kDay + 5}, 3));
  schema.missing_values = {"-"};
  EXPECT_THAT(data->Grow(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the schema of then")));
  schema.missing_values.clear();
  schema.categorical[0].separator = '|';
  EXPECT_THAT(data->Grow(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("other features")));
}

// Counts readers of the data beneath.
class CountedData : public DataSource {
 public:
  explicit CountedData(std::unique_ptr<DataSource> base) : base_(std::move(base)) {}
  const DataSchema& schema() const override { return base_->schema(); }
  absl::StatusOr<std::unique_ptr<DataReader>> OpenSplit(Split split, int64_t epoch,
                                                        int64_t first_sample) override {
    ++opened;
    return base_->OpenSplit(split, epoch, first_sample);
  }
  int64_t opened = 0;

 private:
  std::unique_ptr<DataSource> base_;
};

TEST(WindowedGeneratorTest, WhoJudgesAndWhoTrainsOpenTheDataOnceEach) {
  HOTROW_ASSERT_OK_AND_ASSIGN(
      auto base, OpenSynthetic({.tables = 1, .rows = 50, .samples = 60, .seconds = 6 * kDay}));
  CountedData data(std::move(base));
  WindowedSource source(&data, kDay);
  HOTROW_ASSERT_OK(source.Read());
  ASSERT_EQ(source.windows().size(), 6u);
  EXPECT_EQ(data.opened, 1);
  for (int64_t k = 0; k < 6; ++k) {
    const std::vector<uint64_t> judged = Ids(source, k, 0, 4);
    EXPECT_EQ(judged.size(), 10u);
    EXPECT_EQ(Ids(source, k, 0, 3), judged);
  }
  EXPECT_EQ(data.opened, 3);
}

}  // namespace
}  // namespace hotrow
