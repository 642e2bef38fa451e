// hotrow plan, as an operator runs it.

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tests/tools/run_hotrow.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string WriteSpec(const std::string& table_extra) {
  const std::string path = test::TempDir() + "/spec.yaml";
  EXPECT_THAT(WriteFileAtomically(PosixEnv(), path,
                                  "batch_size: 1024\nhardware: a100-80\nstore: ssd\n"
                                  "tables:\n- {name: a, rows: 1000000, dim: 32" +
                                      table_extra + "}\n"),
              test::IsOk());
  return path;
}

TEST(PlanCliTest, PrintsTextAndJson) {
  const std::string path = WriteSpec("");
  const ProgramResult text = RunHotrow({"plan", path});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("It fits."), HasSubstr("samples/s, all ranks"),
                              HasSubstr("index of the SSD store")));
  const ProgramResult result = RunHotrow({"plan", path, "--json"});
  EXPECT_EQ(result.exit_code, 0);
  const nlohmann::json json = nlohmann::json::parse(result.out, nullptr, false);
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["rows"], 1e6);
  EXPECT_EQ(json["tiers"].size(), 3u);
}

TEST(PlanCliTest, LogKeepsALineOfEachPlan) {
  const std::string path = WriteSpec("");
  const std::string log = test::TempDir() + "/plans.jsonl";
  EXPECT_EQ(RunHotrow({"plan", path, "--log=" + log}).exit_code, 0);
  // Another file of the same text; what is asked of the plan changes nothing of it.
  const std::string copy = test::TempDir() + "/copy.yaml";
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string spec, ReadFileToString(PosixEnv(), path));
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), copy, spec));
  EXPECT_EQ(RunHotrow({"plan", copy, "--log=" + log, "--fail-if=fits==1"}).exit_code, 1);
  EXPECT_EQ(RunHotrow({"plan", path, "--log=" + log, "--hardware=h100-sxm"}).exit_code, 0);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text, ReadFileToString(PosixEnv(), log));
  std::vector<nlohmann::json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(nlohmann::json::parse(line, nullptr, false));
    ASSERT_TRUE(lines.back().is_object()) << line;
  }
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0]["digest"], lines[1]["digest"]);
  EXPECT_EQ(lines[0]["values"], lines[1]["values"]);
  EXPECT_EQ(lines[1]["spec"], copy);
  EXPECT_NE(lines[2]["digest"], lines[0]["digest"]);
  EXPECT_EQ(lines[2]["inputs"].size(), 2U);
  ExpectRefused({"plan", path, "--log=" + test::TempDir() + "/none/log"}, HasSubstr("--log="));
  ExpectRefused({"plan", path, "--log=" + log, "--sweep=ranks=1"}, HasSubstr("--log"));
}

TEST(PlanCliTest, FailIfSetsTheStatus) {
  const std::string path = WriteSpec("");
  EXPECT_EQ(RunHotrow({"plan", path, "--fail-if=rows>2e6"}).exit_code, 0);
  const ProgramResult failed = RunHotrow({"plan", path, "--fail-if=rows>2e6 || fits==1"});
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_THAT(failed.err, HasSubstr("--fail-if"));
  EXPECT_THAT(failed.out, HasSubstr("It fits."));
  ExpectRefused({"plan", path, "--fail-if=speed>1"},
                AllOf(HasSubstr("--fail-if"), HasSubstr("samples_per_second")));
}

TEST(PlanCliTest, ReadsCurvesBesideTheSpec) {
  const std::string path = WriteSpec(", curve: c.json");
  ExpectRefused({"plan", path},
                AllOf(HasSubstr("spec.yaml:5:"), HasSubstr("c.json"), HasSubstr("trace mrc")));
  const std::string ids = test::TempDir() + "/ids";
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += std::to_string((i * i) % 5000) + "\n";
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), ids, text));
  const ProgramResult curve = RunHotrow({"trace", "mrc", ids, "--json"});
  EXPECT_EQ(curve.exit_code, 0);
  HOTROW_ASSERT_OK(
      WriteFileAtomically(PosixEnv(), path.substr(0, path.rfind('/')) + "/c.json", curve.out));
  const ProgramResult by_curve = RunHotrow({"plan", path, "--json"});
  EXPECT_EQ(by_curve.exit_code, 0) << by_curve.err;

  // The trace itself gives the same plan, but for the sizes that the curve leaves out.
  const std::string other = WriteSpec(", trace: " + ids);
  const ProgramResult by_trace = RunHotrow({"plan", other, "--json"});
  EXPECT_EQ(by_trace.exit_code, 0) << by_trace.err;
  const auto unique = [](const ProgramResult& result) {
    return nlohmann::json::parse(result.out)["unique_keys"].get<double>();
  };
  EXPECT_NEAR(unique(by_trace) / unique(by_curve), 1, 0.1);
  ExpectRefused({"plan", WriteSpec(", trace: nothing.bin")},
                AllOf(HasSubstr("spec.yaml:5:"), HasSubstr("nothing.bin"), HasSubstr("ids")));
}

TEST(PlanCliTest, WritesAPageAndSweeps) {
  const std::string path = WriteSpec("");
  const std::string page = test::TempDir() + "/plan.html";
  const ProgramResult result = RunHotrow({"plan", path, "--html=" + page});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string html, ReadFileToString(PosixEnv(), page));
  EXPECT_THAT(html, AllOf(testing::StartsWith("<!DOCTYPE html>"), HasSubstr("spec.yaml")));
  ExpectRefused({"plan", path, "--html=/no/such/dir/p.html"}, HasSubstr("--html=/no/such"));

  const ProgramResult sweep = RunHotrow({"plan", path, "--sweep=ranks=1..4", "--json"});
  EXPECT_EQ(sweep.exit_code, 0) << sweep.err;
  const nlohmann::json json = nlohmann::json::parse(sweep.out, nullptr, false);
  EXPECT_EQ(json["points"].size(), 4u * 2 * 3);
  EXPECT_THAT(RunHotrow({"plan", path, "--sweep=ranks=8", "--sweep_batch=per_rank"}).out,
              HasSubstr("8,192"));
  ExpectRefused({"plan", path, "--sweep=ranks=0..4"},
                AllOf(HasSubstr("--sweep="), HasSubstr("FIRST..LAST")));
  ExpectRefused({"plan", path, "--sweep=ranks=1", "--sweep_batch=big"}, HasSubstr("per_rank"));
  ExpectRefused({"plan", path, "--sweep=ranks=1", "--html=x"}, HasSubstr("give one of them"));
}

TEST(PlanCliTest, HardwareMayBeAnother) {
  const std::string path = WriteSpec("");
  EXPECT_THAT(RunHotrow({"plan", path, "--hardware=h200"}).out, HasSubstr("rank of h200"));
  ExpectRefused({"plan", path, "--hardware=h201"},
                AllOf(HasSubstr("--hardware=h201"), HasSubstr("b200"), HasSubstr("calibrate")));
  ExpectRefused({"plan", path, "--check=/no/such.json"}, HasSubstr("/no/such.json"));
}

TEST(PlanCliTest, BadInputIsOneLine) {
  ExpectRefused({"plan"}, HasSubstr("SPEC is missing"));
  ExpectRefused({"plan", "/no/such"}, HasSubstr("/no/such"));
  ExpectRefused({"plan", test::TempDir()}, HasSubstr("--save_spec"));
  ExpectRefused({"plan", WriteSpec(", zipf: -1")}, HasSubstr("tables[0].zipf"));
}

}  // namespace
}  // namespace hotrow
