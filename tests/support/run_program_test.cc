#include "tests/support/run_program.h"

#include <csignal>
#include <sstream>
#include <string>

#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Program Shell(const std::string& script) { return {.arguments = {"sh", "-c", script}}; }

TEST(RunProgramTest, SaysHowItEndedAndWhatItPrinted) {
  ProgramResult result = RunProgram(Shell("echo one; echo two >&2; exit 3"));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.signal, 0);
  EXPECT_EQ(result.out, "one\n");
  EXPECT_EQ(result.err, "two\n");
  EXPECT_FALSE(result.timed_out);
  result = RunProgram(Shell("kill -9 $$"));
  EXPECT_EQ(result.exit_code, -1);
  EXPECT_EQ(result.signal, SIGKILL);
  EXPECT_EQ(RunProgram({.arguments = {"/no/such/program"}}).exit_code, 127);
}

TEST(RunProgramTest, GivesItWhatTheTestAsksFor) {
  Program program = Shell("echo \"$HOTROW_X\"; pwd; cat; echo three >&2");
  program.environment = {"HOTROW_X=one"};
  program.directory = "/";
  program.input = std::string(1 << 20, 'x');
  program.joined = true;
  EXPECT_EQ(RunProgram(program).out, "one\n/\n" + program.input + "three\n");
  // Arguments reach the program as they are.
  const std::string argument = "$HOME 'a' \"b\"\n*";
  EXPECT_EQ(RunProgram({.arguments = {"printf", "%s", argument}}).out, argument);
}

TEST(RunProgramTest, LimitsFilesAndAddresses) {
  const std::string path = TempDir() + "/file";
  Program program = {.arguments = {"dd", "if=/dev/zero", "of=" + path, "bs=1024", "count=8"}};
  EXPECT_EQ(RunProgram(program).exit_code, 0);
  program.file_bytes = 4096;
  EXPECT_NE(RunProgram(program).exit_code, 0);
  if (kSanitizer) return;
  program = Shell("ulimit -v");
  program.address_space_bytes = 1 << 30;
  EXPECT_EQ(RunProgram(program).out, "1048576\n");
}

TEST(RunProgramTest, ATimeoutFailsWithTheOutputSoFarAndEndsTheGroup) {
  Program program = Shell("trap 'echo told' TERM; sleep 60 & echo begun; wait; echo over; exit 0");
  program.timeout_seconds = 1.5;  // the shell has begun by then, on a busy machine, too
  ProgramResult result;
  EXPECT_NONFATAL_FAILURE(result = RunProgram(program), "did not end within 1.5 s");
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.out, "begun\ntold\nover\n");
  std::ostringstream text;
  text << result;
  EXPECT_THAT(text.str(), AllOf(HasSubstr("killed after"), HasSubstr("begun")));
  EXPECT_LT(result.seconds, 30);
  program.may_time_out = true;
  program.timeout_seconds = 0.2;
  EXPECT_TRUE(RunProgram(program).timed_out);
}

TEST(RunProgramTest, ReadsAndSignalsARunningProgram) {
  RunningProgram running(Shell("trap 'exit 4' INT; echo ready; sleep 60 & wait"));
  EXPECT_TRUE(running.ReadUntil("ready\n"));
  running.Signal(SIGINT);
  EXPECT_EQ(running.Wait().exit_code, 4);
  RunningProgram silent(Shell("echo other"));
  EXPECT_FALSE(silent.ReadUntil("ready\n"));
  EXPECT_EQ(silent.Wait().out, "other\n");
}

}  // namespace
}  // namespace hotrow::test
