#include "tools/plan/plan_log.h"

#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/env.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using Json = nlohmann::json;
using test::StatusIs;
using ::testing::HasSubstr;

PlanTable WithCurve(const std::string& file, std::vector<CurvePoint> points) {
  PlanTable table;
  table.name = "items";
  table.curve_file = file;
  table.curve = std::move(points);
  return table;
}

TEST(PlanInputsTest, TheDigestIsThatOfTheBytesAndNotOfTheirPlace) {
  const auto digest = [](const std::string& file, const std::string& spec, double hits) {
    PlanInputs inputs;
    inputs.Add("spec", file, spec);
    inputs.AddCurve(WithCurve(file + ".json", {{100, hits}}));
    inputs.AddCurve(PlanTable());  // has no curve
    EXPECT_EQ(inputs.all().size(), 2U);
    return inputs.digest();
  };
  const std::string one = digest("a.yaml", "ranks: 1", 0.5);
  EXPECT_EQ(one.size(), 32U);
  EXPECT_EQ(digest("/elsewhere/b.yaml", "ranks: 1", 0.5), one);
  EXPECT_NE(digest("a.yaml", "ranks: 2", 0.5), one);
  EXPECT_NE(digest("a.yaml", "ranks: 1", 0.5 + 1e-16), one);
}

// Bytes cannot move from one input to the next unseen, nor be of another kind.
TEST(PlanInputsTest, TheDigestKnowsWhichInputIsWhich) {
  const auto digest = [](const std::vector<std::pair<std::string, std::string>>& all) {
    PlanInputs inputs;
    for (const auto& [what, bytes] : all) inputs.Add(what, "file", bytes);
    return inputs.digest();
  };
  EXPECT_NE(digest({{"spec", "ab"}, {"hardware", "c"}}),
            digest({{"spec", "a"}, {"hardware", "bc"}}));
  EXPECT_NE(digest({{"spec", "a"}}), digest({{"hardware", "a"}}));
  EXPECT_NE(digest({{"spec", "a"}}), digest({{"spec", "a"}, {"hardware", ""}}));
}

TEST(PlanLogTest, ALineHasTheMomentTheInputsAndEachNumber) {
  PlanSpec spec;
  spec.name =
      "sp\xff"
      "ec.yaml";  // not UTF-8
  spec.hardware.name = "a100-80";
  spec.ranks = 8;
  spec.batch_size = 4096;
  Plan plan;
  plan.fits = true;
  plan.size.rows = 1e6;
  plan.samples_per_second = 123.5;
  PlanInputs inputs;
  inputs.Add("spec", spec.name, "text");
  const std::string line = PlanLogLine(spec, plan, inputs, 1'700'000'000);
  ASSERT_EQ(line.find('\n'), line.size() - 1);
  const Json json = Json::parse(line, nullptr, false);
  ASSERT_TRUE(json.is_object()) << line;
  EXPECT_EQ(json["time"], "2023-11-14T22:13:20Z");
  EXPECT_EQ(json["digest"], inputs.digest());
  EXPECT_EQ(json["inputs"][0]["what"], "spec");
  EXPECT_EQ(json["inputs"][0]["digest"], inputs.all()[0].digest);
  EXPECT_EQ(json["hardware"], "a100-80");
  EXPECT_EQ(json["ranks"], 8);
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["values"]["samples_per_second"], 123.5);
  EXPECT_EQ(json["values"].size(), plan.Values().size());
}

TEST(AppendLineTest, LinesFollowEachOtherAndAnUnfinishedOneSpoilsNoOther) {
  const std::string path = test::TempDir() + "/plans.jsonl";
  HOTROW_ASSERT_OK(AppendLine(PosixEnv(), path, "one\n"));
  HOTROW_ASSERT_OK(AppendLine(PosixEnv(), path, "two\n"));
  HOTROW_ASSERT_OK_AND_ASSIGN(std::string text, ReadFileToString(PosixEnv(), path));
  EXPECT_EQ(text, "one\ntwo\n");
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), path, "one\ntw"));
  HOTROW_ASSERT_OK(AppendLine(PosixEnv(), path, "three\n"));
  HOTROW_ASSERT_OK_AND_ASSIGN(text, ReadFileToString(PosixEnv(), path));
  EXPECT_EQ(text, "one\ntw\nthree\n");
  EXPECT_THAT(AppendLine(PosixEnv(), test::TempDir() + "/none/x", "one\n").message(),
              HasSubstr("none/x"));
}

TEST(AppendLineTest, WritersAtOnceLoseNoLine) {
  const std::string path = test::TempDir() + "/plans.jsonl";
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&path, writer] {
      for (int i = 0; i < 10; ++i) {
        const std::string line(static_cast<size_t>(10 + writer), static_cast<char>('a' + writer));
        HOTROW_EXPECT_OK(AppendLine(PosixEnv(), path, line + "\n"));
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text, ReadFileToString(PosixEnv(), path));
  std::vector<int> lines(4);
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const int writer = line[0] - 'a';
    ASSERT_TRUE(writer >= 0 && writer < 4);
    EXPECT_EQ(std::string(line),
              std::string(static_cast<size_t>(10 + writer), static_cast<char>('a' + writer)));
    ++lines[static_cast<size_t>(writer)];
  }
  EXPECT_EQ(lines, (std::vector<int>{10, 10, 10, 10}));
}

}  // namespace
}  // namespace hotrow
