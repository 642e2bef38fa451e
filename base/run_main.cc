#include "base/run_main.h"

#include <execinfo.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

namespace hotrow {
namespace {

constexpr int kExitError = 1;
constexpr rlim_t kStackBytesMin = 512 << 10;

// For the terminate handler, which gets no argument.
const char* program_name = "hotrow";

// Allocates nothing: there may be no memory left.
void PrintError(const char* what, const char* detail) {
  char line[512];
  const int wanted = std::snprintf(line, sizeof(line) - 1, "%s: %s%s", program_name, what, detail);
  const int bytes = std::clamp(wanted, 0, static_cast<int>(sizeof(line)) - 2);
  std::replace(line, line + bytes, '\n', ' ');
  line[bytes] = '\n';
  // Nothing is left to do when stderr does not take it.
  [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, line, static_cast<size_t>(bytes) + 1);
}

// Says what the exception is. To be called where one is being handled.
void PrintCurrentException() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    PrintError("out of memory; lower the budgets of memory and the batch size, or raise the limit ",
               "of this process (ulimit -v, memory.max of its group)");
  } catch (const std::exception& error) {
    PrintError("unexpected error: ", error.what());
  } catch (...) {
    PrintError("unexpected error: ", "an exception of an unknown type");
  }
}

// What the program printed may still be in a buffer, or lost to a disk that was full for a moment.
int EndedWith(int status) {
  const bool lost = std::ferror(stdout) != 0;
  if (std::fflush(stdout) == 0 && !lost) return status;
  const int error_number = errno;
  char text[128];
  PrintError("standard output cannot be written, some of it is lost: ",
             lost ? "an earlier write failed" : ::strerror_r(error_number, text, sizeof(text)));
  return status == 0 ? kExitError : status;
}

[[noreturn]] void Terminate() {
  if (std::current_exception() != nullptr) {
    PrintCurrentException();
  } else if (std::uncaught_exceptions() > 0) {
    // Not caught yet, so it cannot be asked what it is.
    PrintError("unexpected error: ",
               "the cleanup after an exception threw another one; "
               "there may be too little memory, or too few threads");
  } else {
    std::abort();  // a bug of ours, such as a thread that nobody joined
  }
  // Not exit(): other threads still use what it would destroy.
  ::_exit(kExitError);
}

}  // namespace

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&signals, signal);
  for (const int signal : {SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU}) {
    struct sigaction now;
    if (::sigaction(signal, nullptr, &now) != 0 || now.sa_handler == SIG_IGN) continue;
    sigaddset(&signals, signal);
  }
  return signals;
}

int RunMain(const char* program, absl::FunctionRef<int()> body) {
  program_name = program;
  // Beyond the end of its stack a thread dies of SIGSEGV.
  struct rlimit stack;
  if (::getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur < kStackBytesMin) {
    PrintError("the stack of a thread may have less than 512 KiB; ",
               "raise that limit (ulimit -s 8192)");
    return kExitError;
  }
  std::signal(SIGXFSZ, SIG_IGN);
  // Makes libc load what unwinds the stack of a thread that ends, while there is memory for it:
  // later it would abort.
  void* frame = nullptr;
  ::backtrace(&frame, 1);
  std::set_terminate(Terminate);
  try {
    return EndedWith(body());
  } catch (...) {
    std::fflush(stdout);
    PrintCurrentException();
    return kExitError;
  }
}

}  // namespace hotrow
