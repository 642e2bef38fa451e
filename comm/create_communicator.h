#ifndef HOTROW_COMM_CREATE_COMMUNICATOR_H_
#define HOTROW_COMM_CREATE_COMMUNICATOR_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "comm/rank_environment.h"

namespace hotrow {

enum class CommKind {
  kAuto,    // chosen by the environment: kMpi under mpirun, else kSingle
  kSingle,  // this process alone
  kMpi,
};

// "auto", "single", "mpi". InvalidArgument lists them.
absl::StatusOr<CommKind> ParseCommKind(std::string_view name);

// Makes the communicator of this process, at the program's start. Collective over the processes of
// the job.
//
// Errors: as CreateMpiCommunicator. InvalidArgument for a contradictory environment. Unimplemented
// under torchrun with several processes, since host data travel by MPI only, and under mpirun -n 2
// or more in a build without MPI, which would run the same job several times.
absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(
    CommKind kind, const CommunicatorOptions& options);

// The kind that kAuto chooses in an environment.
absl::StatusOr<CommKind> ChooseCommKind(const RankEnvironment& environment);

}  // namespace hotrow

#endif  // HOTROW_COMM_CREATE_COMMUNICATOR_H_
