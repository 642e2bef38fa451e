#include "comm/device_channel.h"

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "base/exec_context.h"
#include "base/status_macros.h"
#include "comm/nccl_communicator.h"

namespace hotrow {
namespace {

class HostChannel final : public DeviceChannel {
 public:
  explicit HostChannel(std::unique_ptr<Communicator> channel) : channel_(std::move(channel)) {}

  int rank() const override { return channel_->rank(); }
  int world_size() const override { return channel_->world_size(); }

  absl::Status AllToAllV(const AllToAllVArgs& args, const DeviceStream& stream) override {
    // The stream may be a late one.
    struct Counts {
      std::vector<int64_t> send_bytes, send_offsets, recv_bytes, recv_offsets;
    };
    const auto copy = [](std::span<const int64_t> from) {
      return std::vector<int64_t>(from.begin(), from.end());
    };
    Counts counts = {copy(args.send_bytes), copy(args.send_offsets), copy(args.recv_bytes),
                     copy(args.recv_offsets)};
    return stream.Run(ExecContext(), [this, send = args.send, recv = args.recv,
                                      counts = std::move(counts)](const ExecContext&) {
      return channel_->AllToAllV({.send = send,
                                  .send_bytes = counts.send_bytes,
                                  .send_offsets = counts.send_offsets,
                                  .recv = recv,
                                  .recv_bytes = counts.recv_bytes,
                                  .recv_offsets = counts.recv_offsets});
    });
  }

  absl::Status AllGather(const void* mine, int64_t bytes, void* all,
                         const DeviceStream& stream) override {
    return stream.Run(ExecContext(), [this, mine, bytes, all](const ExecContext&) {
      const auto size = static_cast<size_t>(bytes);
      return channel_->AllGather(
          {static_cast<const std::byte*>(mine), size},
          {static_cast<std::byte*>(all), size * static_cast<size_t>(channel_->world_size())});
    });
  }

  absl::Status status() override { return channel_->status(); }

 private:
  const std::unique_ptr<Communicator> channel_;
};

class GpuChannel final : public DeviceChannel {
 public:
  explicit GpuChannel(std::unique_ptr<NcclCommunicator> nccl) : nccl_(std::move(nccl)) {}

  int rank() const override { return nccl_->rank(); }
  int world_size() const override { return nccl_->world_size(); }
  absl::Status AllToAllV(const AllToAllVArgs& args, const DeviceStream& stream) override {
    return nccl_->AllToAllV(args, stream.get());
  }
  absl::Status AllGather(const void* mine, int64_t bytes, void* all,
                         const DeviceStream& stream) override {
    return nccl_->AllGather(mine, bytes, all, stream.get());
  }
  absl::Status status() override { return nccl_->status(); }

 private:
  const std::unique_ptr<NcclCommunicator> nccl_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceChannel>> DeviceChannel::Create(Communicator& host,
                                                                     Device device) {
  if (device == Device::kCpu) {
    HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> channel, host.Duplicate());
    return std::make_unique<HostChannel>(std::move(channel));
  }
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<NcclCommunicator> nccl, NcclCommunicator::Create(host));
  return std::make_unique<GpuChannel>(std::move(nccl));
}

}  // namespace hotrow
