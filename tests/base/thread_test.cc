#include "base/thread.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/env.h"
#include "base/io_queue.h"
#include "base/thread_pool.h"
#include "tests/support/failing_allocations.h"
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

TEST(CaughtTest, WhatIsThrownIsAnErrorAndWhatIsReturnedIsReturned) {
  std::vector<absl::Status> thrown;
  const auto keep = [&](const absl::Status& status) { thrown.push_back(status); };
  const auto no_memory = []() -> absl::StatusOr<int> { throw std::bad_alloc(); };
  EXPECT_THAT(Caught("the place", no_memory, keep),
              StatusIs(absl::StatusCode::kResourceExhausted, "the place: out of memory"));
  const auto other = []() -> absl::Status { throw std::runtime_error("words"); };
  EXPECT_THAT(Caught("", other, keep), StatusIs(absl::StatusCode::kInternal, "words"));
  EXPECT_EQ(thrown.size(), 2u);
  EXPECT_EQ(*Caught("", []() -> absl::StatusOr<int> { return 3; }), 3);
  EXPECT_THAT(Caught(
                  "", [] { return absl::NotFoundError("returned"); }, keep),
              StatusIs(absl::StatusCode::kNotFound, "returned"));
  EXPECT_EQ(thrown.size(), 2u);
}

TEST(CaughtTest, WithoutMemoryForWordsThereIsAnErrorAllTheSame) {
  const auto no_memory = []() -> absl::Status { throw std::bad_alloc(); };
  absl::Status status;
  int64_t failed = 0;
  {
    const FailingAllocations all(0, FailingAllocations::kAllOthers);
    status = Caught("a place whose name is longer than a string without memory has", no_memory);
    failed = all.failed();
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, ""));
  EXPECT_GT(failed, 0);
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
