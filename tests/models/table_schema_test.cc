#include "models/data/table_schema.h"

#include <tuple>
#include <utility>

#include "base/hash.h"
#include "models/data/table_schema_text.h"
#include "models/data/table_source.h"
#include "models/json/quote.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(TableSchemaTest, EveryFieldIsRead) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const TableSchema schema, ParseTableSchema(R"({
    "name": "shop",
    "delimiter": "\t",
    "trim": true,
    "header": ["click", "price", "user", "words"],
    "files": {"train": ["a.tsv", "/abs/b.tsv.gz"], "valid": ["v"], "test": ["t"]},
    "columns": [
      {"name": "click", "role": "label", "values": {"yes": 1, "no": 0, "?": "drop"}},
      {"name": "cost", "column": "price", "role": "dense", "transform": "log1p"},
      {"name": "price", "role": "dense"},
      {"name": "range", "column": "price", "role": "categorical", "key": "bucket",
       "boundaries": [-1, 2.5, 10]},
      {"name": "user", "role": "categorical", "key": "integer", "table": "people",
       "num_embeddings": 1000, "missing": 0},
      {"name": "words", "role": "categorical", "separator": " ", "max_hotness": 5, "modulo": 100,
       "missing": 18446744073709551615}
    ]})",
                                                                         "/data/shop.json"));
  EXPECT_EQ(schema.name, "shop");
  EXPECT_EQ(schema.delimiter, "\t");
  EXPECT_TRUE(schema.trim);
  EXPECT_FALSE(schema.header);
  EXPECT_THAT(schema.column_names, ElementsAre("click", "price", "user", "words"));
  EXPECT_THAT(schema.files[0], ElementsAre("/data/a.tsv", "/abs/b.tsv.gz"));
  EXPECT_THAT(schema.files[1], ElementsAre("/data/v"));
  EXPECT_THAT(schema.files[2], ElementsAre("/data/t"));
  EXPECT_EQ(schema.modulo, 0);
  EXPECT_EQ(schema.labels[0].column, "click");
  EXPECT_EQ(schema.labels[0].values.size(), 3u);
  ASSERT_EQ(schema.dense.size(), 2u);
  EXPECT_EQ(schema.dense[0].name, "cost");
  EXPECT_EQ(schema.dense[0].column, "price");
  EXPECT_EQ(schema.dense[0].transform, DenseTransform::kLogPlus1);
  EXPECT_EQ(schema.dense[1].transform, DenseTransform::kNone);
  ASSERT_EQ(schema.categorical.size(), 3u);
  EXPECT_EQ(schema.categorical[0].key, KeyKind::kBucket);
  EXPECT_THAT(schema.categorical[0].boundaries, ElementsAre(-1, 2.5, 10));
  EXPECT_EQ(schema.categorical[1].table, "people");
  EXPECT_EQ(schema.categorical[1].missing_key, 0u);
  EXPECT_EQ(schema.categorical[2].key, KeyKind::kHash);
  EXPECT_EQ(schema.categorical[2].separator, ' ');
  EXPECT_EQ(schema.categorical[2].missing_key, ~uint64_t{0});

  const DataSchema data = DataSchemaOf(schema);
  EXPECT_EQ(data.name, "shop");
  EXPECT_EQ(data.num_dense, 2);
  ASSERT_EQ(data.features.size(), 3u);
  EXPECT_EQ(data.features[0].num_embeddings, 4);
  EXPECT_EQ(data.features[0].max_hotness, 1);
  EXPECT_EQ(data.features[1].num_embeddings, 1000);
  EXPECT_EQ(data.features[1].table, "people");
  EXPECT_EQ(data.features[2].num_embeddings, 0);  // the missing key bounds nothing
  EXPECT_EQ(data.features[2].max_hotness, 5);
}

constexpr const char* kColumns = R"("columns": [{"name": "y", "role": "label"},
                                                {"name": "x", "role": "dense"}])";

TEST(TableSchemaTest, SplitByRemainder) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const TableSchema schema,
                              ParseTableSchema(absl::StrCat(R"({"files": ["all.csv"],
          "split": {"modulo": 5, "valid": [4], "test": [0, 2]}, )",
                                                            kColumns, "}"),
                                               "s.json"));
  EXPECT_EQ(schema.name, "s.json");
  EXPECT_EQ(schema.delimiter, ",");
  EXPECT_TRUE(schema.header);
  EXPECT_THAT(schema.files[0], ElementsAre("all.csv"));
  EXPECT_EQ(schema.modulo, 5);
  EXPECT_THAT(schema.split_of,
              ElementsAre(Split::kTest, Split::kTrain, Split::kTest, Split::kTrain, Split::kValid));
}

TEST(TableSchemaTest, MissingKeysWidenTheTable) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const TableSchema schema,
                              ParseTableSchema(R"({"files": {"train": ["a"]}, "columns": [
        {"name": "y", "role": "label"},
        {"name": "a", "role": "categorical", "modulo": 10, "missing": 10},
        {"name": "b", "role": "categorical", "modulo": 10, "missing": 3},
        {"name": "c", "role": "categorical", "key": "bucket", "boundaries": [0], "missing": 2}]})",
                                               "s.json"));
  const DataSchema data = DataSchemaOf(schema);
  EXPECT_EQ(data.features[0].num_embeddings, 11);
  EXPECT_EQ(data.features[1].num_embeddings, 10);
  EXPECT_EQ(data.features[2].num_embeddings, 3);
}

TEST(TableSchemaTest, ErrorsNameFileFieldFoundAndExpected) {
  struct Case {
    std::string json;
    const char* message;
  };
  const auto with = [](std::string_view root) {
    return absl::StrCat("{", std::string(root), ", ", kColumns, "}");
  };
  const auto column = [](std::string_view fields) {
    return absl::StrCat(R"({"files": {"train": ["a"]}, "columns": [{"name": "y", "role": "label"},
                            {"name": "x", )",
                        std::string(fields), "}]}");
  };
  const auto category = [&](std::string_view fields) {
    return column(absl::StrCat(R"("role": "categorical", )", std::string(fields)));
  };
  const std::string files = R"("files": {"train": ["a"]})";
  const Case cases[] = {
      {"", "is no schema in JSON (docs/formats/table_schema.md): parse error at line 1, column 1"},
      {"{\"files\": [\n]\n,}", "parse error at line 3, column 2"},
      {"\xff", "parse error"},
      {"[]", "found [], expected an object"},
      {"{}", "\"files\" is missing"},
      {with(R"("file": ["a"])"),
       "unknown key \"file\"; known: name, trim, delimiter, header, files"},
      {with(R"("files": {"train": ["a"], "tset": ["b"]})"), "files: unknown key \"tset\""},
      {with(R"("files": {"valid": ["a"]})"), "files: \"train\" is missing"},
      {with(R"("files": {"train": "a"})"), "\"train\": found \"a\", expected a list of strings"},
      {with(R"("files": {"train": []})"), "\"train\": found []"},
      {with(R"("files": {"train": [""]})"), "\"train\": found [\"\"]"},
      {with(R"("files": ["a"])"), "\"split\" says which samples go where"},
      {with(files + R"(, "split": {"modulo": 2})"), "\"split\" says which samples go where"},
      {with(R"("files": ["a"], "split": {"valid": [1]})"), "split: \"modulo\" is missing"},
      {with(R"("files": ["a"], "split": {"modulo": 0})"), "\"modulo\": found 0"},
      {with(R"("files": ["a"], "split": {"modulo": 5000000})"), "\"modulo\" is above 1000000"},
      {with(R"("files": ["a"], "split": {"modulo": 2, "valid": [2]})"), "\"valid\": found [2]"},
      {with(R"("files": ["a"], "split": {"modulo": 2, "valid": [1], "test": [1]})"),
       "\"test\": found [1]"},
      {with(files + R"(, "delimiter": "123456789")"),
       "\"delimiter\": found \"123456789\", expected 1 to 8 characters that end no line"},
      {with(files + R"(, "delimiter": "\n")"), "\"delimiter\": found \"\\n\""},
      {with(files + R"(, "delimiter": 9)"), "\"delimiter\": found 9"},
      {with(files + R"(, "header": false)"),
       "\"header\": found false, expected true, or the names"},
      {with(files + R"(, "header": ["y", "x", "y"])"), "\"header\" names \"y\" twice"},
      {with(files + R"(, "trim": 1)"), "\"trim\": found 1, expected true or false"},
      {with(files + R"(, "name": 1)"), "\"name\": found 1, expected a string"},
      {"{" + files + "}", "\"columns\" is missing"},
      {"{" + files + R"(, "columns": 3})", "\"columns\": found 3, expected a list"},
      {"{" + files + R"(, "columns": [3]})", "columns[0]: found 3, expected an object"},
      {"{" + files + R"(, "columns": []})", "no column has the role \"label\""},
      {"{" + files + R"(, "columns": [{"name": "y", "role": "label"}]})", "there is no feature"},
      {column(R"("rol": "dense")"), "columns[1]: \"role\" is missing"},
      {column(R"("role": "denses")"), "columns[1]: \"role\": found \"denses\", expected \"categ"},
      {column(R"("role": "dense", "transform": "sqrt")"),
       "\"transform\": found \"sqrt\", expected \"log(x+3)\" or \"log1p\" or \"none\""},
      {column(R"("role": "dense", "key": "hash")"), "columns[1]: unknown key \"key\""},
      {category(R"("tabel": "t")"), "columns[1]: unknown key \"tabel\"; known: name, column, role"},
      {category(R"("key": "int")"), "\"key\": found \"int\""},
      {category(R"("modulo": -5)"), "\"modulo\": found -5, expected a whole number of at least 1"},
      {category(R"("modulo": 1.5)"), "\"modulo\": found 1.5"},
      {category(R"("modulo": 18446744073709551615)"), "\"modulo\" is above 2^63 - 1"},
      {category(R"("missing": "x")"), "\"missing\": found \"x\""},
      {category(R"("table": "")"), "\"table\" is empty"},
      {category(R"("boundaries": [1])"), "\"boundaries\" and \"key\": \"bucket\" belong together"},
      {category(R"("key": "bucket")"), "\"boundaries\" and \"key\": \"bucket\" belong together"},
      {category(R"("key": "bucket", "boundaries": [1, 1])"), "must be finite and ascend"},
      {category(R"("key": "bucket", "boundaries": [1, "2"])"), "expected a list of numbers"},
      {category(R"("key": "bucket", "boundaries": [1], "modulo": 3)"), "does not go with"},
      {category(R"("max_hotness": 2)"), "\"max_hotness\" above 1 needs a \"separator\""},
      {category(R"("max_hotness": 70000, "separator": "|")"), "\"max_hotness\" is above 65535"},
      {category(R"("separator": ",")"), "\"separator\" is the delimiter"},
      {with(files + R"(, "delimiter": "\"")"), "\"delimiter\" holds a quote"},
      {with(files + R"(, "missing_values": "nan")"),
       "\"missing_values\": found \"nan\", expected a"},
      {category(R"("part": "hour")"), "\"time_format\" is missing, such as \"iso8601\""},
      {category(R"("part": "hours", "time_format": "unix")"),
       "\"part\": found \"hours\", expected \"day\" or \"hour\" or \"month\""},
      {category(R"("time_format": "unix")"), "\"time_format\" needs \"part\" beside it"},
      {category(R"("part": "day", "key": "hash", "time_format": "unix")"),
       "no \"key\" is given beside it"},
      {category(R"("part": "day", "time_format": "YYMMDDHH")"),
       "\"time_format\": found \"YYMMDDHH\": it has no date; expected \"iso8601\""},
      {category(R"("part": "day", "time_format": "%y%m%j")"), "%j is not known; known: %Y"},
      {category(R"("part": "day", "time_format": "%y%Y%m%d")"), "%Y twice"},
      {category(R"("part": "hour", "time_format": "%y%m%d")"), "\"time_format\" has no hour (%H)"},
      {category(R"("part": "day", "time_format": "unix", "modulo": 5)"), "follows from \"part\""},
      {category(R"("unknown": 3)"), "\"unknown\" is the key of rare values and needs"},
      {category(R"("min_count": 0)"), "\"min_count\": found 0, expected a whole number"},
      {R"({"files": {"train": ["a"]}, "columns": [{"name": "y", "role": "label"},
          {"name": "a", "role": "categorical", "table": "t", "min_count": 3},
          {"name": "b", "role": "categorical", "table": "t"}]})",
       "columns \"a\" and \"b\" share table \"t\" and must have the same \"min_count\""},
      {R"({"files": {"train": ["a"]}, "columns": [{"name": "y", "role": "label", "positive": "4"},
          {"name": "x", "role": "dense"}]})",
       "\"positive\": found \"4\", expected a comparison such as \">= 4\""},
      {R"({"files": {"train": ["a"]}, "columns": [{"name": "y", "role": "label", "negative": "<4"},
          {"name": "x", "role": "dense"}]})",
       "\"negative\" needs \"positive\" beside it"},
      {R"({"files": {"train": ["a"]}, "columns": [{"name": "y", "role": "label", "otherwise": 0},
          {"name": "x", "role": "dense"}]})",
       "\"otherwise\" needs \"values\" beside it"},
      {R"({"files": {"train": ["a"]}, "columns": [{"name": "y", "role": "label", "values": {"a": 1},
          "otherwise": 2}, {"name": "x", "role": "dense"}]})",
       "\"otherwise\": found 2, expected 0, 1 or \"drop\""},
      {R"({"files": {"train": ["a"]}, "columns": [{"name": "y", "role": "label"},
          {"name": "y", "role": "label"}, {"name": "x", "role": "dense"}]})",
       "two labels have the name \"y\""},
      {category(R"("num_embeddings": 5, "missing": 5)"), "\"missing\" is not below"},
      {category(R"("num_embeddings": 5, "modulo": 5)"), "follows from \"modulo\""},
      {category(R"("num_embeddings": 9223372036854775808)"), "\"num_embeddings\" is too large"},
      {R"({"files": {"train": ["a"]}, "columns": [{"role": "label"}]})", "\"name\" is missing"},
      {R"({"files": {"train": ["a"]}, "columns": [{"name": "y", "role": "label", "values": {"a": 2}},
          {"name": "x", "role": "dense"}]})",
       "\"values\": found {\"a\":2}, expected texts, each with 0, 1 or \"drop\""},
      {R"({"files": {"train": ["a"]}, "columns": [{"name": "y", "role": "label"},
          {"name": "x", "role": "dense"}, {"name": "x", "role": "categorical"}]})",
       "two features have the name \"x\""},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(ParseTableSchema(c.json, "/d/s.json"),
                StatusIs(kInvalid, AllOf(HasSubstr("/d/s.json: "), HasSubstr(c.message))))
        << c.json;
  }
}

// The hash is part of what a table's rows mean, so its values must not change.
TEST(TableSchemaTest, HashOfTextIsFixed) {
  EXPECT_EQ(HashText(""), 0u);
  const std::string text = "Children's";
  EXPECT_EQ(HashText(text), HashBytes(0, 0, std::as_bytes(std::span(text.data(), text.size()))).lo);
  EXPECT_NE(HashText("a"), HashText("b"));
  // The second word of MurmurHash3_x64_128 with seed 0.
  EXPECT_EQ(HashText("hello"), 0x5b1e906a48ae1d19ULL);
}

// The vectors of docs/serving.md, for those who make keys in other languages. By a program in
// Python that was written after the paper of the hash.
TEST(TableSchemaTest, HashOfTextHasPublishedVectors) {
  const std::pair<const char*, uint64_t> kVectors[] = {
      {"", 0u},
      {"a", 16624257681780017498u},
      {"3", 3194112165467113986u},
      {"3.0", 2354221309552578921u},
      {"Action", 7893902984565899329u},
      {"Children's", 8102767448082583225u},
      {"user-12345", 6375746115142806359u},
      {"exactly16bytes!!", 15337115071762439473u},
      {"a text that is longer than two blocks of it", 10378819437474601414u},
      {"Zürich", 8377683321884643615u},
      {"寿司", 7403032896867774608u},
  };
  for (const auto& [text, hash] : kVectors) EXPECT_EQ(HashText(text), hash) << text;
}

// What a model keeps of a schema brings it back, with anything in it.
TEST(TableSchemaTest, TheTextOfASchemaIsReadBack) {
  constexpr char kAll[] = R"json({
    "name": "all", "delimiter": "::", "quotes": false, "trim": true,
    "header": ["a", "b", "c", "d", "e", "f"], "missing_values": ["nan", "-"],
    "files": ["x.csv"], "split": {"modulo": 5, "test": [0]},
    "columns": [
      {"name": "y", "column": "a", "role": "label", "values": {"1": 1, "2": 0, "3": "drop"},
       "otherwise": 0},
      {"name": "z", "column": "a", "role": "label", "positive": ">= 4.125", "negative": "!= 1e-7"},
      {"name": "b", "role": "dense", "transform": "log(x+3)"},
      {"name": "b1", "column": "b", "role": "dense", "transform": "log1p"},
      {"name": "b2", "column": "b", "role": "dense"},
      {"name": "c", "role": "categorical", "key": "integer", "num_embeddings": 9, "missing": 0},
      {"name": "c1", "column": "c", "role": "categorical", "key": "hex", "table": "c2",
       "modulo": 9223372036854775807},
      {"name": "d", "role": "categorical", "separator": " ", "max_hotness": 9, "min_count": 4,
       "unknown": 18446744073709551615, "missing": 18446744073709551614},
      {"name": "e", "role": "categorical", "key": "bucket", "boundaries": [-1, 0.1, 1e300]},
      {"name": "f", "role": "categorical", "part": "weekend", "time_format": "%d.%m.%Y %%"},
      {"name": "f1", "column": "f", "role": "categorical", "part": "month",
       "time_format": "iso8601"}
    ]})json";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TableSchema all, ParseTableSchema(kAll, "/d/s.json"));
  TableSchema silent = all;  // about quotes
  silent.quotes = Quotes::kNotSaid;
  for (const TableSchema& schema :
       {all, silent, FrappeSchema("/f"), MovieLensSchema({"/m"}), MovieLensTasksSchema({"/m"}),
        CensusSchema({"/c"}), CensusTasksSchema({"/c"}), CriteoSchema({"/c"})}) {
    const std::string text = TableSchemaText(schema);
    EXPECT_THAT(text, Not(AnyOf(HasSubstr("files"), HasSubstr("split"), HasSubstr("\n"))));
    HOTROW_ASSERT_OK_AND_ASSIGN(const TableSchema back, ParseTableSchemaText(text, "a model"));
    EXPECT_EQ(TableSchemaText(back), text);
    EXPECT_EQ(back.name, schema.name);
    EXPECT_EQ(back.delimiter, schema.delimiter);
    EXPECT_EQ(back.quotes, schema.quotes);
    EXPECT_EQ(back.trim, schema.trim);
    EXPECT_EQ(back.header, schema.header);
    EXPECT_EQ(back.column_names, schema.column_names);
    EXPECT_EQ(back.missing_values, schema.missing_values);
    ASSERT_EQ(back.labels.size(), schema.labels.size());
    for (size_t i = 0; i < back.labels.size(); ++i) {
      const LabelColumn& a = back.labels[i];
      const LabelColumn& b = schema.labels[i];
      EXPECT_EQ(std::tie(a.name, a.column, a.values, a.otherwise),
                std::tie(b.name, b.column, b.values, b.otherwise));
      EXPECT_EQ(a.positive.has_value(), b.positive.has_value());
      if (a.positive.has_value() && b.positive.has_value()) {
        EXPECT_EQ(a.positive->op, b.positive->op);
        EXPECT_EQ(a.positive->bound, b.positive->bound);
        EXPECT_EQ(a.negative->op, b.negative->op);
        EXPECT_EQ(a.negative->bound, b.negative->bound);
      }
    }
    ASSERT_EQ(back.dense.size(), schema.dense.size());
    for (size_t i = 0; i < back.dense.size(); ++i) {
      EXPECT_EQ(back.dense[i].name, schema.dense[i].name);
      EXPECT_EQ(back.dense[i].column, schema.dense[i].column);
      EXPECT_EQ(back.dense[i].transform, schema.dense[i].transform);
    }
    ASSERT_EQ(back.categorical.size(), schema.categorical.size());
    for (size_t i = 0; i < back.categorical.size(); ++i) {
      const CategoricalColumn& a = back.categorical[i];
      const CategoricalColumn& b = schema.categorical[i];
      EXPECT_EQ(std::tie(a.name, a.column, a.table, a.key, a.modulo, a.boundaries, a.separator),
                std::tie(b.name, b.column, b.table, b.key, b.modulo, b.boundaries, b.separator));
      EXPECT_EQ(std::tie(a.missing_key, a.min_count, a.unknown, a.num_embeddings, a.max_hotness),
                std::tie(b.missing_key, b.min_count, b.unknown, b.num_embeddings, b.max_hotness));
      if (a.key == KeyKind::kTime) {
        EXPECT_EQ(a.part, b.part);
        EXPECT_EQ(a.time_format.text(), b.time_format.text());
      }
    }
  }
  EXPECT_THAT(ParseTableSchemaText(kAll, "a model"),
              StatusIs(kInvalid, HasSubstr("unknown key \"files\"")));
}

TEST(TableSchemaTest, QuotingCutsAndEscapes) {
  EXPECT_EQ(QuoteForMessage("a\t\x01 '\xff"), "\"a\\t\\x01 '\\xff\"");
  EXPECT_EQ(QuoteForMessage(std::string(41, 'x')),
            absl::StrCat("\"", std::string(40, 'x'), "\"..."));
}

TEST(TableSchemaTest, SchemasWeKnowAreValid) {
  const TableSchema frappe = FrappeSchema("/f");
  HOTROW_EXPECT_OK(frappe.Validate());
  EXPECT_THAT(frappe.files[2], ElementsAre("/f/test.csv"));
  EXPECT_EQ(DataSchemaOf(frappe).features.size(), 10u);
  EXPECT_EQ(DataSchemaOf(frappe).features[9].num_embeddings, 5382);
  EXPECT_EQ(DataSchemaOf(frappe).features[9].table, "city");

  const TableSchema movies = MovieLensSchema({"/m"});
  HOTROW_EXPECT_OK(movies.Validate());
  EXPECT_THAT(movies.files[0], ElementsAre("/m"));
  EXPECT_EQ(movies.modulo, 10);
  EXPECT_EQ(movies.split_of[8], Split::kValid);
  EXPECT_EQ(movies.split_of[9], Split::kTest);
  EXPECT_EQ(DataSchemaOf(movies).features.size(), 8u);
  EXPECT_THAT(movies.dense, IsEmpty());

  const TableSchema census = CensusSchema({"/c"});
  HOTROW_EXPECT_OK(census.Validate());
  EXPECT_EQ(census.column_names.size(), 42u);
  EXPECT_EQ(census.dense.size(), 7u);
  EXPECT_EQ(census.categorical.size(), 33u);

  const TableSchema tasks = CensusTasksSchema({"/c"});
  HOTROW_EXPECT_OK(tasks.Validate());
  EXPECT_EQ(tasks.categorical.size(), 32u);
  EXPECT_THAT(DataSchemaOf(tasks).labels, ElementsAre("income", "never_married"));
  const TableSchema ratings = MovieLensTasksSchema({"/m"});
  HOTROW_EXPECT_OK(ratings.Validate());
  EXPECT_EQ(DataSchemaOf(ratings).features.size(), 8u);
  EXPECT_THAT(DataSchemaOf(ratings).labels, ElementsAre("liked", "disliked"));

  const TableSchema criteo = CriteoSchema({"/1", "/2"});
  HOTROW_EXPECT_OK(criteo.Validate());
  EXPECT_EQ(criteo.column_names.size(), 40u);
  EXPECT_EQ(DataSchemaOf(criteo).num_dense, 13);
  EXPECT_EQ(DataSchemaOf(criteo).features.size(), 26u);
}

}  // namespace
}  // namespace hotrow
