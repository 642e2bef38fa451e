#ifndef HOTROW_COMM_RUN_TOGETHER_H_
#define HOTROW_COMM_RUN_TOGETHER_H_

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"

// Ranks do local work of any length and agree on its result, or end the job for want of one. Calls
// are collective and their errors those of the channel, unless said otherwise.
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
// exception of the work is an error (StatusOfException). With one rank it just runs `work`.
absl::Status RunTogether(Communicator& channel, absl::FunctionRef<absl::Status()> work);

// One text from each rank, by rank, cut off after 4096 bytes.
absl::StatusOr<std::vector<std::string>> AllGatherTexts(Communicator& channel,
                                                        std::string_view mine);

// --- What this rank alone refuses. None of these calls is collective.

// With several ranks an error of one ends the job on all of them (Communicator::Abort), since they
// can no longer agree. Returns `status`. family: null with one rank.
absl::Status EndJobUnlessOk(Communicator* family, absl::Status status);

// The same with the exception that is being handled.
void EndJobForException(Communicator* family) noexcept;

// Makes a call in which the other ranks wait for this one: what it throws ends the job, and goes
// on.
template <typename Call>
auto EndJobIfThrown(Communicator* family, const Call& call) {
  try {
    return call();
  } catch (...) {
    EndJobForException(family);
    throw;
  }
}

// The same for a call that returns a Status or a StatusOr, an error of which ends the job, too.
template <typename Call>
auto OrEndJob(Communicator* family, const Call& call) {
  return EndJobIfThrown(family, [&] {
    auto out = call();
    if constexpr (std::is_same_v<decltype(out), absl::Status>) {
      EndJobUnlessOk(family, out).IgnoreError();
    } else {
      EndJobUnlessOk(family, out.status()).IgnoreError();
    }
    return out;
  });
}

}  // namespace hotrow

#endif  // HOTROW_COMM_RUN_TOGETHER_H_
