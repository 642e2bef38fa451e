#ifndef HOTROW_COMM_RUN_TOGETHER_H_
#define HOTROW_COMM_RUN_TOGETHER_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"

// Ranks that do something locally, for however long, and agree on how it ended. All calls are
// collective; their errors, where they say nothing else, are those of the channel.
namespace hotrow {

// How work that all ranks do stands.
struct RankVerdict {
  bool all_done = false;
  // Once all are done, the same on all ranks: OK, or that of a rank that failed, with its number
  // before the message: "rank 2: MESSAGE". Of several failures ResourceExhausted goes first, since
  // it has a remedy, then that of the lowest rank. A single rank's own as it is.
  absl::Status status;
};

// Asks all ranks once, without waiting for any work. mine: how this rank's part ended, when it is
// done.
absl::StatusOr<RankVerdict> AskRanks(Communicator& channel, bool done, const absl::Status& mine);

// The verdict on what all ranks have done.
absl::Status AgreeOn(Communicator& channel, const absl::Status& mine);

// Runs `work` on the calling thread of each rank and returns the verdict when all ranks are done
// with theirs; the channel goes on working. The work may take any time, on one rank longer than
// the timeout of the communicator: meanwhile a thread answers for this rank on `channel`, which the
// work must not use. A channel of one rank simply runs `work`.
absl::Status RunTogether(Communicator& channel, absl::FunctionRef<absl::Status()> work);

// One text from each rank, by rank, cut off after 4096 bytes.
absl::StatusOr<std::vector<std::string>> AllGatherTexts(Communicator& channel,
                                                        std::string_view mine);

}  // namespace hotrow

#endif  // HOTROW_COMM_RUN_TOGETHER_H_
