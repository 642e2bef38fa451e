#ifndef HOTROW_BASE_DEVICE_FLAG_H_
#define HOTROW_BASE_DEVICE_FLAG_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"
#include "base/device_memory.h"
#include "base/device_stream.h"

namespace hotrow {

// A number in page-locked memory that work on a stream raises, last of all, when it has written
// something for the host there. The host polls it, so it knows without the driver's part in waiting
// for an event. ops/keys/tell_host.h raises it.
//
// Use:     value = flag.Next(); enqueue work that ends with TellHost(flag.address(), value);
//          flag.Wait(stream)
// Threads: one at a time.
class DeviceFlag {
 public:
  DeviceFlag() = default;  // to be assigned to
  // A flag of the current GPU. FailedPrecondition when there is no usable one.
  static absl::StatusOr<DeviceFlag> Create(Device device);

  // What the next piece of work raises it to.
  uint64_t Next() { return ++value_; }
  uint64_t* address() { return flag_.data(); }
  // Waits until the work that was enqueued on `stream` has raised it to what Next said last. All
  // that the work wrote to page-locked memory before can be read then. An error of the stream ends
  // it; Internal where the stream has nothing that raises the flag.
  absl::Status Wait(const DeviceStream& stream);

 private:
  SharedBuffer<uint64_t> flag_;  // [1]
  uint64_t value_ = 0;
};

}  // namespace hotrow

#endif  // HOTROW_BASE_DEVICE_FLAG_H_
