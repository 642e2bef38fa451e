#ifndef HOTROW_BASE_DEVICE_MEMORY_H_
#define HOTROW_BASE_DEVICE_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/device.h"
#include "base/exec_context.h"

// Buffers for code that runs on either device. On the CPU all of them are HostBuffers.

namespace hotrow {

// Memory of a device, where its kernels or loops work. On the CPU as HostMemory. On a GPU it is
// 256-byte aligned, not initialised, and taken and given back in the order of `stream`, which must
// outlive the buffer: other streams use the memory after they have waited for `stream`.
// Errors: ResourceExhausted (names the bytes), FailedPrecondition (no usable GPU).
struct MemoryOfDevice {
  static constexpr bool kHostReads = false;

  absl::StatusOr<void*> Allocate(int64_t bytes) const;
  void Free(void* data, int64_t bytes) const;

  Device device = Device::kCpu;
  CudaStream stream = nullptr;
  HugePages huge_pages = HugePages::kNever;
};

// Zeroed memory of the host that kernels of the device reach at the same address. On a GPU it is
// page-locked: copies from and to it run beside other work. Taking it is slow: do it at start. What
// is given back is kept for others until nobody has any left, since giving it to the driver waits
// for the device (base/page_locked_impl.h). Errors as MemoryOfDevice.
struct SharedMemory {
  static constexpr bool kHostReads = true;

  absl::StatusOr<void*> Allocate(int64_t bytes) const;
  void Free(void* data, int64_t bytes) const;

  Device device = Device::kCpu;
  HugePages huge_pages = HugePages::kNever;
};

// The same for code that knows a GPU only.
struct GpuMemory : MemoryOfDevice {
  GpuMemory(CudaStream on = nullptr) : MemoryOfDevice{Device::kCuda, on} {}  // NOLINT: implicit
};
struct PinnedMemory : SharedMemory {
  PinnedMemory() : SharedMemory{Device::kCuda} {}
};

template <typename T>
using DeviceMemory = Buffer<T, MemoryOfDevice>;
template <typename T>
using SharedBuffer = Buffer<T, SharedMemory>;
template <typename T>
using DeviceBuffer = Buffer<T, GpuMemory>;
template <typename T>
using PinnedBuffer = Buffer<T, PinnedMemory>;

}  // namespace hotrow

#endif  // HOTROW_BASE_DEVICE_MEMORY_H_
