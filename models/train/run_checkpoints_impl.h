#ifndef HOTROW_MODELS_TRAIN_RUN_CHECKPOINTS_IMPL_H_
#define HOTROW_MODELS_TRAIN_RUN_CHECKPOINTS_IMPL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/trace.h"
#include "embedding/embedding_collection.h"
#include "models/saving/checkpoint.h"
#include "models/saving/checkpoint_writer.h"
#include "models/saving/dense_file.h"
#include "models/saving/saved_model.h"
#include "models/train/checkpoint_schedule_impl.h"
#include "models/train/run_deltas_impl.h"
#include "models/train/run_ranks_impl.h"
#include "models/train/trainer_options.h"

namespace hotrow {

// The checkpoints of one run, and the chain of deltas that is made of them. CheckpointSchedule says
// when, a CheckpointWriter writes them while training goes on, and each is reported in a line.
// Without a checkpoint_dir all calls do nothing.
//
// Ranks:   all calls but the const ones are collective.
// Threads: those of CheckpointWriter.
// Errors:  those of CheckpointWriter; ResourceExhausted only where removing older checkpoints makes
//          no room.
class RunCheckpoints {
 public:
  // What a checkpoint is to hold; the dense arrays are read before the next call.
  struct Contents {
    SavedModel model;  // but for its parts
    DenseArrays<const float> dense;
  };
  using Print = std::function<void(std::string_view line)>;

  // Takes the lock of the directory. `options`, `env`, `ranks` and `trace` outlive it.
  static absl::StatusOr<std::unique_ptr<RunCheckpoints>> Open(const TrainerOptions& options,
                                                              Env& env, TraceRecorder* trace,
                                                              RunRanks& ranks, Print print);

  bool enabled() const { return writer_ != nullptr; }
  std::string tables_dir() const { return writer_->tables_dir(); }
  CheckpointStats stats() const { return enabled() ? writer_->stats() : CheckpointStats(); }
  std::string newest_dir() const { return enabled() ? writer_->newest_dir() : std::string(); }

  // Comes before all that follows. tables_dir: of the snapshots of `tables`, which outlives this.
  // contents: of a checkpoint of this moment.
  absl::Status Attach(EmbeddingCollection* tables, const std::string& tables_dir,
                      std::function<absl::StatusOr<Contents>()> contents);
  // first_step: steps that the tables had seen before the run. resumed_steps: steps of the run that
  // its checkpoint holds; 0: it begins. Makes the chain's link of that checkpoint if it is due.
  absl::Status StartAt(int64_t first_step, int64_t resumed_steps);

  // Does between two steps what is in flight, what is due, what the disk needs. at_border: one of
  // this moment is due, with a link, and what is in flight is waited for.
  absl::Status Carry(bool at_border);
  // Goes on with what is in flight, without waiting; and until it is committed.
  absl::Status Poll();
  absl::Status Wait();
  // The store has refused a step for want of room. OK when something was freed, so that the step
  // should be tried again; `refused` when nothing can be; else what failed meanwhile, such as a
  // link that its directory has no room for, with `refused` behind it.
  absl::Status MakeRoom(const absl::Status& refused);
  void KeepRoomMade() { schedule_.KeepRoomMade(); }  // for one more refusal
  void StepMade() { schedule_.StepMade(); }
  // What the next start goes on from: everything up to here.
  absl::Status End();

 private:
  RunCheckpoints(const TrainerOptions& options, Env& env, RunRanks& ranks, Print print);
  int64_t steps() const { return tables_->steps() - first_step_; }  // of the run
  bool has_newest() const { return writer_->newest_step() >= tables_->steps(); }
  absl::Status Begin(bool early);
  absl::Status Failed(const absl::Status& status);
  // Removes all checkpoints but the newest, once the chain has a link of it. False: there is only
  // one.
  absl::StatusOr<bool> DropOld();
  absl::StatusOr<bool> TryMakeRoom();
  absl::Status SayDropped(const absl::StatusOr<bool>& removed);
  absl::Status WatchDisk();
  void PrintCommitted();
  absl::Status OnCommitted();

  const TrainerOptions& options_;
  RunRanks& ranks_;
  const Print print_;
  CheckpointSchedule schedule_;
  std::function<absl::StatusOr<Contents>()> contents_;
  EmbeddingCollection* tables_ = nullptr;
  int64_t first_step_ = 0;
  int64_t border_step_ = -1;  // of the tables, at the latest border of windows; -1: there was none
  std::unique_ptr<CheckpointWriter> writer_;
  RunDeltas deltas_;
  bool drops_old_ = false;  // DropOld is due, without waiting
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_RUN_CHECKPOINTS_IMPL_H_
