#include "base/run_main.h"

#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/env.h"
#include "base/thread_pool.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::ExitedWithCode;

void RunAndExit(absl::FunctionRef<int()> body) { std::exit(RunMain("prog", body)); }

TEST(RunMainDeathTest, AnExceptionIsOneLineAndStatus1) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(RunAndExit([] { return 3; }), ExitedWithCode(3), "^$");
  EXPECT_EXIT(RunAndExit([]() -> int { throw std::bad_alloc(); }), ExitedWithCode(1),
              "^prog: out of memory[^\n]*ulimit -v[^\n]*\n$");
  EXPECT_EXIT(RunAndExit([]() -> int { throw std::runtime_error("of\ntwo lines"); }),
              ExitedWithCode(1), "^prog: unexpected error: of two lines\n$");
  EXPECT_EXIT(RunAndExit([]() -> int { throw 5; }), ExitedWithCode(1), "unknown type\n$");
  // Longer than the line that is kept for it.
  EXPECT_EXIT(RunAndExit([]() -> int { throw std::runtime_error(std::string(5000, 'x')); }),
              ExitedWithCode(1), "^prog: unexpected error: x+\n$");
}

TEST(RunMainDeathTest, AnExceptionOfAThreadIsOneLineAndStatus1) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(RunAndExit([] {
                std::thread([] { throw std::bad_alloc(); }).join();
                return 0;
              }),
              ExitedWithCode(1), "^prog: out of memory[^\n]*\n$");
  EXPECT_EXIT(RunAndExit([] {
                ThreadPool pool(3);
                pool.ParallelFor(100, 1, [](int64_t begin, int64_t) {
                  if (begin == 70) throw std::bad_alloc();
                });
                return 0;
              }),
              ExitedWithCode(1), "^prog: out of memory[^\n]*\n$");
}

// Without it the signal SIGXFSZ ends the process.
TEST(RunMainDeathTest, AFileAboveTheLimitIsAnError) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const std::string path = test::TempDir() + "/large";
  EXPECT_EXIT(RunAndExit([&] {
                const struct rlimit limit = {.rlim_cur = 4096, .rlim_max = 4096};
                if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
                const absl::Status status =
                    WriteFileAtomically(PosixEnv(), path, std::string(20'000, 'x'));
                std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
                return absl::IsResourceExhausted(status) ? 5 : 6;
              }),
              ExitedWithCode(5), "large.*File too large.*4096 bytes.*ulimit -f");
}

// Whose buffer is written at the end, after all that looked.
TEST(RunMainDeathTest, StandardOutputThatIsLostIsAFailure) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto print = [](int status, size_t bytes) {
    return RunMain("prog", [&] {
      if (std::freopen("/dev/full", "w", stdout) == nullptr) return 9;
      std::printf("%s", std::string(bytes, 'x').c_str());
      return status;
    });
  };
  EXPECT_EXIT(std::exit(print(0, 10)), ExitedWithCode(1), "standard output.*No space left");
  EXPECT_EXIT(std::exit(print(0, 100'000)), ExitedWithCode(1), "standard output");
  EXPECT_EXIT(std::exit(print(3, 10)), ExitedWithCode(3), "standard output");
}

TEST(RunMainDeathTest, AStackThatIsTooSmallIsAnError) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        struct rlimit limit;
        ::getrlimit(RLIMIT_STACK, &limit);
        limit.rlim_cur = 256 << 10;
        ::setrlimit(RLIMIT_STACK, &limit);
        RunAndExit([] { return 0; });
      },
      ExitedWithCode(1), "^prog: the stack .*ulimit -s");
}

}  // namespace
}  // namespace hotrow
