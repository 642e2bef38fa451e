#ifndef HOTROW_BASE_BUFFER_H_
#define HOTROW_BASE_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"

namespace hotrow {

inline constexpr int64_t kBufferAlignment = 64;  // one cache line, one AVX-512 register

enum class HugePages {
  kNever,
  kTry,  // 2 MiB pages when the system grants them; random gathers run about twice as fast on them
};

namespace internal {
// Zeroed memory, 64-byte aligned. From 2 MiB up with kTry it is mapped at a 2 MiB boundary and
// advised to use huge pages. bytes = 0 gives a null pointer.
absl::StatusOr<std::byte*> AllocateHost(int64_t bytes, HugePages huge_pages);
void FreeHost(std::byte* data, int64_t bytes, HugePages huge_pages);
}  // namespace internal

// What an allocation of that size really takes from the system (rounded to pages): budgets count
// this.
int64_t HostBytesReserved(int64_t bytes, HugePages huge_pages);

// Owns n elements of zeroed host memory, 64-byte aligned. Movable, not copyable; a moved-from or
// default one is empty. Errors: InvalidArgument (negative count), ResourceExhausted (no memory,
// names the bytes).
template <typename T>
class HostBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  HostBuffer() = default;
  HostBuffer(HostBuffer&& other) noexcept { *this = std::move(other); }
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    if (this != &other) {
      Free();
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
      huge_pages_ = other.huge_pages_;
    }
    return *this;
  }
  ~HostBuffer() { Free(); }

  static absl::StatusOr<HostBuffer> Create(int64_t size, HugePages huge_pages = HugePages::kNever) {
    if (size < 0 || size > INT64_MAX / static_cast<int64_t>(sizeof(T))) {
      return absl::InvalidArgumentError(
          "HostBuffer: the number of elements must lie in [0, 2^63 bytes)");
    }
    HostBuffer buffer;
    HOTROW_ASSIGN_OR_RETURN(
        std::byte* const data,
        internal::AllocateHost(size * static_cast<int64_t>(sizeof(T)), huge_pages));
    buffer.data_ = reinterpret_cast<T*>(data);
    buffer.size_ = size;
    buffer.huge_pages_ = huge_pages;
    return buffer;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }
  bool empty() const { return size_ == 0; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  std::span<T> span() { return {data_, static_cast<size_t>(size_)}; }
  std::span<const T> span() const { return {data_, static_cast<size_t>(size_)}; }

 private:
  void Free() {
    if (data_ != nullptr) {
      internal::FreeHost(reinterpret_cast<std::byte*>(data_), bytes(), huge_pages_);
    }
    data_ = nullptr;
    size_ = 0;
  }

  T* data_ = nullptr;
  int64_t size_ = 0;
  HugePages huge_pages_ = HugePages::kNever;
};

// Whether the system may grant huge pages at all (transparent huge pages not set to "never").
bool HugePagesPossible();

}  // namespace hotrow

#endif  // HOTROW_BASE_BUFFER_H_
