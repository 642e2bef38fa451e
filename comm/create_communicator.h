#ifndef HOTROW_COMM_CREATE_COMMUNICATOR_H_
#define HOTROW_COMM_CREATE_COMMUNICATOR_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "comm/rank_environment.h"

namespace hotrow {

enum class CommKind {
  kAuto,    // by what the environment says: kMpi under mpirun, else kSingle
  kSingle,  // this process alone
  kMpi,
};

// "auto", "single", "mpi". InvalidArgument lists them.
absl::StatusOr<CommKind> ParseCommKind(std::string_view name);

// What a program makes at its start: the communicator of this process. Collective over the
// processes of the job.
//
// Errors: as CreateMpiCommunicator, and InvalidArgument for an environment that contradicts itself.
// Unimplemented under torchrun with several processes: ids and other host data travel by MPI only.
// Unimplemented under mpirun -n 2 or more in a build without MPI, instead of several runs of the
// same job.
absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(
    CommKind kind, const CommunicatorOptions& options);

// The decision of kAuto, for an environment.
absl::StatusOr<CommKind> ChooseCommKind(const RankEnvironment& environment);

}  // namespace hotrow

#endif  // HOTROW_COMM_CREATE_COMMUNICATOR_H_
