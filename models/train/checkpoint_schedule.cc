#include "models/train/checkpoint_schedule_impl.h"

#include <algorithm>
#include <utility>

namespace hotrow {
namespace {

// Steps ahead of a checkpoint, half the way to it at most, at which the tables are told to prepare:
// seconds, in which a store can tidy up.
constexpr int64_t kAnnounceSteps = 100;
constexpr int64_t kDiskWatchSteps = 16;
// A store on a disk is short of room when that much of its budget is used and that much of it holds
// rows for old checkpoints alone.
constexpr double kShortOfDisk = 0.85;
constexpr double kMuchForSnapshots = 0.2;

}  // namespace

bool IsShortOfDisk(const DiskUse& disk) {
  const auto budget = static_cast<double>(disk.budget_bytes);
  return budget > 0 && static_cast<double>(disk.used_bytes) >= kShortOfDisk * budget &&
         static_cast<double>(disk.snapshot_bytes) >= kMuchForSnapshots * budget;
}

CheckpointSchedule::Plan CheckpointSchedule::Next(int64_t steps, bool busy, bool has_newest) {
  Plan plan;
  const int64_t every = options_.every;
  if (every > 0 && steps > 0 && steps % every == 0 && steps != due_step_) {
    due_ = true;
    due_step_ = steps;
  }
  const int64_t ahead = std::min(every / 2, kAnnounceSteps);
  plan.announce = options_.announces && ahead > 0 && steps % every == every - ahead;
  if (busy) {
    plan.say_late = due_ && !std::exchange(said_late_, true);
    return plan;
  }
  if (std::exchange(due_, false)) {
    if (!has_newest) plan.action = Action::kTake;
  } else if (options_.watches_disk && steps % kDiskWatchSteps == 0) {
    plan.action = Action::kWatchDisk;
  }
  return plan;
}

bool CheckpointSchedule::TakeRoomMade() { return std::exchange(room_made_, false); }

}  // namespace hotrow
