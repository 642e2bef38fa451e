#ifndef HOTROW_TESTS_TOOLS_RUN_HOTROW_H_
#define HOTROW_TESTS_TOOLS_RUN_HOTROW_H_

#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

// Runs the program hotrow as an operator does. HOTROW_BINARY is its path.
namespace hotrow {

struct Result {
  int exit_code = -1;  // -1: killed by a signal
  std::string out;
  std::string err;
};

// The arguments need no quoting for a shell.
inline Result RunProgram(const std::string& program, const std::vector<std::string>& arguments,
                         const std::string& environment = "") {
  const std::string dir = test::TempDir();
  std::string command = absl::StrCat(
      environment.empty() ? "" : absl::StrCat("env ", environment, " "), "'", program, "'");
  for (const std::string& argument : arguments) absl::StrAppend(&command, " ", argument);
  absl::StrAppend(&command, " > '", dir, "/out' 2> '", dir, "/err'");
  const int status = std::system(command.c_str());  // NOLINT(concurrency-mt-unsafe)
  Result result;
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  const auto read = [&](const char* name) {
    const absl::StatusOr<std::string> text =
        ReadFileToString(PosixEnv(), absl::StrCat(dir, "/", name));
    HOTROW_EXPECT_OK(text);
    return text.ok() ? *text : std::string();
  };
  result.out = read("out");
  result.err = read("err");
  return result;
}
inline Result RunHotrow(const std::vector<std::string>& arguments) {
  return RunProgram(HOTROW_BINARY, arguments);
}

inline void ExpectRefused(const std::vector<std::string>& arguments,
                          const testing::Matcher<const std::string&>& message) {
  const Result result = RunHotrow(arguments);
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, ::testing::AllOf(::testing::StartsWith("hotrow"), message));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_EQ(result.out, "");
}

}  // namespace hotrow

#endif  // HOTROW_TESTS_TOOLS_RUN_HOTROW_H_
