#ifndef HOTROW_COMM_RANK_ENVIRONMENT_H_
#define HOTROW_COMM_RANK_ENVIRONMENT_H_

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace hotrow {

enum class Launcher {
  kNone,      // a process by itself
  kMpi,       // mpirun, mpiexec, srun with PMI
  kTorchrun,  // torchrun, or anything else that sets RANK and WORLD_SIZE
};

// The rank of this process and the number of ranks, from the launcher's environment variables.
struct RankEnvironment {
  Launcher launcher = Launcher::kNone;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among the ranks on this machine: the GPU to use
  // Number of ranks on this machine, which share memory and processors; 1 if not given.
  int local_world_size = 1;
};

// Takes the first of these that is set:
//   OMPI_COMM_WORLD_SIZE, _RANK, _LOCAL_RANK, _LOCAL_SIZE    Open MPI
//   PMI_SIZE, PMI_RANK, MPI_LOCALRANKID, MPI_LOCALNRANKS     MPICH, Intel MPI, and Slurm's PMI-2
//   WORLD_SIZE, RANK, LOCAL_RANK, LOCAL_WORLD_SIZE           torchrun
// The local rank defaults to the rank.
//
// Errors: InvalidArgument, which names a variable that is missing, not a number or out of range.
absl::StatusOr<RankEnvironment> DetectRankEnvironment();

// The same with variables from `get`, which returns null for one that is not set.
absl::StatusOr<RankEnvironment> DetectRankEnvironment(
    absl::FunctionRef<const char*(const char* name)> get);

}  // namespace hotrow

#endif  // HOTROW_COMM_RANK_ENVIRONMENT_H_
