#ifndef HOTROW_BASE_DEVICE_H_
#define HOTROW_BASE_DEVICE_H_

#include <string_view>

namespace hotrow {

enum class Device { kCpu, kCuda };

constexpr std::string_view DeviceName(Device device) {
  return device == Device::kCpu ? "cpu" : "cuda";
}

}  // namespace hotrow

#endif  // HOTROW_BASE_DEVICE_H_
