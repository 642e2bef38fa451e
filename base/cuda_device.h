#ifndef HOTROW_BASE_CUDA_DEVICE_H_
#define HOTROW_BASE_CUDA_DEVICE_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hotrow {

// OK when the current device can run what hotrow compiles and needs: a driver that is new enough,
// compute capability 8.0 or higher (warp reductions in one instruction) and stream-ordered memory.
// Otherwise FailedPrecondition "no usable GPU: <reason>".
absl::Status CheckUsableGpu();

// Makes a device current for this thread; the destructor brings the earlier one back.
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
