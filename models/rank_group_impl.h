#ifndef HOTROW_MODELS_RANK_GROUP_IMPL_H_
#define HOTROW_MODELS_RANK_GROUP_IMPL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/saved_model.h"

// What the writers of saved models and checkpoints share: work on a thread of its own, and ranks
// that agree on how it ended.
namespace hotrow {

// One piece of work at a time, on a thread of its own or at once.
class Job {
 public:
  Job() = default;
  ~Job() { Join().IgnoreError(); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Not while one runs. Null: nothing is to be done, and that is done at once.
  void Start(bool background, std::function<absl::Status()> work);
  bool done() const { return done_; }
  // Waits; the status of the work that was started last.
  absl::Status Join();

 private:
  std::thread thread_;
  absl::Status status_;
  std::atomic<bool> done_{true};
};

// The ranks that write one directory together, as one of them sees them. All calls but the first
// three are collective, exchange numbers through the gather, and return its errors. A single rank
// agrees with itself and exchanges nothing.
class RankGroup {
 public:
  RankGroup(int32_t rank, int32_t world_size, RankGather gather);

  int32_t rank() const { return rank_; }
  int32_t world_size() const { return world_size_; }
  bool leads() const { return rank_ == 0; }

  // One number from each rank, by rank.
  absl::StatusOr<std::vector<int64_t>> Gather(int64_t mine) const;
  // One text from each, cut off after a few thousand bytes.
  absl::StatusOr<std::vector<std::string>> GatherTexts(std::string_view mine) const;

  // How work that all ranks do stands.
  struct Verdict {
    bool all_done = false;
    // Once all are done, the same on all ranks: OK, or that of a rank that failed, with its number
    // before the message; ResourceExhausted before others. A single rank's own as it is.
    absl::Status status;
  };
  // mine: how this rank's part ended, when it is done.
  absl::StatusOr<Verdict> Hear(bool done, const absl::Status& mine) const;
  // The verdict on what all ranks have done.
  absl::Status Agree(const absl::Status& mine) const;

  // Does work on all ranks and returns the verdict. A single rank does it on this thread. Several
  // do it on a thread of their own if `background`, and go on exchanging numbers meanwhile, so that
  // no timeout of a communicator bounds how long it takes.
  absl::Status Together(bool background, std::function<absl::Status()> work) const;

 private:
  const int32_t rank_;
  const int32_t world_size_;
  const RankGather gather_;
};

// Sleeps between two looks at what takes long, a little longer each time.
class Patience {
 public:
  void Sleep();

 private:
  int64_t milliseconds_ = 1;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_RANK_GROUP_IMPL_H_
