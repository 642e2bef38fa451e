#include "models/train/checkpoint_schedule_impl.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace hotrow {
namespace {

using Action = CheckpointSchedule::Action;
using Plan = CheckpointSchedule::Plan;

// The steps up to `last` after which a checkpoint is taken by one who writes it at once.
std::vector<int64_t> TakenUpTo(int64_t last, CheckpointSchedule* schedule) {
  std::vector<int64_t> taken;
  for (int64_t step = 0; step <= last; ++step) {
    const Plan plan = schedule->Next(step, /*busy=*/false, /*has_newest=*/false);
    if (plan.action == Action::kTake) taken.push_back(step);
  }
  return taken;
}

TEST(CheckpointScheduleTest, TakesOneEverySoManySteps) {
  CheckpointSchedule schedule({.every = 10});
  EXPECT_EQ(TakenUpTo(35, &schedule), (std::vector<int64_t>{10, 20, 30}));
  CheckpointSchedule never({.every = 0});
  EXPECT_TRUE(TakenUpTo(35, &never).empty());
}

TEST(CheckpointScheduleTest, AskedTwiceAboutAStepItTakesOne) {
  CheckpointSchedule schedule({.every = 10});
  EXPECT_EQ(schedule.Next(10, false, false).action, Action::kTake);
  EXPECT_EQ(schedule.Next(10, false, false).action, Action::kNone);
  EXPECT_EQ(schedule.Next(11, false, false).action, Action::kNone);
}

TEST(CheckpointScheduleTest, OneThatIsMadeDueIsTakenWhateverTheStep) {
  CheckpointSchedule schedule({.every = 0});
  schedule.MakeDue();
  EXPECT_EQ(schedule.Next(7, /*busy=*/false, /*has_newest=*/false).action, Action::kTake);
  EXPECT_NE(schedule.Next(8, false, false).action, Action::kTake);
  schedule.MakeDue();
  EXPECT_NE(schedule.Next(9, false, /*has_newest=*/true).action, Action::kTake);
  EXPECT_NE(schedule.Next(10, false, false).action, Action::kTake);
}

// The one that the run goes on from is there.
TEST(CheckpointScheduleTest, NoneIsDueWhereTheRunResumes) {
  CheckpointSchedule schedule({.every = 10});
  schedule.ResumeAt(20);
  EXPECT_EQ(schedule.Next(20, false, false).action, Action::kNone);
  EXPECT_EQ(schedule.Next(30, false, false).action, Action::kTake);
}

TEST(CheckpointScheduleTest, NoneIsTakenWhereThereIsOneOfThisStep) {
  CheckpointSchedule schedule({.every = 10});
  EXPECT_EQ(schedule.Next(10, false, /*has_newest=*/true).action, Action::kNone);
  // And it is not made up for.
  EXPECT_EQ(schedule.Next(11, false, false).action, Action::kNone);
}

TEST(CheckpointScheduleTest, OneThatIsLateIsTakenRightAfterTheOneBefore) {
  CheckpointSchedule schedule({.every = 10});
  EXPECT_FALSE(schedule.Next(9, /*busy=*/true, false).say_late);
  Plan plan = schedule.Next(10, /*busy=*/true, false);
  EXPECT_TRUE(plan.say_late);
  EXPECT_EQ(plan.action, Action::kNone);
  plan = schedule.Next(11, /*busy=*/true, false);
  EXPECT_FALSE(plan.say_late) << "said once";
  plan = schedule.Next(12, /*busy=*/false, false);
  EXPECT_EQ(plan.action, Action::kTake);
  EXPECT_EQ(schedule.Next(20, /*busy=*/false, false).action, Action::kTake);
  EXPECT_FALSE(schedule.Next(30, /*busy=*/true, false).say_late) << "said once in a run";
}

TEST(CheckpointScheduleTest, AnnouncesAHundredStepsAheadOrHalfTheWay) {
  const auto announced = [](int64_t every, bool announces) {
    CheckpointSchedule schedule({.every = every, .announces = announces});
    std::vector<int64_t> steps;
    for (int64_t step = 0; step <= 2 * every; ++step) {
      if (schedule.Next(step, false, false).announce) steps.push_back(step);
    }
    return steps;
  };
  EXPECT_EQ(announced(1000, true), (std::vector<int64_t>{900, 1900}));
  EXPECT_EQ(announced(10, true), (std::vector<int64_t>{5, 15}));
  EXPECT_EQ(announced(1, true), std::vector<int64_t>());
  EXPECT_EQ(announced(1000, false), std::vector<int64_t>());
  EXPECT_EQ(announced(0, true), std::vector<int64_t>());
}

TEST(CheckpointScheduleTest, WatchesTheDiskNowAndThenWhenNothingElseIsToBeDone) {
  CheckpointSchedule schedule({.every = 32});
  EXPECT_EQ(schedule.Next(15, false, false).action, Action::kNone);
  EXPECT_EQ(schedule.Next(16, false, false).action, Action::kWatchDisk);
  EXPECT_EQ(schedule.Next(16, /*busy=*/true, false).action, Action::kNone);
  EXPECT_EQ(schedule.Next(32, false, false).action, Action::kTake);
  CheckpointSchedule in_memory({.every = 32, .watches_disk = false});
  EXPECT_EQ(in_memory.Next(16, false, false).action, Action::kNone);
}

TEST(CheckpointScheduleTest, ADiskIsShortWhenItIsNearlyFullAndOldCheckpointsHoldMuchOfIt) {
  EXPECT_TRUE(IsShortOfDisk({.budget_bytes = 100, .used_bytes = 85, .snapshot_bytes = 20}));
  EXPECT_FALSE(IsShortOfDisk({.budget_bytes = 100, .used_bytes = 84, .snapshot_bytes = 60}));
  EXPECT_FALSE(IsShortOfDisk({.budget_bytes = 100, .used_bytes = 99, .snapshot_bytes = 19}));
  EXPECT_FALSE(IsShortOfDisk({.budget_bytes = 0, .used_bytes = 99, .snapshot_bytes = 99}));
}

TEST(CheckpointScheduleTest, AShortDiskIsRelievedByANewerCheckpointOrWithoutTheOldOnes) {
  EXPECT_EQ(CheckpointSchedule::OnShortOfDisk(/*has_newest=*/false),
            CheckpointSchedule::Relief::kTakeEarly);
  EXPECT_EQ(CheckpointSchedule::OnShortOfDisk(/*has_newest=*/true),
            CheckpointSchedule::Relief::kDropOld);
}

TEST(CheckpointScheduleTest, OneThatFoundNoRoomIsDueAgain) {
  CheckpointSchedule schedule({.every = 10});
  EXPECT_EQ(schedule.Next(10, false, false).action, Action::kTake);
  EXPECT_FALSE(schedule.TakeRoomMade());
  schedule.FoundNoRoom();
  EXPECT_EQ(schedule.Next(11, false, false).action, Action::kTake);
  // What was refused before may fit now: that is told once.
  EXPECT_TRUE(schedule.TakeRoomMade());
  EXPECT_FALSE(schedule.TakeRoomMade());
  // Or kept for one who was refused, too.
  schedule.KeepRoomMade();
  EXPECT_TRUE(schedule.TakeRoomMade());
  schedule.FoundNoRoom();
  schedule.StepMade();
  EXPECT_FALSE(schedule.TakeRoomMade());
}

}  // namespace
}  // namespace hotrow
