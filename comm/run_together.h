#ifndef HOTROW_COMM_RUN_TOGETHER_H_
#define HOTROW_COMM_RUN_TOGETHER_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "comm/communicator.h"

namespace hotrow {

// Collective. Runs `work` on the calling thread of each rank and returns when all ranks are done
// with theirs. The work is local and may take any time, on one rank longer than the timeout of the
// communicator: meanwhile a thread answers for this rank on `channel`, which the work must not use.
//
// Returns OK when the work of all ranks succeeded. Otherwise each rank returns an error, and the
// channel goes on working: a rank whose own work failed returns that, others the one of the lowest
// rank that failed, with its code, as "rank 2: MESSAGE". A channel of one rank simply runs `work`.
absl::Status RunTogether(Communicator& channel, absl::FunctionRef<absl::Status()> work);

}  // namespace hotrow

#endif  // HOTROW_COMM_RUN_TOGETHER_H_
