#include "models/data/open_data_source.h"

#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(OpenDataSourceTest, DefaultsAndKeysReachTheSchema) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto defaults, OpenDataSource("synthetic", 1));
  const DataSchema& schema = defaults->schema();
  EXPECT_EQ(schema.name, "synthetic");
  EXPECT_EQ(schema.num_dense, 13);
  ASSERT_EQ(schema.features.size(), 26u);
  EXPECT_EQ(schema.features[25].name, "cat_25");
  EXPECT_EQ(schema.features[25].table, "t_cat_25");
  EXPECT_EQ(schema.features[25].num_embeddings, 100'000);
  EXPECT_EQ(schema.features[25].max_hotness, 1);
  EXPECT_EQ(schema.train_samples, 1'000'000);
  EXPECT_EQ(schema.valid_samples, 100'000);
  EXPECT_EQ(schema.test_samples, 100'000);

  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto source,
      OpenDataSource("synthetic:tables=2,rows=3k,zipf=1,hotness=0-8,dense=0,shared=2,"
                     "samples=1M,valid=7,test=0,seed=18446744073709551615",
                     1));
  ASSERT_EQ(source->schema().features.size(), 4u);
  EXPECT_EQ(source->schema().features[1].table, "t_cat_1");
  EXPECT_EQ(source->schema().features[2].table, "t_cat_0");
  EXPECT_EQ(source->schema().features[3].table, "t_cat_0");
  EXPECT_EQ(source->schema().features[3].name, "cat_3");
  EXPECT_EQ(source->schema().features[3].num_embeddings, 3000);
  EXPECT_EQ(source->schema().features[3].max_hotness, 8);
  EXPECT_EQ(source->schema().num_dense, 0);
  EXPECT_EQ(source->schema().train_samples, 1'000'000);
  EXPECT_EQ(source->schema().valid_samples, 7);
  EXPECT_EQ(source->schema().test_samples, 0);
}

TEST(OpenDataSourceTest, HeldOutSizesFollowTheTrainingSize) {
  for (const auto& [spec, expected] :
       {std::pair("synthetic:samples=1k", 20'000), std::pair("synthetic:samples=300k", 30'000),
        std::pair("synthetic:samples=2G", 100'000)}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto source, OpenDataSource(spec, 1));
    EXPECT_EQ(source->schema().valid_samples, expected) << spec;
    EXPECT_EQ(source->schema().test_samples, expected) << spec;
  }
}

TEST(OpenDataSourceTest, ErrorsNameTheKeyWhatWasFoundAndWhatIsKnown) {
  struct Case {
    const char* spec;
    const char* part;   // what the message names
    const char* found;  // and quotes
  };
  const Case cases[] = {
      {"synthetic:tabels=3", "unknown key \"tabels\"", "known keys: tables"},
      {"synthetic:tables=0", "key \"tables\"", "found \"0\", expected a whole number in [1, "},
      {"synthetic:tables=", "key \"tables\"", "found \"\""},
      {"synthetic:tables=3x", "key \"tables\"", "found \"3x\""},
      {"synthetic:tables=-1", "key \"tables\"", "found \"-1\""},
      {"synthetic:tables=k", "key \"tables\"", "found \"k\""},
      {"synthetic:valid=-1", "key \"valid\"", "found \"-1\""},
      {"synthetic:rows=99999999999999999999", "key \"rows\"", "found \"99999999999999999999\""},
      {"synthetic:rows=9999999999999999G", "key \"rows\"", "found \"9999999999999999G\""},
      {"synthetic:rows=2000000M", "key \"rows\"", "found \"2000000000000\""},
      {"synthetic:zipf=-0.5", "key \"zipf\"", "found \"-0.5\", expected a number in [0, 10]"},
      {"synthetic:zipf=nan", "key \"zipf\"", "expected a number in [0, 10]"},
      {"synthetic:zipf=inf", "key \"zipf\"", "expected a number in [0, 10]"},
      {"synthetic:zipf=1.0.5", "key \"zipf\"", "found \"1.0.5\""},
      {"synthetic:hotness=0", "key \"hotness\"", "found \"0\""},
      {"synthetic:hotness=8-4", "key \"hotness\"", "found \"8-4\""},
      {"synthetic:hotness=1-70000", "key \"hotness\"", "found \"1-70000\""},
      {"synthetic:hotness=-3", "key \"hotness\"", "found \"-3\""},
      {"synthetic:seed=x", "key \"seed\"", "found \"x\""},
      {"synthetic:rows=5,rows=6", "key \"rows\"", "given twice"},
      {"synthetic:rows", "found \"rows\"", "expected key=value"},
      {"synthetic:rows=5,", "found \"rows=5,\"", "expected key=value"},
      {"synthetic:,rows=5", "found \"\"", "expected key=value"},
      {"synthetic:", "nothing follows the colon", "expected key=value"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(OpenDataSource(c.spec, 1),
                StatusIs(kInvalid, AllOf(HasSubstr(c.part), HasSubstr(c.found),
                                         HasSubstr("known keys: tables"), HasSubstr("hotness"))))
        << c.spec;
  }
}

TEST(OpenDataSourceTest, UnknownKindListsTheKnownOnes) {
  for (const char* spec : {"parquet", "", "synthetics:rows=3", "Synthetic"}) {
    EXPECT_THAT(OpenDataSource(spec, 1), StatusIs(kInvalid, HasSubstr("known: synthetic"))) << spec;
  }
}

TEST(OpenDataSourceTest, HelpNamesEveryKeyWithItsDefault) {
  const std::string help = DataSourceHelp();
  for (const char* key : {"synthetic", "tables", "rows", "zipf", "hotness", "dense", "shared",
                          "samples", "valid", "test", "resident", "seed", "26", "100000", "1.05"}) {
    EXPECT_THAT(help, HasSubstr(key));
  }
}

}  // namespace
}  // namespace hotrow
