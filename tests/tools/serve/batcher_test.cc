#include "tools/serve/batcher.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::UnorderedElementsAre;

// The batch of Callers::Hold.
const auto kHeld = ElementsAre(1);

constexpr int64_t kMilli = 1'000'000;
constexpr int64_t kLongNs = int64_t{600'000} * kMilli;  // longer than any case takes
constexpr int64_t kLongUs = 1'000'000;                  // a window that only what fills it ends

std::shared_ptr<ScoreJob> Job(int64_t samples, ScoreKind kind = ScoreKind::kSamples) {
  auto job = std::make_shared<ScoreJob>();
  job->request.kind = kind;
  job->request.num_samples = samples;
  return job;
}

// Scores by noting the sizes of batches. While it is closed, batches wait.
class Recorder {
 public:
  Batcher::Run run() {
    return [this](std::span<ScoreJob* const> jobs) {
      std::unique_lock<std::mutex> lock(mutex_);
      std::vector<int64_t> sizes;
      for (const ScoreJob* const job : jobs) sizes.push_back(job->request.num_samples);
      batches_.push_back(std::move(sizes));
      changed_.notify_all();
      changed_.wait(lock, [&] { return open_; });
    };
  }
  void Close() { Set(false); }
  void Open() { Set(true); }
  void AwaitBatches(size_t n) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return batches_.size() >= n; });
  }
  std::vector<std::vector<int64_t>> batches() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return batches_;
  }

 private:
  void Set(bool open) {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<int64_t>> batches_;
  bool open_ = true;
};

// Calls of Score, each on its own thread, in the order in which they were made.
class Callers {
 public:
  explicit Callers(Batcher* batcher) : batcher_(*batcher) {}
  ~Callers() { Join(); }

  // Takes the only instance, which then waits for the recorder to be opened.
  void Hold(Recorder* recorder) {
    recorder->Close();
    Start(Job(1, ScoreKind::kCandidates));
    recorder->AwaitBatches(1);
  }
  // Returns once the request waits: no instance is free.
  void Call(const std::shared_ptr<ScoreJob>& job) {
    const int64_t before = batcher_.waiting();
    Start(job);
    while (batcher_.waiting() <= before) std::this_thread::yield();
  }
  // In the order in which the threads come to it.
  void Start(const std::shared_ptr<ScoreJob>& job, int64_t deadline_ns = NowNanos() + kLongNs) {
    const size_t at = statuses_.size();
    statuses_.emplace_back(std::make_unique<absl::Status>(absl::UnknownError("not back")));
    threads_.emplace_back([this, job, deadline_ns, status = statuses_[at].get()] {
      Batcher::Times times;
      *status = batcher_.Score(job, deadline_ns, &times);
    });
  }
  std::vector<absl::Status> Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    std::vector<absl::Status> out;
    for (const auto& status : statuses_) out.push_back(*status);
    return out;
  }

 private:
  Batcher& batcher_;
  std::vector<std::thread> threads_;
  std::vector<std::unique_ptr<absl::Status>> statuses_;
};

void ExpectAllOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) HOTROW_EXPECT_OK(status);
}

TEST(BatcherTest, WithoutAWindowEachRequestIsABatch) {
  Recorder recorder;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto batcher, Batcher::Start({}, recorder.run()));
  Callers callers(batcher.get());
  callers.Hold(&recorder);
  for (const int64_t samples : {3, 5, 7}) callers.Call(Job(samples));
  recorder.Open();
  ExpectAllOk(callers.Join());
  EXPECT_THAT(recorder.batches(),
              ElementsAre(kHeld, ElementsAre(3), ElementsAre(5), ElementsAre(7)));
}

TEST(BatcherTest, AFullBatchWaitsNoLonger) {
  Recorder recorder;
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto batcher,
      Batcher::Start({.window_us = kLongUs, .batch_samples_max = 6}, recorder.run()));
  Callers callers(batcher.get());
  const int64_t begin = NowNanos();
  for (const int64_t samples : {1, 2, 3}) callers.Start(Job(samples));
  ExpectAllOk(callers.Join());
  EXPECT_THAT(NowNanos() - begin, Lt(kLongUs * 1000));
  EXPECT_THAT(recorder.batches(), ElementsAre(UnorderedElementsAre(1, 2, 3)));
}

TEST(BatcherTest, WhatDoesNotFitIsOfTheNextBatch) {
  Recorder recorder;
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto batcher, Batcher::Start({.window_us = 1, .batch_samples_max = 6}, recorder.run()));
  Callers callers(batcher.get());
  callers.Hold(&recorder);
  for (const int64_t samples : {4, 3, 3, 1, 9, 2}) callers.Call(Job(samples));
  recorder.Open();
  ExpectAllOk(callers.Join());
  EXPECT_THAT(recorder.batches(), ElementsAre(kHeld, ElementsAre(4), ElementsAre(3, 3),
                                              ElementsAre(1), ElementsAre(9), ElementsAre(2)));
}

TEST(BatcherTest, TheWindowEndsABatchThatIsNotFull) {
  Recorder recorder;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto batcher,
                              Batcher::Start({.window_us = 2000}, recorder.run()));
  Batcher::Times times;
  HOTROW_EXPECT_OK(batcher->Score(Job(1), NowNanos() + kLongNs, &times));
  EXPECT_THAT(recorder.batches(), ElementsAre(ElementsAre(1)));
  EXPECT_GE(times.score_ns, 0);
}

// The idle one of two instances leaves a batch alone that is being put together.
TEST(BatcherTest, OneBatchOfAKindIsPutTogetherAtATime) {
  Recorder recorder;
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto batcher,
      Batcher::Start({.instances = 3, .window_us = kLongUs, .batch_samples_max = 4},
                     recorder.run()));
  Callers callers(batcher.get());
  for (int i = 0; i < 8; ++i) callers.Start(Job(1));
  ExpectAllOk(callers.Join());
  EXPECT_THAT(recorder.batches(), ElementsAre(ElementsAre(1, 1, 1, 1), ElementsAre(1, 1, 1, 1)));
}

TEST(BatcherTest, KindsAreNotMixedAndCandidatesWaitForNobody) {
  Recorder recorder;
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto batcher,
      Batcher::Start({.instances = 3, .window_us = kLongUs, .batch_samples_max = 100},
                     recorder.run()));
  Callers callers(batcher.get());
  callers.Start(Job(1, ScoreKind::kSamples));
  callers.Start(Job(20, ScoreKind::kLines));
  const int64_t begin = NowNanos();
  Batcher::Times times;
  HOTROW_EXPECT_OK(batcher->Score(Job(300, ScoreKind::kCandidates), NowNanos() + kLongNs, &times));
  HOTROW_EXPECT_OK(batcher->Score(Job(301, ScoreKind::kCandidates), NowNanos() + kLongNs, &times));
  EXPECT_THAT(NowNanos() - begin, Lt(kLongUs * 1000));
  EXPECT_THAT(recorder.batches(), ElementsAre(ElementsAre(300), ElementsAre(301)));
  callers.Start(Job(99, ScoreKind::kSamples));
  callers.Start(Job(80, ScoreKind::kLines));
  ExpectAllOk(callers.Join());
  EXPECT_THAT(recorder.batches(),
              UnorderedElementsAre(ElementsAre(300), ElementsAre(301), UnorderedElementsAre(1, 99),
                                   UnorderedElementsAre(20, 80)));
}

TEST(BatcherTest, AFullQueueRefuses) {
  Recorder recorder;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto batcher, Batcher::Start({.queue_max = 2}, recorder.run()));
  Callers callers(batcher.get());
  callers.Hold(&recorder);
  callers.Call(Job(2));
  callers.Call(Job(3, ScoreKind::kLines));
  EXPECT_EQ(batcher->waiting(), 2);
  Batcher::Times times;
  EXPECT_THAT(batcher->Score(Job(4), NowNanos() + kLongNs, &times),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("2 requests wait")));
  recorder.Open();
  ExpectAllOk(callers.Join());
  HOTROW_EXPECT_OK(batcher->Score(Job(4), NowNanos() + kLongNs, &times));
}

TEST(BatcherTest, ADeadlineEndsTheWaitInTheQueueAndWhileScoring) {
  Recorder recorder;
  recorder.Close();
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto batcher, Batcher::Start({}, recorder.run()));
  Batcher::Times times;
  EXPECT_THAT(batcher->Score(Job(1), NowNanos() + 300 * kMilli, &times),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("being scored")));
  EXPECT_THAT(batcher->Score(Job(2), NowNanos() + 20 * kMilli, &times),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("in the queue")));
  EXPECT_GE(times.queue_ns, 20 * kMilli);
  EXPECT_EQ(batcher->waiting(), 0);
  // One whose time is over when it comes.
  EXPECT_THAT(batcher->Score(Job(3), NowNanos() - 1, &times),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("before it came")));
  recorder.Open();
  HOTROW_EXPECT_OK(batcher->Score(Job(4), NowNanos() + kLongNs, &times));
  // Nobody scored what nobody waited for.
  EXPECT_THAT(recorder.batches(), ElementsAre(ElementsAre(1), ElementsAre(4)));
}

TEST(BatcherTest, StopEndsWhatIsScoredAndRefusesTheRest) {
  Recorder recorder;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto batcher, Batcher::Start({}, recorder.run()));
  Callers callers(batcher.get());
  callers.Hold(&recorder);
  callers.Call(Job(2));
  std::thread stopping([&] { batcher->Stop(); });
  Batcher::Times times;
  // Once it stops, it says so.
  absl::Status status;
  do {
    status = batcher->Score(Job(3), NowNanos() + kMilli, &times);
  } while (absl::IsDeadlineExceeded(status));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("stopping")));
  recorder.Open();
  stopping.join();
  const std::vector<absl::Status> statuses = callers.Join();
  HOTROW_EXPECT_OK(statuses[0]);
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kUnavailable, HasSubstr("stopping")));
  EXPECT_THAT(recorder.batches(), ElementsAre(ElementsAre(1)));
}

TEST(BatcherTest, StopDoesNotWaitForAWindow) {
  Recorder recorder;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto batcher,
                              Batcher::Start({.window_us = kLongUs}, recorder.run()));
  Callers callers(batcher.get());
  const int64_t begin = NowNanos();
  callers.Start(Job(1));
  batcher->Stop();
  EXPECT_THAT(NowNanos() - begin, Lt(kLongUs * 1000));
  callers.Join();
}

// Every request is scored once, with any window and instances.
TEST(BatcherTest, ManyCallersAreScoredOnceEach) {
  for (const int64_t window_us : {0, 200}) {
    std::mutex mutex;
    std::vector<const ScoreJob*> seen;
    int64_t largest = 0;
    HOTROW_ASSERT_OK_AND_ASSIGN(
        const auto batcher,
        Batcher::Start({.instances = 3, .window_us = window_us, .batch_samples_max = 16},
                       [&](std::span<ScoreJob* const> jobs) {
                         const std::lock_guard<std::mutex> lock(mutex);
                         int64_t samples = 0;
                         for (const ScoreJob* const job : jobs) {
                           seen.push_back(job);
                           samples += job->request.num_samples;
                         }
                         largest = std::max(largest, samples);
                       }));
    constexpr int kThreads = 8;
    const int calls = test::ForSanitizer(200, 50);
    std::vector<std::shared_ptr<ScoreJob>> jobs;
    for (int i = 0; i < kThreads * calls; ++i) jobs.push_back(Job(1 + i % 7));
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < calls; ++i) {
          Batcher::Times times;
          HOTROW_EXPECT_OK(batcher->Score(jobs[static_cast<size_t>(t * calls + i)],
                                          NowNanos() + kLongNs, &times));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    batcher->Stop();
    EXPECT_EQ(seen.size(), jobs.size());
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end());
    EXPECT_LE(largest, 16);
    if (window_us == 0) {
      EXPECT_LE(largest, 7);
    }
  }
}

TEST(BatcherTest, BadOptionsAreNamed) {
  const auto start = [](const BatcherOptions& options) {
    return Batcher::Start(options, [](auto) {}).status();
  };
  EXPECT_THAT(start({.instances = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("instances")));
  EXPECT_THAT(start({.window_us = -1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("window_us")));
  EXPECT_THAT(start({.batch_samples_max = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("batch_samples_max")));
  EXPECT_THAT(start({.queue_max = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("queue_max")));
}

}  // namespace
}  // namespace hotrow
