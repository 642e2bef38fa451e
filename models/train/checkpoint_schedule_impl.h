#ifndef HOTROW_MODELS_TRAIN_CHECKPOINT_SCHEDULE_IMPL_H_
#define HOTROW_MODELS_TRAIN_CHECKPOINT_SCHEDULE_IMPL_H_

#include <cstdint>

namespace hotrow {

// What a store on a disk says of its budget.
struct DiskUse {
  int64_t budget_bytes = 0;  // 0: none
  int64_t used_bytes = 0;
  int64_t snapshot_bytes = 0;  // of them, held by old checkpoints alone
};

// Whether old checkpoints should go so that the store keeps its budget. Below this the store itself
// makes room, by cleaning.
bool IsShortOfDisk(const DiskUse& disk);

struct CheckpointScheduleOptions {
  int64_t every = 0;         // steps; 0: none is due while training goes on
  bool announces = true;     // whether the tables are told some steps before
  bool watches_disk = true;  // whether the tables lie on a disk
};

// When a run takes checkpoints, and what it does where there is no room. A pure object: it is told
// steps and what has happened, and touches no clock, file or thread. With several ranks each has
// one, and all say the same.
class CheckpointSchedule {
 public:
  explicit CheckpointSchedule(const CheckpointScheduleOptions& options) : options_(options) {}

  // The run goes on from its checkpoint of this step: none is due before a step is made.
  void ResumeAt(int64_t step) { due_step_ = step; }

  enum class Action { kNone, kTake, kWatchDisk };
  struct Plan {
    bool announce = false;  // tell the tables that a snapshot comes in a while
    bool say_late = false;  // the one before is still being written; said once in a run
    Action action = Action::kNone;
  };
  // What there is to do after `steps` steps of the run, asked once a step or more often. busy: a
  // checkpoint is being written. has_newest: there is one of this step.
  Plan Next(int64_t steps, bool busy, bool has_newest);

  // One is due now, whatever the step: at the border of a window.
  void MakeDue() { due_ = true; }

  // What to do about a disk that is short on some rank: one of this step lets all before it go.
  enum class Relief { kTakeEarly, kDropOld };
  static Relief OnShortOfDisk(bool has_newest) {
    return has_newest ? Relief::kDropOld : Relief::kTakeEarly;
  }

  // A checkpoint found no room, and older ones were removed: it is due again, and a step that was
  // refused may fit now.
  void FoundNoRoom() {
    due_ = true;
    room_made_ = true;
  }
  // Whether room was made since a step was made; then it counts no longer.
  bool TakeRoomMade();
  // It counts for the step to come, too.
  void KeepRoomMade() { room_made_ = true; }
  void StepMade() { room_made_ = false; }

 private:
  const CheckpointScheduleOptions options_;
  bool due_ = false;
  int64_t due_step_ = -1;  // the step at which one was due last
  bool said_late_ = false;
  bool room_made_ = false;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_CHECKPOINT_SCHEDULE_IMPL_H_
