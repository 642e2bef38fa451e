#ifndef HOTROW_TESTS_TOOLS_RUN_HOTROW_H_
#define HOTROW_TESTS_TOOLS_RUN_HOTROW_H_

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/run_program.h"

// The program hotrow as an operator runs it. HOTROW_BINARY is its path.
namespace hotrow {

using test::ProgramResult;
using test::RunProgram;

inline ProgramResult RunHotrow(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), HOTROW_BINARY);
  return RunProgram({.arguments = std::move(arguments)});
}

inline void ExpectRefused(const std::vector<std::string>& arguments,
                          const testing::Matcher<const std::string&>& message) {
  test::ExpectOneLineError(RunHotrow(arguments), 2,
                           ::testing::AllOf(::testing::StartsWith("hotrow"), message));
}

}  // namespace hotrow

#endif  // HOTROW_TESTS_TOOLS_RUN_HOTROW_H_
