#include <algorithm>
#include <span>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/device_stream.h"
#include "base/exec_context.h"
#include "base/host_pages.h"
#include "base/math.h"
#include "base/thread.h"
#include "store/host/host_memory_impl.h"

namespace hotrow::internal {
namespace {

// What a thread makes present at a time: long enough to be worth a call, short enough that all
// threads end at about the same time, and soon where they are told to.
constexpr int64_t kStripBytes = int64_t{32} << 20;

absl::Status PopulateOnAllThreads(std::span<std::byte> memory, ThreadPool* pool,
                                  const std::atomic<bool>& stop) {
  std::mutex mutex;
  absl::Status status;
  ParallelFor(pool, std::ssize(memory), kStripBytes, [&](int64_t begin, int64_t end) {
    if (stop.load(std::memory_order_relaxed)) return;
    const absl::Status populated = PopulatePages(memory.data() + begin, end - begin);
    const std::lock_guard lock(mutex);
    status.Update(populated);
  });
  return status;
}

}  // namespace

absl::Status MemoryBudget::Reserve(int64_t bytes) {
  int64_t used = used_.load(std::memory_order_relaxed);
  do {
    if (bytes > budget_ - used) {
      return absl::ResourceExhaustedError(
          absl::StrCat(name_, ": the memory budget of ", budget_, " bytes is too small: ", used,
                       " bytes are in use and ", bytes, " more are needed",
                       option_ == nullptr ? "" : "; raise ", option_ == nullptr ? "" : option_));
    }
  } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  const int64_t now = used + bytes;
  int64_t peak = peak_.load(std::memory_order_relaxed);
  while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
  return absl::OkStatus();
}

absl::StatusOr<void*> BudgetedMemory::Allocate(int64_t bytes) const {
  HOTROW_CHECK(budget != nullptr);
  HOTROW_RETURN_IF_ERROR(budget->Reserve(ReservedFor(bytes)));
  absl::StatusOr<void*> data = HostMemory::Allocate(bytes);
  if (!data.ok()) budget->Release(ReservedFor(bytes));
  return data;
}

void BudgetedMemory::Free(void* data, int64_t bytes) const {
  HostMemory::Free(data, bytes);
  budget->Release(ReservedFor(bytes));
}

absl::StatusOr<std::byte*> HostArena::Carve(int64_t bytes) {
  const int64_t size = RoundUp(bytes, kBufferAlignment);
  std::unique_lock lock(mutex_);
  for (bool added = false;;) {
    // The tightest fit, so that large remainders stay whole for large pieces.
    Remainder* best = nullptr;
    for (Remainder& remainder : remainders_) {
      if (remainder.bytes >= size && (best == nullptr || remainder.bytes < best->bytes)) {
        best = &remainder;
      }
    }
    if (best != nullptr) {
      std::byte* const piece = best->data;
      best->data += size;
      best->bytes -= size;
      carved_bytes_.fetch_add(size, std::memory_order_relaxed);
      return piece;
    }
    if (!provided_.empty() && provided_.front().bytes >= size) {
      CarveFrom(provided_.front());
      provided_.pop_front();
    } else if (locking_) {
      provided_changed_.wait(lock);
    } else if (!added) {
      HOTROW_RETURN_IF_ERROR(AddExtent(size));
      added = true;
    } else {
      return absl::InternalError("host store: a new extent is smaller than the piece it is for");
    }
  }
}

void HostArena::CarveFrom(const Remainder& extent) {
  *std::min_element(remainders_.begin(), remainders_.end(),
                    [](const Remainder& a, const Remainder& b) { return a.bytes < b.bytes; }) =
      extent;
}

// With the entry of the vector.
absl::StatusOr<BudgetedBuffer<std::byte>> HostArena::TakeMemory(int64_t bytes) {
  HOTROW_RETURN_IF_ERROR(budget_.Reserve(kEntryBytes));
  auto memory = BudgetedBuffer<std::byte>::Create(bytes, {budget_, HugePages::kTry});
  if (memory.ok()) {
    extent_bytes_.fetch_add(HostBytesReserved(memory->bytes(), HugePages::kTry),
                            std::memory_order_relaxed);
  } else {
    budget_.Release(kEntryBytes);
  }
  return memory;
}

void HostArena::GiveBack(BudgetedBuffer<std::byte> memory) {
  budget_.Release(kEntryBytes);
  extent_bytes_.fetch_sub(HostBytesReserved(memory.bytes(), HugePages::kTry),
                          std::memory_order_relaxed);
}

absl::StatusOr<HostRegistration> HostArena::Lock(BudgetedBuffer<std::byte>* memory,
                                                 ThreadPool* pool) const {
  // Pages that are present are locked faster, and what is left holds the driver up less.
  HOTROW_RETURN_IF_ERROR(PopulateOnAllThreads(memory->span(), pool, stop_));
  return HostRegistration::Create(device_, memory->data(), memory->bytes());
}

absl::Status HostArena::Keep(BudgetedBuffer<std::byte> memory,
                             absl::StatusOr<HostRegistration> made, Remainder* extent) {
  if (!made.ok()) {
    GiveBack(std::move(memory));
    return std::move(made).status();
  }
  *extent = {memory.data(), memory.size()};
  num_extents_.fetch_add(1, std::memory_order_relaxed);
  extents_.push_back({std::move(memory), *std::move(made)});
  return absl::OkStatus();
}

absl::Status HostArena::AddExtent(int64_t bytes_min) {
  const bool locked = device_ != Device::kCpu;
  // Large budgets start with larger extents, because only those from 1 MiB up get huge pages.
  int64_t size = std::max(budget_.budget() / 256, extent_bytes() / 8);
  size = std::clamp(size, kExtentBytesMin, locked ? kLockedExtentBytesMax : kExtentBytesMax);
  if (size >= kHugePageBytes) size = size / kHugePageBytes * kHugePageBytes;
  // What is registered must have its pages for itself, which is so where it is mapped.
  int64_t least = bytes_min;
  if (locked) least = RoundUp(std::max(bytes_min, kHugePageBytes), kHugePageBytes);
  size = std::max(size, least);

  absl::StatusOr<BudgetedBuffer<std::byte>> memory = TakeMemory(size);
  // Near the end of the budget smaller extents still fit.
  while (!memory.ok() && size > least) {
    size = std::max(RoundUp(size / 2, kBufferAlignment), least);
    memory = TakeMemory(size);
  }
  if (!memory.ok()) return std::move(memory).status();
  auto made = locked ? Lock(&*memory, /*pool=*/nullptr) : HostRegistration();
  Remainder extent;
  HOTROW_RETURN_IF_ERROR(Keep(*std::move(memory), std::move(made), &extent));
  CarveFrom(extent);
  return absl::OkStatus();
}

absl::Status HostArena::Provide(int64_t bytes, ThreadPool* pool, int64_t at_once) {
  AwaitProvided();
  const std::lock_guard lock(mutex_);
  const int64_t room = budget_.budget() - budget_.budget() / 64 - budget_.used();
  int64_t left = std::min(RoundUp(std::max<int64_t>(bytes - extent_bytes(), 0), kHugePageBytes),
                          std::max<int64_t>(room, 0) / kHugePageBytes * kHugePageBytes);
  if (left == 0) return absl::OkStatus();
  // Addresses alone, so that what cannot be had is refused here.
  absl::Status status;
  while (left > 0 && status.ok()) {
    auto memory = TakeMemory(std::min(left, awaited_.empty() ? at_once : kLaterExtentBytesMax));
    status = memory.status();
    if (!memory.ok()) break;
    left -= memory->bytes();
    awaited_.push_back(*std::move(memory));
  }
  if (awaited_.empty()) return status;
  BudgetedBuffer<std::byte> first = std::move(awaited_.front());
  awaited_.pop_front();
  Remainder extent;
  auto made = Lock(&first, pool);
  status.Update(Keep(std::move(first), std::move(made), &extent));
  if (extent.bytes > 0) provided_.push_back(extent);
  if (!status.ok()) {
    for (BudgetedBuffer<std::byte>& memory : awaited_) GiveBack(std::move(memory));
    awaited_.clear();
  }
  if (awaited_.empty()) return status;
  HOTROW_ASSIGN_OR_RETURN(const ExecContext current, CurrentDevice(device_));
  locking_ = true;
  const auto lock_awaited = [=, this]() -> absl::Status {
    UseDevice(current).IgnoreError();  // then locking fails, too
    LockAwaited();
    return absl::OkStatus();
  };
  absl::StatusOr<std::thread> started = Caught("", [&] {
    return StartThread("locking memory of the store", [lock_awaited, this] {
      Caught("", lock_awaited, [this](const absl::Status&) { EndLocking(); }).IgnoreError();
    });
  });
  if (started.ok()) {
    thread_ = *std::move(started);
  } else {
    // It is locked when it is needed.
    locking_ = false;
    for (BudgetedBuffer<std::byte>& memory : awaited_) GiveBack(std::move(memory));
    awaited_.clear();
  }
  return absl::OkStatus();
}

void HostArena::LockAwaited() {
  std::unique_lock lock(mutex_);
  while (!awaited_.empty()) {
    BudgetedBuffer<std::byte> memory = std::move(awaited_.front());
    awaited_.pop_front();
    lock.unlock();
    absl::StatusOr<HostRegistration> made =
        stop_ ? absl::CancelledError() : Lock(&memory, /*pool=*/nullptr);
    lock.lock();
    Remainder extent;
    if (Keep(std::move(memory), std::move(made), &extent).ok()) {
      provided_.push_back(extent);
      provided_changed_.notify_all();
      continue;
    }
    for (BudgetedBuffer<std::byte>& other : awaited_) GiveBack(std::move(other));
    awaited_.clear();
  }
  lock.unlock();
  EndLocking();
}

void HostArena::EndLocking() {
  const std::lock_guard lock(mutex_);
  locking_ = false;
  provided_changed_.notify_all();
}

void HostArena::AwaitProvided() {
  if (thread_.joinable()) thread_.join();
}

HostArena::~HostArena() {
  stop_ = true;
  AwaitProvided();
}

}  // namespace hotrow::internal
