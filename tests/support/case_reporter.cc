#include "tests/support/case_reporter.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/test_util.h"

#ifdef __has_feature
#define HOTROW_HAS_FEATURE(feature) __has_feature(feature)
#else
#define HOTROW_HAS_FEATURE(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || HOTROW_HAS_FEATURE(address_sanitizer)
#define HOTROW_ASAN 1
#include <sanitizer/lsan_interface.h>
#endif
#if defined(__SANITIZE_THREAD__) || HOTROW_HAS_FEATURE(thread_sanitizer)
#define HOTROW_TSAN 1
#endif
#if HOTROW_ASAN || HOTROW_TSAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace hotrow::test {
namespace {

// The line to print if the process dies now. Written before a case starts, so that the handler of
// a signal has nothing to format. Empty between cases.
char crash_line[512];
std::atomic<bool> crash_reported{false};
std::atomic<bool> race_reported{false};

void ReportCrash() {
  const size_t length = ::strnlen(crash_line, sizeof(crash_line));
  if (length == 0 || crash_reported.exchange(true)) return;
  // Nothing is to be done if stderr is gone.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, crash_line, length);
}

void ReportSignal(int signal) {
  ReportCrash();
  // The handler was reset on entry (SA_RESETHAND), so this ends the process as ever.
  ::raise(signal);
}

void CatchSignals() {
  struct sigaction action = {};
  action.sa_handler = &ReportSignal;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER | SA_ONSTACK);
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGABRT, &action, nullptr);
#if HOTROW_ASAN || HOTROW_TSAN
  __sanitizer_set_death_callback(&ReportCrash);  // a sanitizer has the other signals
#else
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) ::sigaction(signal, &action, nullptr);
#endif
}

class CaseReporter : public testing::EmptyTestEventListener {
 public:
  void OnTestStart(const testing::TestInfo& info) override {
    const std::string line =
        std::string("\n[  CRASHED ] ") + info.test_suite_name() + "." + info.name() + "\n";
    const size_t length = std::min(line.size(), sizeof(crash_line) - 1);
    std::memcpy(crash_line, line.data(), length);
    crash_line[length] = '\0';
  }

  // GoogleTest calls listeners in reverse order at the end, so a failure that is added here still
  // belongs to the case.
  void OnTestEnd(const testing::TestInfo& info) override {
    if (race_reported.exchange(false)) ADD_FAILURE() << "ThreadSanitizer: the report is above";
    CheckForLeaks();
    crash_line[0] = '\0';
    if (info.result()->Passed()) RemoveTempDirs();
  }

 private:
  void CheckForLeaks() {
#if HOTROW_ASAN
    // A leak would be found again after every later case: the first one is named, the end of the
    // process lists the others.
    ++unchecked_;
    if (leaked_) return;
    // A check stops all threads and walks the heap. Where that takes long it gets half a second and
    // then a tenth of the time, and not each case has its own.
    const auto begin = std::chrono::steady_clock::now();
    if (last_check_ > std::chrono::milliseconds(20) && checks_ > std::chrono::milliseconds(500) &&
        checks_ > (begin - begin_) / 10) {
      return;
    }
    const bool leaks = __lsan_do_recoverable_leak_check() != 0;
    last_check_ = std::chrono::steady_clock::now() - begin;
    checks_ += last_check_;
    if (leaks) {
      leaked_ = true;
      ADD_FAILURE() << "LeakSanitizer: the report is above; it is of this case"
                    << (unchecked_ == 1 ? "" : " or of one of the ")
                    << (unchecked_ == 1 ? "" : std::to_string(unchecked_ - 1) + " before it");
    }
    unchecked_ = 0;
#endif
  }

  [[maybe_unused]] bool leaked_ = false;
  [[maybe_unused]] int unchecked_ = 0;  // cases
  [[maybe_unused]] const std::chrono::steady_clock::time_point begin_ =
      std::chrono::steady_clock::now();
  [[maybe_unused]] std::chrono::steady_clock::duration last_check_{}, checks_{};
};

// "A*-B*" and "C*" give "A*-B*:C*".
void Exclude(const std::string& patterns) {
  std::string filter = GTEST_FLAG_GET(filter);
  filter += filter.find('-') == std::string::npos ? '-' : ':';
  GTEST_FLAG_SET(filter, filter + patterns);
}

}  // namespace

// Called by the sanitizers' runtimes when they have something to report.
extern "C" {
void __asan_on_error() { ReportCrash(); }
void __ubsan_on_report() { ReportCrash(); }
void __tsan_on_report(void*) { race_reported = true; }
}

void InstallCaseReporter() {
  if (!RunsSlowTests()) Exclude("*SlowTest.*");
  if (const char* patterns = std::getenv("HOTROW_TEST_EXCLUDE"); patterns != nullptr) {
    Exclude(patterns);
  }
  CatchSignals();
  testing::UnitTest::GetInstance()->listeners().Append(new CaseReporter);
}

}  // namespace hotrow::test
