#ifndef HOTROW_BASE_CUDA_BUFFER_H_
#define HOTROW_BASE_CUDA_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "base/status_macros.h"

namespace hotrow {

namespace internal {
// bytes = 0 gives a null pointer. ResourceExhausted names the bytes.
absl::StatusOr<void*> AllocateDevice(int64_t bytes, CudaStream stream);
void FreeDevice(void* data, CudaStream stream);
absl::StatusOr<void*> AllocatePinned(int64_t bytes);  // zeroed
void FreePinned(void* data);
// InvalidArgument unless size elements of that many bytes fit into an int64_t.
absl::Status CheckElementCount(int64_t size, int64_t element_bytes);
}  // namespace internal

// Owns n elements of device memory, 256-byte aligned, not initialised. The memory is taken and
// given back in the order of its stream, which must outlive the buffer: usable by work enqueued on
// that stream after Create, by other streams after they have waited for it. Movable, not copyable;
// a moved-from or default one is empty. Errors: InvalidArgument (impossible count),
// ResourceExhausted (no memory, names the bytes).
template <typename T>
class DeviceBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    if (this != &other) {
      Free();
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
      stream_ = other.stream_;
    }
    return *this;
  }
  ~DeviceBuffer() { Free(); }

  static absl::StatusOr<DeviceBuffer> Create(int64_t size, CudaStream stream) {
    HOTROW_RETURN_IF_ERROR(internal::CheckElementCount(size, sizeof(T)));
    DeviceBuffer buffer;
    HOTROW_ASSIGN_OR_RETURN(
        void* const data, internal::AllocateDevice(size * static_cast<int64_t>(sizeof(T)), stream));
    buffer.data_ = static_cast<T*>(data);
    buffer.size_ = size;
    buffer.stream_ = stream;
    return buffer;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }
  bool empty() const { return size_ == 0; }
  CudaStream stream() const { return stream_; }

 private:
  void Free() {
    if (data_ != nullptr) internal::FreeDevice(data_, stream_);
    data_ = nullptr;
    size_ = 0;
  }

  T* data_ = nullptr;
  int64_t size_ = 0;
  CudaStream stream_ = nullptr;
};

// Owns n elements of zeroed, page-locked host memory, which every device can copy from and to
// asynchronously. Creating and freeing one may wait for the device: do it at start. Movable, not
// copyable. Errors as DeviceBuffer.
template <typename T>
class PinnedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  PinnedBuffer() = default;
  PinnedBuffer(PinnedBuffer&& other) noexcept { *this = std::move(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    if (this != &other) {
      Free();
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }
  ~PinnedBuffer() { Free(); }

  static absl::StatusOr<PinnedBuffer> Create(int64_t size) {
    HOTROW_RETURN_IF_ERROR(internal::CheckElementCount(size, sizeof(T)));
    PinnedBuffer buffer;
    HOTROW_ASSIGN_OR_RETURN(void* const data,
                            internal::AllocatePinned(size * static_cast<int64_t>(sizeof(T))));
    buffer.data_ = static_cast<T*>(data);
    buffer.size_ = size;
    return buffer;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }
  bool empty() const { return size_ == 0; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }
  std::span<T> span() { return {data_, static_cast<size_t>(size_)}; }
  std::span<const T> span() const { return {data_, static_cast<size_t>(size_)}; }

 private:
  void Free() {
    if (data_ != nullptr) internal::FreePinned(data_);
    data_ = nullptr;
    size_ = 0;
  }

  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace hotrow

#endif  // HOTROW_BASE_CUDA_BUFFER_H_
