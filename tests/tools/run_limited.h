#ifndef HOTROW_TESTS_TOOLS_RUN_LIMITED_H_
#define HOTROW_TESTS_TOOLS_RUN_LIMITED_H_

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include "base/env.h"
#include "tests/support/test_util.h"

// Runs a program that may crash, eat all memory or never end.
namespace hotrow::test {

struct LimitedRun {
  int status = 0;          // exit status; 128 and the number of the signal that ended it
  bool timed_out = false;  // it was killed, with all processes that it started
  std::string text;        // standard output and standard error

  // Ended by itself, as a program does that knows what it says.
  bool clean() const { return !timed_out && status >= 0 && status < 100; }
};

struct Limits {
  double seconds = 60;
  int64_t address_space_bytes = 0;  // 0: no limit; sanitizers need terabytes
};

// `log` is a file for what the program prints; it is overwritten.
inline LimitedRun RunLimited(const std::vector<std::string>& command, const std::string& log,
                             const Limits& limits) {
  std::vector<std::string> words = command;
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
    const int null = ::open("/dev/null", O_RDONLY);
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(null, STDIN_FILENO);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    const auto set = [](int what, rlim_t value) {
      const rlimit limit = {value, value};
      ::setrlimit(static_cast<__rlimit_resource>(what), &limit);
    };
    set(RLIMIT_CORE, 0);
    if (limits.address_space_bytes > 0 && !kSanitizer) {
      set(RLIMIT_AS, static_cast<rlim_t>(limits.address_space_bytes));
    }
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ::setpgid(child, child);  // whoever comes first
  LimitedRun run;
  const auto descriptor = static_cast<int>(::syscall(SYS_pidfd_open, child, 0));
  pollfd wait = {descriptor, POLLIN, 0};
  run.timed_out = ::poll(&wait, 1, static_cast<int>(limits.seconds * 1000)) == 0;
  ::close(descriptor);
  ::kill(-child, SIGKILL);  // with what it may leave behind
  int how = 0;
  EXPECT_EQ(::waitpid(child, &how, 0), child);
  run.status = WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how);
  const absl::StatusOr<std::string> text = ReadFileToString(PosixEnv(), log);
  if (text.ok()) run.text = *text;
  return run;
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_TOOLS_RUN_LIMITED_H_
