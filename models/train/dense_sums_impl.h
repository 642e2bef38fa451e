#ifndef HOTROW_MODELS_TRAIN_DENSE_SUMS_IMPL_H_
#define HOTROW_MODELS_TRAIN_DENSE_SUMS_IMPL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/exec_context.h"
#include "comm/communicator.h"
#include "comm/device_channel.h"

namespace hotrow {

// Sums of floats that lie on a device over the ranks, while the device computes: each rank adds one
// slice and gives the sum to the others, as Communicator::AllReduceSum does.
//
// Bits:    in the order of ranks, ((x0 + x1) + x2) + ...: the same on every rank and every time.
// Calls:   collective: all ranks make the same ones in the same order.
// Threads: one at a time.
// Streams: all work is on its own stream, behind what is on ctx.stream at Start. The host
//          waits for nothing.
// Memory:  of the device, the floats of one Start at most and a slice of them.
// Errors:  those of the channel, which are final: what is enqueued behind a sum that failed runs on
//          over any numbers, so ask status() after a wait for the device.
class DenseSums {
 public:
  // Collective over `host`'s ranks. floats_max: of one Start. On the current device where that is
  // a GPU.
  static absl::StatusOr<std::unique_ptr<DenseSums>> Create(Communicator& host, Device device,
                                                           int64_t floats_max);
  ~DenseSums() { stream_.Wait().IgnoreError(); }

  // sums[i] = the sum of all ranks' values[i], of as many as sums has; both memory of the device.
  // `values` stay as they are until Finish.
  absl::Status Start(const ExecContext& ctx, const float* values, std::span<float> sums);
  // What is enqueued on ctx.stream from here on runs behind all sums.
  absl::Status Finish(const ExecContext& ctx);

  absl::Status status() { return channel_->status(); }
  int world_size() const { return channel_->world_size(); }

 private:
  DenseSums(std::unique_ptr<DeviceChannel> channel, DeviceStream stream)
      : channel_(std::move(channel)), stream_(std::move(stream)) {}

  const std::unique_ptr<DeviceChannel> channel_;
  DeviceStream stream_;          // before the memory that is given back on it
  DeviceMemory<float> parts_;    // [ranks, slice]
  DeviceMemory<float> own_sum_;  // [slice]
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_DENSE_SUMS_IMPL_H_
