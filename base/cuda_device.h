#ifndef HOTROW_BASE_CUDA_DEVICE_H_
#define HOTROW_BASE_CUDA_DEVICE_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hotrow {

// OK when the current device can run hotrow's kernels: the driver is new enough, the compute
// capability is 8.0 or higher (warp reductions in one instruction), and memory is stream-ordered.
// Otherwise FailedPrecondition "no usable GPU: <reason>".
absl::Status CheckUsableGpu();

// Makes a device current for this thread; the destructor restores the earlier one.
class CudaDeviceGuard {
 public:
  // FailedPrecondition when there is no such device.
  static absl::StatusOr<CudaDeviceGuard> Set(int device);

  CudaDeviceGuard(CudaDeviceGuard&& other) noexcept
      : previous_(std::exchange(other.previous_, kNone)) {}
  CudaDeviceGuard& operator=(CudaDeviceGuard&&) = delete;
  ~CudaDeviceGuard();

 private:
  static constexpr int kNone = -1;
  explicit CudaDeviceGuard(int previous) : previous_(previous) {}
  int previous_;  // kNone: moved from, restores nothing
};

}  // namespace hotrow

#endif  // HOTROW_BASE_CUDA_DEVICE_H_
