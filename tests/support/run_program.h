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

// Runs programs as a user does: arguments in, exit status and output out. No shell in between.
namespace hotrow::test {

struct Program {
  // The first is the program: a path, or a name that is looked up in PATH.
  std::vector<std::string> arguments;
  std::vector<std::string> environment = {};  // "NAME=value", added to this process's own
  std::string directory = "";                 // working directory; empty: that of this process
  std::string input = "";                     // standard input
  bool joined = false;                        // standard error goes to `out`, too
  // After this time the program's process group gets SIGTERM and, 5 s later, SIGKILL. A timeout
  // fails the test with the output so far, unless `may_time_out`.
  double timeout_seconds = 300;
  bool may_time_out = false;
  // As `ulimit -v` and `ulimit -f`; 0: no limit. Sanitizer builds ignore the first: they reserve
  // terabytes of addresses.
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

// Runs the program to its end, then kills what it left behind in its process group.
ProgramResult RunProgram(const Program& program);

// A program that runs beside the test. Used by one thread; killed when this object or that thread
// ends.
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
  // Waits for its end. Call once.
  ProgramResult Wait();

 private:
  // Reads output until `done()` or the end of the program.
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

// Expects this exit status, one line on standard error that matches, and no standard output.
void ExpectOneLineError(const ProgramResult& result, int exit_code,
                        const testing::Matcher<const std::string&>& message);

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_SUPPORT_RUN_PROGRAM_H_
