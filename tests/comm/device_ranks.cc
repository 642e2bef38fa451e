#include "tests/comm/device_ranks.h"

#include <cuda_runtime_api.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/cuda_device.h"
#include "base/status_macros.h"
#include "comm/nccl_communicator.h"
#include "comm/thread_communicator.h"
#include "tests/support/gpu_test.h"

namespace hotrow::test {
namespace {

// The emulated GPU reads it when it is first used, which is after this.
[[maybe_unused]] const int has_devices =
    setenv("HOTROW_EMULATED_GPU_DEVICES", std::to_string(kDeviceRanksMax).c_str(), /*replace=*/0);

}  // namespace

std::string WhyNotOnDevices(int world_size) {
  if (const absl::Status status = UsableGpu(); !status.ok()) return std::string(status.message());
  if (!HaveNccl()) return "this build has no NCCL";
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) devices = 0;
  if (devices >= world_size) return "";
  return absl::StrCat(world_size, " ranks need as many GPUs, and there are ", devices);
}

std::vector<absl::Status> RunOnDevices(
    int world_size, const CommunicatorOptions& options,
    const std::function<absl::Status(Communicator&)>& rank_main) {
  return RunOnThreads(world_size, options, [&](Communicator& c) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const CudaDeviceGuard guard, CudaDeviceGuard::Set(c.rank()));
    return rank_main(c);
  });
}

}  // namespace hotrow::test
