#ifndef HOTROW_MODELS_TRAIN_RUN_DELTAS_IMPL_H_
#define HOTROW_MODELS_TRAIN_RUN_DELTAS_IMPL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/env.h"
#include "models/saving/rank_group_impl.h"
#include "models/train/run_ranks_impl.h"
#include "models/train/trainer_options.h"

namespace hotrow {

// Checkpoints that stay, so that the one that the next delta starts from is among them.
int64_t KeptCheckpoints(const TrainerOptions& options);

// The chain of deltas of one run. Each link is made of a checkpoint that is committed: the first is
// the chain's base, each later one a delta. A kill between the two leaves a checkpoint without its
// link, and the next start makes that first, so no link is left out and none is made twice. Without
// a delta_dir all calls do nothing.
//
// Ranks:   calls are collective; rank 0 reads and writes all files.
// Threads: one call at a time; links are written on a thread of this object.
// Errors:  those of ExportDelta, CreateChain and CompactChain, with the directory in front. The
//          chain is whole then, too.
class RunDeltas {
 public:
  using Print = std::function<void(std::string_view line)>;

  // `options`, `env` and `ranks` outlive it.
  RunDeltas(const TrainerOptions& options, Env& env, RunRanks& ranks, Print print);

  bool enabled() const { return !options_.delta_dir.empty(); }
  // A link is being written, as all ranks see it: no checkpoint may begin, since older ones go when
  // it is committed.
  bool busy() const { return busy_; }

  // Once, before the first step. first_step: of the tables, when the run began. newest_step: of the
  // newest checkpoint; -1: none. Makes the link of that checkpoint if it was due. Errors also:
  // FailedPrecondition (a chain is there that this run cannot go on with).
  absl::Status StartAt(int64_t first_step, int64_t newest_step);
  // A checkpoint of this step of the tables is committed; -1: there is none. at_once: it gets a
  // link, if it has none, though none is due: the run ends, or checkpoints before it are to go. Not
  // while busy().
  absl::Status Committed(int64_t step, bool at_once = false);
  // Goes on without waiting; and until nothing is being written.
  absl::Status Poll();
  absl::Status Wait();

 private:
  bool IsDue(int64_t step) const;
  std::string CheckpointOf(int64_t step) const;
  absl::Status CheckGoesOn(int64_t newest_step);
  absl::Status Begin(int64_t step);
  absl::Status WriteLink(int64_t step);  // on the thread
  absl::Status Named(const absl::Status& status) const;

  const TrainerOptions& options_;
  Env& env_;
  RunRanks& ranks_;
  const Print print_;
  int64_t first_step_ = 0;
  int64_t head_ = -1;  // step of the newest link; -1: there is no chain
  bool busy_ = false;
  int64_t writes_ = 0;   // the step that it leads to
  std::string written_;  // what rank 0 says of it
  Job job_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_RUN_DELTAS_IMPL_H_
