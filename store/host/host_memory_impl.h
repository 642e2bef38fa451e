#ifndef HOTROW_STORE_HOST_HOST_MEMORY_IMPL_H_
#define HOTROW_STORE_HOST_HOST_MEMORY_IMPL_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/device.h"
#include "base/host_pages.h"
#include "base/host_registration.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"

// The memory of a store: a budget that is asked before every allocation, buffers that give
// their share back, and an arena that carves long-lived pieces out of large extents.
namespace hotrow::internal {

// Threads: all methods may run concurrently. used() <= budget() at every moment.
class MemoryBudget {
 public:
  // Literals: `name` is what errors call the owner, `option` what they say to raise, null for none.
  explicit MemoryBudget(int64_t budget_bytes, const char* name = "host store",
                        const char* option = nullptr)
      : budget_(budget_bytes), name_(name), option_(option) {}

  // Errors: ResourceExhausted, naming the store, the budget and the need; nothing is taken then.
  absl::Status Reserve(int64_t bytes);
  void Release(int64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

  int64_t budget() const { return budget_; }
  int64_t used() const { return used_.load(std::memory_order_relaxed); }
  int64_t peak() const { return peak_.load(std::memory_order_relaxed); }

 private:
  const int64_t budget_;
  const char* const name_;
  const char* const option_;
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
// call. So what is to be locked is provided at the start, in large extents: the first of them by
// the caller, the others by a thread while the store is used. Carve waits for that thread where it
// needs what is still to come, and locks only what goes beyond.
//
// Threads: all methods may run concurrently.
class HostArena {
 public:
  static constexpr int64_t kExtentBytesMin = int64_t{64} << 10;
  static constexpr int64_t kExtentBytesMax = int64_t{32} << 20;
  static constexpr int64_t kLockedExtentBytesMax = int64_t{1} << 30;
  // The most for those that are locked beside steps.
  static constexpr int64_t kLaterExtentBytesMax = int64_t{256} << 20;
  static constexpr int64_t kHugePageBytes = int64_t{2} << 20;

  // kCuda: extents are page-locked, so that a GPU reads what lies in them (HostRegistration), and
  // of 2 MiB at least.
  HostArena(MemoryBudget& budget, Device device) : budget_(budget), device_(device) {}
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  // Opens extents until the arena holds `bytes`, or as much of them as the budget allows beside
  // 1/64 for what lies outside of extents. All pages of the first one, of up to at_once bytes, are
  // present and locked when this returns; the threads of `pool` (null: the caller alone) have
  // touched them. A thread does the same to the others. Errors: ResourceExhausted, when an extent
  // cannot be had or the first one not be locked; those before it stay. Where another one cannot,
  // Carve says so once it comes to that.
  absl::Status Provide(int64_t bytes, ThreadPool* pool, int64_t at_once = kLockedExtentBytesMax);
  // Waits until that thread is done.
  void AwaitProvided();

  // A zeroed, 64-byte aligned piece. What is locked for it is so in the driver's context of the GPU
  // that is current for the caller. Errors: ResourceExhausted.
  absl::StatusOr<std::byte*> Carve(int64_t bytes);

  // What the extents take from the budget, those to come included, and the part that is carved.
  int64_t extent_bytes() const { return extent_bytes_.load(std::memory_order_relaxed); }
  int64_t carved_bytes() const { return carved_bytes_.load(std::memory_order_relaxed); }
  // How many have come; with kCuda, each has been locked in its own call.
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
  absl::Status AddExtent(int64_t bytes_min);
  absl::StatusOr<BudgetedBuffer<std::byte>> TakeMemory(int64_t bytes);
  // Both of TakeMemory. `made`: how making it present and locking it ended; unless it is OK the
  // memory is given back.
  absl::Status Keep(BudgetedBuffer<std::byte> memory, absl::StatusOr<HostRegistration> made,
                    Remainder* extent);
  void GiveBack(BudgetedBuffer<std::byte> memory);
  void CarveFrom(const Remainder& extent);

  // Makes memory present and locks it, without mutex_.
  absl::StatusOr<HostRegistration> Lock(BudgetedBuffer<std::byte>* memory, ThreadPool* pool) const;
  // What the thread runs.
  void LockAwaited();
  void EndLocking();

  MemoryBudget& budget_;
  const Device device_;
  std::mutex mutex_;
  std::vector<Extent> extents_;                    // guarded by mutex_
  std::deque<Remainder> provided_;                 // guarded by mutex_; whole extents, of Provide
  std::deque<BudgetedBuffer<std::byte>> awaited_;  // guarded by mutex_; to become such
  bool locking_ = false;                           // guarded by mutex_; the thread is at work
  std::condition_variable provided_changed_;       // or locking_
  std::array<Remainder, 8> remainders_;            // guarded by mutex_
  std::atomic<int64_t> num_extents_{0};
  std::atomic<int64_t> extent_bytes_{0};
  std::atomic<int64_t> carved_bytes_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_HOST_HOST_MEMORY_IMPL_H_
