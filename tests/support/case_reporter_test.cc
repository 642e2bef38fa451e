// What a run of many cases says when one goes wrong: the binary (case_reporter.h) and the summary
// over all binaries (tests/case_summary.sh).

#include "tests/support/case_reporter.h"

#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int exit_status = 0;  // as a shell says it: 128 + n for signal n
  std::string output;
};

Outcome Shell(const std::string& command) {
  FILE* const pipe = ::popen(("{ " + command + "\n} 2>&1").c_str(), "r");
  if (pipe == nullptr) return {.exit_status = -1, .output = "popen failed"};
  Outcome outcome;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) {
    outcome.output.append(buffer, n);
  }
  outcome.exit_status = WEXITSTATUS(::pclose(pipe));
  return outcome;
}

Outcome Probe(const std::string& filter, const std::string& environment = "") {
  return Shell(environment + " '" HOTROW_CASE_REPORTER_PROBE "' --gtest_filter='" + filter + "'");
}

// The summary of one binary that printed this.
Outcome Summary(const std::string& output) {
  const std::string dir = TempDir();
  std::filesystem::create_directories(dir + "/Testing/Temporary");
  std::ofstream(dir + "/Testing/Temporary/LastTest.log")
      << "1/1 Testing: probe_test\n1/1 Test: probe_test\n"
      << output;
  return Shell("'" HOTROW_CASE_SUMMARY "' '" + dir + "'");
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
  const Outcome run = Probe("ProbeTest.Passes:ProbeTest.Last:" + name);
  EXPECT_NE(run.exit_status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr((defect.ends ? "[  CRASHED ] " : "[  FAILED  ] ") + name));

  const Outcome summary = Summary(run.output);
  EXPECT_EQ(summary.exit_status, 1);
  EXPECT_THAT(summary.output, AllOf(HasSubstr(defect.verdict), HasSubstr(name),
                                    HasSubstr("probe_test"), Not(HasSubstr("ProbeTest.Passes"))));
  EXPECT_THAT(summary.output, HasSubstr(defect.ends ? "not run  1 cases of probe_test\n"
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
  EXPECT_THAT(Probe("*Passes").output,
              AllOf(HasSubstr("OK ] ProbeTest.Passes"), Not(HasSubstr(skipped))));
  EXPECT_THAT(Probe("*Passes", "HOTROW_SLOW_TESTS=1").output, HasSubstr(skipped));
  EXPECT_THAT(Probe("*Passes:*Last-*Fails", "HOTROW_TEST_EXCLUDE='*La*:*x'").output,
              AllOf(HasSubstr("OK ] ProbeTest.Passes"), Not(HasSubstr("ProbeTest.Last"))));
}

TEST(CaseSummaryTest, CountsAndSaysWhenNothingRan) {
  const Outcome good = Summary(Probe("ProbeTest.Passes:ProbeTest.Skips").output);
  EXPECT_EQ(good.exit_status, 0) << good.output;
  EXPECT_EQ(good.output, "cases: 1 passed, 0 failed, 1 skipped\n");
  const Outcome none = Summary(Probe("ProbeTest.NoSuchCase").output);
  EXPECT_EQ(none.exit_status, 3);
  EXPECT_EQ(none.output, "cases: 0 passed, 0 failed, 0 skipped\n");
  // As when ctest ends a binary that hangs.
  const Outcome hung = Summary(
      "[==========] Running 3 tests from 1 test suite.\n"
      "[ RUN      ] A.B\n[       OK ] A.B (0 ms)\n[ RUN      ] A.C\n");
  EXPECT_EQ(hung.exit_status, 1);
  EXPECT_EQ(hung.output,
            "  no end   A.C   (probe_test)\n  not run  1 cases of probe_test\n"
            "cases: 1 passed, 2 failed, 0 skipped\n");
  const Outcome nowhere = Shell("'" HOTROW_CASE_SUMMARY "' /nowhere");
  EXPECT_EQ(nowhere.exit_status, 2);
  EXPECT_THAT(nowhere.output, HasSubstr("/nowhere/Testing/Temporary/LastTest.log"));
}

}  // namespace
}  // namespace hotrow::test
