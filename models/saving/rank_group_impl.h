#ifndef HOTROW_MODELS_SAVING_RANK_GROUP_IMPL_H_
#define HOTROW_MODELS_SAVING_RANK_GROUP_IMPL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "comm/run_together.h"

// Work on another thread, and ranks that agree on how it ended, for the writers of saved
// models and checkpoints.
namespace hotrow {

// One piece of work at a time, on another thread or at once.
class Job {
 public:
  Job() = default;
  ~Job() { Join().IgnoreError(); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Starts work; none may be running. Null work is done at once. If no thread can be started, the
  // work is done at once and has failed.
  void Start(bool background, std::function<absl::Status()> work);
  bool done() const { return done_; }
  // Waits for the work that was started last and returns its status.
  absl::Status Join();

 private:
  std::thread thread_;
  absl::Status status_;
  std::atomic<bool> done_{true};
};

// The ranks that write one directory together. All calls but the first three are collective and as
// in comm/. A single rank needs no communicator and exchanges nothing.
class RankGroup {
 public:
  // Not owned; null: a single rank.
  explicit RankGroup(Communicator* communicator) : communicator_(communicator) {}

  int32_t rank() const { return alone() ? 0 : communicator_->rank(); }
  int32_t world_size() const { return alone() ? 1 : communicator_->world_size(); }
  bool leads() const { return rank() == 0; }

  // One number from each rank, by rank.
  absl::StatusOr<std::vector<int64_t>> Gather(int64_t mine) const;
  // comm/run_together.h
  absl::StatusOr<std::vector<std::string>> GatherTexts(std::string_view mine) const;
  absl::StatusOr<RankVerdict> Ask(bool done, const absl::Status& mine) const;
  absl::Status Agree(const absl::Status& mine) const;
  absl::Status Together(absl::FunctionRef<absl::Status()> work) const;
  // Does so with work that only rank 0 has.
  absl::Status TogetherOnLeader(absl::FunctionRef<absl::Status()> work) const;

 private:
  bool alone() const { return communicator_ == nullptr; }

  Communicator* const communicator_;
};

// Sleeps between two polls, a little longer each time.
class Patience {
 public:
  void Sleep();

 private:
  int64_t milliseconds_ = 1;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_RANK_GROUP_IMPL_H_
