#ifndef HOTROW_EMBEDDING_TIERS_STEP_ARRAYS_IMPL_H_
#define HOTROW_EMBEDDING_TIERS_STEP_ARRAYS_IMPL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/status_macros.h"

namespace hotrow::internal {

// Arrays of the host where the loops or kernels of a device read them: copies there, or the arrays
// themselves.
//
// Use:     arrays.Clear(); a = arrays.Add(span); b = arrays.Add(span);
//          arrays.Upload(staged, &stream); kernel(arrays.At<A>(a), arrays.At<B>(b))
// Memory:  on a GPU a page-locked buffer and one of the device, which grow to the largest upload.
// Threads: one at a time. The copies of the last upload must be done when the next one begins, and
//          the kernels that read them done, or ahead of `stream`.
class StepArrays {
 public:
  void Clear() {
    parts_.clear();
    bytes_ = 0;
    copied_bytes_ = 0;
  }

  // The array must stay as it is until Enqueue or Upload returns, on the CPU as long as At is used.
  template <typename T>
  size_t Add(std::span<const T> array) {
    return AddBytes(std::as_bytes(array), /*shared=*/false);
  }
  template <typename T, typename Allocator>
  size_t Add(const std::vector<T, Allocator>& array) {
    return Add(std::span<const T>(array));
  }
  // One in page-locked memory, from where it travels. It must stay until the copies are there.
  template <typename T>
  size_t AddShared(std::span<const T> array) {
    return AddBytes(std::as_bytes(array), /*shared=*/true);
  }

  // Enqueues the copies.
  absl::Status Enqueue(DeviceStream* stream);
  // The same where `staged`, as in CachePlace, and waits until they are there.
  absl::Status Upload(bool staged, DeviceStream* stream) {
    if (!staged) return absl::OkStatus();
    HOTROW_RETURN_IF_ERROR(Enqueue(stream));
    return stream->Wait();
  }

  // Where an array lies, after Enqueue or Upload. An empty array has any address.
  template <typename T>
  const T* At(size_t part) const {
    return reinterpret_cast<const T*>(parts_[part].data);
  }

  // Memory taken, 0 on the CPU; may be asked beside an Upload.
  int64_t host_bytes() const { return host_bytes_.load(std::memory_order_relaxed); }
  int64_t device_bytes() const { return device_bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr int64_t kAlignment = 256;

  struct Part {
    const std::byte* data = nullptr;
    int64_t bytes = 0;
    int64_t offset = 0;
    bool shared = false;
  };

  size_t AddBytes(std::span<const std::byte> array, bool shared);

  std::vector<Part> parts_;
  int64_t bytes_ = 0;
  int64_t copied_bytes_ = 0;  // up to the end of the last part that is not shared
  SharedBuffer<std::byte> host_;
  DeviceMemory<std::byte> device_;
  std::atomic<int64_t> host_bytes_{0};
  std::atomic<int64_t> device_bytes_{0};
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TIERS_STEP_ARRAYS_IMPL_H_
