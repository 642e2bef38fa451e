#include "comm/thread_communicator.h"

#include <chrono>
#include <new>
#include <stdexcept>
#include <thread>

#include "base/out_of_room.h"
#include "comm/run_together.h"
#include "tests/comm/communicator_contract.h"
#include "tests/support/status_matchers.h"

namespace hotrow::test {
namespace {

std::vector<CommunicatorKind> ThreadKinds() {
  std::vector<CommunicatorKind> kinds;
  for (const int world_size : {1, 2, 3, 4, 7}) {
    kinds.push_back({"Threads", world_size,
                     [](int n, const CommunicatorOptions& options, const RankMain& rank_main) {
                       return RunOnThreads(n, options, rank_main);
                     }});
  }
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(All, CommunicatorContractTest, testing::ValuesIn(ThreadKinds()), KindName);

using testing::HasSubstr;

TEST(ThreadCommunicatorTest, ARankThatHasLeftIsNamedAtOnce) {
  CommunicatorOptions options;
  options.timeout_seconds = 600;
  const auto statuses = RunOnThreads(
      3, options, [](Communicator& c) { return c.rank() == 2 ? absl::OkStatus() : c.Barrier(); });
  HOTROW_EXPECT_OK(statuses[2]);
  for (const int rank : {0, 1}) {
    EXPECT_THAT(statuses[static_cast<size_t>(rank)],
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("Barrier: rank 2 has left")));
  }
}

TEST(ThreadCommunicatorTest, DifferentCallsAreTold) {
  const auto statuses = RunOnThreads(2, {}, [](Communicator& c) {
    std::vector<std::byte> data(8);
    return c.rank() == 0 ? c.Barrier() : c.Broadcast(data, 0);
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("rank 0 calls Barrier while rank 1 calls Broadcast")));
  }
}

TEST(ThreadCommunicatorTest, AllSilentRanksAreNamed) {
  CommunicatorOptions options;
  options.timeout_seconds = 0.2;
  const auto statuses = RunOnThreads(4, options, [](Communicator& c) {
    return c.rank() % 2 == 0 ? AwaitFailure(c) : c.Barrier();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                 HasSubstr("Barrier: no answer from rank 0, rank 2 for 0.2 s")));
  }
}

TEST(RunTogetherTest, WorkMayTakeLongerThanTheTimeout) {
  CommunicatorOptions options;
  options.timeout_seconds = 0.3;
  const auto statuses = RunOnThreads(3, options, [](Communicator& c) {
    for (const int slow : {1, 2}) {
      const absl::Status status = RunTogether(c, [&] {
        if (c.rank() == slow) std::this_thread::sleep_for(std::chrono::milliseconds(800));
        return absl::OkStatus();
      });
      if (!status.ok()) return status;
    }
    return c.Barrier();
  });
  for (const absl::Status& status : statuses) HOTROW_EXPECT_OK(status);
}

TEST(RunTogetherTest, AFailureIsSaidByAllAndTheChannelGoesOn) {
  const auto statuses = RunOnThreads(4, {}, [](Communicator& c) {
    const absl::Status status = RunTogether(c, [&]() -> absl::Status {
      if (c.rank() == 1) return absl::NotFoundError("no such file");
      if (c.rank() == 3) return absl::DataLossError("");
      return absl::OkStatus();
    });
    HOTROW_EXPECT_OK(c.Barrier());
    return status;
  });
  // Also by those that failed themselves: what is done about it is then the same everywhere.
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status, absl::NotFoundError("rank 1: no such file"));
  }
}

TEST(RunTogetherTest, AnExceptionIsAFailure) {
  const auto statuses = RunOnThreads(2, {}, [](Communicator& c) {
    EXPECT_EQ(RunTogether(c,
                          [&]() -> absl::Status {
                            if (c.rank() == 1) throw std::runtime_error("unforeseen");
                            return absl::OkStatus();
                          }),
              absl::InternalError("rank 1: unforeseen"));
    return RunTogether(c, [&]() -> absl::Status {
      if (c.rank() == 1) throw std::bad_alloc();
      return absl::OkStatus();
    });
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status, absl::ResourceExhaustedError("rank 1: out of memory"));
  }
}

TEST(RunTogetherTest, AllHearOfTheFailureThatHasARemedy) {
  const auto statuses = RunOnThreads(3, {}, [](Communicator& c) -> absl::Status {
    HOTROW_EXPECT_OK(AgreeOn(c, absl::OkStatus()));
    const absl::StatusOr<RankVerdict> working = AskRanks(c, c.rank() != 1, absl::DataLossError(""));
    EXPECT_TRUE(working.ok() && !working->all_done);
    EXPECT_EQ(AgreeOn(c, c.rank() == 0 ? absl::OkStatus() : absl::DataLossError("bad sector")),
              absl::DataLossError("rank 1: bad sector"));
    return RunTogether(c, [&]() -> absl::Status {
      if (c.rank() == 2) return OutOfRoomError("full");
      return c.rank() == 1 ? absl::ResourceExhaustedError("no memory")
                           : absl::DataLossError("bad sector");
    });
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status, OutOfRoomError("rank 2: full"));
    EXPECT_TRUE(IsOutOfRoom(status));
  }
}

TEST(RunTogetherTest, ASingleRankSaysWhatItHasToSay) {
  const auto statuses = RunOnThreads(1, {}, [](Communicator& c) -> absl::Status {
    const absl::StatusOr<RankVerdict> working = AskRanks(c, false, absl::DataLossError("bad"));
    EXPECT_TRUE(working.ok() && !working->all_done && working->status.ok());
    EXPECT_EQ(AgreeOn(c, absl::DataLossError("bad")), absl::DataLossError("bad"));
    return RunTogether(c, [] { return absl::NotFoundError("no such file"); });
  });
  EXPECT_EQ(statuses[0], absl::NotFoundError("no such file"));
}

TEST(RunTogetherTest, TextsOfAnyLengthArrive) {
  const auto statuses = RunOnThreads(3, {}, [](Communicator& c) -> absl::Status {
    for (const size_t length : {0, 1, 7, 8, 9, 100, 5000}) {
      const auto text_of = [&](int rank) {
        return std::string(length * static_cast<size_t>(rank + 1) / 3,
                           static_cast<char>('a' + rank));
      };
      const absl::StatusOr<std::vector<std::string>> texts = AllGatherTexts(c, text_of(c.rank()));
      if (!texts.ok()) return texts.status();
      EXPECT_EQ(texts->size(), 3u);
      for (int r = 0; r < 3; ++r) {
        EXPECT_EQ((*texts)[static_cast<size_t>(r)], text_of(r).substr(0, 4096));
      }
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) HOTROW_EXPECT_OK(status);
}

TEST(ThreadCommunicatorTest, BadOptionsAreNamed) {
  const auto expect = [](int world_size, const CommunicatorOptions& options, const char* text) {
    EXPECT_THAT(CreateThreadCommunicators(world_size, options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
    EXPECT_THAT(
        RunOnThreads(world_size, options, [](Communicator&) { return absl::OkStatus(); })[0],
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  expect(0, {}, "world_size must lie in [1, 1024], got 0");
  expect(1025, {}, "got 1025");
  expect(1, {.timeout_seconds = 0}, "timeout_seconds must lie in (0, 86400], got 0");
  expect(1, {.timeout_seconds = std::nan("")}, "timeout_seconds");
  expect(1, {.message_bytes_max = 0}, "message_bytes_max must lie in [1, 2^31 - 1], got 0");
  expect(1, {.message_bytes_max = int64_t{1} << 31}, "message_bytes_max");
}

TEST(CommLaneTest, WorkWithoutMemoryEndsTheOthers) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto ends, CreateThreadCommunicators(2, {}));
  CommLane mine(std::move(ends[0]));
  CommLane others(std::move(ends[1]));
  const int64_t waits = others.Start([](Communicator& c) { return c.Barrier(); });
  const int64_t fails = mine.Start([](Communicator&) -> absl::Status { throw std::bad_alloc(); });
  EXPECT_THAT(mine.Wait(fails), StatusIs(absl::StatusCode::kResourceExhausted, "out of memory"));
  EXPECT_THAT(others.Wait(waits), StatusIs(absl::StatusCode::kUnavailable,
                                           HasSubstr("rank 0 ended the job: out of memory")));
}

TEST(CommLaneTest, WorkRunsInOrderAndItsErrorStopsTheRest) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto ends, CreateThreadCommunicators(1, {}));
  CommLane lane(std::move(ends[0]));
  HOTROW_EXPECT_OK(lane.WaitAll());
  std::vector<int> ran;
  const int64_t first = lane.Start([&](Communicator& c) {
    ran.push_back(1);
    return c.Barrier();
  });
  const int64_t second = lane.Start([&](Communicator& c) {
    ran.push_back(2);
    return absl::DataLossError("two");
  });
  const int64_t third = lane.Start([&](Communicator& c) {
    ran.push_back(3);
    return absl::OkStatus();
  });
  EXPECT_THAT(lane.Wait(third), StatusIs(absl::StatusCode::kDataLoss, "two"));
  EXPECT_THAT(lane.Wait(second), StatusIs(absl::StatusCode::kDataLoss, "two"));
  HOTROW_EXPECT_OK(lane.Wait(first));
  HOTROW_EXPECT_OK(lane.Wait(first));
  EXPECT_THAT(lane.WaitAll(), StatusIs(absl::StatusCode::kDataLoss, "two"));
  EXPECT_THAT(ran, testing::ElementsAre(1, 2));
}

TEST(CommLaneTest, TheEndWaitsForWorkThatHasBeenStarted) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto ends, CreateThreadCommunicators(1, {}));
  int ran = 0;
  {
    CommLane lane(std::move(ends[0]));
    for (int i = 0; i < 100; ++i) {
      lane.Start([&](Communicator&) {
        ++ran;
        return absl::OkStatus();
      });
    }
  }
  EXPECT_EQ(ran, 100);
}

// Buckets of gradients go out on the lane while the ranks compute the next ones.
TEST(CommLaneTest, OverlapsCallsWithComputation) {
  const auto statuses = RunOnThreads(3, {}, [](Communicator& c) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> channel, c.Duplicate());
    CommLane lane(std::move(channel));
    std::vector<std::vector<float>> buckets(20, std::vector<float>(5000));
    for (size_t b = 0; b < buckets.size(); ++b) {
      for (float& x : buckets[b]) x = static_cast<float>(b) + static_cast<float>(c.rank());
      lane.Start(
          [&bucket = buckets[b]](Communicator& l) { return l.AllReduceSum(std::span(bucket)); });
      if (b % 3 == 0) HOTROW_RETURN_IF_ERROR(RandomCalls(c, b, 2, 1000));
    }
    HOTROW_RETURN_IF_ERROR(lane.WaitAll());
    for (size_t b = 0; b < buckets.size(); ++b) {
      for (const float x : buckets[b]) {
        if (x != 3 * static_cast<float>(b) + 3) return Wrong(c, absl::StrCat("bucket ", b));
      }
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) HOTROW_EXPECT_OK(status);
}

}  // namespace
}  // namespace hotrow::test
