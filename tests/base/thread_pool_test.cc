#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, CoversTheRangeOnceInChunksOfTheGrain) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.num_threads(), GetParam());
  for (const int64_t n : {0, 1, 7, 64, 1000}) {
    for (const int64_t grain : {int64_t{1}, int64_t{7}, int64_t{64}, INT64_MAX}) {
      std::mutex mutex;
      std::set<std::pair<int64_t, int64_t>> chunks;
      pool.ParallelFor(n, grain, [&](int64_t begin, int64_t end) {
        const std::lock_guard<std::mutex> lock(mutex);
        EXPECT_TRUE(chunks.emplace(begin, end).second);
      });
      std::set<std::pair<int64_t, int64_t>> want;
      for (int64_t begin = 0; begin < n; begin += std::min(grain, n)) {
        want.emplace(begin, std::min(n, begin + std::min(grain, n)));
      }
      EXPECT_EQ(chunks, want) << n << " by " << grain;
    }
  }
}

// Plain (not atomic) writes: TSan sees whether the caller really waits for the workers.
TEST_P(ThreadPoolTest, ResultsAreThereWhenItReturns) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> values(5000);
  for (int round = 0; round < 200; ++round) {
    pool.ParallelFor(std::ssize(values), 100, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] += i;
    });
  }
  for (int64_t i = 0; i < std::ssize(values); ++i) {
    ASSERT_EQ(values[static_cast<size_t>(i)], 200 * i);
  }
}

TEST_P(ThreadPoolTest, SumPerChunkIsTheSameOnAnyPool) {
  const auto sum_of = [](ThreadPool* pool) {
    std::vector<float> partial(100);
    ParallelFor(pool, 10000, 100, [&](int64_t begin, int64_t end) {
      float sum = 0;
      for (int64_t i = begin; i < end; ++i) sum += 1.0f / static_cast<float>(i + 1);
      partial[static_cast<size_t>(begin / 100)] = sum;
    });
    return std::accumulate(partial.begin(), partial.end(), 0.0f);
  };
  ThreadPool pool(GetParam());
  EXPECT_EQ(sum_of(&pool), sum_of(nullptr));
}

TEST_P(ThreadPoolTest, AnExceptionOfABodyIsThatOfTheLoop) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(pool.ParallelFor(64, 1,
                                  [](int64_t begin, int64_t) {
                                    if (begin % 16 == 7) throw std::runtime_error("body");
                                  }),
                 std::runtime_error);
    // The pool goes on.
    std::atomic<int64_t> sum{0};
    pool.ParallelFor(64, 1, [&](int64_t begin, int64_t) { sum += begin; });
    EXPECT_EQ(sum, 63 * 32);
  }
}

TEST_P(ThreadPoolTest, NestedLoopRunsOnTheCallingThread) {
  ThreadPool pool(GetParam());
  std::atomic<int64_t> sum{0};
  for (const int64_t outer_chunks : {1, 8}) {
    sum = 0;
    pool.ParallelFor(outer_chunks, 1, [&](int64_t, int64_t) {
      const std::thread::id outer = std::this_thread::get_id();
      pool.ParallelFor(100, 3, [&](int64_t begin, int64_t end) {
        EXPECT_EQ(std::this_thread::get_id(), outer);
        for (int64_t i = begin; i < end; ++i) sum += i;
      });
    });
    EXPECT_EQ(sum, outer_chunks * 4950);
  }
}

TEST_P(ThreadPoolTest, LoopsFromManyThreadsAtOnce) {
  ThreadPool pool(GetParam());
  std::vector<std::thread> callers;
  std::vector<int64_t> sums(4);
  for (size_t c = 0; c < sums.size(); ++c) {
    callers.emplace_back([&pool, &sum = sums[c]] {
      for (int round = 0; round < 100; ++round) {
        std::atomic<int64_t> part{0};
        pool.ParallelFor(100, 5, [&part](int64_t begin, int64_t end) { part += end - begin; });
        sum += part;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_THAT(sums, testing::Each(100 * 100));
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1, 2, 3, 8),
                         testing::PrintToStringParamName());

TEST(ThreadPoolPlainTest, AllThreadsWorkOnOneLoop) {
  constexpr int kThreads = 3;
  ThreadPool pool(kThreads);
  std::mutex mutex;
  std::condition_variable all_here;
  int arrived = 0;
  // Every chunk waits until all three are running, so it ends only if three threads take part.
  pool.ParallelFor(kThreads, 1, [&](int64_t, int64_t) {
    std::unique_lock<std::mutex> lock(mutex);
    ++arrived;
    all_here.notify_all();
    all_here.wait(lock, [&arrived] { return arrived == kThreads; });
  });
  EXPECT_EQ(arrived, kThreads);
}

TEST(ThreadPoolPlainTest, NullPoolRunsChunksInOrder) {
  std::vector<int64_t> begins;
  ParallelFor(nullptr, 10, 4, [&begins](int64_t begin, int64_t) { begins.push_back(begin); });
  EXPECT_THAT(begins, testing::ElementsAre(0, 4, 8));
}

TEST(ThreadPoolDeathTest, ZeroGrainAndZeroThreadsAreBugs) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(ThreadPool(0), "num_threads >= 1");
  EXPECT_DEATH(ParallelFor(nullptr, 1, 0, [](int64_t, int64_t) {}), "grain >= 1");
}

}  // namespace
}  // namespace hotrow
