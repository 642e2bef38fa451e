#ifndef HOTROW_OPS_PREFETCH_H_
#define HOTROW_OPS_PREFETCH_H_

#include <algorithm>
#include <cstdint>

namespace hotrow::internal {

inline constexpr int64_t kCacheLineBytes = 64;
// Only the beginning of a longer row is prefetched: then the hardware detects a stream.
inline constexpr int64_t kPrefetchBytesMax = 1024;
// Prefetch distance in rows: using a row takes some 10 ns and a miss to DRAM about 100. At 64 to
//                            512
// bytes a row, 4 and 24 measured slower than 8. For scattered rows only; in an array that is read
// from front to back the hardware does better alone.
inline constexpr int64_t kPrefetchRowsAhead = 8;

// Prefetches the cache lines of [row, row + bytes). Any address is allowed, also null.
inline void PrefetchForRead(const void* row, int64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(row);
  for (int64_t i = 0; i < std::min(bytes, kPrefetchBytesMax); i += kCacheLineBytes) {
    __builtin_prefetch(reinterpret_cast<const void*>(address + i), /*rw=*/0);
  }
}
inline void PrefetchForWrite(const void* row, int64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(row);
  for (int64_t i = 0; i < std::min(bytes, kPrefetchBytesMax); i += kCacheLineBytes) {
    __builtin_prefetch(reinterpret_cast<const void*>(address + i), /*rw=*/1);
  }
}

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_PREFETCH_H_
