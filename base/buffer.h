#ifndef HOTROW_BASE_BUFFER_H_
#define HOTROW_BASE_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hotrow {

inline constexpr int64_t kBufferAlignment = 64;  // one cache line, one AVX-512 register

enum class HugePages {
  kNever,
  kTry,  // 2 MiB pages when the system grants them; random gathers run about twice as fast on them
};

namespace internal {
// InvalidArgument unless `size` elements of that many bytes fit into an int64_t.
absl::Status CheckElementCount(int64_t size, int64_t element_bytes);
}  // namespace internal

// Owns n elements of memory that `Memory` hands out. Movable, not copyable; a moved-from or default
// one is empty. Errors: InvalidArgument (impossible count), those of Memory::Allocate.
//
// Memory is a small value to copy:
//   static constexpr bool kHostReads;  // whether the host may look at the elements
//   absl::StatusOr<void*> Allocate(int64_t bytes) const;  // null for 0 bytes
//   void Free(void* data, int64_t bytes) const;           // data: not null
template <typename T, typename Memory>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);
  static_assert(alignof(T) <= kBufferAlignment);

 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        memory_(other.memory_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer taken(std::move(other));
    std::swap(data_, taken.data_);
    std::swap(size_, taken.size_);
    std::swap(memory_, taken.memory_);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) memory_.Free(data_, bytes());
  }

  static absl::StatusOr<Buffer> Create(int64_t size, Memory memory = {}) {
    const absl::Status fits = internal::CheckElementCount(size, sizeof(T));
    if (!fits.ok()) return fits;
    const absl::StatusOr<void*> data = memory.Allocate(size * static_cast<int64_t>(sizeof(T)));
    if (!data.ok()) return data.status();
    Buffer buffer;
    buffer.data_ = static_cast<T*>(*data);
    buffer.size_ = size;
    buffer.memory_ = memory;
    return buffer;
  }

  // Makes room for `size` elements. When it grows, what was there is lost, and freed first.
  absl::Status Reserve(int64_t size, Memory memory = {}) {
    if (size_ >= size) return absl::OkStatus();
    *this = Buffer();
    absl::StatusOr<Buffer> larger = Create(size, memory);
    if (larger.ok()) *this = *std::move(larger);
    return larger.status();
  }

  // Addresses of the memory's device.
  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }
  bool empty() const { return size_ == 0; }
  const Memory& memory() const { return memory_; }
  std::span<T> span() { return {data_, static_cast<size_t>(size_)}; }
  std::span<const T> span() const { return {data_, static_cast<size_t>(size_)}; }
  std::span<T> first(int64_t n) { return {data_, static_cast<size_t>(n)}; }

  // clang-format off
  T& operator[](int64_t i) requires(Memory::kHostReads) { return data_[i]; }
  const T& operator[](int64_t i) const requires(Memory::kHostReads) { return data_[i]; }
  T* begin() requires(Memory::kHostReads) { return data_; }
  T* end() requires(Memory::kHostReads) { return data_ + size_; }
  const T* begin() const requires(Memory::kHostReads) { return data_; }
  const T* end() const requires(Memory::kHostReads) { return data_ + size_; }
  // clang-format on

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
  Memory memory_ = {};
};

// Zeroed memory of the host, 64-byte aligned. From 2 MiB up with kTry it is mapped at a 2 MiB
// boundary and advised to use huge pages. Errors: ResourceExhausted (names the bytes).
struct HostMemory {
  static constexpr bool kHostReads = true;

  HostMemory(HugePages pages = HugePages::kNever) : huge_pages(pages) {}  // NOLINT: implicit
  absl::StatusOr<void*> Allocate(int64_t bytes) const;
  void Free(void* data, int64_t bytes) const;

  HugePages huge_pages;
};

template <typename T>
using HostBuffer = Buffer<T, HostMemory>;

}  // namespace hotrow

#endif  // HOTROW_BASE_BUFFER_H_
