#ifndef HOTROW_BASE_DEVICE_MEMORY_H_
#define HOTROW_BASE_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/device.h"
#include "base/exec_context.h"
#include "base/status_macros.h"

// Buffers for code that runs on either device: on the CPU both kinds are plain HostBuffers.

namespace hotrow {

namespace internal {
// Memory of a GPU in the order of its stream, see DeviceBuffer. Without CUDA: FailedPrecondition.
absl::StatusOr<void*> AllocateOnGpu(int64_t bytes, CudaStream stream);
void FreeOnGpu(void* data, CudaStream stream);
// Zeroed, page-locked memory of the host. Not registered memory of our own: that would have to
// have its pages for itself.
absl::StatusOr<void*> AllocateForGpu(int64_t bytes);
void FreeForGpu(void* data);
}  // namespace internal

// Owns n elements of memory of a device, where its kernels or loops work. Zeroed on the CPU, not
// initialised on a GPU, where it is taken and given back in the order of `stream`. Movable, not
// copyable. Errors as HostBuffer and DeviceBuffer.
template <typename T>
class DeviceMemory {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    if (this != &other) {
      Free();
      host_ = std::move(other.host_);
      gpu_ = std::exchange(other.gpu_, nullptr);
      size_ = std::exchange(other.size_, 0);
      stream_ = other.stream_;
    }
    return *this;
  }
  ~DeviceMemory() { Free(); }

  static absl::StatusOr<DeviceMemory> Create(Device device, int64_t size, CudaStream stream,
                                             HugePages huge_pages = HugePages::kNever) {
    DeviceMemory memory;
    if (device == Device::kCpu) {
      HOTROW_ASSIGN_OR_RETURN(memory.host_, HostBuffer<T>::Create(size, huge_pages));
    } else {
      if (size < 0 || size > INT64_MAX / static_cast<int64_t>(sizeof(T))) {
        return absl::InvalidArgumentError(
            "DeviceMemory: the number of elements must lie in [0, 2^63 bytes)");
      }
      HOTROW_ASSIGN_OR_RETURN(
          void* const data,
          internal::AllocateOnGpu(size * static_cast<int64_t>(sizeof(T)), stream));
      memory.gpu_ = static_cast<T*>(data);
      memory.stream_ = stream;
    }
    memory.size_ = size;
    return memory;
  }

  // Makes room for `size` elements. What was there is lost when it grows.
  absl::Status Reserve(Device device, int64_t size, CudaStream stream) {
    if (size_ >= size) return absl::OkStatus();
    Free();
    HOTROW_ASSIGN_OR_RETURN(*this, Create(device, size, stream));
    return absl::OkStatus();
  }

  // Addresses of the device: the host may not look into a GPU's memory.
  T* data() { return gpu_ != nullptr ? gpu_ : host_.data(); }
  const T* data() const { return gpu_ != nullptr ? gpu_ : host_.data(); }
  std::span<T> span() { return {data(), static_cast<size_t>(size_)}; }
  std::span<const T> span() const { return {data(), static_cast<size_t>(size_)}; }
  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }
  bool empty() const { return size_ == 0; }

 private:
  void Free() {
    if (gpu_ != nullptr) internal::FreeOnGpu(gpu_, stream_);
    gpu_ = nullptr;
    host_ = HostBuffer<T>();
    size_ = 0;
  }

  HostBuffer<T> host_;
  T* gpu_ = nullptr;
  int64_t size_ = 0;
  CudaStream stream_ = nullptr;
};

// Owns n elements of zeroed host memory that kernels of the device reach as well, at the same
// address: what host and device say to each other. On a GPU it is page-locked, and taking and
// giving back may wait for the device: do it at start. Movable, not copyable. Errors as HostBuffer.
template <typename T>
class SharedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  static absl::StatusOr<SharedBuffer> Create(Device device, int64_t size,
                                             HugePages huge_pages = HugePages::kNever) {
    SharedBuffer buffer;
    if (device == Device::kCpu) {
      HOTROW_ASSIGN_OR_RETURN(buffer.host_, HostBuffer<T>::Create(size, huge_pages));
    } else {
      if (size < 0 || size > INT64_MAX / static_cast<int64_t>(sizeof(T))) {
        return absl::InvalidArgumentError(
            "SharedBuffer: the number of elements must lie in [0, 2^63 bytes)");
      }
      HOTROW_ASSIGN_OR_RETURN(void* const data,
                              internal::AllocateForGpu(size * static_cast<int64_t>(sizeof(T))));
      buffer.locked_ = static_cast<T*>(data);
    }
    buffer.size_ = size;
    return buffer;
  }

  // Makes room for `size` elements. What was there is lost when it grows. No kernel may be at work
  // on it.
  absl::Status Reserve(Device device, int64_t size) {
    if (size_ >= size) return absl::OkStatus();
    *this = SharedBuffer();
    HOTROW_ASSIGN_OR_RETURN(*this, Create(device, size));
    return absl::OkStatus();
  }

  SharedBuffer() = default;
  SharedBuffer(SharedBuffer&& other) noexcept { *this = std::move(other); }
  SharedBuffer& operator=(SharedBuffer&& other) noexcept {
    if (this != &other) {
      Free();
      host_ = std::move(other.host_);
      locked_ = std::exchange(other.locked_, nullptr);
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }
  ~SharedBuffer() { Free(); }

  T* data() { return locked_ != nullptr ? locked_ : host_.data(); }
  const T* data() const { return locked_ != nullptr ? locked_ : host_.data(); }
  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }
  T& operator[](int64_t i) { return data()[i]; }
  const T& operator[](int64_t i) const { return data()[i]; }
  std::span<T> first(int64_t n) { return {data(), static_cast<size_t>(n)}; }

 private:
  void Free() {
    if (locked_ != nullptr) internal::FreeForGpu(locked_);
    locked_ = nullptr;
    host_ = HostBuffer<T>();
    size_ = 0;
  }

  HostBuffer<T> host_;
  T* locked_ = nullptr;  // of a GPU
  int64_t size_ = 0;
};

}  // namespace hotrow

#endif  // HOTROW_BASE_DEVICE_MEMORY_H_
