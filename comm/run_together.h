#ifndef HOTROW_COMM_RUN_TOGETHER_H_
#define HOTROW_COMM_RUN_TOGETHER_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"

// Ranks do local work of any length and agree on its result. All calls are collective; unless said
// otherwise, their errors are those of the channel.
namespace hotrow {

// The state of work that all ranks do.
struct RankVerdict {
  bool all_done = false;
  // When all are done: OK, or the error of one rank, as "rank 2: MESSAGE"; the same on all ranks.
  // Among several errors ResourceExhausted wins, since it has a remedy, then the lowest rank. With
  // one rank its own status, unchanged.
  absl::Status status;
};

// Asks all ranks once, without waiting for their work. mine: the result of this rank's part, once
// done.
absl::StatusOr<RankVerdict> AskRanks(Communicator& channel, bool done, const absl::Status& mine);

// The verdict on what all ranks have done.
absl::Status AgreeOn(Communicator& channel, const absl::Status& mine);

// Runs `work` on the calling thread of each rank and returns the verdict when all ranks are done.
// The channel stays usable after failures of the work. The work may exceed the communicator's
// timeout: a thread answers for this rank on `channel` meanwhile, so the work must not use it. An
// exception of the work is an error: std::bad_alloc ResourceExhausted, others Internal. With one
// rank it just runs `work`.
absl::Status RunTogether(Communicator& channel, absl::FunctionRef<absl::Status()> work);

// One text from each rank, by rank, cut off after 4096 bytes.
absl::StatusOr<std::vector<std::string>> AllGatherTexts(Communicator& channel,
                                                        std::string_view mine);

}  // namespace hotrow

#endif  // HOTROW_COMM_RUN_TOGETHER_H_
