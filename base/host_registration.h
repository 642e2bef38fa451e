#ifndef HOTROW_BASE_HOST_REGISTRATION_H_
#define HOTROW_BASE_HOST_REGISTRATION_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"
#include "base/exec_context.h"

namespace hotrow {

// Keeps host memory page-locked and mapped for every GPU while it lives: kernels access it at the
// host's address, and copies from and to it run in parallel with other work. It is for memory that
// must be a HostBuffer, for example on huge pages; otherwise use a SharedBuffer
// (base/device_memory.h). With Device::kCpu it does nothing, so code for both devices needs one
// path.
//
// Registering takes about as long as touching each page and may wait for the device: do it at
// start. The memory must outlive the registration and share no page with another one. Movable, not
// copyable.
class HostRegistration {
 public:
  HostRegistration() = default;
  HostRegistration(HostRegistration&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)) {}
  HostRegistration& operator=(HostRegistration&& other) noexcept {
    if (this != &other) {
      Release();
      data_ = std::exchange(other.data_, nullptr);
    }
    return *this;
  }
  ~HostRegistration() { Release(); }

  // bytes = 0 registers nothing. Errors: ResourceExhausted (over RLIMIT_MEMLOCK; names the bytes
  // and the limit), FailedPrecondition (no usable GPU, or one that cannot use the host's
  // addresses).
  static absl::StatusOr<HostRegistration> Create(Device device, void* data, int64_t bytes);

 private:
  explicit HostRegistration(void* data) : data_(data) {}
  void Release();

  void* data_ = nullptr;  // null: nothing is registered
};

// The device of this kind that is current for the calling thread: what UseDevice takes
// (base/device_stream.h) on a thread that is to register memory for the caller.
absl::StatusOr<ExecContext> CurrentDevice(Device device);

// Whether memory of the host is page-locked, by whomever in this process: copies from there to a
// GPU run beside other work. With Device::kCpu always.
bool IsPageLocked(Device device, const void* data, int64_t bytes);

// Whether memory is that of ctx's GPU; false: it is memory of the host, page-locked or not. On the
// CPU always false. InvalidArgument, which begins with `name`: it is memory of another GPU.
absl::StatusOr<bool> IsOnDevice(const ExecContext& ctx, const void* data, std::string_view name);
// OK where kernels on ctx.stream may use memory: that of ctx's device, and page-locked memory of
// the host. InvalidArgument, as above, for any other. On the CPU always OK, and for null.
absl::Status CheckReached(const ExecContext& ctx, const void* data, std::string_view name);

}  // namespace hotrow

#endif  // HOTROW_BASE_HOST_REGISTRATION_H_
