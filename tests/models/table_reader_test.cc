#include "models/data/table_reader.h"

#include <cfloat>
#include <cmath>

#include "models/data/row_parser.h"
#include "models/data/table_schema_text.h"
#include "models/data/table_source.h"
#include "tests/models/file_builders.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::Gzip;
using test::MemEnv;
using test::StatusIs;
using test::WriteFileOrDie;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr uint64_t kLastKey = ~uint64_t{0};

absl::StatusOr<std::vector<Sample>> ReadAll(const TableSchema& schema,
                                            const std::vector<std::string>& paths, Env& env) {
  TableReader reader(&schema, paths, OpenTextFrom(env));
  std::vector<Sample> samples;
  while (true) {
    Sample sample;
    auto found = reader.Next(&sample);
    if (!found.ok()) return found.status();
    if (!*found) return samples;
    samples.push_back(std::move(sample));
  }
}

absl::StatusOr<std::vector<Sample>> ReadText(const TableSchema& schema, std::string_view text) {
  MemEnv env;
  WriteFileOrDie(env, "/d/log.csv", text);
  return ReadAll(schema, {"/d/log.csv"}, env);
}

TableSchema SchemaOf(const std::string& columns) {
  const std::string json = absl::StrCat(
      R"({"files": {"train": ["a"]}, "columns": [{"name": "y", "role": "label"}, )", columns, "]}");
  auto schema = ParseTableSchema(json, "test");
  HOTROW_CHECK(schema.ok());
  return *std::move(schema);
}

// One sample of one feature, of a file with the columns y and x.
absl::StatusOr<Sample> ReadField(const std::string& fields, std::string_view text) {
  const TableSchema schema = SchemaOf(absl::StrCat(R"({"name": "x", )", fields, "}"));
  auto samples = ReadText(schema, absl::StrCat("y,x\n1,", std::string(text), "\n"));
  if (!samples.ok()) return samples.status();
  return samples->front();
}
absl::StatusOr<float> ReadDense(const std::string& transform, std::string_view text) {
  auto sample =
      ReadField(absl::StrCat(R"("role": "dense", "transform": ")", transform, "\""), text);
  if (!sample.ok()) return sample.status();
  return sample->dense[0];
}
// The keys of these fields of the feature; *read: of them, where one is wrong.
absl::StatusOr<std::vector<uint64_t>> KeysOfFields(const TableSchema& schema,
                                                   const std::vector<std::string>& fields,
                                                   size_t* read) {
  HOTROW_ASSIGN_OR_RETURN(const RowParser parser,
                          RowParser::Create(schema, std::vector<std::string>{"y", "x"}));
  std::vector<uint64_t> keys;
  HOTROW_RETURN_IF_ERROR(parser.ParseKeys(0, fields, &keys, read));
  return keys;
}

absl::StatusOr<std::vector<uint64_t>> ReadKeys(const std::string& fields, std::string_view text) {
  const std::string feature = absl::StrCat(R"("role": "categorical", )", fields);
  auto sample = ReadField(feature, text);
  // A field by itself has the same keys, or the same fault.
  size_t read = 0;
  const auto keys = KeysOfFields(SchemaOf(absl::StrCat(R"({"name": "x", )", feature, "}")),
                                 {std::string(text)}, &read);
  EXPECT_EQ(keys.ok(), sample.ok()) << text;
  if (!sample.ok()) {
    EXPECT_THAT(std::string(sample.status().message()),
                HasSubstr(std::string(keys.status().message())));
    return sample.status();
  }
  HOTROW_CHECK(sample->lengths.size() == 1 && sample->lengths[0] == sample->values.size());
  EXPECT_EQ(*keys, sample->values);
  return sample->values;
}

std::string CriteoLine(std::string_view label = "1") {
  return absl::StrCat(std::string(label),
                      "\t1\t-1\t\t0\t1382\t4\t15\t2\t181\t-9\t2\t70000\t2\t68fd1e64\t\tFFFFFFFF\t0",
                      "\t25c83c98\t7e0ccccf\tde7995b8\t1f89b562\ta73ee510\ta8cd5504\tb2cb9c98",
                      "\t37c9c164\t2824a5f6\t1adce6ef\t8ba8b39a\t891b62e7\te5ba7672\tf54016b9",
                      "\t21ddcdc9\tb1252a9d\t07b5194c\t\t3a171ecb\tc5c50484\te8b83407\t9727dd16");
}

TEST(TableReaderTest, CriteoLine) {
  const TableSchema schema = CriteoSchema({});
  for (const char* end : {"\n", "\r\n", ""}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto samples, ReadText(schema, CriteoLine() + end));
    ASSERT_EQ(samples.size(), 1u);
    const Sample& sample = samples[0];
    EXPECT_EQ(sample.label, 1);
    // ln(x + 3); -9 counts as -2, and a missing number is 0, which is no other number's value but
    // that of -2 and below.
    const float expected[] = {std::log(4.f),
                              std::log(2.f),
                              0,
                              std::log(3.f),
                              std::log(1385.f),
                              std::log(7.f),
                              std::log(18.f),
                              std::log(5.f),
                              std::log(184.f),
                              0,
                              std::log(5.f),
                              std::log(70003.f),
                              std::log(5.f)};
    ASSERT_EQ(sample.dense.size(), 13u);
    for (int i = 0; i < 13; ++i) EXPECT_FLOAT_EQ(sample.dense[i], expected[i]) << i;
    ASSERT_EQ(sample.values.size(), 26u);
    EXPECT_EQ(sample.values[0], 0x68fd1e64u);
    EXPECT_EQ(sample.values[1], kCriteoMissingKey);
    EXPECT_EQ(sample.values[2], 0xffffffffu);
    EXPECT_EQ(sample.values[3], 0u);
    EXPECT_EQ(sample.values[25], 0x9727dd16u);
    for (const uint16_t length : sample.lengths) EXPECT_EQ(length, 1);
  }
}

// Lines to be scored, with the label and without it, which must not move a column.
TEST(TableReaderTest, LabelsThatAreNotReadNeedNotBeThere) {
  TableSchema schema = CriteoSchema({"/d/log.csv"});
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto labelled, ReadText(schema, CriteoLine() + "\n"));
  schema.reads_labels = false;
  const std::string line = CriteoLine();
  const std::string unlabelled = line.substr(line.find('\t') + 1);
  for (const std::string& text : {line, CriteoLine("what"), CriteoLine(""), unlabelled}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto found,
                                ReadText(schema, absl::StrCat(text, "\n", text, "\n\n")));
    ASSERT_EQ(found.size(), 2u) << text;
    for (const Sample& sample : found) {
      EXPECT_EQ(sample.dense, labelled[0].dense) << text;
      EXPECT_EQ(sample.values, labelled[0].values) << text;
      EXPECT_EQ(sample.lengths, labelled[0].lengths) << text;
    }
  }
  EXPECT_THAT(ReadText(schema, "1\t2\n"), StatusIs(kInvalid, HasSubstr("/d/log.csv:1: 2 columns")));
  EXPECT_THAT(ReadText(schema, unlabelled + "\n" + line + "\n"),
              StatusIs(kInvalid, HasSubstr("/d/log.csv:2: 40 columns, expected 39")));
  EXPECT_THAT(ReadText(schema, "\n"), StatusIs(kInvalid, HasSubstr("the file is empty")));

  // Each line is to have a score: `paste` joins them.
  for (const char* const blanks : {"\n", "\n\n"}) {
    EXPECT_THAT(ReadText(schema, absl::StrCat(blanks, unlabelled, "\n")),
                StatusIs(kInvalid, HasSubstr("/d/log.csv:1: the line is blank")));
    EXPECT_THAT(ReadText(schema, absl::StrCat(unlabelled, "\n", blanks, unlabelled, "\n")),
                StatusIs(kInvalid, HasSubstr("/d/log.csv:2: the line is blank")));
  }
  TableSchema one = SchemaOf(R"({"name": "x", "role": "categorical", "separator": " "})");
  one.reads_labels = false;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto bags, ReadText(one, "x\na b\n\nc\n"));
  ASSERT_EQ(bags.size(), 3u);
  EXPECT_EQ(bags[1].lengths[0], 0);

  // With a header: a column that a feature reads, too, stays one.
  TableSchema two = SchemaOf(R"({"name": "x", "role": "dense"},
                                {"name": "of_y", "column": "y", "role": "dense"})");
  two.reads_labels = false;
  EXPECT_THAT(UnlabelledColumns(two), ElementsAre("x", "y"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto samples, ReadText(two, "z,x,y\n9,5,1\n"));
  EXPECT_THAT(samples[0].dense, ElementsAre(5, 1));
  EXPECT_THAT(ReadText(two, "x\n5\n"), StatusIs(kInvalid, HasSubstr("no column \"y\"")));
}

TEST(TableReaderTest, BadCriteoLinesNameFileLineAndColumn) {
  const TableSchema schema = CriteoSchema({});
  const std::string good = CriteoLine() + "\n";
  const auto replaced = [](std::string_view from, std::string_view to) {
    std::string line = CriteoLine();
    line.replace(line.find(from), from.size(), to);
    return line;
  };
  struct Case {
    std::string line;
    const char* message;
  };
  const Case cases[] = {
      {CriteoLine().substr(0, CriteoLine().rfind('\t')),
       "39 columns, expected 40 separated by TAB: label, I1, I2, "},
      {CriteoLine() + "\t", "41 columns, expected 40 separated by TAB"},
      {"1,2,3", "1 column, expected 40 separated by TAB"},
      {replaced("1382", "13x2"), "column 6 (I5): found \"13x2\", expected a number"},
      {replaced("1382", "nan"), "column 6 (I5): found \"nan\""},
      {replaced("1382", "inf"), "column 6 (I5): found \"inf\""},
      {replaced("1382", "1e39"), "column 6 (I5): found \"1e39\""},
      {replaced("1382", "1e999"), "column 6 (I5): found \"1e999\""},
      {replaced("1382", " 1"), "column 6 (I5): found \" 1\""},
      {replaced("1382", "-"), "column 6 (I5): found \"-\""},
      {replaced("68fd1e64", "68fd1g64"),
       "column 15 (C1): found \"68fd1g64\", expected 1 to 16 hex"},
      {replaced("68fd1e64", "-8fd1e64"), "column 15 (C1): found \"-8fd1e64\""},
      {replaced("9727dd16", "9727dd169727dd169"), "column 40 (C26): found \"9727dd169727dd169\""},
      {CriteoLine("2"), "column 1 (label): found \"2\", expected the label, 0 or 1"},
      {CriteoLine(""), "column 1 (label): found \"\""},
      {CriteoLine("1.5"), "column 1 (label): found \"1.5\""},
      {CriteoLine("01"), "column 1 (label): found \"01\""},
      {replaced("1382", std::string("13\0", 3)), "a byte of value zero at position 13"},
      {std::string(1000, '\0'), "a byte of value zero at position 1;"},
      // Both are wrong; the number of columns explains more.
      {replaced("1382", "x") + "\t7", "41 columns"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(ReadText(schema, good + good + c.line + "\n" + good),
                StatusIs(kInvalid, AllOf(HasSubstr("/d/log.csv:3: "), HasSubstr(c.message))))
        << c.message;
  }
}

TEST(TableReaderTest, FilesThatHoldNothingAreErrors) {
  const TableSchema criteo = CriteoSchema({});
  EXPECT_THAT(ReadText(criteo, ""),
              StatusIs(kInvalid, HasSubstr("/d/log.csv: the file is empty, expected samples")));
  EXPECT_THAT(ReadText(criteo, "\n\r\n"), StatusIs(kInvalid, HasSubstr("the file is empty")));
  const TableSchema named = SchemaOf(R"({"name": "x", "role": "dense"})");
  EXPECT_THAT(ReadText(named, ""), StatusIs(kInvalid, HasSubstr("expected a header line")));
  EXPECT_THAT(ReadText(named, "y,x\r\n"),
              StatusIs(kInvalid, HasSubstr("samples after the header")));
  EXPECT_THAT(ReadText(named, Gzip("")), StatusIs(kInvalid, HasSubstr("the file is empty")));
}

TEST(TableReaderTest, ZerosWithoutALineEndAreAnErrorWithAPlace) {
  EXPECT_THAT(ReadText(CriteoSchema({}), CriteoLine() + "\n" + std::string(20 << 20, '\0')),
              StatusIs(kInvalid, HasSubstr("/d/log.csv:2: the line is longer than")));
}

TEST(TableReaderTest, MissingFilesAreNamedAndGzIsTriedToo) {
  MemEnv env;
  const TableSchema schema = CriteoSchema({});
  EXPECT_THAT(ReadAll(schema, {"/d/day_0"}, env),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/d/day_0: no such file, nor")));
  WriteFileOrDie(env, "/d/day_0.gz", Gzip(CriteoLine()));
  EXPECT_EQ(ReadAll(schema, {"/d/day_0"}, env)->size(), 1u);
  const std::string gzip = Gzip(CriteoLine());
  WriteFileOrDie(env, "/d/day_0.gz", gzip.substr(0, gzip.size() - 3));
  EXPECT_THAT(ReadAll(schema, {"/d/day_0"}, env),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("/d/day_0.gz: "), HasSubstr("truncated"))));
}

TEST(TableReaderTest, ColumnsAreFoundByNameInEachFile) {
  const TableSchema schema = SchemaOf(R"(
      {"name": "a", "role": "categorical", "key": "integer"},
      {"name": "bag", "role": "categorical", "key": "integer", "separator": "|"},
      {"name": "b", "role": "categorical", "key": "integer"},
      {"name": "d", "role": "dense"},
      {"name": "a_range", "column": "a", "role": "categorical", "key": "bucket",
       "boundaries": [5]})");
  MemEnv env;
  WriteFileOrDie(env, "/1", "\xEF\xBB\xBFy,a,bag,b,d\n1,7,1|2,8,0.5\n0,4,,9,-1e3\n");
  WriteFileOrDie(env, "/2", "unused,d,b,y,bag,a\r\nx,0.25,18,1,3||4|,17\r\n");
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto samples, ReadAll(schema, {"/1", "/2"}, env));
  ASSERT_EQ(samples.size(), 3u);
  EXPECT_THAT(samples[0].values, ElementsAre(7, 1, 2, 8, 1));
  EXPECT_THAT(samples[0].lengths, ElementsAre(1, 2, 1, 1));
  EXPECT_THAT(samples[0].dense, ElementsAre(0.5f));
  EXPECT_THAT(samples[1].values, ElementsAre(4, 9, 0));
  EXPECT_THAT(samples[1].lengths, ElementsAre(1, 0, 1, 1));
  EXPECT_THAT(samples[1].dense, ElementsAre(-1000.f));
  EXPECT_THAT(samples[2].values, ElementsAre(17, 3, 4, 18, 1));
  EXPECT_THAT(samples[2].lengths, ElementsAre(1, 2, 1, 1));
  EXPECT_EQ(samples[1].label, 0);
  EXPECT_EQ(samples[2].label, 1);
}

// Whether there is a header or not, and however the first line is cut.
TEST(TableReaderTest, AByteOrderMarkIsNoPartOfTheFirstLine) {
  MemEnv env;
  WriteFileOrDie(env, "/1",
                 "\xEF\xBB\xBF"
                 "1,7\n0,8\n");
  TableSchema schema = SchemaOf(R"({"name": "a", "role": "categorical", "key": "integer"})");
  schema.header = false;
  schema.column_names = {"y", "a"};
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto samples, ReadAll(schema, {"/1"}, env));
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].label, 1);
  EXPECT_THAT(samples[0].values, ElementsAre(7));
  EXPECT_EQ(samples[1].label, 0);
  LineReader only_mark(NewMemoryStream("\xEF\xBB\xBF"));
  std::string_view line;
  EXPECT_FALSE(only_mark.Next(&line));
  // It is one at the beginning alone.
  LineReader later(
      NewMemoryStream("a\n\xEF\xBB\xBF"
                      "b"));
  EXPECT_TRUE(later.Next(&line) && later.Next(&line));
  EXPECT_EQ(line,
            "\xEF\xBB\xBF"
            "b");
}

TEST(TableReaderTest, AbsentAndDoubleColumnsAreErrors) {
  const TableSchema schema = SchemaOf(R"({"name": "price", "role": "dense"})");
  EXPECT_THAT(ReadText(schema, "y,prize\n1,2\n"),
              StatusIs(kInvalid, HasSubstr("/d/log.csv:1: there is no column \"price\", which the "
                                           "schema names; there are: y, prize")));
  EXPECT_THAT(ReadText(schema, "y,price,price\n1,2,3\n"),
              StatusIs(kInvalid, HasSubstr("/d/log.csv:1: there are two columns \"price\"")));
  EXPECT_THAT(ReadText(schema, "1,2\n"),
              StatusIs(kInvalid, HasSubstr("; the first line must name the columns")));
  TableSchema without_header = schema;
  without_header.header = false;
  without_header.column_names = {"y", "x"};
  EXPECT_THAT(ReadText(without_header, "1,2\n"),
              StatusIs(kInvalid, HasSubstr("there is no column \"price\"")));
}

TEST(TableReaderTest, DenseTransforms) {
  EXPECT_EQ(*ReadDense("none", "1382"), 1382);
  EXPECT_EQ(*ReadDense("none", "-0.5e1"), -5);
  EXPECT_EQ(*ReadDense("none", ""), 0);
  EXPECT_EQ(*ReadDense("none", "340282346638528859811704183484516925440"), FLT_MAX);
  EXPECT_EQ(*ReadDense("none", "123456789012345678901234"), 123456789012345678901234.f);
  for (const double x : {0., 1., 4093., 4094., 4095., 4096., 1e6, 0.5, -0.25}) {
    EXPECT_FLOAT_EQ(*ReadDense("log(x+3)", absl::StrCat(x)), static_cast<float>(std::log(x + 3)));
    EXPECT_FLOAT_EQ(*ReadDense("log1p", absl::StrCat(x)),
                    x < 0 ? 0 : static_cast<float>(std::log1p(x)));
  }
  EXPECT_FLOAT_EQ(*ReadDense("log(x+3)", "-1"), std::log(2.f));
  for (const char* low : {"-2", "-2.5", "-1000000", ""}) {
    EXPECT_EQ(*ReadDense("log(x+3)", low), 0) << low;
    EXPECT_EQ(*ReadDense("log1p", low), 0) << low;
  }
  for (const char* bad : {"x", "1x", "0x10", "1 ", "+1", "--1", ".", "1e", "NaN", "-inf", "1,5"}) {
    EXPECT_THAT(ReadDense("none", bad), StatusIs(kInvalid, HasSubstr("/d/log.csv:2: "))) << bad;
  }
}

TEST(TableReaderTest, IntegerKeysReachAll64Bits) {
  const std::string integer = R"("key": "integer")";
  EXPECT_THAT(*ReadKeys(integer, "0"), ElementsAre(0));
  EXPECT_THAT(*ReadKeys(integer, "18446744073709551615"), ElementsAre(kLastKey));
  EXPECT_THAT(*ReadKeys(integer, "9999999999999999999"), ElementsAre(9999999999999999999ULL));
  EXPECT_THAT(*ReadKeys(integer, "-1"), ElementsAre(kLastKey));
  EXPECT_THAT(*ReadKeys(integer, "-9223372036854775808"), ElementsAre(uint64_t{1} << 63));
  EXPECT_THAT(*ReadKeys(integer, "0000000000000000000000007"), ElementsAre(7));
  EXPECT_THAT(*ReadKeys(integer, ""), IsEmpty());
  EXPECT_THAT(*ReadKeys(R"("key": "integer", "missing": 5)", ""), ElementsAre(5));
  for (const char* bad : {"18446744073709551616", "-9223372036854775809", "1.5", "x", "-", "1-"}) {
    EXPECT_THAT(ReadKeys(integer, bad),
                StatusIs(kInvalid, AllOf(HasSubstr("/d/log.csv:2: column 2 (x): found"),
                                         HasSubstr("a whole number of 64 bits"))))
        << bad;
  }
  // What helps.
  for (const auto& [text, remedy] : std::vector<std::pair<const char*, const char*>>{
           {"nan", "; \"missing_values\" in the schema"},
           {" 7", "; \"trim\": true in the schema"},
           {"1e+05", "; it was written as a float"},
           {"1.8446744073709552e+19", "; it was written as a float"},
           {"x", "second header"},
           {"7a", "\"hex\" in the schema"}}) {
    EXPECT_THAT(ReadKeys(integer, text), StatusIs(kInvalid, HasSubstr(remedy))) << text;
  }
  EXPECT_THAT(*ReadKeys(R"("key": "integer", "num_embeddings": 10)", "9"), ElementsAre(9));
  EXPECT_THAT(ReadKeys(R"("key": "integer", "num_embeddings": 10)", "10"),
              StatusIs(kInvalid, HasSubstr("column 2 (x): found \"10\", expected a key below 10")));
  EXPECT_THAT(*ReadKeys(R"("key": "integer", "modulo": 10)", "18446744073709551615"),
              ElementsAre(5));
}

TEST(TableReaderTest, HexHashAndBucketKeys) {
  const std::string hex = R"("key": "hex")";
  EXPECT_THAT(*ReadKeys(hex, "0"), ElementsAre(0));
  EXPECT_THAT(*ReadKeys(hex, "aBcDeF09"), ElementsAre(0xabcdef09u));
  EXPECT_THAT(*ReadKeys(hex, "ffffffffffffffff"), ElementsAre(kLastKey));
  for (const char* bad : {"fffffffffffffffff", "0x", "g", " 1", "-1"}) {
    EXPECT_THAT(ReadKeys(hex, bad), StatusIs(kInvalid, HasSubstr("hexadecimal"))) << bad;
  }
  const std::string hash = R"("key": "hash")";
  EXPECT_THAT(*ReadKeys(hash, "hello"), ElementsAre(HashText("hello")));
  EXPECT_THAT(*ReadKeys(hash, " hello"), ElementsAre(HashText(" hello")));
  EXPECT_THAT(*ReadKeys(R"("modulo": 1000)", "hello"), ElementsAre(HashText("hello") % 1000));
  EXPECT_THAT(*ReadKeys(R"("modulo": 1)", "hello"), ElementsAre(0));

  const std::string bucket = R"("key": "bucket", "boundaries": [-1, 0, 2.5])";
  for (const auto& [text, key] :
       {std::pair("-7", 0), std::pair("-1", 1), std::pair("-0.5", 1), std::pair("0", 2),
        std::pair("2.4", 2), std::pair("2.5", 3), std::pair("1e300", 3)}) {
    EXPECT_THAT(*ReadKeys(bucket, text), ElementsAre(key)) << text;
  }
  EXPECT_THAT(ReadKeys(bucket, "nan"), StatusIs(kInvalid, HasSubstr("expected a number")));
}

TEST(TableReaderTest, Bags) {
  const std::string bag = R"("separator": "|")";
  EXPECT_THAT(*ReadKeys(bag, "Action|Drama"), ElementsAre(HashText("Action"), HashText("Drama")));
  EXPECT_THAT(*ReadKeys(bag, "a|a"), ElementsAre(HashText("a"), HashText("a")));
  EXPECT_THAT(*ReadKeys(bag, "||a||"), ElementsAre(HashText("a")));
  EXPECT_THAT(*ReadKeys(bag, ""), IsEmpty());
  EXPECT_THAT(*ReadKeys(bag, "|||"), IsEmpty());
  EXPECT_THAT(*ReadKeys(R"("separator": "|", "missing": 7)", "||"), ElementsAre(7));
  EXPECT_EQ(ReadKeys(R"("separator": "|", "max_hotness": 2)", "a|b|")->size(), 2u);
  EXPECT_THAT(ReadKeys(R"("separator": "|", "max_hotness": 2)", "a|b|c"),
              StatusIs(kInvalid, HasSubstr("found \"a|b|c\", expected at most 2 values")));
  std::string many;
  for (int i = 0; i < 65'535; ++i) many += "a|";
  EXPECT_EQ(ReadKeys(bag, many)->size(), 65'535u);
  EXPECT_THAT(ReadKeys(bag, many + "a"), StatusIs(kInvalid, HasSubstr("at most 65535 values")));
}

TEST(TableReaderTest, FieldsOfASampleAreOneBag) {
  TableSchema schema = SchemaOf(
      R"({"name": "x", "role": "categorical", "separator": "|", "max_hotness": 3, "missing": 7})");
  size_t read = 0;
  const auto keys = [&](const std::vector<std::string>& fields) {
    return KeysOfFields(schema, fields, &read);
  };
  EXPECT_THAT(*keys({"a|b", "", "c"}), ElementsAre(HashText("a"), HashText("b"), HashText("c")));
  EXPECT_THAT(*keys({}), ElementsAre(7));
  EXPECT_THAT(*keys({"", "|"}), ElementsAre(7));
  EXPECT_THAT(keys({"a|b", "c|d"}), StatusIs(kInvalid, HasSubstr("at most 3 values")));
  EXPECT_EQ(read, 1u);
  EXPECT_THAT(keys({"a", std::string("b\0", 2)}), StatusIs(kInvalid, HasSubstr("value zero")));
  EXPECT_THAT(*keys({" a"}), ElementsAre(HashText(" a")));
  schema.trim = true;
  EXPECT_THAT(*keys({" a"}), ElementsAre(HashText("a")));
}

TEST(TableReaderTest, LabelsAreMappedAndDropped) {
  TableSchema schema = SchemaOf(R"({"name": "x", "role": "dense"})");
  schema.labels[0].values = {
      {"yes", LabelValue::kOne}, {"", LabelValue::kZero}, {"3", LabelValue::kDrop}};
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto samples, ReadText(schema, "y,x\nyes,1\n3,2\n,3\n3,4\n"));
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].label, 1);
  EXPECT_EQ(samples[1].label, 0);
  EXPECT_THAT(samples[1].dense, ElementsAre(3));
  EXPECT_THAT(
      ReadText(schema, "y,x\n1,1\n"),
      StatusIs(kInvalid, HasSubstr("column 1 (y): found \"1\", expected a label: \"yes\" or "
                                   "\"\" or \"3\"")));
  // A dropped line is still checked.
  EXPECT_THAT(ReadText(schema, "y,x\n3,oops\n"), StatusIs(kInvalid, HasSubstr("column 2 (x)")));
}

TEST(TableReaderTest, TrimTakesBlanksOff) {
  TableSchema schema = SchemaOf(
      R"({"name": "x", "role": "dense"}, {"name": "t", "role": "categorical", "separator": "|"})");
  schema.trim = true;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto samples,
                              ReadText(schema, "y , x, t\n 1,\t2 , a b | c\n0, , \n"));
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_THAT(samples[0].dense, ElementsAre(2));
  EXPECT_THAT(samples[0].values, ElementsAre(HashText("a b"), HashText("c")));
  EXPECT_THAT(samples[1].dense, ElementsAre(0));
  EXPECT_THAT(samples[1].values, IsEmpty());
}

}  // namespace
}  // namespace hotrow
