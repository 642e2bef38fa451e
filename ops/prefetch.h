#ifndef HOTROW_OPS_PREFETCH_H_
#define HOTROW_OPS_PREFETCH_H_

#include <algorithm>
#include <cstdint>

namespace hotrow::internal {

inline constexpr int64_t kCacheLineBytes = 64;
// Of a longer row only the beginning is asked for: from there on the hardware sees a stream.
inline constexpr int64_t kPrefetchBytesMax = 1024;
// How many rows ahead of its use a row is asked for: using a row takes some 10 ns and a miss to
// DRAM about 100. Measured at 64 to 512 bytes a row: 4 and 24 are slower than 8. Only scattered
// rows gain; in an array that is read from front to back the hardware does better alone.
inline constexpr int64_t kPrefetchRowsAhead = 8;

// Asks for the cache lines of [row, row + bytes). Any address is allowed, null too.
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
