#ifndef HOTROW_BASE_DEVICE_STREAM_H_
#define HOTROW_BASE_DEVICE_STREAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"
#include "base/exec_context.h"
#include "base/status_macros.h"

namespace hotrow {

namespace internal {

// Does the work of a stream of the CPU as late as a GPU might, in order. Tests have one
// (tests/support/lagging_streams.h).
class LateQueue {
 public:
  virtual ~LateQueue() = default;
  // Takes the work on, or returns the error of some before.
  virtual absl::Status Add(std::function<absl::Status()> work) = 0;
  virtual int64_t added() const = 0;  // pieces of work so far
  virtual bool IsDone(int64_t pieces) const = 0;
  virtual absl::Status Wait(int64_t pieces) const = 0;  // until so many are done
};
using MakeLateQueue = std::shared_ptr<LateQueue> (*)();
// Streams that are made for the CPU from now on have such a queue; null: none, as at first.
void SetLateQueues(MakeLateQueue make);

}  // namespace internal

// Makes the device of `ctx` the current one of the calling thread, for good: what a thread of ours
// does before it enqueues anything, since threads begin on device 0. Nothing on the CPU.
// FailedPrecondition when there is no such device.
absl::Status UseDevice(const ExecContext& ctx);
// Devices of this kind that the process may use: of the CPU one. FailedPrecondition when there is
// none.
absl::StatusOr<int> NumDevices(Device device);

// Which of them ctx.stream belongs to, where CUDA tells (12.8 and newer); else, and on the CPU,
// ctx.device_index.
absl::StatusOr<int> DeviceOfStream(const ExecContext& ctx);

// Copies between any two places, host or device. On the CPU it is done on return; on a GPU it is
// enqueued on ctx.stream, but `from` in pageable host memory is read before the call returns.
absl::Status EnqueueCopy(const ExecContext& ctx, void* to, const void* from, int64_t bytes);
// Waits for all work that is enqueued on ctx.stream.
absl::Status WaitForStream(const ExecContext& ctx);

class DeviceEvent;

// A stream of work on a device, for code that runs on either. On the CPU, where work is done when a
// call returns, its calls return at once. Movable, not copyable. The destructor lets enqueued work
// run on. Errors: Internal, with CUDA's text.
class DeviceStream {
 public:
  DeviceStream() = default;  // of the CPU
  DeviceStream(DeviceStream&& other) noexcept
      : device_(other.device_),
        device_index_(other.device_index_),
        stream_(std::exchange(other.stream_, nullptr)),
        event_(std::exchange(other.event_, nullptr)),
        late_(std::move(other.late_)) {}
  DeviceStream& operator=(DeviceStream&& other) noexcept;
  ~DeviceStream() { Release(); }

  // A stream of the current GPU. FailedPrecondition when there is no usable one. is_urgent: the GPU
  // takes what is ready of this stream first.
  static absl::StatusOr<DeviceStream> Create(Device device, bool is_urgent = false);

  Device device() const { return device_; }
  CudaStream get() const { return stream_; }
  // The same threads and trace, with work on this stream.
  ExecContext On(const ExecContext& ctx) const {
    ExecContext here = ctx;
    here.device = device_;
    here.device_index = device_index_;
    here.stream = stream_;
    return here;
  }

  // Calls work(On(ctx)), which enqueues ops. Work that is enqueued in any other way ignores
  // a LateQueue. `work` keeps what it needs by value, as kernels do.
  template <typename Work>
  absl::Status Run(const ExecContext& ctx, Work work) const {
    if (late_ == nullptr) return work(On(ctx));
    return RunLater([here = On(ctx), work = std::move(work)] { return work(here); });
  }
  // Run and Wait. `work` may keep references. An error that it returns is not sticky.
  template <typename Work>
  absl::Status RunAndWait(const ExecContext& ctx, const Work& work) const {
    if (late_ != nullptr) HOTROW_RETURN_IF_ERROR(Wait());
    HOTROW_RETURN_IF_ERROR(work(On(ctx)));
    return late_ != nullptr ? absl::OkStatus() : Wait();
  }

  // Waits for all work that is enqueued here.
  absl::Status Wait() const;
  // Work that is enqueued here from now on runs after the work that is enqueued on `other` now.
  absl::Status RunAfter(CudaStream other);
  // The same for what `event` marks, of a stream that is no DeviceStream.
  absl::Status RunAfter(const DeviceEvent& event);
  // And the reverse: work that is enqueued on ctx.stream from now on runs after the work that is
  // enqueued here now. On the CPU, where ctx's work is done when a call returns, it is Wait.
  absl::Status RunBefore(const ExecContext& ctx);
  absl::Status Copy(void* to, const void* from, int64_t bytes) const {
    return Run(ExecContext(), [to, from, bytes](const ExecContext& ctx) {
      return EnqueueCopy(ctx, to, from, bytes);
    });
  }

 private:
  friend class DeviceEvent;

  absl::Status RunLater(std::function<absl::Status()> work) const;
  void Release();

  Device device_ = Device::kCpu;
  int device_index_ = 0;
  CudaStream stream_ = nullptr;
  void* event_ = nullptr;  // of RunAfter and RunBefore
  std::shared_ptr<internal::LateQueue> late_;
};

// A point in the work of a stream that the host can wait for. Movable, not copyable.
class DeviceEvent {
 public:
  DeviceEvent() = default;  // of the CPU
  DeviceEvent(DeviceEvent&& other) noexcept
      : event_(std::exchange(other.event_, nullptr)),
        late_(std::move(other.late_)),
        ticket_(other.ticket_) {}
  DeviceEvent& operator=(DeviceEvent&& other) noexcept;
  ~DeviceEvent() { Release(); }

  // An event of the current GPU. FailedPrecondition when there is no usable one.
  static absl::StatusOr<DeviceEvent> Create(Device device);

  // Marks the end of the work that is enqueued on `stream` now.
  absl::Status Record(const DeviceStream& stream);
  // The same of ctx.stream, which is no DeviceStream.
  absl::Status Record(const ExecContext& ctx);
  // Waits for the marked work, not for work enqueued since. Returns at once without a Record.
  absl::Status Wait() const;
  // Whether Wait would return at once, also with an error.
  bool IsDone() const;

 private:
  friend class DeviceStream;

  void Release();

  void* event_ = nullptr;
  std::shared_ptr<internal::LateQueue> late_;  // of the last Record
  int64_t ticket_ = 0;
};

}  // namespace hotrow

#endif  // HOTROW_BASE_DEVICE_STREAM_H_
