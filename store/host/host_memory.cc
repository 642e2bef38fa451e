#include <algorithm>
#include <span>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/math.h"
#include "base/thread.h"
#include "store/host/host_memory_impl.h"

namespace hotrow::internal {
namespace {

absl::Status PopulateOnAllThreads(std::span<std::byte> memory, ThreadPool* pool) {
  // What a thread does at a time: long enough to be worth a call, short enough that all threads end
  // at about the same time.
  constexpr int64_t kStripBytes = int64_t{32} << 20;
  std::mutex mutex;
  absl::Status status;
  ParallelFor(pool, std::ssize(memory), kStripBytes, [&](int64_t begin, int64_t end) {
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
                       " bytes are in use and ", bytes, " more are needed"));
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
  std::lock_guard lock(mutex_);
  for (int attempt = 0; attempt < 2; ++attempt) {
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
    if (attempt == 0) HOTROW_RETURN_IF_ERROR(OpenExtent(size));
  }
  return absl::InternalError("host store: a new extent is smaller than the piece it is for");
}

absl::Status HostArena::OpenExtent(int64_t bytes_min) {
  if (provided_.empty() || provided_.front().bytes < bytes_min) return AddExtent(bytes_min);
  CarveFrom(provided_.front());
  provided_.pop_front();
  return absl::OkStatus();
}

void HostArena::CarveFrom(const Remainder& extent) {
  *std::min_element(remainders_.begin(), remainders_.end(),
                    [](const Remainder& a, const Remainder& b) { return a.bytes < b.bytes; }) =
      extent;
}

// With the entry of the vector.
absl::StatusOr<BudgetedBuffer<std::byte>> HostArena::TakeMemory(int64_t bytes) {
  HOTROW_RETURN_IF_ERROR(budget_.Reserve(kEntryBytes));
  auto memory = BudgetedBuffer<std::byte>::Create(bytes, {budget_, huge_pages_});
  if (!memory.ok()) budget_.Release(kEntryBytes);
  return memory;
}

absl::Status HostArena::LockAndKeep(BudgetedBuffer<std::byte> memory) {
  auto registration = HostRegistration::Create(device_, memory.data(), memory.bytes());
  if (!registration.ok()) {
    budget_.Release(kEntryBytes);
    return std::move(registration).status();
  }
  extent_bytes_.fetch_add(HostBytesReserved(memory.bytes(), huge_pages_),
                          std::memory_order_relaxed);
  num_extents_.fetch_add(1, std::memory_order_relaxed);
  extents_.push_back({std::move(memory), *std::move(registration)});
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
  // Pages that are present are locked faster, and what is left holds the driver up less.
  if (const absl::Status present =
          locked ? PopulatePages(memory->data(), memory->bytes()) : absl::OkStatus();
      !present.ok()) {
    budget_.Release(kEntryBytes);
    return present;
  }
  const Remainder extent = {memory->data(), memory->size()};
  HOTROW_RETURN_IF_ERROR(LockAndKeep(*std::move(memory)));
  CarveFrom(extent);
  return absl::OkStatus();
}

absl::Status HostArena::Provide(int64_t bytes, ThreadPool* pool) {
  const std::lock_guard lock(mutex_);
  const int64_t room = budget_.budget() - budget_.budget() / 64 - budget_.used();
  int64_t left = std::min(RoundUp(std::max<int64_t>(bytes - extent_bytes(), 0), kHugePageBytes),
                          std::max<int64_t>(room, 0) / kHugePageBytes * kHugePageBytes);
  absl::Status status;
  BudgetedBuffer<std::byte> present;  // its pages are there, and it is not locked yet
  while (status.ok() && (left > 0 || !present.empty())) {
    BudgetedBuffer<std::byte> next;
    if (left > 0) {
      auto taken = TakeMemory(std::min(left, kLockedExtentBytesMax));
      if (taken.ok()) {
        next = *std::move(taken);
      } else {
        status = taken.status();
      }
    }
    left -= next.bytes();
    // Locking is for this thread: for those of the pool another GPU may be the current one.
    absl::Status populated;
    const auto populate = [&] { populated = PopulateOnAllThreads(next.span(), pool); };
    std::thread beside;
    if (pool != nullptr && !present.empty() && !next.empty()) {
      auto started = StartThread("pages that become present", populate);
      if (started.ok()) beside = *std::move(started);
    }
    if (!present.empty()) {
      const Remainder extent = {present.data(), present.size()};
      const absl::Status kept = LockAndKeep(std::move(present));
      if (kept.ok()) provided_.push_back(extent);
      status.Update(kept);
    }
    if (beside.joinable()) {
      beside.join();
    } else {
      populate();
    }
    if (next.empty()) continue;
    status.Update(populated);
    if (status.ok()) {
      present = std::move(next);
    } else {
      budget_.Release(kEntryBytes);
    }
  }
  return status;
}

}  // namespace hotrow::internal
