#include "models/train/run_ranks_impl.h"

#include <algorithm>
#include <span>
#include <vector>

#include "base/status_macros.h"

namespace hotrow {

RunRanks::RunRanks(Communicator* communicator, const std::atomic<int>* stop_signal)
    : communicator_(communicator),
      stop_signal_(stop_signal),
      rank_(communicator == nullptr ? 0 : communicator->rank()),
      world_size_(communicator == nullptr ? 1 : communicator->world_size()) {}

absl::Status RunRanks::Connect() {
  if (!many()) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(channel_, communicator_->Duplicate());
  HOTROW_ASSIGN_OR_RETURN(sum_channel_, communicator_->Duplicate());
  return absl::OkStatus();
}

absl::StatusOr<int64_t> RunRanks::Largest(int64_t mine) {
  if (!many()) return mine;
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> all, channel_->AllGatherSizes(mine));
  return *std::max_element(all.begin(), all.end());
}

absl::StatusOr<int64_t> RunRanks::Sum(int64_t mine) {
  if (!many()) return mine;
  HOTROW_RETURN_IF_ERROR(channel_->AllReduceSum(std::span<int64_t>(&mine, 1)));
  return mine;
}

absl::Status RunRanks::AgreeOnStop() {
  if (!many() || agreed_signal_ != 0) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(const int64_t signal, Largest(own_signal()));
  agreed_signal_ = static_cast<int>(signal);
  return absl::OkStatus();
}

}  // namespace hotrow
