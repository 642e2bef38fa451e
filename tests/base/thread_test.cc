#include "base/thread.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/env.h"
#include "base/io_queue.h"
#include "base/thread_pool.h"
#include "tests/support/failing_threads.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(ThreadTest, RunsWhatItIsGivenUnderTheBeginningOfItsPurpose) {
  std::string name(32, '\0');
  HOTROW_ASSERT_OK_AND_ASSIGN(std::thread thread,
                              StartThread("a test of names, of which 15 stay", [&] {
                                pthread_getname_np(pthread_self(), name.data(), name.size());
                              }));
  thread.join();
  EXPECT_EQ(std::string(name.c_str()), "a test of names");
}

TEST(ThreadTest, OneThatTheSystemRefusesIsAnError) {
  const FailingThreads none(0);
  bool ran = false;
  EXPECT_THAT(StartThread("the writer of a log", [&] { ran = true; }).status(),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("no thread for the writer of a log"), HasSubstr("ulimit -u"),
                             HasSubstr("ask for fewer threads"))));
  EXPECT_FALSE(ran);
  EXPECT_EQ(none.refused(), 1);
}

// The system's error is the same: EAGAIN.
TEST(ThreadDeathTest, AStackThatDoesNotFitIsNoLackOfThreads) {
  if (kSanitizer) GTEST_SKIP() << "a sanitizer has no room to say so";
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto start = [] {
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    struct rlimit limit;
    ::getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + (1 << 20));
    ::setrlimit(RLIMIT_AS, &limit);
    const auto thread = StartThread("a test", [] {});
    std::fprintf(stderr, "%s\n", std::string(thread.status().message()).c_str());
    std::exit(thread.ok() ? 1 : 5);
  };
  EXPECT_EXIT(start(), testing::ExitedWithCode(5), "no memory for its stack.*ulimit -v");
}

TEST(ThreadTest, APoolWithoutAllItsThreadsWorksAndSaysSo) {
  for (const int good : {0, 2}) {
    const FailingThreads few(good);
    ThreadPool pool(8);
    EXPECT_EQ(pool.num_threads(), good + 1);
    EXPECT_THAT(pool.status(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no thread for a pool")));
    std::atomic<int64_t> sum{0};
    pool.ParallelFor(1000, 7, [&](int64_t begin, int64_t end) { sum += end - begin; });
    EXPECT_EQ(sum, 1000);
  }
  ThreadPool pool(8);
  HOTROW_EXPECT_OK(pool.status());
  EXPECT_EQ(pool.num_threads(), 8);
}

TEST(ThreadTest, AnIoQueueWithoutItsThreadsIsAnError) {
  for (const int good : {0, 3}) {
    const FailingThreads few(good);
    EXPECT_THAT(PosixEnv().NewIoQueue({.kind = IoQueueKind::kThreads, .threads = 8}).status(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no thread for an I/O queue")));
  }
}

}  // namespace
}  // namespace hotrow::test
