// What a run of many cases says when one goes wrong: the binary (case_reporter.h) and the summary
// over all binaries (tests/case_summary.sh).

#include "tests/support/case_reporter.h"

#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/run_program.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ProgramResult Probe(const std::string& filter, const std::vector<std::string>& environment = {}) {
  return RunProgram({.arguments = {HOTROW_CASE_REPORTER_PROBE, "--gtest_filter=" + filter},
                     .environment = environment,
                     .joined = true});
}

ProgramResult SummaryOf(const std::string& dir) {
  return RunProgram({.arguments = {HOTROW_CASE_SUMMARY, dir}, .joined = true});
}

// The summary of one binary that printed this.
ProgramResult Summary(const std::string& output) {
  const std::string dir = TempDir();
  std::filesystem::create_directories(dir + "/Testing/Temporary");
  std::ofstream(dir + "/Testing/Temporary/LastTest.log")
      << "1/1 Testing: probe_test\n1/1 Test: probe_test\n"
      << output;
  return SummaryOf(dir);
}

// A case that goes wrong between two that pass.
struct Defect {
  std::string name;     // of the case
  bool found = true;    // whether this build finds it
  bool ends = false;    // the process, so that the last case has no turn
  std::string verdict;  // as the summary says it
};

void PrintTo(const Defect& defect, std::ostream* out) { *out << defect.name; }

#ifdef HOTROW_SANITIZES_ADDRESS
constexpr bool kAsan = true;
#else
constexpr bool kAsan = false;
#endif
#ifdef HOTROW_SANITIZES_UNDEFINED
constexpr bool kUbsan = true;
#else
constexpr bool kUbsan = false;
#endif
#ifdef HOTROW_SANITIZES_THREAD
constexpr bool kTsan = true;
#else
constexpr bool kTsan = false;
#endif

class CaseReporterTest : public testing::TestWithParam<Defect> {};

TEST_P(CaseReporterTest, NamesTheCase) {
  const Defect& defect = GetParam();
  if (!defect.found) GTEST_SKIP() << "this build has no sanitizer that finds it";
  const std::string name = "ProbeTest." + defect.name;
  const ProgramResult run = Probe("ProbeTest.Passes:ProbeTest.Last:" + name);
  EXPECT_NE(run.exit_code, 0) << run.out;
  EXPECT_THAT(run.out, HasSubstr((defect.ends ? "[  CRASHED ] " : "[  FAILED  ] ") + name));

  const ProgramResult summary = Summary(run.out);
  EXPECT_EQ(summary.exit_code, 1);
  EXPECT_THAT(summary.out, AllOf(HasSubstr(defect.verdict), HasSubstr(name),
                                 HasSubstr("probe_test"), Not(HasSubstr("ProbeTest.Passes"))));
  EXPECT_THAT(summary.out, HasSubstr(defect.ends ? "not run  1 cases of probe_test\n"
                                                   "cases: 1 passed, 2 failed, 0 skipped\n"
                                                 : "cases: 2 passed, 1 failed, 0 skipped\n"));
}

INSTANTIATE_TEST_SUITE_P(All, CaseReporterTest,
                         testing::Values(Defect{"Fails", true, false, "failed"},
                                         Defect{"Crashes", true, true, "crashed"},
                                         Defect{"Aborts", true, true, "crashed"},
                                         Defect{"Leaks", kAsan, false, "failed"},
                                         Defect{"WritesBehindAnArray", kAsan, true, "crashed"},
                                         Defect{"OverflowsAnInt", kUbsan, true, "crashed"},
                                         Defect{"Races", kTsan, false, "failed"}),
                         [](const auto& info) { return info.param.name; });

TEST(CaseReporterFilterTest, LeavesOutWhatTheRunIsNotMeantToHave) {
  const std::string skipped = "[       OK ] ProbeSlowTest.Passes";
  EXPECT_THAT(Probe("*Passes").out,
              AllOf(HasSubstr("OK ] ProbeTest.Passes"), Not(HasSubstr(skipped))));
  EXPECT_THAT(Probe("*Passes", {"HOTROW_SLOW_TESTS=1"}).out, HasSubstr(skipped));
  EXPECT_THAT(Probe("*Passes:*Last-*Fails", {"HOTROW_TEST_EXCLUDE=*La*:*x"}).out,
              AllOf(HasSubstr("OK ] ProbeTest.Passes"), Not(HasSubstr("ProbeTest.Last"))));
}

TEST(CaseSummaryTest, CountsAndSaysWhenNothingRan) {
  const ProgramResult good = Summary(Probe("ProbeTest.Passes:ProbeTest.Skips").out);
  EXPECT_EQ(good.exit_code, 0) << good.out;
  EXPECT_EQ(good.out, "cases: 1 passed, 0 failed, 1 skipped\n");
  const ProgramResult none = Summary(Probe("ProbeTest.NoSuchCase").out);
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_EQ(none.out, "cases: 0 passed, 0 failed, 0 skipped\n");
  // As when ctest ends a binary that hangs.
  const ProgramResult hung = Summary(
      "[==========] Running 3 tests from 1 test suite.\n"
      "[ RUN      ] A.B\n[       OK ] A.B (0 ms)\n[ RUN      ] A.C\n");
  EXPECT_EQ(hung.exit_code, 1);
  EXPECT_EQ(hung.out,
            "  no end   A.C   (probe_test)\n  not run  1 cases of probe_test\n"
            "cases: 1 passed, 2 failed, 0 skipped\n");
  const ProgramResult nowhere = SummaryOf("/nowhere");
  EXPECT_EQ(nowhere.exit_code, 2);
  EXPECT_THAT(nowhere.out, HasSubstr("/nowhere/Testing/Temporary/LastTest.log"));
}

}  // namespace
}  // namespace hotrow::test
