#ifndef HOTROW_BASE_DEVICE_STREAM_H_
#define HOTROW_BASE_DEVICE_STREAM_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"
#include "base/exec_context.h"

namespace hotrow {

// Copies between any two places, host or device. On the CPU it is done on return; on a GPU it is
// enqueued on ctx.stream, but `from` in pageable host memory is read before the call returns.
absl::Status EnqueueCopy(const ExecContext& ctx, void* to, const void* from, int64_t bytes);
// Until all that is enqueued on ctx.stream is done.
absl::Status WaitForStream(const ExecContext& ctx);

// A stream of work of its own on a device, for code that runs on either: on the CPU, where work is
// done when a call returns, it is nothing, and its calls return at once. Movable, not copyable.
// Destroying it lets what is enqueued run on. Errors: Internal, what CUDA says.
class DeviceStream {
 public:
  DeviceStream() = default;  // of the CPU
  DeviceStream(DeviceStream&& other) noexcept
      : device_(other.device_),
        stream_(std::exchange(other.stream_, nullptr)),
        event_(std::exchange(other.event_, nullptr)) {}
  DeviceStream& operator=(DeviceStream&& other) noexcept;
  ~DeviceStream() { Release(); }

  // On the current GPU. FailedPrecondition when there is no usable one.
  static absl::StatusOr<DeviceStream> Create(Device device);

  Device device() const { return device_; }
  CudaStream get() const { return stream_; }
  // The same threads and trace, with work on this stream.
  ExecContext On(const ExecContext& ctx) const {
    ExecContext here = ctx;
    here.device = device_;
    here.stream = stream_;
    return here;
  }

  // Until all that is enqueued here is done.
  absl::Status Wait() const { return WaitForStream(On(ExecContext())); }
  // What is enqueued here from now on runs behind what is enqueued on `other` now.
  absl::Status RunAfter(CudaStream other);
  absl::Status Copy(void* to, const void* from, int64_t bytes) const {
    return EnqueueCopy(On(ExecContext()), to, from, bytes);
  }

 private:
  void Release();

  Device device_ = Device::kCpu;
  CudaStream stream_ = nullptr;
  void* event_ = nullptr;  // of RunAfter
};

}  // namespace hotrow

#endif  // HOTROW_BASE_DEVICE_STREAM_H_
