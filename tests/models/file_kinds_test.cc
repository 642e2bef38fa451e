// What --data says about files: which kinds there are, and that they are opened.

#include "models/data/open_data_source.h"
#include "models/data/table_schema.h"
#include "models/data/table_source.h"
#include "tests/models/file_builders.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::Gzip;
using test::StatusIs;
using test::WriteFileOrDie;
using ::testing::AllOf;
using ::testing::HasSubstr;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::string CriteoLines(int n) {
  std::string text;
  for (int i = 0; i < n; ++i) absl::StrAppend(&text, i % 2, "\t", i, std::string(38, '\t'), "\n");
  return text;
}

TEST(FileKindsTest, SeveralFilesAreOneLog) {
  const std::string dir = test::TempDir();
  WriteFileOrDie(PosixEnv(), dir + "/day_0", CriteoLines(13));
  WriteFileOrDie(PosixEnv(), dir + "/day_1.gz", Gzip(CriteoLines(17)));
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto source, OpenDataSource(absl::StrCat("criteo:", dir, "/day_0,", dir, "/day_1"), 1));
  EXPECT_EQ(source->schema().name, "criteo");
  EXPECT_EQ(source->schema().train_samples, 24);
  EXPECT_EQ(source->schema().valid_samples, 3);
  EXPECT_EQ(source->schema().test_samples, 3);
}

TEST(FileKindsTest, TablesAreFoundBesideTheirSchema) {
  const std::string dir = test::TempDir();
  WriteFileOrDie(PosixEnv(), dir + "/s.json",
                 R"({"files": {"train": ["log.csv"]}, "columns": [
                      {"name": "y", "role": "label"}, {"name": "x", "role": "dense"}]})");
  const std::string spec = absl::StrCat("table:", dir, "/s.json");
  EXPECT_THAT(OpenDataSource(spec, 1), StatusIs(absl::StatusCode::kNotFound,
                                                HasSubstr(absl::StrCat(dir, "/log.csv: no such"))));
  WriteFileOrDie(PosixEnv(), dir + "/log.csv", "x,y\n1,0\n2,1\n");
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto source, OpenDataSource(spec, 1));
  EXPECT_EQ(source->schema().train_samples, 2);
  EXPECT_EQ(source->schema().valid_samples, 0);
  WriteFileOrDie(PosixEnv(), dir + "/log.csv", "x,z\n1,0\n");
  EXPECT_THAT(OpenDataSource(spec, 1),
              StatusIs(kInvalid, HasSubstr("/log.csv:1: there is no column \"y\"")));
}

// What ranks compare: the same wherever copies lie, another with any byte at either end.
TEST(FileKindsTest, FilesAreToldApartByNamesSizesAndBothEnds) {
  const auto identity_of = [](const std::string& spec) {
    std::string out;
    absl::StatusOr<std::unique_ptr<DataSource>> source = OpenDataSource(spec, 1);
    HOTROW_EXPECT_OK(source);
    if (!source.ok()) return out;
    const auto identity = (*source)->Identity();
    HOTROW_EXPECT_OK(identity);
    for (const auto& [name, value] : *identity) absl::StrAppend(&out, name, " is ", value, "\n");
    return out;
  };
  const std::string here = test::TempDir();
  const std::string there = test::TempDir();
  const std::string text = CriteoLines(6000);
  ASSERT_GT(text.size(), size_t{200} << 10) << "longer than what is looked at";
  const auto write = [&](const std::string& dir, const std::string& day_0) {
    WriteFileOrDie(PosixEnv(), dir + "/day_0", day_0);
    WriteFileOrDie(PosixEnv(), dir + "/day_1.gz", Gzip(CriteoLines(17)));
    return identity_of(absl::StrCat("criteo:", dir, "/day_0,", dir, "/day_1"));
  };
  const std::string identity = write(here, text);
  EXPECT_THAT(identity, AllOf(HasSubstr("file 1 of 2 is day_0 of "),
                              HasSubstr("file 2 of 2 is day_1.gz of ")));
  EXPECT_EQ(write(there, text), identity);
  EXPECT_NE(write(there, text + CriteoLines(1)), identity);
  for (const size_t at : {size_t{2}, text.rfind('9')}) {
    std::string other = text;
    other[at] = other[at] == '1' ? '2' : '1';
    EXPECT_NE(write(there, other), identity) << at;
  }
  // The schema counts, too.
  WriteFileOrDie(PosixEnv(), here + "/log.csv", "x,y\n1,0\n2,1\n");
  const auto with_schema = [&](const char* key) {
    WriteFileOrDie(PosixEnv(), here + "/s.json",
                   absl::StrCat(R"({"name": "s", "files": ["log.csv"],
        "split": {"modulo": 2, "valid": [], "test": [1]},
        "columns": [{"name": "y", "role": "label"},
                    {"name": "x", "role": "categorical", "key": ")",
                                key, R"("}]})"));
    return identity_of(absl::StrCat("table:", here, "/s.json"));
  };
  EXPECT_NE(with_schema("integer"), with_schema("hash"));
  EXPECT_EQ(with_schema("hash"), with_schema("hash"));
  EXPECT_NE(identity_of("synthetic:tables=2,rows=10,samples=10,valid=1,test=1,zipf=1"),
            identity_of("synthetic:tables=2,rows=10,samples=10,valid=1,test=1,zipf=0"));
}

TEST(FileKindsTest, ErrorsNameTheKindAndThePlace) {
  for (const char* kind : {"frappe", "ml1m", "ml1m-tasks", "census", "census-tasks", "criteo",
                           "criteo-npy", "table"}) {
    for (const char* colon : {"", ":"}) {
      EXPECT_THAT(OpenDataSource(absl::StrCat(kind, colon), 1),
                  StatusIs(kInvalid, AllOf(HasSubstr(absl::StrCat("expected ", kind, ":")),
                                           HasSubstr("known: synthetic, frappe:DIR"))));
    }
    EXPECT_THAT(OpenDataSource(absl::StrCat(kind, ":/no/such/place"), 1),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/place")));
  }
  EXPECT_THAT(OpenDataSource("criteo:a,,b", 1),
              StatusIs(kInvalid, HasSubstr("empty name in \"a,,b\"")));
  // A folder is no file.
  EXPECT_FALSE(OpenDataSource("criteo:/", 1).ok());
  EXPECT_FALSE(OpenDataSource("table:/", 1).ok());
}

TEST(FileKindsTest, HelpNamesEveryKind) {
  const std::string help = DataSourceHelp();
  for (const char* part : {"synthetic[", "frappe:DIR", "ml1m:FILE", "census:FILE", "criteo:FILE",
                           "criteo-npy:DIR", "packed:DIR", "table:SCHEMA.json"}) {
    EXPECT_THAT(help, HasSubstr(part));
  }
}

// The examples of the page are schemas, and that of MovieLens is the one built in.
TEST(FileKindsTest, ExamplesOfTheDocumentationAreSchemas) {
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const std::string page,
      ReadFileToString(PosixEnv(), HOTROW_SOURCE_DIR "/docs/formats/table_schema.md"));
  int examples = 0;
  for (size_t at = page.find("```json\n{"); at != std::string::npos;
       at = page.find("```json\n{", at + 1)) {
    const size_t begin = at + 8;
    const std::string json = page.substr(begin, page.find("```", begin) - begin);
    HOTROW_ASSERT_OK_AND_ASSIGN(const TableSchema schema, ParseTableSchema(json, "page"));
    ++examples;
    if (schema.name != "ml1m") continue;
    const TableSchema built_in = MovieLensSchema({"ml1m_ctr.csv.gz"});
    EXPECT_EQ(schema.files, built_in.files);
    EXPECT_EQ(schema.split_of, built_in.split_of);
    EXPECT_EQ(schema.labels[0].values, built_in.labels[0].values);
    ASSERT_EQ(schema.categorical.size(), built_in.categorical.size());
    for (size_t i = 0; i < schema.categorical.size(); ++i) {
      EXPECT_EQ(schema.categorical[i].name, built_in.categorical[i].name);
      EXPECT_EQ(schema.categorical[i].key, built_in.categorical[i].key);
      EXPECT_EQ(schema.categorical[i].separator, built_in.categorical[i].separator);
      EXPECT_EQ(schema.categorical[i].max_hotness, built_in.categorical[i].max_hotness);
    }
  }
  EXPECT_EQ(examples, 4);
}

}  // namespace
}  // namespace hotrow
