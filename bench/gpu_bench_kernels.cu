#include "bench/gpu_bench_kernels.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/hash.h"
#include "bench/gpu_bench_plan.h"

namespace hotrow::bench {
namespace {

constexpr int kThreads = 256;
// Loops over the grid take what does not fit, so no size is too large.
constexpr int64_t kMaxBlocks = int64_t{1} << 24;

unsigned Blocks(int64_t items, int64_t per_block = kThreads) {
  return static_cast<unsigned>(std::min(kMaxBlocks, (items + per_block - 1) / per_block));
}

absl::Status Launched(const char* kernel) {
  return CudaToStatus(cudaGetLastError(), absl::StrCat("launch of ", kernel));
}

__device__ int64_t ThreadIndex() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ int64_t NumThreads() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

__device__ void AddTo(int64_t* count, uint64_t n) {
  if (n != 0) atomicAdd(reinterpret_cast<unsigned long long*>(count), n);
}
// The place of one more item; one addition for the threads of a warp that are here together.
__device__ int64_t TakePlace(int64_t* count) {
  const unsigned together = __activemask();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int leader = __ffs(static_cast<int>(together)) - 1;
  unsigned long long first = 0;
  if (lane == leader) {
    first = atomicAdd(reinterpret_cast<unsigned long long*>(count),
                      static_cast<unsigned long long>(__popc(together)));
  }
  first = __shfl_sync(together, first, leader);
  return static_cast<int64_t>(first) + __popc(together & ((1u << lane) - 1));
}

__device__ bool SameWords(const uint4& a, const uint4& b) {
  return a.x == b.x && a.y == b.y && a.z == b.z && a.w == b.w;
}

__global__ void FillSmallFloatsKernel(float* data, int64_t n, uint64_t seed) {
  for (int64_t i = ThreadIndex(); i < n; i += NumThreads()) {
    data[i] = SmallFloat(seed, static_cast<uint64_t>(i));
  }
}

__global__ void DelayKernel(uint64_t nanoseconds) {
  uint64_t begin = 0;
  uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

__global__ void FillKernel(uint4* data, int64_t n, uint64_t seed) {
  for (int64_t i = ThreadIndex(); i < n; i += NumThreads()) {
    const uint64_t a = Mix64(seed + 2 * static_cast<uint64_t>(i));
    const uint64_t b = Mix64(seed + 2 * static_cast<uint64_t>(i) + 1);
    data[i] = make_uint4(static_cast<unsigned>(a), static_cast<unsigned>(a >> 32),
                         static_cast<unsigned>(b), static_cast<unsigned>(b >> 32));
  }
}

constexpr int kCopyInFlight = 4;

__global__ void CopyKernel(const uint4* from, uint4* to, int64_t n) {
  const int64_t step = static_cast<int64_t>(kCopyInFlight) * kThreads;
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * step; base < n; base += gridDim.x * step) {
    uint4 words[kCopyInFlight];
#pragma unroll
    for (int k = 0; k < kCopyInFlight; ++k) {
      const int64_t i = base + k * kThreads + threadIdx.x;
      if (i < n) words[k] = __ldcs(from + i);
    }
#pragma unroll
    for (int k = 0; k < kCopyInFlight; ++k) {
      const int64_t i = base + k * kThreads + threadIdx.x;
      if (i < n) __stcs(to + i, words[k]);
    }
  }
}

__global__ void IndexKernel(uint32_t* index, int64_t n, uint64_t rows, uint64_t seed) {
  for (int64_t i = ThreadIndex(); i < n; i += NumThreads()) {
    // The high half of a 64-bit product: uniform up to rows / 2^64.
    index[i] =
        static_cast<uint32_t>(__umul64hi(Mix64(seed ^ Mix64(static_cast<uint64_t>(i))), rows));
  }
}

// Word w of the output is word w % words_per_row of row index[w / words_per_row]. Neighbouring
// threads read neighbouring words of one row, and several rows are under way in each warp.
template <int kInFlight>
__global__ void GatherKernel(const uint4* table, int row_shift, const uint32_t* index,
                             int64_t words, uint4* out) {
  const int64_t mask = (int64_t{1} << row_shift) - 1;
  const int64_t step = static_cast<int64_t>(kInFlight) * kThreads;
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * step; base < words;
       base += gridDim.x * step) {
    uint4 values[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int64_t w = base + k * kThreads + threadIdx.x;
      if (w < words) {
        const auto row = static_cast<int64_t>(index[w >> row_shift]);
        values[k] = __ldg(table + (row << row_shift) + (w & mask));
      }
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int64_t w = base + k * kThreads + threadIdx.x;
      if (w < words) __stcs(out + w, values[k]);
    }
  }
}

__global__ void CountWrongKernel(const uint4* table, int row_shift, const uint32_t* index,
                                 int64_t words, const uint4* out, int64_t* wrong) {
  const int64_t mask = (int64_t{1} << row_shift) - 1;
  uint64_t count = 0;
  for (int64_t w = ThreadIndex(); w < words; w += NumThreads()) {
    const auto row = static_cast<int64_t>(index[w >> row_shift]);
    if (!SameWords(table[(row << row_shift) + (w & mask)], out[w])) ++count;
  }
  AddTo(wrong, count);
}

__device__ RowKey KeyOfPlace(int64_t place) {
  RowKey key;
  key.key = BenchKey(static_cast<uint64_t>(place));
  key.table = kBenchTable;
  return key;
}

__global__ void KeysKernel(int64_t first_place, int64_t n, RowKey* keys) {
  for (int64_t i = ThreadIndex(); i < n; i += NumThreads()) keys[i] = KeyOfPlace(first_place + i);
}

__global__ void ScatteredKeysKernel(int64_t begin, int64_t size, int64_t stride, int64_t first,
                                    int64_t n, RowKey* keys) {
  for (int64_t i = ThreadIndex(); i < n; i += NumThreads()) {
    keys[i] = KeyOfPlace(begin + (first + i) * stride % size);
  }
}

__global__ void SelectResidentKernel(const RowKey* keys, const std::byte* const* rows, int64_t n,
                                     RowKey* selected, int64_t capacity, int64_t* count) {
  for (int64_t i = ThreadIndex(); i < n; i += NumThreads()) {
    if (rows[i] == nullptr) continue;
    const int64_t place = TakePlace(count);
    if (place < capacity) selected[place] = keys[i];
  }
}

__global__ void BatchKernel(const RowKey* pool, int64_t n, int64_t hits, int64_t absent_place,
                            RowKey* keys) {
  for (int64_t j = ThreadIndex(); j < n; j += NumThreads()) {
    const int64_t before = HitsBefore(j, n, hits);
    const bool hit = HitsBefore(j + 1, n, hits) > before;
    keys[j] = hit ? pool[before] : KeyOfPlace(absent_place + j - before);
  }
}

__global__ void SelectSlotsKernel(const int64_t* slots, const Placement* placement, int64_t n,
                                  Placement wanted, int64_t* selected, int64_t* count) {
  for (int64_t i = ThreadIndex(); i < n; i += NumThreads()) {
    if (placement[i] != wanted) continue;
    selected[TakePlace(count)] = slots[i];
  }
}

__global__ void CountFoundKernel(const std::byte* const* rows, const uint8_t* found,
                                 const std::byte* out, int64_t row_bytes, int64_t n,
                                 int64_t* counts) {
  uint64_t num_found = 0;
  uint64_t wrong = 0;
  for (int64_t i = ThreadIndex(); i < n; i += NumThreads()) {
    if ((rows[i] == nullptr) != (found[i] == 0)) {
      ++wrong;
    } else if (found[i] != 0) {
      ++num_found;
      const auto* const expected = reinterpret_cast<const uint4*>(rows[i]);
      const auto* const got = reinterpret_cast<const uint4*>(out + i * row_bytes);
      for (int64_t w = 0; w < row_bytes / 16; ++w) {
        if (!SameWords(expected[w], got[w])) ++wrong;
      }
    }
  }
  AddTo(counts, num_found);
  AddTo(counts + 1, wrong);
}

int RowShift(int64_t row_bytes) { return std::countr_zero(static_cast<uint64_t>(row_bytes / 16)); }

}  // namespace

absl::Status Delay(CudaStream stream, int64_t microseconds) {
  DelayKernel<<<1, 1, 0, stream>>>(static_cast<uint64_t>(microseconds) * 1000);
  return Launched("DelayKernel");
}

absl::Status FillWords(CudaStream stream, std::byte* data, int64_t bytes, uint64_t seed) {
  if (bytes == 0) return absl::OkStatus();
  FillKernel<<<Blocks(bytes / 16), kThreads, 0, stream>>>(reinterpret_cast<uint4*>(data),
                                                          bytes / 16, Mix64(seed));
  return Launched("FillKernel");
}

absl::Status FillSmallFloats(CudaStream stream, float* data, int64_t n, uint64_t seed) {
  if (n == 0) return absl::OkStatus();
  FillSmallFloatsKernel<<<Blocks(n), kThreads, 0, stream>>>(data, n, seed);
  return Launched("FillSmallFloats");
}

absl::Status CopyByKernel(CudaStream stream, const std::byte* from, std::byte* to, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  CopyKernel<<<Blocks(bytes / 16, kCopyInFlight * kThreads), kThreads, 0, stream>>>(
      reinterpret_cast<const uint4*>(from), reinterpret_cast<uint4*>(to), bytes / 16);
  return Launched("CopyKernel");
}

absl::Status MakeIndex(CudaStream stream, uint32_t* index, int64_t n, int64_t rows, uint64_t seed) {
  if (n == 0) return absl::OkStatus();
  IndexKernel<<<Blocks(n), kThreads, 0, stream>>>(index, n, static_cast<uint64_t>(rows),
                                                  Mix64(seed));
  return Launched("IndexKernel");
}

absl::Status GatherByKernel(CudaStream stream, const GatherByKernelArgs& args) {
  if (args.n == 0) return absl::OkStatus();
  const int64_t words = args.n * (args.row_bytes / 16);
  const auto launch = [&](auto in_flight) {
    constexpr int kInFlight = decltype(in_flight)::value;
    GatherKernel<kInFlight><<<Blocks(words, kInFlight * kThreads), kThreads, 0, stream>>>(
        reinterpret_cast<const uint4*>(args.table), RowShift(args.row_bytes), args.index, words,
        reinterpret_cast<uint4*>(args.out));
  };
  switch (args.in_flight) {
    case 1:
      launch(std::integral_constant<int, 1>());
      break;
    case 2:
      launch(std::integral_constant<int, 2>());
      break;
    case 4:
      launch(std::integral_constant<int, 4>());
      break;
    default:
      launch(std::integral_constant<int, 8>());
      break;
  }
  return Launched("GatherKernel");
}

absl::Status CountWrongWords(CudaStream stream, const GatherByKernelArgs& args, int64_t* wrong) {
  if (args.n == 0) return absl::OkStatus();
  const int64_t words = args.n * (args.row_bytes / 16);
  CountWrongKernel<<<Blocks(words), kThreads, 0, stream>>>(
      reinterpret_cast<const uint4*>(args.table), RowShift(args.row_bytes), args.index, words,
      reinterpret_cast<const uint4*>(args.out), wrong);
  return Launched("CountWrongKernel");
}

absl::Status MakeKeys(CudaStream stream, int64_t first_place, int64_t n, RowKey* keys) {
  if (n == 0) return absl::OkStatus();
  KeysKernel<<<Blocks(n), kThreads, 0, stream>>>(first_place, n, keys);
  return Launched("KeysKernel");
}

absl::Status MakeScatteredKeys(CudaStream stream, int64_t begin, int64_t size, int64_t stride,
                               int64_t first, int64_t n, RowKey* keys) {
  if (n == 0) return absl::OkStatus();
  ScatteredKeysKernel<<<Blocks(n), kThreads, 0, stream>>>(begin, size, stride, first, n, keys);
  return Launched("ScatteredKeysKernel");
}

absl::Status SelectResident(CudaStream stream, const RowKey* keys, const std::byte* const* rows,
                            int64_t n, RowKey* selected, int64_t capacity, int64_t* count) {
  if (n == 0) return absl::OkStatus();
  SelectResidentKernel<<<Blocks(n), kThreads, 0, stream>>>(keys, rows, n, selected, capacity,
                                                           count);
  return Launched("SelectResidentKernel");
}

absl::Status MakeBatch(CudaStream stream, const RowKey* pool, int64_t n, int64_t hits,
                       int64_t absent_place, RowKey* keys) {
  if (n == 0) return absl::OkStatus();
  BatchKernel<<<Blocks(n), kThreads, 0, stream>>>(pool, n, hits, absent_place, keys);
  return Launched("BatchKernel");
}

absl::Status SelectSlots(CudaStream stream, const int64_t* slots, const Placement* placement,
                         int64_t n, Placement wanted, int64_t* selected, int64_t* count) {
  if (n == 0) return absl::OkStatus();
  SelectSlotsKernel<<<Blocks(n), kThreads, 0, stream>>>(slots, placement, n, wanted, selected,
                                                        count);
  return Launched("SelectSlotsKernel");
}

absl::Status CountFound(CudaStream stream, const std::byte* const* rows, const uint8_t* found,
                        const std::byte* out, int64_t row_bytes, int64_t n, int64_t* counts) {
  if (n == 0) return absl::OkStatus();
  CountFoundKernel<<<Blocks(n), kThreads, 0, stream>>>(rows, found, out, row_bytes, n, counts);
  return Launched("CountFoundKernel");
}

}  // namespace hotrow::bench
