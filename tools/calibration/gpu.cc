#if HOTROW_HAVE_CUDA
#include <cuda_runtime_api.h>

#include "base/cuda_status.h"
#endif

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/calibration/measure.h"

namespace hotrow {
namespace {

constexpr int64_t kCopyBytes = 1024 * kMiB;  // far more than an L2
constexpr int64_t kBusBytes = 256 * kMiB;

absl::Status Describe(HardwareProfile* profile) {
#if HOTROW_HAVE_CUDA
  int device = 0;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  cudaDeviceProp properties = {};
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, device));
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaMemGetInfo(&free_bytes, &total_bytes));
  profile->machine = absl::StrCat(properties.name, "; ", profile->machine);
  profile->hbm_bytes = static_cast<double>(free_bytes);
#endif
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasureGpu(CalibrationBench* bench, HardwareProfile* profile) {
  HOTROW_RETURN_IF_ERROR(Describe(profile));
  const ExecContext& ctx = bench->ctx;
  const int64_t bytes = bench->Scaled(kCopyBytes);
  HOTROW_ASSIGN_OR_RETURN(auto from,
                          DeviceMemory<std::byte>::Create(bytes, {ctx.device, ctx.stream}));
  HOTROW_ASSIGN_OR_RETURN(auto to,
                          DeviceMemory<std::byte>::Create(bytes, {ctx.device, ctx.stream}));
  const auto seconds_of = [&](void* target, const void* source, int64_t n) {
    return MedianSeconds(0.3 * bench->options.effort, [&]() -> absl::Status {
      HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx, target, source, n));
      return WaitForStream(ctx);
    });
  };
  HOTROW_ASSIGN_OR_RETURN(const double copy, seconds_of(to.data(), from.data(), bytes));
  profile->hbm_bytes_per_second = 2 * static_cast<double>(bytes) / copy;
  const int64_t bus_bytes = bench->Scaled(kBusBytes);
  HOTROW_ASSIGN_OR_RETURN(auto host,
                          SharedBuffer<std::byte>::Create(bus_bytes, {.device = ctx.device}));
  HOTROW_ASSIGN_OR_RETURN(const double down, seconds_of(to.data(), host.data(), bus_bytes));
  HOTROW_ASSIGN_OR_RETURN(const double up, seconds_of(host.data(), to.data(), bus_bytes));
  profile->host_link_bytes_per_second = static_cast<double>(bus_bytes) / std::max(down, up);
  // What takes several GPUs, or a whole trainer, is not measured: GPUs talk over the bus.
  profile->gpu_link_bytes_per_second = profile->host_link_bytes_per_second;
  profile->step_seconds = FindAccelerator("h100-sxm")->step_seconds;
  return absl::OkStatus();
}

}  // namespace hotrow
