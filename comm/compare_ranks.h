#ifndef HOTROW_COMM_COMPARE_RANKS_H_
#define HOTROW_COMM_COMPARE_RANKS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "comm/communicator.h"

namespace hotrow {

// Names and values in words, as an error shows them: {"--learning_rate", "0.02"}.
using NamedValues = std::vector<std::pair<std::string, std::string>>;

// Compares what all ranks must have alike. Collective. One exchange of 24 bytes where all is alike;
// only where it is not, the texts travel, their lengths first.
//
// Errors: InvalidArgument, the same on every rank, which names each value that differs with its
// ranks: "the ranks differ: --learning_rate is 0.02 on rank 0 and 0.5 on rank 1". The channel goes
// on working. Otherwise those of the channel.
absl::Status CompareRanks(Communicator& channel, const NamedValues& mine);

}  // namespace hotrow

#endif  // HOTROW_COMM_COMPARE_RANKS_H_
