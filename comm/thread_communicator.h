#ifndef HOTROW_COMM_THREAD_COMMUNICATOR_H_
#define HOTROW_COMM_THREAD_COMMUNICATOR_H_

#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"

namespace hotrow {

// The ends, by rank, of one channel between `world_size` threads of this process. A single process
// uses it with world_size 1. Always built; the reference for the other backends.
//
// An exchange waits for all ranks; then each rank copies its part from the senders' memory and
// waits until all have copied. So errors are exact: operations and sizes of all ranks are compared
// before a byte moves, and a rank that destroys its end while others wait ("has left") is found at
// once.
//
// Errors: InvalidArgument (options, world_size not in [1, 1024]).
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateThreadCommunicators(
    int world_size, const CommunicatorOptions& options);

// Runs `rank_main` on world_size threads, each with its own end, and returns their statuses by
// rank. A rank's end is destroyed when its function returns. If the ends cannot be made, all
// statuses say why.
std::vector<absl::Status> RunOnThreads(int world_size, const CommunicatorOptions& options,
                                       absl::FunctionRef<absl::Status(Communicator&)> rank_main);

}  // namespace hotrow

#endif  // HOTROW_COMM_THREAD_COMMUNICATOR_H_
