#include "base/device_flag.h"

#include <atomic>
#include <chrono>

#include "base/status_macros.h"

namespace hotrow {
namespace {

// Longer than what polling is for; then the host sleeps until the stream is idle.
constexpr std::chrono::microseconds kPolling{200};
constexpr int kPollsPerLookAtTheClock = 64;

}  // namespace

absl::StatusOr<DeviceFlag> DeviceFlag::Create(Device device) {
  DeviceFlag flag;
  HOTROW_ASSIGN_OR_RETURN(flag.flag_, SharedBuffer<uint64_t>::Create(1, {device}));
  return flag;
}

absl::Status DeviceFlag::Wait(const DeviceStream& stream) {
  const std::atomic_ref<uint64_t> flag(flag_[0]);
  const auto end = std::chrono::steady_clock::now() + kPolling;
  do {
    for (int i = 0; i < kPollsPerLookAtTheClock; ++i) {
      if (flag.load(std::memory_order_acquire) >= value_) return absl::OkStatus();
    }
  } while (std::chrono::steady_clock::now() < end);
  HOTROW_RETURN_IF_ERROR(stream.Wait());
  if (flag.load(std::memory_order_acquire) >= value_) return absl::OkStatus();
  return absl::InternalError("DeviceFlag: the stream is idle, and nothing has raised the flag");
}

}  // namespace hotrow
