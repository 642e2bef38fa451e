#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/math.h"
#include "store/host/host_memory_impl.h"

namespace hotrow::internal {

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

void HostArena::Keep(BudgetedBuffer<std::byte> memory, HostRegistration registration) {
  extent_bytes_.fetch_add(HostBytesReserved(memory.bytes(), huge_pages_),
                          std::memory_order_relaxed);
  num_extents_.fetch_add(1, std::memory_order_relaxed);
  extents_.push_back({std::move(memory), std::move(registration)});
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
  absl::Status present;
  if (locked) present = PopulatePages(memory->data(), memory->bytes());
  auto registration =
      present.ok() ? HostRegistration::Create(device_, memory->data(), memory->bytes()) : present;
  if (!registration.ok()) {
    budget_.Release(kEntryBytes);
    return std::move(registration).status();
  }
  CarveFrom({memory->data(), memory->size()});
  Keep(*std::move(memory), *std::move(registration));
  return absl::OkStatus();
}

absl::Status HostArena::Provide(int64_t bytes, ThreadPool* pool) {
  // What a thread makes present at a time: long enough to be worth a call, short enough that all
  // threads end at about the same time.
  constexpr int64_t kStripBytes = 16 * kHugePageBytes;
  const std::lock_guard lock(mutex_);
  const int64_t room = budget_.budget() - budget_.budget() / 64 - budget_.used();
  int64_t left = std::min(RoundUp(std::max<int64_t>(bytes - extent_bytes(), 0), kHugePageBytes),
                          std::max<int64_t>(room, 0) / kHugePageBytes * kHugePageBytes);
  struct Piece {
    BudgetedBuffer<std::byte> memory;
    absl::StatusOr<HostRegistration> registration = HostRegistration();
  };
  absl::Status status;
  std::optional<Piece> before;  // its pages are present, and it is not locked yet
  const auto lock_before = [&] {
    before->registration =
        HostRegistration::Create(device_, before->memory.data(), before->memory.bytes());
  };
  const auto keep_before = [&] {
    if (!before.has_value()) return;
    if (!before->registration.ok()) {
      budget_.Release(kEntryBytes);
      status = before->registration.status();
    } else {
      provided_.push_back({before->memory.data(), before->memory.size()});
      Keep(std::move(before->memory), *std::move(before->registration));
    }
    before.reset();
  };
  while (status.ok() && (left > 0 || before.has_value())) {
    const int64_t size = std::min(left, kLockedExtentBytesMax);
    Piece next;
    if (size > 0) {
      absl::StatusOr<BudgetedBuffer<std::byte>> memory = TakeMemory(size);
      if (memory.ok()) {
        next.memory = *std::move(memory);
      } else {
        status = memory.status();
      }
    }
    std::mutex error_mutex;
    absl::Status present;
    // Chunk 0 locks the extent before, the others are strips of this one.
    const int64_t strips = CeilDiv(next.memory.bytes(), kStripBytes);
    ParallelFor(pool, 1 + strips, 1, [&](int64_t chunk, int64_t) {
      if (chunk == 0) {
        if (before.has_value()) lock_before();
        return;
      }
      const int64_t begin = (chunk - 1) * kStripBytes;
      const absl::Status populated = PopulatePages(
          next.memory.data() + begin, std::min(kStripBytes, next.memory.bytes() - begin));
      const std::lock_guard<std::mutex> error_lock(error_mutex);
      present.Update(populated);
    });
    keep_before();
    if (!next.memory.empty()) {
      status.Update(present);
      if (status.ok()) {
        before.emplace(std::move(next));
      } else {
        budget_.Release(kEntryBytes);
      }
    }
    left -= size;
  }
  return provided_.empty() ? status : absl::OkStatus();
}

}  // namespace hotrow::internal
