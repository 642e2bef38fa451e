#ifndef HOTROW_COMM_DEVICE_CHANNEL_H_
#define HOTROW_COMM_DEVICE_CHANNEL_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"
#include "base/device_stream.h"
#include "comm/communicator.h"

namespace hotrow {

// A channel between ranks for code that runs on either device: what it carries lies where the
// device works, and its calls are work of a stream. On a GPU it is an NcclCommunicator, on the CPU
// a Communicator, whose calls are done when they return, or later where a stream lags.
//
// Order:   all ranks enqueue the same calls in the same order. Calls run in that order, on any
//          streams.
// Threads: one at a time; status: any thread, at any time.
// Errors:  as NcclCommunicator: a rank that dies or is silent ends every wait for the device within
//          9/4 of the timeout, and status() says why. What such a call had to write is unspecified.
class DeviceChannel {
 public:
  virtual ~DeviceChannel() = default;

  // Collective over `host`'s ranks, which it duplicates. On a GPU: the current one.
  static absl::StatusOr<std::unique_ptr<DeviceChannel>> Create(Communicator& host, Device device);

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // As Communicator's. The counts of the ranks must match: on a GPU nothing compares them. The
  // spans are read before the call returns.
  virtual absl::Status AllToAllV(const AllToAllVArgs& args, const DeviceStream& stream) = 0;
  // `bytes` from each rank; all: [world_size * bytes], which must not hold `mine`.
  virtual absl::Status AllGather(const void* mine, int64_t bytes, void* all,
                                 const DeviceStream& stream) = 0;

  // OK, or why this channel has failed. Ask after a wait for the stream, before numbers that came
  // from other ranks are used.
  virtual absl::Status status() = 0;
};

}  // namespace hotrow

#endif  // HOTROW_COMM_DEVICE_CHANNEL_H_
