#ifndef HOTROW_BASE_SHARED_ALLOCATOR_H_
#define HOTROW_BASE_SHARED_ALLOCATOR_H_

#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/device.h"
#include "base/device_memory.h"

namespace hotrow {

// The allocator of vectors whose elements copies to a device read where they lie: see SharedMemory.
// resize() writes nothing to new elements. std::bad_alloc where there is no memory.
template <typename T>
class SharedAllocator {
 public:
  static_assert(std::is_trivially_default_constructible_v<T>);
  using value_type = T;
  using propagate_on_container_copy_assignment = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;

  SharedAllocator() = default;  // of the CPU
  explicit SharedAllocator(Device device) : device_(device) {}
  template <typename U>
  SharedAllocator(const SharedAllocator<U>& other) : device_(other.device()) {}  // NOLINT: implicit

  Device device() const { return device_; }
  T* allocate(size_t n) {
    const absl::StatusOr<void*> memory = SharedMemory{device_}.Allocate(Bytes(n));
    if (!memory.ok()) throw std::bad_alloc();
    return static_cast<T*>(*memory);
  }
  void deallocate(T* data, size_t n) { SharedMemory{device_}.Free(data, Bytes(n)); }
  template <typename U>
  void construct(U* at) {
    ::new (static_cast<void*>(at)) U;
  }
  template <typename U, typename... Args>
  void construct(U* at, Args&&... args) {
    ::new (static_cast<void*>(at)) U(std::forward<Args>(args)...);
  }

  friend bool operator==(const SharedAllocator& a, const SharedAllocator& b) {
    return a.device_ == b.device_;
  }

 private:
  static int64_t Bytes(size_t n) { return static_cast<int64_t>(n * sizeof(T)); }

  Device device_ = Device::kCpu;
};

template <typename T>
using SharedVector = std::vector<T, SharedAllocator<T>>;

}  // namespace hotrow

#endif  // HOTROW_BASE_SHARED_ALLOCATOR_H_
