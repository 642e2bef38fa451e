#ifndef HOTROW_BASE_DEVICE_H_
#define HOTROW_BASE_DEVICE_H_

#include <string_view>

#include "base/enum_words.h"

namespace hotrow {

enum class Device { kCpu, kCuda };

inline constexpr EnumWord<Device> kDeviceWords[] = {{"cpu", Device::kCpu}, {"cuda", Device::kCuda}};

constexpr std::string_view DeviceName(Device device) { return WordOf(kDeviceWords, device); }

}  // namespace hotrow

#endif  // HOTROW_BASE_DEVICE_H_
