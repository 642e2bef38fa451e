// The forms in which programs write delimited text: quotes, longer delimiters, times, numbers as
// pandas has them, several labels; and files that are no text.

#include <span>

#include "base/philox.h"
#include "models/data/delimited_text.h"
#include "models/data/file_pattern.h"
#include "models/data/slice_batch.h"
#include "models/data/table_reader.h"
#include "models/data/table_source.h"
#include "models/data/time_parts.h"
#include "tests/models/file_builders.h"
#include "tests/support/faulty_env.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using std::string_literals::operator""s;
using test::MemEnv;
using test::StatusIs;
using test::WriteFileOrDie;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// A schema of the label y, these columns, and these members of the schema itself.
TableSchema SchemaOf(const std::string& columns, const std::string& root = "") {
  const std::string json = absl::StrCat("{", root, R"("files": {"train": ["a"]}, "columns": [)",
                                        R"({"name": "y", "role": "label"}, )", columns, "]}");
  auto schema = ParseTableSchema(json, "test");
  HOTROW_CHECK(schema.ok());
  return *std::move(schema);
}

absl::StatusOr<std::vector<Sample>> Read(const TableSchema& schema, std::string_view text) {
  MemEnv env;
  WriteFileOrDie(env, "/log", text);
  TableReader reader(&schema, {"/log"}, OpenTextFrom(env));
  std::vector<Sample> samples;
  while (true) {
    Sample sample;
    auto found = reader.Next(&sample);
    if (!found.ok()) return found.status();
    if (!*found) return samples;
    samples.push_back(std::move(sample));
  }
}

absl::StatusOr<std::vector<std::string>> Fields(const FieldSyntax& syntax, std::string_view text) {
  std::vector<std::string_view> fields;
  FieldSplitter splitter(syntax);
  const absl::Status status = splitter.Split(text, &fields);
  if (!status.ok()) return status;
  return std::vector<std::string>(fields.begin(), fields.end());
}

TEST(DelimitedTextTest, QuotedFields) {
  const FieldSyntax csv = {.quotes = Quotes::kOn};
  EXPECT_THAT(*Fields(csv, R"(a,"b,c",d)"), ElementsAre("a", "b,c", "d"));
  EXPECT_THAT(*Fields(csv, R"("say ""hi""","",x"y"z,"""")"),
              ElementsAre("say \"hi\"", "", "x\"y\"z", "\""));
  EXPECT_THAT(*Fields(csv, "\"a\n,b\",\"\"\"\"\"\""), ElementsAre("a\n,b", "\"\""));
  EXPECT_THAT(*Fields(csv, ""), ElementsAre(""));
  EXPECT_THAT(*Fields(csv, "\"a\","), ElementsAre("a", ""));
  EXPECT_THAT(*Fields(csv, " \"a\",b "), ElementsAre(" \"a\"", "b "));
  EXPECT_THAT(*Fields({.quotes = Quotes::kOn, .trim = true}, " \"a \"\t, b "),
              ElementsAre("a ", "b"));
  EXPECT_THAT(*Fields({.delimiter = "\t", .quotes = Quotes::kOn, .trim = true}, " \"a\" \t\t b"),
              ElementsAre("a", "", "b"));
  EXPECT_THAT(*Fields({.delimiter = "::", .quotes = Quotes::kOn}, "1::\"a::b\"::c:d"),
              ElementsAre("1", "a::b", "c:d"));
  EXPECT_THAT(*Fields({}, "\"a,b\""), ElementsAre("\"a", "b\""));
  EXPECT_THAT(Fields(csv, "a,\"b"),
              StatusIs(kInvalid, AllOf(HasSubstr("column 2: its quote is not closed"),
                                       HasSubstr("\"quotes\": false in the schema"))));
  EXPECT_THAT(Fields(csv, "\"a\"b,c"),
              StatusIs(kInvalid, HasSubstr("column 1: there is text after its closing quote")));
}

// What Split takes for one record is what the reader joins, with any text.
TEST(DelimitedTextTest, RecordsEndWhereQuotesAreClosed) {
  RandomStream random(5, RandomPurpose::kTest);
  for (int i = 0; i < 3000; ++i) {
    const FieldSyntax syntax = {
        .delimiter = i % 3 == 0 ? "::" : ",", .quotes = Quotes::kOn, .trim = i % 2 == 0};
    std::string written;
    std::vector<std::vector<std::string>> expected;
    for (uint64_t r = 1 + random.Below(4); r > 0; --r) {
      expected.emplace_back();
      for (uint64_t f = 1 + random.Below(3); f > 0; --f) {
        std::string field;
        for (uint64_t c = random.Below(6); c > 0; --c) field += "ab\",:\n"[random.Below(6)];
        std::string quoted = "\"";
        for (const char c : field) quoted += c == '"' ? "\"\""s : std::string(1, c);
        absl::StrAppend(&written, quoted, "\"", f > 1 ? syntax.delimiter : "\n");
        expected.back().push_back(std::move(field));
      }
    }
    RecordReader reader(NewMemoryStream(written), syntax);
    std::string_view record;
    for (const auto& fields : expected) {
      ASSERT_TRUE(reader.Next(&record)) << written;
      EXPECT_EQ(*Fields(syntax, record), fields) << written;
    }
    EXPECT_FALSE(reader.Next(&record));
    HOTROW_EXPECT_OK(reader.status());
  }
}

TEST(TextFormsTest, QuotesInHeaderAndFields) {
  const TableSchema schema =
      SchemaOf(R"({"name": "a, b", "role": "categorical"}, {"name": "n", "role": "dense"})",
               R"("quotes": true, )");
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto samples,
      Read(schema,
           "\xEF\xBB\xBF\"y\",\"a, b\",n\r\n\"1\",\"x, \"\"y\"\"\",2\r\n0,\"two\r\nlines\","
           "\"3\"\r\n1,plain,4"));
  ASSERT_EQ(samples.size(), 3u);
  EXPECT_THAT(samples[0].values, ElementsAre(HashText("x, \"y\"")));
  EXPECT_THAT(samples[1].values, ElementsAre(HashText("two\nlines")));
  EXPECT_THAT(samples[1].dense, ElementsAre(3));
  EXPECT_THAT(samples[2].values, ElementsAre(HashText("plain")));
  // Errors are about the line where a record begins.
  EXPECT_THAT(Read(schema, "y,\"a, b\",n\n1,\"a\nb\",x\n"),
              StatusIs(kInvalid, HasSubstr("/log:2: column 3 (n): found \"x\"")));
  EXPECT_THAT(Read(schema, "y,\"a, b\",n\n1,a,1\n1,\"a,2\n1,b,3\n"),
              StatusIs(kInvalid, AllOf(HasSubstr("/log:3: a quote is opened and not closed in this "
                                                 "file"),
                                       HasSubstr("\"quotes\": false"))));
  EXPECT_THAT(Read(schema, "y,\"a, b\",n\n1,\"a,2\n"s + std::string(17 << 20, 'x') + "\n"),
              StatusIs(kInvalid, HasSubstr("/log:")));
  EXPECT_THAT(Read(schema, "y,\"a, b\",n\n1,\"a\",2,3\n"),
              StatusIs(kInvalid, HasSubstr("/log:2: 4 columns, expected 3 separated by \",\"")));
}

TEST(TextFormsTest, QuotesAreCharactersWhereTheSchemaSaysSo) {
  const TableSchema schema =
      SchemaOf(R"({"name": "x", "role": "categorical"})", R"("quotes": false, )");
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto samples, Read(schema, "y,x\n1,\"a\"\n"));
  EXPECT_THAT(samples[0].values, ElementsAre(HashText("\"a\"")));
  EXPECT_THAT(Read(schema, "y,x\n1,\"a,b\"\n"),
              StatusIs(kInvalid, HasSubstr("3 columns, expected 2 separated by \",\"; fields in "
                                           "quotes need \"quotes\": true")));
}

// Builds of before took quotes for characters, so a schema that is silent about them may belong to
// a model whose keys hold them.
TEST(TextFormsTest, QuotesAreRefusedWhereTheSchemaDoesNotSay) {
  const std::string column = R"({"name": "x", "role": "categorical"})";
  const TableSchema silent = SchemaOf(column);
  const auto refused = [](const char* place) {
    return StatusIs(kInvalid, AllOf(HasSubstr(place), HasSubstr("begins with a double quote"),
                                    HasSubstr("give \"quotes\": true where"),
                                    HasSubstr("or \"quotes\": false where")));
  };
  EXPECT_THAT(Read(silent, "y,x\n1,a\n0,\"a\"\n"), refused("/log:3: column 2 begins"));
  EXPECT_THAT(Read(silent, "y,x\n\"1,a\n"), refused("/log:2: column 1 begins"));
  EXPECT_THAT(Read(silent, "y,\"x\"\n1,a\n"), refused("/log:1: column 2 begins"));
  EXPECT_THAT(Read(SchemaOf(column, R"("trim": true, )"), "y,x\n1, \"a\"\n"), refused("/log:2: "));
  EXPECT_THAT(Read(SchemaOf(column, R"("delimiter": "::", )"), "y::x\n1::\"a\"\n"),
              refused("/log:2: column 2 begins"));
  // A quote elsewhere means the same with any schema.
  const std::string text = "y,x\n1,6\" nails\n0, \"a\"\n";
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto samples, Read(silent, text));
  EXPECT_THAT(samples[0].values, ElementsAre(HashText("6\" nails")));
  EXPECT_THAT(samples[1].values, ElementsAre(HashText(" \"a\"")));
  for (const char* quotes : {R"("quotes": true, )", R"("quotes": false, )"}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto same, Read(SchemaOf(column, quotes), text));
    EXPECT_EQ(same[0].values, samples[0].values);
    EXPECT_EQ(same[1].values, samples[1].values);
  }
  EXPECT_EQ(MovieLensSchema({"a"}).quotes, Quotes::kOff);
  EXPECT_EQ(FrappeSchema("d").quotes, Quotes::kOff);
}

TEST(TextFormsTest, DelimitersOfSeveralCharacters) {
  TableSchema schema = SchemaOf(R"({"name": "user", "role": "categorical", "key": "integer"},
                                   {"name": "movie", "role": "categorical", "key": "integer"})",
                                R"("delimiter": "::", "header": ["user", "movie", "y", "time"], )");
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto samples, Read(schema, "1::1193::1::978300760\n"));
  EXPECT_THAT(samples[0].values, ElementsAre(1, 1193));
  EXPECT_EQ(samples[0].label, 1);
  EXPECT_THAT(Read(schema, "1:1193:1:978300760\n"),
              StatusIs(kInvalid, HasSubstr("1 column, expected 4 separated by \"::\"")));
  const TableSchema commas = SchemaOf(R"({"name": "x", "role": "dense"})");
  EXPECT_THAT(Read(commas, "y;x\n1;2\n"),
              StatusIs(kInvalid, HasSubstr("there are: y;x; is \",\" the delimiter?")));
}

TEST(TextFormsTest, NumbersAsPandasWritesThem) {
  const TableSchema schema = SchemaOf(
      R"({"name": "id", "role": "categorical", "key": "integer", "missing": 9},
         {"name": "price", "role": "dense"},
         {"name": "bag", "role": "categorical", "key": "integer", "separator": "|"})",
      R"("missing_values": ["nan", "NULL"], )");
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto samples, Read(schema,
                                                       ",y,id,price,bag\n0,1.0,3.0,nan,1|nan|2.00\n"
                                                       "1,0.00,nan,0.5,NULL\n2,1,-1.0,NULL,\n"));
  ASSERT_EQ(samples.size(), 3u);
  EXPECT_EQ(samples[0].label, 1);
  EXPECT_EQ(samples[1].label, 0);
  EXPECT_THAT(samples[0].values, ElementsAre(3, 1, 2));
  EXPECT_THAT(samples[0].dense, ElementsAre(0));
  EXPECT_THAT(samples[1].values, ElementsAre(9));
  EXPECT_THAT(samples[2].values, ElementsAre(~uint64_t{0}));
  for (const char* bad : {"3.5", "3.", ".0", "1e3", "3.0.0", "1.2345678901234568e+18", "1.0f"}) {
    EXPECT_THAT(Read(schema, absl::StrCat("y,id,price,bag\n1,", bad, ",1,1\n")),
                StatusIs(kInvalid, HasSubstr("column 2 (id): found")))
        << bad;
  }
  EXPECT_THAT(Read(schema, "y,id,price,bag\n,1,1,1\n"),
              StatusIs(kInvalid, HasSubstr("column 1 (y): found \"\", expected the label, 0 or 1; "
                                           "\"values\" or \"positive\" in the schema")));
  EXPECT_THAT(Read(schema, "y,id,price,bag\n1,1,NaN,1\n"),
              StatusIs(kInvalid, HasSubstr("column 3 (price): found \"NaN\", expected a number, or "
                                           "nothing where it is missing; \"missing_values\"")));
  EXPECT_THAT(Read(schema, "y,id,price,bag\n1,1,1e39,1\n"),
              StatusIs(kInvalid, HasSubstr("found \"1e39\", expected a number that 32 bits hold")));
  EXPECT_THAT(Read(schema, "y,id, price,bag\n1,1,1,1\n"),
              StatusIs(kInvalid, HasSubstr("no column \"price\"")));
  EXPECT_THAT(Read(schema, "y,id, price,bag\n1,1,1,1\n"),
              StatusIs(kInvalid, HasSubstr("\"trim\": true")));
}

TEST(TextFormsTest, HexadecimalIsNeverTakenForDecimal) {
  const auto read = [](const char* key, const char* text) {
    return Read(
        SchemaOf(absl::StrCat(R"({"name": "x", "role": "categorical", "key": ")", key, "\"}")),
        absl::StrCat("y,x\n1,", text, "\n"));
  };
  for (const char* text : {"0x1f", "0x10", "68fd1e64", "05db9164x"}) {
    EXPECT_THAT(read("integer", text),
                StatusIs(kInvalid, AllOf(HasSubstr("/log:2: column 2 (x): found"),
                                         HasSubstr("\"key\": \"hex\" in the schema"))))
        << text;
  }
  EXPECT_THAT((*read("hex", "0x1f"))[0].values, ElementsAre(0x1f));
  EXPECT_THAT((*read("hex", "0X1F"))[0].values, ElementsAre(0x1f));
  EXPECT_THAT((*read("hex", "12345678"))[0].values, ElementsAre(0x12345678));
  EXPECT_FALSE(read("hex", "0x0x1").ok());
  EXPECT_THAT(read("hex", "1.0"), StatusIs(kInvalid, HasSubstr("\"hash\" in the schema")));
  EXPECT_THAT(Read(SchemaOf(R"({"name": "x", "role": "dense"})"), "y,x\n1,0x1f\n"),
              StatusIs(kInvalid, HasSubstr("found \"0x1f\", expected a number")));
}

struct TimeCase {
  const char* format;
  const char* text;
  std::vector<uint64_t> parts;  // hour, weekday, weekend, day, month; empty: an error
};

TEST(TimePartsTest, PartsOfATime) {
  const TimeCase cases[] = {
      // Avazu: 2014-10-21 was a Tuesday.
      {"%y%m%d%H", "14102100", {0, 1, 0, 21, 10}},
      {"%y%m%d%H", "14102623", {23, 6, 1, 26, 10}},
      {"%y%m%d%H", "14102624", {}},
      {"%y%m%d%H", "1410210", {}},
      {"%y%m%d%H", "141021000", {}},
      {"%y%m%d%H", "14133100", {}},
      {"%y%m%d%H", "14023000", {}},
      {"%y%m%d%H", "14x02100", {}},
      {"%y%m%d", "690101", {0, 2, 0, 1, 1}},  // 1969-01-01, a Wednesday
      {"%d/%m/%Y %H:%M:%S", "29/02/2000 13:14:15", {13, 1, 0, 29, 2}},
      {"%d/%m/%Y %H:%M:%S", "29/02/1900 13:14:15", {}},
      {"%Y%%%m%%%d", "2024%07%04", {0, 3, 0, 4, 7}},
      {"iso8601", "2014-10-21", {0, 1, 0, 21, 10}},
      {"iso8601", "2014-10-21 17:05:09", {17, 1, 0, 21, 10}},
      {"iso8601", "2014-10-21T17:05", {17, 1, 0, 21, 10}},
      {"iso8601", "20141021T170509Z", {17, 1, 0, 21, 10}},
      {"iso8601", "2014-10-25T23:59:60.123+02:00", {23, 5, 1, 25, 10}},
      {"iso8601", "2014-10-25T23Z", {23, 5, 1, 25, 10}},
      {"iso8601", "2014-10-25T23-23:59", {23, 5, 1, 25, 10}},
      {"iso8601", "2014-10-25T23+99:99", {}},
      {"iso8601", "2014-10-25T23+24:00", {}},
      {"iso8601", "2014-10-25T23+2360", {}},
      {"iso8601", "2014-10-25T23+24", {}},
      {"iso8601", "0001-01-01", {0, 0, 0, 1, 1}},
      {"iso8601", "2014-10-21T", {}},
      {"iso8601", "2014-1021", {}},
      {"iso8601", "2014-10-21 17:05:09+2", {}},
      {"iso8601", "2014-10-21 25:00:00", {}},
      {"iso8601", "14102100", {}},  // no month of 21
      {"iso8601", "", {}},
      {"unix", "978300760", {22, 6, 1, 31, 12}},  // 2000-12-31 22:12:40, a Sunday
      {"unix", "978300760.0", {22, 6, 1, 31, 12}},
      {"unix", "0", {0, 3, 0, 1, 1}},
      {"unix", "-1", {23, 2, 0, 31, 12}},
      {"unix", "-0.5", {23, 2, 0, 31, 12}},
      {"unix", "-0.0", {0, 3, 0, 1, 1}},
      {"unix", "-3600.00", {23, 2, 0, 31, 12}},
      {"unix", "-3600.05", {22, 2, 0, 31, 12}},
      {"unix", "3599.9", {0, 3, 0, 1, 1}},
      {"unix", "-9223372036854775808.5", {}},
      {"unix", "951782400", {0, 1, 0, 29, 2}},       // 2000-02-29
      {"unix", "253402300799", {23, 4, 0, 31, 12}},  // the end of the year 9999
      {"unix", "253402300800", {}},
      {"unix", "978300760123", {}},  // milliseconds
      {"unix", "-62167219200", {0, 5, 1, 1, 1}},
      {"unix", "-62167219201", {}},
      {"unix", "9223372036854775807", {}},
      {"unix_ms", "978300760123000", {}},  // microseconds
      {"unix", "12x", {}},
      {"unix", "", {}},
      {"unix_ms", "978300760123", {22, 6, 1, 31, 12}},
      {"unix_ms", "-1", {23, 2, 0, 31, 12}},
      {"unix_ms", "-3600000.5", {22, 2, 0, 31, 12}},
  };
  constexpr TimePart kParts[] = {TimePart::kHour, TimePart::kWeekday, TimePart::kWeekend,
                                 TimePart::kDay, TimePart::kMonth};
  for (const TimeCase& c : cases) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const TimeFormat format, TimeFormat::Parse(c.format));
    for (size_t i = 0; i < std::size(kParts); ++i) {
      uint64_t key = 0;
      const bool good = format.Key(c.text, kParts[i], &key);
      EXPECT_EQ(good, !c.parts.empty()) << c.format << " " << c.text;
      if (!good || c.parts.empty()) continue;
      EXPECT_EQ(key, c.parts[i]) << c.format << " " << c.text << " part " << i;
      EXPECT_LT(static_cast<int64_t>(key), TimePartSize(kParts[i]));
    }
  }
}

// Every day of 400 years follows the one before.
TEST(TimePartsTest, DaysFollowOneAnother) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const TimeFormat format, TimeFormat::Parse("unix"));
  uint64_t weekday_before = 0;
  uint64_t day_before = 0;
  for (int64_t day = -74'000; day < 74'000; ++day) {
    const std::string text = absl::StrCat(day * 86'400 + 5);
    uint64_t weekday = 0;
    uint64_t of_month = 0;
    ASSERT_TRUE(format.Key(text, TimePart::kWeekday, &weekday));
    ASSERT_TRUE(format.Key(text, TimePart::kDay, &of_month));
    if (day > -74'000) {
      ASSERT_EQ(weekday, (weekday_before + 1) % 7) << day;
      ASSERT_TRUE(of_month == day_before + 1 || (of_month == 1 && day_before >= 28)) << day;
    }
    weekday_before = weekday;
    day_before = of_month;
  }
}

TEST(TextFormsTest, PartsOfATimeAreFeatures) {
  const TableSchema schema = SchemaOf(
      R"({"name": "hour_of_day", "column": "hour", "role": "categorical", "part": "hour",
          "time_format": "%y%m%d%H", "missing": 24},
         {"name": "weekday", "column": "hour", "role": "categorical", "part": "weekday",
          "time_format": "%y%m%d%H"})",
      R"("missing_values": ["nan"], )");
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto samples, Read(schema, "y,hour\n1,14102117\n0,\n1,nan\n"));
  EXPECT_THAT(samples[0].values, ElementsAre(17, 1));
  EXPECT_THAT(samples[1].values, ElementsAre(24));
  EXPECT_THAT(samples[2].values, ElementsAre(24));
  EXPECT_EQ(DataSchemaOf(schema).features[0].num_embeddings, 25);
  EXPECT_EQ(DataSchemaOf(schema).features[1].num_embeddings, 7);
  EXPECT_THAT(
      Read(schema, "y,hour\n1,2014102117\n"),
      StatusIs(kInvalid, HasSubstr("/log:2: column 2 (hour): found \"2014102117\", expected "
                                   "a time as \"%y%m%d%H\" writes it")));
}

TEST(TextFormsTest, LabelsByComparison) {
  TableSchema schema = SchemaOf(R"({"name": "x", "role": "dense"})");
  const std::string text = "y,x\n5,1\n3.5,2\n2,3\n4.0,4\n";
  const auto labels = [&](std::optional<Threshold> positive, std::optional<Threshold> negative) {
    schema.labels[0].positive = positive;
    schema.labels[0].negative = negative;
    const auto samples = Read(schema, text);
    std::vector<float> out;
    for (const Sample& sample : *samples) out.push_back(sample.label);
    return out;
  };
  using Op = Threshold::Op;
  EXPECT_THAT(labels({{Op::kGreaterEqual, 4}}, {}), ElementsAre(1, 0, 0, 1));
  EXPECT_THAT(labels({{Op::kGreater, 4}}, {}), ElementsAre(1, 0, 0, 0));
  EXPECT_THAT(labels({{Op::kEqual, 2}}, {}), ElementsAre(0, 0, 1, 0));
  EXPECT_THAT(labels({{Op::kNotEqual, 2}}, {}), ElementsAre(1, 1, 0, 1));
  EXPECT_THAT(labels({{Op::kGreaterEqual, 4}}, {{Op::kLess, 3}}), ElementsAre(1, 0, 1));
  EXPECT_THAT(labels({{Op::kLessEqual, 2}}, {{Op::kGreaterEqual, 5}}), ElementsAre(0, 1));
  EXPECT_THAT(
      Read(schema, "y,x\ngood,1\n"),
      StatusIs(kInvalid, HasSubstr("column 1 (y): found \"good\", expected a number, which")));
}

TEST(TextFormsTest, LabelsOfOtherTexts) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const TableSchema schema, ParseTableSchema(R"({
      "files": {"train": ["a"]}, "columns": [
        {"name": "y", "role": "label", "values": {"Never married": 1, "?": "drop"}, "otherwise": 0},
        {"name": "x", "role": "dense"}]})",
                                                                         "s"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto samples,
                              Read(schema, "y,x\nNever married,1\nWidowed,2\n?,3\n"));
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].label, 1);
  EXPECT_EQ(samples[1].label, 0);
  EXPECT_THAT(Read(schema, "y,x\n,1\n"), StatusIs(kInvalid, HasSubstr("column 1 (y): found \"\"")));
}

constexpr const char* kTwoTasks = R"json({
  "name": "ratings",
  "files": {"train": ["/train"], "test": ["/test"]},
  "columns": [
    {"name": "like", "column": "rating", "role": "label", "positive": ">= 4"},
    {"name": "user", "role": "categorical", "key": "integer"},
    {"name": "comedy", "role": "label", "values": {"yes": 1, "no": 0, "?": "drop"}}]})json";

TEST(TextFormsTest, SeveralLabels) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const TableSchema schema, ParseTableSchema(kTwoTasks, "s.json"));
  MemEnv env;
  WriteFileOrDie(env, "/train", "user,rating,comedy\n1,5,yes\n2,1,yes\n3,3,?\n4,4.0,no\n");
  WriteFileOrDie(env, "/test", "comedy,rating,user\nno,2,7\n");
  for (const int64_t memory : {int64_t{1} << 20, int64_t{0}}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto source,
                                OpenTableSource(schema, {.memory_bytes = memory}, env));
    EXPECT_THAT(source->schema().labels, ElementsAre("like", "comedy"));
    for (const Split split : {Split::kTrain, Split::kTest}) {
      HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader, source->OpenSplit(split, 0, 0));
      CtrBatch batch;
      HOTROW_ASSERT_OK(reader->Next(10, &batch));
      EXPECT_EQ(batch.num_labels, 2);
      ASSERT_EQ(batch.labels.size(), 2 * batch.values.size());
      if (split == Split::kTest) {
        EXPECT_THAT(batch.labels, ElementsAre(0, 0));
        continue;
      }
      ASSERT_EQ(batch.batch_size, 3);
      for (int i = 0; i < 3; ++i) {
        const uint64_t user = batch.values[i];
        EXPECT_EQ(batch.labels[2 * i], user != 2) << user;
        EXPECT_EQ(batch.labels[2 * i + 1], user != 4) << user;
      }
      CtrBatch slice;
      SliceBatch(batch, 1, 1, 3, &slice);
      EXPECT_EQ(slice.num_labels, 2);
      EXPECT_THAT(slice.labels,
                  ElementsAre(batch.labels[2], batch.labels[3], batch.labels[4], batch.labels[5]));
    }
  }
  WriteFileOrDie(env, "/train", "user,rating,comedy\n1,5,yes\n2,1,\n");
  EXPECT_THAT(OpenTableSource(schema, {}, env),
              StatusIs(kInvalid, HasSubstr("/train:3: column 3 (comedy): found \"\", expected a "
                                           "label: \"")));
  WriteFileOrDie(env, "/train", "user,rating\n1,5\n");
  EXPECT_THAT(OpenTableSource(schema, {}, env),
              StatusIs(kInvalid, HasSubstr("/train:1: there is no column \"comedy\"")));
}

TEST(FilePatternTest, Matches) {
  struct Case {
    const char* pattern;
    const char* name;
    bool matches;
  };
  const Case cases[] = {
      {"*", "", true},          {"*", "abc", true},           {"*", ".abc", false},
      {".*", ".abc", true},     {"a*c", "abbc", true},        {"a*c", "abcb", false},
      {"a*b*c", "abxbc", true}, {"a**c", "ac", true},         {"?", "a", true},
      {"?", "", false},         {"day_[0-3]", "day_2", true}, {"day_[0-3]", "day_4", false},
      {"[!a]", "b", true},      {"[!a]", "a", false},         {"[]]", "]", true},
      {"[ab", "[ab", true},     {"[a-]", "-", true},          {"x*.csv", "x.csv.gz", false},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(MatchesPattern(c.pattern, c.name), c.matches) << c.pattern << " " << c.name;
  }
}

TEST(FilePatternTest, FilesOfASchemaMayBePatterns) {
  MemEnv env;
  const std::string text = "y,x\n1,";
  for (const char* name : {"/d/a/day_2.csv", "/d/a/day_10.csv", "/d/b/day_1.csv", "/d/b/x.txt"}) {
    WriteFileOrDie(env, name, text + "1\n");
  }
  WriteFileOrDie(env, "/d/c/only.csv.gz", test::Gzip(text + "2\n"));
  WriteFileOrDie(env, "/d/c/odd[1].txt", text + "3\n");
  EXPECT_THAT(*ExpandFilePattern(env, "/d/*/day_*.csv"),
              ElementsAre("/d/a/day_10.csv", "/d/a/day_2.csv", "/d/b/day_1.csv"));
  EXPECT_THAT(*ExpandFilePattern(env, "/d/?/x.txt"), ElementsAre("/d/b/x.txt"));
  EXPECT_THAT(*ExpandFilePattern(env, "/d/c/*.csv"), ElementsAre("/d/c/only.csv.gz"));
  EXPECT_THAT(*ExpandFilePattern(env, "/d/c/odd[1].txt"), ElementsAre("/d/c/odd[1].txt"));
  EXPECT_THAT(*ExpandFilePattern(env, "/d/none.csv"), ElementsAre("/d/none.csv"));
  // A pack that is being written.
  WriteFileOrDie(env, "/p/day1/pack.json", "{}");
  WriteFileOrDie(env, "/p/day2.hotrow-partial/pack.json", "{}");
  EXPECT_THAT(*ExpandFilePattern(env, "/p/day*"), ElementsAre("/p/day1"));
  EXPECT_THAT(ExpandFilePattern(env, "/d/*/z*.csv"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("/d/*/z*.csv: no file matches this pattern")));
  TableSchema schema = SchemaOf(R"({"name": "x", "role": "dense"})");
  schema.files[0] = {"/d/*/day_*.csv", "/d/c/only.csv"};
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto source, OpenTableSource(schema, {}, env));
  EXPECT_EQ(source->schema().train_samples, 4);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto identity, source->Identity());
  EXPECT_EQ(identity.size(), 4u);
  WriteFileOrDie(env, "/d/b/day_1.csv.gz", test::Gzip(text + "1\n"));
  EXPECT_THAT(ExpandFilePattern(env, "/d/b/day*"),
              StatusIs(kInvalid, HasSubstr("both /d/b/day_1.csv and /d/b/day_1.csv.gz match")));
}

TEST(FilePatternTest, AFolderThatCannotBeReadIsNotPassedOver) {
  const auto denied = absl::PermissionDeniedError("opendir: Permission denied");
  int refused = 0;
  for (int64_t k = 0;; ++k) {
    test::FaultyEnv env;
    WriteFileOrDie(env, "/d/a/x.csv", "1");
    WriteFileOrDie(env, "/d/b/x.csv", "1");
    WriteFileOrDie(env, "/d/file", "1");  // matches where a folder is wanted
    env.FailCall(env.calls() + k, denied);
    const auto found = ExpandFilePattern(env, "/d/*/*.csv");
    if (env.faults() == 0) {
      EXPECT_THAT(*found, ElementsAre("/d/a/x.csv", "/d/b/x.csv"));
      break;
    }
    EXPECT_THAT(found, StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("opendir: ")));
    refused += found.status().message().find("/d/*/*.csv: opendir: ") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(refused, 4);  // /d, and what lies in it
}

TEST(FilePatternTest, AFileThatIsNamedTwiceIsRefused) {
  MemEnv env;
  for (const char* name : {"/d/ab.csv", "/d/ac.csv", "/d/b.csv.gz"}) WriteFileOrDie(env, name, "1");
  EXPECT_THAT(*ExpandFilePatterns(env, {"/d/b.csv", "/d/a*.csv"}),
              ElementsAre("/d/b.csv", "/d/ab.csv", "/d/ac.csv"));
  const std::vector<std::string> cases[] = {{"/d/a*.csv", "/d/ab.csv"},
                                            {"/d/ab.csv", "/d/ab.csv"},
                                            {"/d/?b.csv", "/d/./ab.csv"},
                                            {"/d/b.csv", "/d/b*"},
                                            {"/d/b.csv.gz", "/d/b.csv"}};
  for (const auto& paths : cases) {
    EXPECT_THAT(ExpandFilePatterns(env, paths),
                StatusIs(kInvalid, HasSubstr(absl::StrCat("\"", paths[0], "\" and \"", paths[1],
                                                          "\" both stand for this file"))));
  }
  TableSchema schema = SchemaOf(R"({"name": "x", "role": "dense"})");
  schema.files[0] = {"/d/a*.csv", "/d/ab.csv"};
  EXPECT_THAT(OpenTableSource(schema, {}, env), StatusIs(kInvalid, HasSubstr("/d/ab.csv: ")));
}

TEST(ForeignFormatTest, FilesOfOtherFormatsAreNamed) {
  const TableSchema schema = SchemaOf(R"({"name": "x", "role": "dense"})");
  const std::string rest(64, '\1');
  const std::pair<std::string, const char*> cases[] = {
      {"PAR1" + rest + "PAR1", "a Parquet file"},
      {"ORC" + rest + "ORC\x17", "an ORC file"},
      {"ARROW1\0\0"s + rest, "an Arrow (Feather) file"},
      {"FEA1\0\0\0\0"s + rest, "a Feather file"},
      {"Obj\1" + rest, "an Avro file"},
      {"SQLite format 3\0"s + rest, "an SQLite database"},
      {"\x89HDF\r\n\x1a\n" + rest, "an HDF5 file"},
      {test::Npy<int32_t>("<i4", "(1,)", {1}), "a numpy array"},
      {test::Zip({{"0.npy", rest, true}}), "a zip archive (.zip, .npz, .xlsx)"},
      {"\x80\x04\x95" + rest, "a Python pickle"},
      {"BZh91AY&SY" + rest, "a bzip2 file"},
      {"\xfd"
       "7zXZ\0"s +
           rest,
       "an xz file"},
      {"\x28\xb5\x2f\xfd" + rest, "a Zstandard file"},
      {"\xff\xfey\0,\0x\0\n\0"s, "UTF-16 text"},
  };
  for (const auto& [bytes, name] : cases) {
    EXPECT_THAT(Read(schema, bytes),
                StatusIs(kInvalid, AllOf(HasSubstr(absl::StrCat("/log: is ", name)),
                                         HasSubstr("expected text, plain or gzip; "))));
  }
  EXPECT_THAT(Read(schema, "PAR1" + rest + "PAR1"), StatusIs(kInvalid, HasSubstr("hotrow.pack")));
  // Text that begins like one of them.
  for (const char* header : {"PAR1,y,x", "ORC,y,x", "FEA1,y,x", "BZh9,y,x", "Obj,y,x"}) {
    EXPECT_EQ(Read(schema, absl::StrCat(header, "\n1,0,2\n"))->size(), 1u) << header;
  }
}

}  // namespace
}  // namespace hotrow
