// What a build without NCCL has instead of nccl_communicator.cc.

#include "comm/nccl_communicator.h"

namespace hotrow {
namespace {

absl::Status Absent() {
  return absl::UnimplementedError(
      "NCCL: this build has none; install CUDA and libnccl-dev and configure with "
      "-DHOTROW_NCCL=ON");
}

}  // namespace

bool HaveNccl() { return false; }

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Create(Communicator& host) {
  return Absent();
}

}  // namespace hotrow
