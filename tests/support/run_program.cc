#include "tests/support/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "gtest/gtest.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

constexpr double kGraceSeconds = 5;  // from SIGTERM to SIGKILL
constexpr int kNoProgram = 127;      // as a shell says it

std::vector<char*> PointersTo(std::vector<std::string>* strings) {
  std::vector<char*> out;
  for (std::string& string : *strings) out.push_back(string.data());
  out.push_back(nullptr);
  return out;
}

// This process's environment with these entries in it.
std::vector<std::string> EnvironmentWith(const std::vector<std::string>& entries) {
  std::vector<std::string> out = entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const char* const end = std::strchr(*entry, '=');
    if (end == nullptr) continue;
    const std::string name(*entry, static_cast<size_t>(end - *entry) + 1);
    const bool replaced = std::any_of(entries.begin(), entries.end(), [&](const std::string& mine) {
      return mine.rfind(name, 0) == 0;
    });
    if (!replaced) out.emplace_back(*entry);
  }
  return out;
}

// A file without a name that holds `text`, at its beginning.
int FileWith(const std::string& text) {
  const int file = ::memfd_create("standard input", MFD_CLOEXEC);
  HOTROW_CHECK(file >= 0);
  HOTROW_CHECK(::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  HOTROW_CHECK(::lseek(file, 0, SEEK_SET) == 0);
  return file;
}

void SetLimit(int what, int64_t bytes) {
  const rlimit limit = {static_cast<rlim_t>(bytes), static_cast<rlim_t>(bytes)};
  ::setrlimit(static_cast<__rlimit_resource>(what), &limit);
}

// What the pipe has; false: it is at its end.
bool ReadAvailable(int fd, std::string* out) {
  char buffer[1 << 14];
  while (true) {
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n > 0) out->append(buffer, static_cast<size_t>(n));
    if (n == 0) return false;
    if (n < 0 && errno != EINTR) return errno == EAGAIN;
  }
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const ProgramResult& result) {
  if (result.timed_out) {
    out << absl::StrCat("killed after ", result.seconds, " s");
  } else if (result.signal != 0) {
    out << "ended by " << ::strsignal(result.signal);
  } else {
    out << "exit status " << result.exit_code;
  }
  out << "; printed:\n" << result.out;
  if (!result.err.empty()) out << "and as errors:\n" << result.err;
  return out;
}

ProgramResult RunProgram(const Program& program) { return RunningProgram(program).Wait(); }

RunningProgram::RunningProgram(Program program)
    : program_(std::move(program)), deadline_seconds_(program_.timeout_seconds) {
  HOTROW_CHECK(!program_.arguments.empty());
  std::vector<std::string> arguments = program_.arguments;
  std::vector<std::string> environment = EnvironmentWith(program_.environment);
  const std::vector<char*> argv = PointersTo(&arguments);
  const std::vector<char*> envp = PointersTo(&environment);
  const int input = FileWith(program_.input);
  int out[2];
  int err[2];
  HOTROW_CHECK(::pipe2(out, O_CLOEXEC) == 0 && ::pipe2(err, O_CLOEXEC) == 0);
  pid_ = ::fork();
  HOTROW_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    // Other threads may have held any lock: system calls alone.
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(input, STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(program_.joined ? out[1] : err[1], STDERR_FILENO);
    SetLimit(RLIMIT_CORE, 0);
    if (program_.file_bytes > 0) SetLimit(RLIMIT_FSIZE, program_.file_bytes);
    if (program_.address_space_bytes > 0 && !kSanitizer) {
      SetLimit(RLIMIT_AS, program_.address_space_bytes);
    }
    if (program_.directory.empty() || ::chdir(program_.directory.c_str()) == 0) {
      ::execvpe(argv[0], argv.data(), envp.data());
    }
    ::_exit(kNoProgram);
  }
  ::setpgid(pid_, pid_);  // whoever comes first
  ::close(input);
  ::close(out[1]);
  ::close(err[1]);
  streams_[0] = out[0];
  streams_[1] = err[0];
  for (const int stream : streams_) ::fcntl(stream, F_SETFL, O_NONBLOCK);
  end_ = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
  HOTROW_CHECK(end_ >= 0);
}

RunningProgram::~RunningProgram() {
  if (!waited_) {
    ::kill(-pid_, SIGKILL);
    Wait();
  }
  for (const int stream : streams_) {
    if (stream >= 0) ::close(stream);
  }
  ::close(end_);
}

bool RunningProgram::ReadUntil(const std::string& text) {
  const auto there = [&] { return result_.out.find(text) != std::string::npos; };
  Read(there);
  return there();
}

void RunningProgram::Signal(int number) const { ::kill(pid_, number); }

ProgramResult RunningProgram::Wait() {
  Read([] { return false; });
  ::kill(-pid_, SIGKILL);  // what it may leave behind; its own number is still taken
  int how = 0;
  HOTROW_CHECK(::waitpid(pid_, &how, 0) == pid_);
  waited_ = true;
  if (WIFEXITED(how)) result_.exit_code = WEXITSTATUS(how);
  if (WIFSIGNALED(how)) result_.signal = WTERMSIG(how);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
  result_.seconds = seconds.count();
  if (result_.timed_out && !program_.may_time_out) {
    ADD_FAILURE() << testing::PrintToString(program_.arguments)
                  << absl::StrCat(" did not end within ", program_.timeout_seconds, " s: ")
                  << result_;
  }
  return result_;
}

void RunningProgram::Read(const std::function<bool()>& done) {
  std::string* const texts[] = {&result_.out, &result_.err};
  while (!ended_ && !done()) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
    const double left = std::clamp(deadline_seconds_ - passed.count(), 0.0, 1e6);
    // A pipe at its end is -1, which poll passes over.
    pollfd polled[] = {{end_, POLLIN, 0}, {streams_[0], POLLIN, 0}, {streams_[1], POLLIN, 0}};
    if (::poll(polled, std::size(polled), static_cast<int>(left * 1000) + 1) == 0) {
      TimeOut();
      continue;
    }
    // Seen first, read after: what the program wrote before its end is in the pipes.
    ended_ = polled[0].revents != 0;
    for (size_t i = 0; i < std::size(streams_); ++i) {
      if (streams_[i] < 0 || ReadAvailable(streams_[i], texts[i])) continue;
      ::close(streams_[i]);
      streams_[i] = -1;
    }
  }
}

void RunningProgram::TimeOut() {
  // Programs that run others, such as mpirun, end them on SIGTERM.
  ::kill(-pid_, result_.timed_out ? SIGKILL : SIGTERM);
  result_.timed_out = true;
  deadline_seconds_ += kGraceSeconds;
}

void ExpectOneLineError(const ProgramResult& result, int exit_code,
                        const testing::Matcher<const std::string&>& message) {
  EXPECT_EQ(result.exit_code, exit_code) << result;
  EXPECT_THAT(result.err, message);
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_EQ(result.out, "");
}

}  // namespace hotrow::test
