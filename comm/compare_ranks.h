#ifndef HOTROW_COMM_COMPARE_RANKS_H_
#define HOTROW_COMM_COMPARE_RANKS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "comm/communicator.h"

namespace hotrow {

// Names and values as an error shows them: {"--learning_rate", "0.02"}.
using NamedValues = std::vector<std::pair<std::string, std::string>>;

// Checks that all ranks have the same values. Collective. Ranks exchange 24 bytes; the texts travel
// only if something differs.
//
// Errors: InvalidArgument, the same on every rank, which names each difference: "the ranks differ:
// --learning_rate is 0.02 on rank 0 and 0.5 on rank 1"; the channel stays usable. Otherwise those
// of the channel.
absl::Status CompareRanks(Communicator& channel, const NamedValues& mine);

}  // namespace hotrow

#endif  // HOTROW_COMM_COMPARE_RANKS_H_
