#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/philox.h"
#include "embedding/tiers/step_pipeline_impl.h"
#include "gtest/gtest.h"
#include "tests/support/test_util.h"

namespace hotrow::internal {
namespace {

using Job = StepPipeline::Job;

absl::Status WaitFor(StepPipeline& pipeline, Job* job) {
  int64_t waited_ns = 0;
  return pipeline.Wait(job, &waited_ns);
}

// One of these as the first stage, and a second one that has nothing to do.
StepPipeline::Stages OneStage(std::function<absl::Status(Job*)> first) {
  return {.first = std::move(first),
          .second = [](Job*) { return absl::OkStatus(); },
          .undo = [](Job*) { FAIL() << "no second stage failed"; }};
}

class StepPipelineTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(ThreadedOrNot, StepPipelineTest, testing::Bool());

TEST_P(StepPipelineTest, RunsJobsInOrderAndKeepsTheirStatus) {
  std::vector<const Job*> order;
  std::vector<Job> jobs(50);
  StepPipeline pipeline(GetParam(), OneStage([&](Job* job) {
                          order.push_back(job);
                          return job == &jobs[7] ? absl::DataLossError("seven") : absl::OkStatus();
                        }));
  for (Job& job : jobs) pipeline.Submit(&job);
  for (Job& job : jobs) {
    EXPECT_EQ(WaitFor(pipeline, &job).ok(), &job != &jobs[7]);
  }
  for (Job& job : jobs) {
    pipeline.Withdraw(&job);
    pipeline.Forget(&job);
  }
  ASSERT_EQ(order.size(), jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) EXPECT_EQ(order[i], &jobs[i]);
}

TEST(StepPipelineTest, AJobThatIsWithdrawnBeforeItsTurnDoesNotRun) {
  std::mutex gate;
  std::atomic<int> ran{0};
  StepPipeline pipeline(true, OneStage([&](Job*) {
                          const std::lock_guard<std::mutex> lock(gate);
                          ++ran;
                          return absl::OkStatus();
                        }));
  Job first;
  Job second;
  Job third;
  {
    const std::lock_guard<std::mutex> lock(gate);
    for (Job* const job : {&first, &second, &third}) pipeline.Submit(job);
    pipeline.Withdraw(&second);
    pipeline.Forget(&second);
  }
  EXPECT_TRUE(WaitFor(pipeline, &third).ok());
  EXPECT_EQ(ran.load(), 2);
  pipeline.Forget(&first);
  pipeline.Forget(&third);
}

// Jobs take a share of some room and wait for it; second stages fail now and then, and then the
// next job is undone before the one that failed; the caller ends, cancels, and pauses as it likes.
TEST(StepPipelineTest, RoomFailuresPausesAndCancellationsNeverHang) {
  int undone_before = 0;
  for (const uint64_t seed : test::Seeds(20)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    constexpr int kRoom = 3;
    std::atomic<int> used{0};
    std::atomic<int> in_stages{0};
    struct Taker : Job {
      int wants = 0;
      int has = 0;
      bool fails = false;
    };
    Taker* failed = nullptr;  // in its second stage, and not undone yet
    StepPipeline* self = nullptr;
    const auto undo = [&](Taker* taker) {
      if (failed != nullptr && failed != taker) {
        ++undone_before;
        EXPECT_EQ(failed->has, failed->wants);
      }
      if (failed == taker) failed = nullptr;
      used -= taker->has;
      taker->has = 0;
    };
    const auto first = [&](Job* job) -> absl::Status {
      auto* const taker = static_cast<Taker*>(job);
      ++in_stages;
      absl::Status status;
      for (;;) {
        if (self->cancelled(job)) {
          status = absl::CancelledError();
          break;
        }
        const uint64_t epoch = self->room_epoch();
        const bool alone = self->RunsAlone(job);
        while (taker->has < taker->wants && used < kRoom) {
          ++used;
          ++taker->has;
        }
        if (taker->has == taker->wants) break;
        bool undone = false;
        const absl::StatusOr<bool> kept = self->Join(job, [&] {
          undo(taker);
          undone = true;
          --in_stages;  // until Join returns
        });
        if (undone) ++in_stages;
        if (!kept.ok()) {
          status = kept.status();
          break;
        }
        EXPECT_EQ(*kept, !undone);
        if (!*kept) continue;
        if (alone) {
          status = absl::ResourceExhaustedError("alone");
          break;
        }
        --in_stages;
        self->WaitForRoom(job, epoch);
        ++in_stages;
      }
      if (!status.ok()) {
        used -= taker->has;
        taker->has = 0;
      }
      --in_stages;
      return status;
    };
    const auto second = [&](Job* job) -> absl::Status {
      auto* const taker = static_cast<Taker*>(job);
      ++in_stages;
      std::this_thread::yield();
      EXPECT_EQ(taker->has, taker->wants);
      --in_stages;
      if (!taker->fails) return absl::OkStatus();
      failed = taker;
      return absl::DataLossError("second");
    };
    StepPipeline pipeline(true, {.first = first, .second = second, .undo = [&](Job* job) {
                                   undo(static_cast<Taker*>(job));
                                 }});
    self = &pipeline;
    std::vector<std::unique_ptr<Taker>> outstanding;
    const auto end = [&](size_t i) {
      pipeline.Withdraw(outstanding[i].get());
      used -= outstanding[i]->has;
      pipeline.Forget(outstanding[i].get());
      outstanding.erase(outstanding.begin() + static_cast<int64_t>(i));
    };
    for (int i = 0; i < 400; ++i) {
      switch (random.Below(4)) {
        case 0:
        case 1:
          if (outstanding.size() < 4) {
            outstanding.push_back(std::make_unique<Taker>());
            outstanding.back()->wants = static_cast<int>(1 + random.Below(kRoom + 1));
            outstanding.back()->fails = random.Below(4) == 0;
            pipeline.Submit(outstanding.back().get());
          } else {
            Taker* const oldest = outstanding.front().get();
            const absl::Status status = WaitFor(pipeline, oldest);
            EXPECT_EQ(status.ok(), oldest->wants <= kRoom && !oldest->fails) << status;
            end(0);
          }
          break;
        case 2:
          if (!outstanding.empty()) end(random.Below(outstanding.size()));
          break;
        case 3: {
          const StepPipeline::Pause pause(&pipeline);
          for (int look = 0; look < 3; ++look) {
            EXPECT_EQ(in_stages.load(), 0);
            std::this_thread::yield();
          }
          break;
        }
      }
    }
    while (!outstanding.empty()) end(outstanding.size() - 1);
    EXPECT_EQ(used.load(), 0);
  }
  EXPECT_GT(undone_before, 0);
}

}  // namespace
}  // namespace hotrow::internal
