#ifndef HOTROW_MODELS_TRAIN_RUN_RANKS_IMPL_H_
#define HOTROW_MODELS_TRAIN_RUN_RANKS_IMPL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"

namespace hotrow {

// The ranks that train together as one of them sees them, and the signal that ends all of them
// after the same step. With one rank every call answers at once and exchanges nothing.
//
// Ranks:   calls marked collective are made by all ranks at the same point of the run.
// Threads: one call at a time.
// Errors:  those of the communicator.
class RunRanks {
 public:
  // Neither is owned. communicator: null: alone. stop_signal: of this rank, not 0 once it is to
  // stop; null: never.
  RunRanks(Communicator* communicator, const std::atomic<int>* stop_signal);

  int32_t rank() const { return rank_; }
  int32_t world_size() const { return world_size_; }
  bool many() const { return world_size_ > 1; }

  // Opens the channels; what follows needs them. Collective.
  absl::Status Connect();
  // For calls from the thread that trains; null: alone.
  Communicator* channel() const { return channel_.get(); }
  // For a thread that sums while the training one computes; null: alone. Once.
  std::unique_ptr<Communicator> TakeSumChannel() { return std::move(sum_channel_); }

  // The largest number that any rank has, and the sum of all. Collective.
  absl::StatusOr<int64_t> Largest(int64_t mine);
  absl::StatusOr<int64_t> Sum(int64_t mine);

  // This rank's own signal.
  int own_signal() const { return stop_signal_ == nullptr ? 0 : stop_signal_->load(); }
  // Makes a signal that any rank has got the signal of all. Collective.
  absl::Status AgreeOnStop();
  // What the ranks have agreed on; alone, the own one.
  int signal() const { return many() ? agreed_signal_ : own_signal(); }
  bool stopped() const { return signal() != 0; }

 private:
  Communicator* const communicator_;
  const std::atomic<int>* const stop_signal_;
  const int32_t rank_;
  const int32_t world_size_;
  std::unique_ptr<Communicator> channel_;
  std::unique_ptr<Communicator> sum_channel_;
  int agreed_signal_ = 0;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_RUN_RANKS_IMPL_H_
