#ifndef HOTROW_STORE_HOST_HOST_MEMORY_IMPL_H_
#define HOTROW_STORE_HOST_HOST_MEMORY_IMPL_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/device.h"
#include "base/host_registration.h"
#include "base/status_macros.h"

// The memory of a store: a budget that is asked before every allocation, buffers that give
// their share back, and an arena that carves long-lived pieces out of large extents.
namespace hotrow::internal {

// Threads: all methods may run concurrently. used() <= budget() at every moment.
class MemoryBudget {
 public:
  // `name` is what errors call the owner; a literal.
  explicit MemoryBudget(int64_t budget_bytes, const char* name = "host store")
      : budget_(budget_bytes), name_(name) {}

  // Errors: ResourceExhausted, naming the store, the budget and the need; nothing is taken then.
  absl::Status Reserve(int64_t bytes);
  void Release(int64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

  int64_t budget() const { return budget_; }
  int64_t used() const { return used_.load(std::memory_order_relaxed); }
  int64_t peak() const { return peak_.load(std::memory_order_relaxed); }

 private:
  const int64_t budget_;
  const char* const name_;
  std::atomic<int64_t> used_{0};
  std::atomic<int64_t> peak_{0};
};

// A HostBuffer that is counted in a MemoryBudget as long as it lives.
template <typename T>
class BudgetedBuffer {
 public:
  BudgetedBuffer() = default;
  BudgetedBuffer(BudgetedBuffer&& other) noexcept { *this = std::move(other); }
  BudgetedBuffer& operator=(BudgetedBuffer&& other) noexcept {
    if (this != &other) {
      Free();
      buffer_ = std::move(other.buffer_);
      budget_ = std::exchange(other.budget_, nullptr);
      reserved_ = std::exchange(other.reserved_, 0);
    }
    return *this;
  }
  ~BudgetedBuffer() { Free(); }

  static absl::StatusOr<BudgetedBuffer> Create(MemoryBudget& budget, int64_t size,
                                               HugePages huge_pages = HugePages::kNever) {
    const int64_t reserved = HostBytesReserved(size * static_cast<int64_t>(sizeof(T)), huge_pages);
    HOTROW_RETURN_IF_ERROR(budget.Reserve(reserved));
    BudgetedBuffer result;
    result.budget_ = &budget;  // from here on the destructor gives the share back
    result.reserved_ = reserved;
    HOTROW_ASSIGN_OR_RETURN(result.buffer_, HostBuffer<T>::Create(size, huge_pages));
    return result;
  }

  T* data() { return buffer_.data(); }
  const T* data() const { return buffer_.data(); }
  int64_t size() const { return buffer_.size(); }
  int64_t reserved_bytes() const { return reserved_; }
  T& operator[](int64_t i) { return buffer_[i]; }
  const T& operator[](int64_t i) const { return buffer_[i]; }
  std::span<T> span() { return buffer_.span(); }

 private:
  void Free() {
    buffer_ = HostBuffer<T>();
    if (budget_ != nullptr) budget_->Release(reserved_);
    budget_ = nullptr;
    reserved_ = 0;
  }

  HostBuffer<T> buffer_;
  MemoryBudget* budget_ = nullptr;
  int64_t reserved_ = 0;
};

// Carves pieces that live as long as the store (chunks of rows, segments of the index) out of
// extents. Rows and index share the extents, so that both lie on huge pages; an extent is at most
// an eighth of what the arena holds already, so that a small store stays small.
//
// Threads: all methods may run concurrently.
class HostArena {
 public:
  static constexpr int64_t kExtentBytesMin = int64_t{64} << 10;
  static constexpr int64_t kExtentBytesMax = int64_t{32} << 20;
  static constexpr int64_t kHugePageBytes = int64_t{2} << 20;

  // kCuda: extents are page-locked, so that a GPU reads what lies in them (HostRegistration), and
  // of 2 MiB at least.
  HostArena(MemoryBudget& budget, HugePages huge_pages, Device device)
      : budget_(budget),
        huge_pages_(device == Device::kCpu ? huge_pages : HugePages::kTry),
        device_(device) {}

  // A zeroed, 64-byte aligned piece. Errors: ResourceExhausted.
  absl::StatusOr<std::byte*> Carve(int64_t bytes);

  // What the extents take from the budget, and the part of it that is carved.
  int64_t extent_bytes() const { return extent_bytes_.load(std::memory_order_relaxed); }
  int64_t carved_bytes() const { return carved_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Extent {
    BudgetedBuffer<std::byte> memory;
    HostRegistration registration;  // let go before the memory
  };
  // What is left of an extent. Kept when the next extent is opened, so that smaller pieces may
  // still use it.
  struct Remainder {
    std::byte* data = nullptr;
    int64_t bytes = 0;
  };

  absl::Status AddExtent(int64_t bytes_min);

  MemoryBudget& budget_;
  const HugePages huge_pages_;
  const Device device_;
  std::mutex mutex_;
  std::vector<Extent> extents_;          // guarded by mutex_
  std::array<Remainder, 8> remainders_;  // guarded by mutex_
  std::atomic<int64_t> extent_bytes_{0};
  std::atomic<int64_t> carved_bytes_{0};
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_HOST_HOST_MEMORY_IMPL_H_
