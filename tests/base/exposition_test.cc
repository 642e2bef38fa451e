#include "base/exposition.h"

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/exposition_reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The format by the letter, so that a change of it is seen.
TEST(ExpositionTest, WritesTheFormat) {
  ExpositionWriter writer;
  writer.Family("hotrow_steps_total", MetricKind::kCounter, "Steps of training.");
  writer.Sample(12);
  writer.Family("hotrow_used_bytes", MetricKind::kGauge, "Bytes in use.");
  writer.Sample({{{"tier", "cache"}}}, int64_t{1} << 62);
  writer.Sample({{{"tier", "ssd"}, {"table", "a"}}}, 0.1);
  writer.Family("hotrow_step_seconds", MetricKind::kHistogram, "Times of steps.");
  writer.Buckets({}, std::array{0.5, 2.0}, std::array<int64_t, 3>{1, 0, 4}, 12.25);
  EXPECT_EQ(writer.Take(),
            "# HELP hotrow_steps_total Steps of training.\n"
            "# TYPE hotrow_steps_total counter\n"
            "hotrow_steps_total 12\n"
            "# HELP hotrow_used_bytes Bytes in use.\n"
            "# TYPE hotrow_used_bytes gauge\n"
            "hotrow_used_bytes{tier=\"cache\"} 4611686018427387904\n"
            "hotrow_used_bytes{tier=\"ssd\",table=\"a\"} 0.1\n"
            "# HELP hotrow_step_seconds Times of steps.\n"
            "# TYPE hotrow_step_seconds histogram\n"
            "hotrow_step_seconds_bucket{le=\"0.5\"} 1\n"
            "hotrow_step_seconds_bucket{le=\"2\"} 1\n"
            "hotrow_step_seconds_bucket{le=\"+Inf\"} 5\n"
            "hotrow_step_seconds_sum 12.25\n"
            "hotrow_step_seconds_count 5\n");
}

TEST(ExpositionTest, NamesOfTablesComeBackWhateverTheyHold) {
  const std::vector<std::string> names = {"plain",
                                          "",
                                          "say \"so\"",
                                          "two\nlines",
                                          "C:\\temp\\new",
                                          "ends with \\",
                                          "\\n is no line feed",
                                          "Ärger, 日本, 🐌",
                                          "a{b=\"c\"} 7",
                                          "tab\tand\rreturn"};
  const std::vector<MetricLabel> common = {{"rank", "3"}};
  ExpositionWriter writer(common);
  writer.Family("x_total", MetricKind::kCounter, "X.");
  for (size_t i = 0; i < names.size(); ++i) {
    writer.Sample({{{"table", names[i]}}}, static_cast<int64_t>(i));
  }
  const std::string text = writer.Take();
  HOTROW_ASSERT_OK_AND_ASSIGN(const MetricFamilies families, ParseExposition(text));
  const std::vector<MetricSample>& samples = families.at("x_total").samples;
  ASSERT_EQ(samples.size(), names.size()) << text;
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(samples[i].labels.at("table"), names[i]);
    EXPECT_EQ(samples[i].labels.at("rank"), "3");
    EXPECT_EQ(samples[i].value, static_cast<double>(i));
  }
}

// A reader refuses a text that is not UTF-8, all of it.
TEST(ExpositionTest, BytesThatAreNotUtf8AreReplaced) {
  ExpositionWriter writer;
  writer.Family("x", MetricKind::kGauge, "X.");
  writer.Sample({{{"table", "a\xff\"\xc3\xa9\xe2\x82"}}}, int64_t{1});
  const std::string text = writer.Take();
  HOTROW_ASSERT_OK_AND_ASSIGN(const MetricFamilies families, ParseExposition(text));
  EXPECT_EQ(families.at("x").samples.at(0).labels.at("table"),
            "a\xef\xbf\xbd\"\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(ExpositionTest, NumbersComeBackTheSame) {
  const std::vector<double> numbers = {0,
                                       -0.0,
                                       1.0 / 3,
                                       1e300,
                                       5e-324,
                                       -17.25,
                                       std::numeric_limits<double>::infinity(),
                                       -std::numeric_limits<double>::infinity()};
  ExpositionWriter writer;
  writer.Family("x", MetricKind::kGauge, "X.");
  for (const double number : numbers) writer.Sample(number);
  writer.Sample(std::nan(""));
  HOTROW_ASSERT_OK_AND_ASSIGN(const MetricFamilies families, ParseExposition(writer.Take()));
  const std::vector<MetricSample>& samples = families.at("x").samples;
  ASSERT_EQ(samples.size(), numbers.size() + 1);
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(samples[i].value, numbers[i]);
  EXPECT_TRUE(std::isnan(samples.back().value));
}

TEST(ExpositionTest, ReadsWhatOthersWrite) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const MetricFamilies families,
                              ParseExposition("# a comment\n"
                                              "\n"
                                              "#HELP up Whether\\nit \\\\ is.\n"
                                              "  # TYPE   up gauge\n"
                                              "up{ a = \"b\" , c=\"d\", }  1e0 1395066363000\n"
                                              "no_type 3\n"
                                              "# TYPE t histogram\n"
                                              "t_bucket{le=\"+Inf\"} 2\n"
                                              "t_sum 1.5\n"
                                              "t_count 2\n"
                                              "t_counted 9\n"));
  EXPECT_EQ(families.at("up").help, "Whether\nit \\ is.");
  EXPECT_EQ(families.at("up").kind, "gauge");
  EXPECT_EQ(families.at("up").samples.at(0).labels.at("c"), "d");
  EXPECT_EQ(families.at("no_type").kind, "untyped");
  EXPECT_EQ(families.at("t").samples.size(), 3U);
  EXPECT_EQ(families.at("t_counted").samples.size(), 1U);
}

TEST(ExpositionTest, WhatIsWrongIsNamedWithItsLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"x 1", "cut off"},
      {"x\n", "no number"},
      {"x one\n", "no number"},
      {"x 1 2 3\n", "behind the value"},
      {"x{a=\"b} 1\n", "does not end"},
      {"x{a=\"b\\x\"} 1\n", "escape"},
      {"x{a=b} 1\n", "quotes"},
      {"x{a} 1\n", "no value"},
      {"x{a=\"b\" c=\"d\"} 1\n", "do not end"},
      {"x{a=\"b\",a=\"c\"} 1\n", "twice"},
      {"9x 1\n", "name of a metric"},
      {"# TYPE x gauge\n# TYPE x gauge\n", "second TYPE"},
      {"# HELP x a\n# HELP x b\n", "second HELP"},
      {"x 1\n# TYPE x gauge\n", "after a sample"},
      {"# TYPE x apple\n", "unknown TYPE"}};
  for (const auto& [text, what] : cases) {
    EXPECT_THAT(
        ParseExposition("ok 1\n" + text),
        StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("line "), HasSubstr(what))))
        << text;
  }
  EXPECT_THAT(ParseExposition("ok 1\nx one\n"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("line 2")));
}

TEST(ExpositionDeathTest, NamesThatBreakTheConventionAreBugs) {
  const auto family = [](const char* name, MetricKind kind) {
    ExpositionWriter writer;
    writer.Family(name, kind, "X.");
  };
  EXPECT_DEATH(family("hotrow_steps", MetricKind::kCounter), "check failed");
  EXPECT_DEATH(family("hotrow_bytes_total", MetricKind::kGauge), "check failed");
  EXPECT_DEATH(family("hotrow-bytes", MetricKind::kGauge), "check failed");
  EXPECT_DEATH(family("9lives", MetricKind::kGauge), "check failed");
}

}  // namespace
}  // namespace hotrow
