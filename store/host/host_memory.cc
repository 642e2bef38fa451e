#include <algorithm>

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
    if (attempt == 0) HOTROW_RETURN_IF_ERROR(AddExtent(size));
  }
  return absl::InternalError("host store: a new extent is smaller than the piece it is for");
}

absl::Status HostArena::AddExtent(int64_t bytes_min) {
  // Large budgets start with larger extents, because only those from 1 MiB up get huge pages.
  int64_t size = std::max(budget_.budget() / 256, extent_bytes() / 8);
  size = std::clamp(size, kExtentBytesMin, kExtentBytesMax);
  if (size >= kHugePageBytes) size = size / kHugePageBytes * kHugePageBytes;
  // What is registered must have its pages for itself, which is so where it is mapped.
  int64_t least = bytes_min;
  if (device_ != Device::kCpu) least = RoundUp(std::max(bytes_min, kHugePageBytes), kHugePageBytes);
  size = std::max(size, least);

  // The vector's own entry; it may double its memory, so count it twice.
  const auto entry_bytes = static_cast<int64_t>(2 * sizeof(extents_[0]));
  HOTROW_RETURN_IF_ERROR(budget_.Reserve(entry_bytes));
  auto extent = BudgetedBuffer<std::byte>::Create(size, {budget_, huge_pages_});
  // Near the end of the budget smaller extents still fit.
  while (!extent.ok() && size > least) {
    size = std::max(RoundUp(size / 2, kBufferAlignment), least);
    extent = BudgetedBuffer<std::byte>::Create(size, {budget_, huge_pages_});
  }
  if (!extent.ok()) {
    budget_.Release(entry_bytes);
    return std::move(extent).status();
  }
  auto registration = HostRegistration::Create(device_, extent->data(), extent->size());
  if (!registration.ok()) {
    budget_.Release(entry_bytes);
    return std::move(registration).status();
  }
  extent_bytes_.fetch_add(HostBytesReserved(extent->bytes(), huge_pages_),
                          std::memory_order_relaxed);
  Remainder& smallest =
      *std::min_element(remainders_.begin(), remainders_.end(),
                        [](const Remainder& a, const Remainder& b) { return a.bytes < b.bytes; });
  smallest = {extent->data(), extent->size()};
  extents_.push_back({*std::move(extent), *std::move(registration)});
  return absl::OkStatus();
}

}  // namespace hotrow::internal
