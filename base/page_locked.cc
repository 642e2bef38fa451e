#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/cuda_device.h"
#include "base/cuda_status.h"
#include "base/math.h"
#include "base/page_locked_impl.h"
#include "base/status_macros.h"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace hotrow::internal {
namespace {

// Few sizes, so that what one buffer leaves fits another: eight from each power of two to the next.
int64_t SizeOfPiece(int64_t bytes) {
  constexpr int64_t kLeast = 256;
  const auto at_least = static_cast<uint64_t>(std::max(bytes, kLeast));
  return RoundUp(static_cast<int64_t>(at_least),
                 static_cast<int64_t>(std::bit_floor(at_least) / 8));
}

// AddressSanitizer finds work that still uses what was given back.
void Hide([[maybe_unused]] void* data, [[maybe_unused]] int64_t size) {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_POISON_MEMORY_REGION(data, static_cast<size_t>(size));
#endif
}
void Show([[maybe_unused]] void* data, [[maybe_unused]] int64_t size) {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(data, static_cast<size_t>(size));
#endif
}

}  // namespace

PageLockedMemory& PageLockedMemory::OfProcess() {
  static PageLockedMemory* const memory = new PageLockedMemory();  // outlives all that has some
  return *memory;
}

absl::StatusOr<void*> PageLockedMemory::Take(int64_t bytes) {
  const int64_t size = SizeOfPiece(bytes);
  void* data = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto spare = spares_.find(size); spare != spares_.end()) {
      data = spare->second;
      Show(data, size);
      spares_.erase(spare);
    }
    ++in_use_;
  }
  if (data == nullptr) {
    const absl::Status usable = CheckUsableGpu();
    const absl::Status taken =
        usable.ok()
            ? CudaToStatus(cudaHostAlloc(&data, static_cast<size_t>(size), cudaHostAllocPortable),
                           absl::StrCat("cudaHostAlloc of ", bytes, " bytes"))
            : usable;
    if (!taken.ok()) {
      const std::lock_guard<std::mutex> lock(mutex_);
      --in_use_;
      return taken;
    }
  }
  std::memset(data, 0, static_cast<size_t>(bytes));
  return data;
}

void PageLockedMemory::GiveBack(void* data, int64_t bytes) {
  std::multimap<int64_t, void*> unused;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t size = SizeOfPiece(bytes);
    Hide(data, size);
    spares_.emplace(size, data);
    if (--in_use_ == 0) unused.swap(spares_);
  }
  for (const auto& [size, piece] : unused) {
    Show(piece, size);
    cudaFreeHost(piece);
  }
}

int64_t PageLockedMemory::spare_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t bytes = 0;
  for (const auto& [size, piece] : spares_) bytes += size;
  return bytes;
}

}  // namespace hotrow::internal
