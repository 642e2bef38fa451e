// What a build without MPI has instead of mpi_communicator.cc.

#include "comm/mpi_communicator.h"

namespace hotrow {

bool HaveMpi() { return false; }

absl::StatusOr<std::unique_ptr<Communicator>> CreateMpiCommunicator(
    const CommunicatorOptions& options) {
  return absl::UnimplementedError(
      "MPI: this build has none; install libopenmpi-dev and openmpi-bin and configure with "
      "-DHOTROW_MPI=ON");
}

}  // namespace hotrow
