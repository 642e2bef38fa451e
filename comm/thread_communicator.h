#ifndef HOTROW_COMM_THREAD_COMMUNICATOR_H_
#define HOTROW_COMM_THREAD_COMMUNICATOR_H_

#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"

namespace hotrow {

// The ends of one channel between `world_size` ranks that are threads of this process, by rank;
// each is to be given to its thread. With world_size 1 it is what a single process uses. Always
// built, and the reference for the other backends.
//
// An exchange waits until all ranks have come, then each rank copies what is for it straight from
// the senders' memory, and waits until all have copied. So all errors are exact: operations and
// sizes of all ranks are compared before a byte moves, and a rank that destroys its end while
// others wait for it ("has left") is known at once.
//
// Errors: InvalidArgument (options, world_size not in [1, 1024]).
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateThreadCommunicators(
    int world_size, const CommunicatorOptions& options);

// Runs `rank_main` on world_size threads, each with its own end, and returns what they returned, by
// rank. A rank's end is destroyed when its function returns. When the ends cannot be made, all
// ranks' statuses say why.
std::vector<absl::Status> RunOnThreads(int world_size, const CommunicatorOptions& options,
                                       absl::FunctionRef<absl::Status(Communicator&)> rank_main);

}  // namespace hotrow

#endif  // HOTROW_COMM_THREAD_COMMUNICATOR_H_
