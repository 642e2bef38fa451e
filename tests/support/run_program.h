#ifndef HOTROW_TESTS_SUPPORT_RUN_PROGRAM_H_
#define HOTROW_TESTS_SUPPORT_RUN_PROGRAM_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "gmock/gmock.h"

// Runs programs as a user does: arguments in, exit status and output out. No shell is between.
namespace hotrow::test {

struct Program {
  // First the program: a path, or a name that is looked for in PATH.
  std::vector<std::string> arguments;
  std::vector<std::string> environment = {};  // "NAME=value", beside this process's own
  std::string directory = "";                 // to run in; empty: that of this process
  std::string input = "";                     // standard input
  bool joined = false;                        // standard error goes to standard output
  // When this time is over, the program and its process group get SIGTERM and, 5 s later, SIGKILL.
  // That fails the test with what was printed so far, unless `may_time_out`.
  double timeout_seconds = 300;
  bool may_time_out = false;
  // As `ulimit -v` and `ulimit -f` limit these; 0: no limit. Sanitizers need terabytes of
  // addresses, so there the first is ignored.
  int64_t address_space_bytes = 0;
  int64_t file_bytes = 0;
};

struct ProgramResult {
  int exit_code = -1;  // -1: ended by a signal; 127: there is no such program
  int signal = 0;      // that ended it
  bool timed_out = false;
  double seconds = 0;
  std::string out;
  std::string err;
};
// How it ended and all it printed.
std::ostream& operator<<(std::ostream& out, const ProgramResult& result);

// Runs it to its end. Processes of its group that it leaves behind are killed.
ProgramResult RunProgram(const Program& program);

// A program that runs beside the test, for one thread. It dies with this object and with the thread
// that started it.
class RunningProgram {
 public:
  explicit RunningProgram(Program program);
  ~RunningProgram();
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  pid_t pid() const { return pid_; }
  // Waits until standard output contains `text`; false when the program ends before.
  bool ReadUntil(const std::string& text);
  void Signal(int number) const;
  // Waits for the end. Once.
  ProgramResult Wait();

 private:
  // Reads what the program prints until `done`, or to its end.
  void Read(const std::function<bool()>& done);
  void TimeOut();

  const Program program_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double deadline_seconds_;  // after start_
  pid_t pid_ = -1;
  int end_ = -1;               // a pidfd
  int streams_[2] = {-1, -1};  // standard output and error; -1: at its end
  bool ended_ = false;
  bool waited_ = false;
  ProgramResult result_;
};

// That the program refused its arguments or failed as an operator can read it: this exit status,
// one line on standard error, and nothing on standard output.
void ExpectOneLineError(const ProgramResult& result, int exit_code,
                        const testing::Matcher<const std::string&>& message);

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_SUPPORT_RUN_PROGRAM_H_
