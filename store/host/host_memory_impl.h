#ifndef HOTROW_STORE_HOST_HOST_MEMORY_IMPL_H_
#define HOTROW_STORE_HOST_HOST_MEMORY_IMPL_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/device.h"
#include "base/host_registration.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"

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

// HostMemory that is counted in a MemoryBudget as long as a buffer owns it.
struct BudgetedMemory : HostMemory {
  BudgetedMemory() = default;  // of an empty buffer; cannot allocate
  BudgetedMemory(MemoryBudget& of, HugePages pages = HugePages::kNever)  // NOLINT: implicit
      : HostMemory(pages), budget(&of) {}

  absl::StatusOr<void*> Allocate(int64_t bytes) const;
  void Free(void* data, int64_t bytes) const;
  // What a buffer of that size takes from the budget.
  int64_t ReservedFor(int64_t bytes) const { return HostBytesReserved(bytes, huge_pages); }

  MemoryBudget* budget = nullptr;
};

template <typename T>
using BudgetedBuffer = Buffer<T, BudgetedMemory>;

// Carves pieces that live as long as the store (chunks of rows, segments of the index) out of
// extents. Rows and index share the extents, so that both lie on huge pages; an extent is at most
// an eighth of what the arena holds already, so that a small store stays small.
//
// Locked memory: locking takes a lock of the driver that launches of kernels need, 3 to 8 ms a
// call. So what is to be locked is provided at the start, in large extents, and Carve locks only
// what goes beyond that.
//
// Threads: all methods may run concurrently.
class HostArena {
 public:
  static constexpr int64_t kExtentBytesMin = int64_t{64} << 10;
  static constexpr int64_t kExtentBytesMax = int64_t{32} << 20;
  static constexpr int64_t kLockedExtentBytesMax = int64_t{1} << 30;
  static constexpr int64_t kHugePageBytes = int64_t{2} << 20;

  // kCuda: extents are page-locked, so that a GPU reads what lies in them (HostRegistration), and
  // of 2 MiB at least.
  HostArena(MemoryBudget& budget, HugePages huge_pages, Device device)
      : budget_(budget),
        huge_pages_(device == Device::kCpu ? huge_pages : HugePages::kTry),
        device_(device) {}

  // Opens extents of up to kLockedExtentBytesMax until the arena holds `bytes`, or as much of them
  // as the budget allows beside 1/64 for what lies outside of extents. All their pages are present
  // then: the threads of `pool` (null: the caller alone) touch those of one extent while the caller
  // locks the one before. Errors: ResourceExhausted, when an extent cannot be had or locked; those
  // before it stay.
  absl::Status Provide(int64_t bytes, ThreadPool* pool);

  // A zeroed, 64-byte aligned piece. What is locked for it is so in the driver's context of the GPU
  // that is current for the caller. Errors: ResourceExhausted.
  absl::StatusOr<std::byte*> Carve(int64_t bytes);

  // What the extents take from the budget, and the part of it that is carved.
  int64_t extent_bytes() const { return extent_bytes_.load(std::memory_order_relaxed); }
  int64_t carved_bytes() const { return carved_bytes_.load(std::memory_order_relaxed); }
  // How many there are; with kCuda, each has been locked in a call of its own.
  int64_t num_extents() const { return num_extents_.load(std::memory_order_relaxed); }

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

  // What the vector of extents takes of the budget for one: it may double its memory, so twice.
  static constexpr int64_t kEntryBytes = 2 * sizeof(Extent);

  // The caller holds mutex_.
  absl::Status OpenExtent(int64_t bytes_min);
  absl::Status AddExtent(int64_t bytes_min);
  absl::StatusOr<BudgetedBuffer<std::byte>> TakeMemory(int64_t bytes);
  // Of TakeMemory; it is given back on error.
  absl::Status LockAndKeep(BudgetedBuffer<std::byte> memory);
  void CarveFrom(const Remainder& extent);

  MemoryBudget& budget_;
  const HugePages huge_pages_;
  const Device device_;
  std::mutex mutex_;
  std::vector<Extent> extents_;          // guarded by mutex_
  std::deque<Remainder> provided_;       // guarded by mutex_; whole extents, of Provide
  std::array<Remainder, 8> remainders_;  // guarded by mutex_
  std::atomic<int64_t> num_extents_{0};
  std::atomic<int64_t> extent_bytes_{0};
  std::atomic<int64_t> carved_bytes_{0};
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_HOST_HOST_MEMORY_IMPL_H_
