#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/philox.h"
#include "embedding/step_pipeline_impl.h"
#include "gtest/gtest.h"
#include "tests/support/test_util.h"

namespace hotrow::internal {
namespace {

using Job = StepPipeline::Job;

absl::Status WaitFor(StepPipeline& pipeline, Job* job) {
  int64_t waited_ns = 0;
  return pipeline.Wait(job, &waited_ns);
}

class StepPipelineTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(ThreadedOrNot, StepPipelineTest, testing::Bool());

TEST_P(StepPipelineTest, RunsJobsInOrderAndKeepsTheirStatus) {
  std::vector<const Job*> order;
  std::vector<Job> jobs(50);
  StepPipeline pipeline(GetParam(), [&](Job* job) {
    order.push_back(job);
    return job == &jobs[7] ? absl::DataLossError("seven") : absl::OkStatus();
  });
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
  StepPipeline pipeline(true, [&](Job*) {
    const std::lock_guard<std::mutex> lock(gate);
    ++ran;
    return absl::OkStatus();
  });
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

// Jobs take a share of some room and wait for it; the caller ends, cancels, and pauses as it likes.
TEST(StepPipelineTest, RoomPausesAndCancellationsNeverHang) {
  for (const uint64_t seed : test::Seeds(20)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    constexpr int kRoom = 3;
    std::atomic<int> used{0};
    std::atomic<bool> in_body{false};
    struct Taker : Job {
      int wants = 0;
      int has = 0;
    };
    StepPipeline* self = nullptr;
    StepPipeline pipeline(true, [&](Job* job) {
      auto* const taker = static_cast<Taker*>(job);
      in_body = true;
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
        if (alone) {
          status = absl::ResourceExhaustedError("alone");
          break;
        }
        in_body = false;
        self->WaitForRoom(job, epoch);
        in_body = true;
      }
      if (!status.ok()) {
        used -= taker->has;
        taker->has = 0;
      }
      in_body = false;
      return status;
    });
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
            pipeline.Submit(outstanding.back().get());
          } else {
            Taker* const oldest = outstanding.front().get();
            const absl::Status status = WaitFor(pipeline, oldest);
            EXPECT_EQ(status.ok(), oldest->wants <= kRoom) << status;
            end(0);
          }
          break;
        case 2:
          if (!outstanding.empty()) end(random.Below(outstanding.size()));
          break;
        case 3: {
          const StepPipeline::Pause pause(&pipeline);
          for (int look = 0; look < 3; ++look) {
            EXPECT_FALSE(in_body.load());
            std::this_thread::yield();
          }
          break;
        }
      }
    }
    while (!outstanding.empty()) end(outstanding.size() - 1);
    EXPECT_EQ(used.load(), 0);
  }
}

}  // namespace
}  // namespace hotrow::internal
