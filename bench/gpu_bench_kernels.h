#ifndef HOTROW_BENCH_GPU_BENCH_KERNELS_H_
#define HOTROW_BENCH_GPU_BENCH_KERNELS_H_

// What gpu_bench runs on the device beside hotrow's own calls: the limits, and what makes and
// checks data. Everything is enqueued on the stream; counts are added to device-reachable memory
// that the caller has cleared. n = 0 enqueues nothing.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/hash.h"
#include "base/philox.h"
#include "base/row_key.h"
#include "cache/row_cache.h"

namespace hotrow::bench {

// Keeps the stream busy for so long, so that what is enqueued meanwhile runs without gaps.
absl::Status Delay(CudaStream stream, int64_t microseconds);

// bytes is a multiple of 16. Every 8 bytes depend on their place and the seed.
absl::Status FillWords(CudaStream stream, std::byte* data, int64_t bytes, uint64_t seed);

// data[i] = SmallFloat(seed, i): what products are made of.
HOTROW_HOST_DEVICE constexpr float SmallFloat(uint64_t seed, uint64_t i) {
  return UniformFloat(static_cast<uint32_t>(Mix64(seed * 0x9e3779b97f4a7c15 + i + 1) >> 32)) - 0.5f;
}
absl::Status FillSmallFloats(CudaStream stream, float* data, int64_t n, uint64_t seed);

// Reads and writes `bytes`, a multiple of 16.
absl::Status CopyByKernel(CudaStream stream, const std::byte* from, std::byte* to, int64_t bytes);

// index[i] is uniform in [0, rows). rows <= 2^32.
absl::Status MakeIndex(CudaStream stream, uint32_t* index, int64_t n, int64_t rows, uint64_t seed);

// out[i] = row index[i] of the table; row_bytes is 16 times a power of two. Each thread holds
// in_flight (1, 2, 4 or 8) loads of 16 bytes before it stores the first.
struct GatherByKernelArgs {
  const std::byte* table = nullptr;  // device memory, or page-locked host memory
  int64_t row_bytes = 0;
  const uint32_t* index = nullptr;  // [n]
  int64_t n = 0;
  std::byte* out = nullptr;  // [n, row_bytes]
  int in_flight = 4;
};
absl::Status GatherByKernel(CudaStream stream, const GatherByKernelArgs& args);
// Adds the number of 16-byte words of `out` that are not those of the table.
absl::Status CountWrongWords(CudaStream stream, const GatherByKernelArgs& args, int64_t* wrong);

// --- For the cache ---

inline constexpr uint32_t kBenchTable = 7;

// Keys of the places first, first + 1, ... (BenchKey).
absl::Status MakeKeys(CudaStream stream, int64_t first_place, int64_t n, RowKey* keys);
// Keys of places of [begin, begin + size), in a scattered order without repetitions: those of
// number first, first + 1, ... of that order. first + n <= size; `stride` and size have no common
// divisor, and first + n times stride fits into 63 bits.
absl::Status MakeScatteredKeys(CudaStream stream, int64_t begin, int64_t size, int64_t stride,
                               int64_t first, int64_t n, RowKey* keys);
// Appends keys[i] to selected[*count ...) where rows[i] is not null, in any order; those beyond the
// capacity are counted only.
absl::Status SelectResident(CudaStream stream, const RowKey* keys, const std::byte* const* rows,
                            int64_t n, RowKey* selected, int64_t capacity, int64_t* count);
// A batch of n keys: `hits` from the pool, in order and spread evenly, the others of places from
// absent_place on.
absl::Status MakeBatch(CudaStream stream, const RowKey* pool, int64_t n, int64_t hits,
                       int64_t absent_place, RowKey* keys);
// Appends slots[i] to selected[*count ...) where placement[i] is `wanted`.
absl::Status SelectSlots(CudaStream stream, const int64_t* slots, const Placement* placement,
                         int64_t n, Placement wanted, int64_t* selected, int64_t* count);
// Adds the number of found keys to counts[0], and to counts[1] that of 16-byte words of their rows
// in `out` that are not those of rows[i], which is null where and only where found[i] is 0 (a row
// where that does not hold counts as one word).
absl::Status CountFound(CudaStream stream, const std::byte* const* rows, const uint8_t* found,
                        const std::byte* out, int64_t row_bytes, int64_t n, int64_t* counts);

}  // namespace hotrow::bench

#endif  // HOTROW_BENCH_GPU_BENCH_KERNELS_H_
