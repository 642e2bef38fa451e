#ifndef HOTROW_OPS_LAUNCH_IMPL_CUH_
#define HOTROW_OPS_LAUNCH_IMPL_CUH_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "ops/launch_impl.h"

namespace hotrow::internal {

constexpr int kWarpThreads = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// What went wrong with the launch of a kernel just before: "Unique: kernel launch: ...". Does not
// wait for the kernel.
inline absl::Status LastLaunch(const char* op) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return absl::OkStatus();
  return CudaToStatus(error, absl::StrCat(op, ": kernel launch"));
}

// A thread's number in one-dimensional grids and blocks. The usual loop over n items:
//   for (int64_t i = GridThread(); i < n; i += GridThreads())
__device__ inline int64_t GridThread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t GridThreads() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

// The same for groups of kLanes threads (a warp, or a part of one that is a power of two), all of
// which get the same item; blocks are whole groups.
template <int kLanes = kWarpThreads>
__device__ inline int64_t GridGroup() {
  static_assert(kLanes >= 1 && kLanes <= kWarpThreads && (kLanes & (kLanes - 1)) == 0);
  return GridThread() / kLanes;
}
template <int kLanes = kWarpThreads>
__device__ inline int64_t GridGroups() {
  return GridThreads() / kLanes;
}
template <int kLanes = kWarpThreads>
__device__ inline int GroupLane() {
  return static_cast<int>(threadIdx.x) % kLanes;
}

// The sum over a warp, all of which call together, in a tree; the same in all lanes.
__device__ inline float WarpSum(float x) {
  for (int half = kWarpThreads / 2; half > 0; half /= 2) x += __shfl_xor_sync(kAllLanes, x, half);
  return x;
}
__device__ inline int64_t WarpSum(int64_t x) {
  for (int half = kWarpThreads / 2; half > 0; half /= 2) {
    x += static_cast<int64_t>(__shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(x), half));
  }
  return x;
}

// The sum over the lanes of the warp up to this one, all of which call together.
__device__ inline int32_t WarpPrefix(int32_t x) {
  for (int by = 1; by < kWarpThreads; by *= 2) {
    const int32_t before = __shfl_up_sync(kAllLanes, x, static_cast<unsigned>(by));
    if (GroupLane() >= by) x += before;
  }
  return x;
}

// The sum over eight lanes, neighbours, in the order in which the CPU adds its eight (Vec8):
// ((0 + 2) + (1 + 3)) + ((4 + 6) + (5 + 7)). `lanes` are those that call together, whole eights.
__device__ inline float SumOfEight(unsigned lanes, float x) {
  x += __shfl_xor_sync(lanes, x, 2);
  x += __shfl_xor_sync(lanes, x, 1);
  return x + __shfl_xor_sync(lanes, x, 4);
}

// Calls body(i) for i in [0, n), each by one of the group's kLanes threads, which hold kInFlight
// loads each before the first is used: load(i) gives a value, store(i, value) takes it.
template <int kLanes, int kInFlight = 4, typename Load, typename Store>
__device__ inline void GroupMove(int lane, int64_t n, Load&& load, Store&& store) {
  int64_t i = lane;
  for (; i + (kInFlight - 1) * kLanes < n; i += kInFlight * kLanes) {
    decltype(load(i)) values[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) values[k] = load(i + k * kLanes);
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) store(i + k * kLanes, values[k]);
  }
  for (; i < n; i += kLanes) store(i, load(i));
}

// Calls store(i, load(i)) for i in [0, n) on this thread, in order; kInFlight loads are under way
// before the first of them is stored, though the compiler cannot know that they read other memory.
template <int kInFlight = 8, typename Load, typename Store>
__device__ inline void ThreadMove(int n, Load&& load, Store&& store) {
  for (int i = 0; i < n; i += kInFlight) {
    decltype(load(i)) values[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (i + k < n) values[k] = load(i + k);
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (i + k < n) store(i + k, values[k]);
    }
  }
}

// Copies bytes by a group of kLanes threads (`lane` in [0, kLanes)), none of which need be in step
// with the others: 16 bytes a thread where both addresses allow it, else 4, else 1. A null `from`
// gives zeros. The ranges must not overlap.
template <int kLanes = kWarpThreads>
__device__ inline void GroupCopy(int lane, std::byte* to, const std::byte* from, int64_t bytes) {
  const auto copy = [lane, to, from](auto zero, int64_t begin, int64_t end) {
    using Word = decltype(zero);
    constexpr int64_t kBytes = sizeof(Word);
    const int64_t n = (end - begin) / kBytes;
    auto* const out = reinterpret_cast<Word*>(to + begin);
    const auto* const in = from == nullptr ? nullptr : reinterpret_cast<const Word*>(from + begin);
    GroupMove<kLanes>(
        lane, n, [in, zero](int64_t i) { return in == nullptr ? zero : in[i]; },
        [out](int64_t i, Word word) { out[i] = word; });
    return begin + n * kBytes;
  };
  const auto misaligned = static_cast<unsigned>(
      (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % sizeof(uint4));
  int64_t done = 0;
  if (misaligned == 0) done = copy(make_uint4(0, 0, 0, 0), done, bytes);
  if (misaligned % sizeof(uint32_t) == 0) done = copy(uint32_t{0}, done, bytes);
  copy(uint8_t{0}, done, bytes);
}

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_LAUNCH_IMPL_CUH_
