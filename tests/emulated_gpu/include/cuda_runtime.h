#ifndef HOTROW_TESTS_EMULATED_GPU_CUDA_RUNTIME_H_
#define HOTROW_TESTS_EMULATED_GPU_CUDA_RUNTIME_H_

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <cuda_runtime_api.h>
#include "tests/emulated_gpu/emulated_gpu.h"

// What nvcc gives kernels without being asked.

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
// A block is run by one thread of the CPU, and one at a time.
#define __shared__ static thread_local

#define threadIdx (::hotrow::emulated::current->thread)
#define blockIdx (::hotrow::emulated::current->block)
#define blockDim (::hotrow::emulated::current->block_size)
#define gridDim (::hotrow::emulated::current->grid_size)

using std::max;
using std::min;

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// --- What kernels may take

namespace hotrow::emulated {
cudaError_t AllowSharedBytes(int bytes);
}  // namespace hotrow::emulated

template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute, int value) {
  return ::hotrow::emulated::AllowSharedBytes(value);
}
// Two, so that blocks that walk over their items have several each.
template <typename Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel*, int, size_t) {
  *blocks = 2;
  return cudaSuccess;
}

// --- Bits

inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __clz(int bits) { return std::countl_zero(static_cast<unsigned>(bits)); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline unsigned __brev(unsigned bits) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= ((bits >> i) & 1) << (31 - i);
  return reversed;
}
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((uint64_t{a} * b) >> 32);
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(bytes >> ((selector >> (4 * i) & 7) * 8) & 0xff) << (8 * i);
  }
  return result;
}
inline unsigned __vcmpeq4(unsigned a, unsigned b) {
  unsigned mask = 0;
  for (int i = 0; i < 32; i += 8) {
    if (((a >> i) & 0xff) == ((b >> i) & 0xff)) mask |= 0xffu << i;
  }
  return mask;
}
inline unsigned __vcmpeq2(unsigned a, unsigned b) {
  return ((a & 0xffffu) == (b & 0xffffu) ? 0xffffu : 0) | (a >> 16 == b >> 16 ? 0xffff0000u : 0);
}
inline unsigned __vminu4(unsigned a, unsigned b) {
  unsigned result = 0;
  for (int i = 0; i < 32; i += 8) result |= std::min((a >> i) & 0xff, (b >> i) & 0xff) << i;
  return result;
}

inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
}

// --- Loads and stores that tell caches what to expect

template <typename T>
T __ldg(const T* from) {
  return *from;
}
template <typename T>
T __ldcs(const T* from) {
  return *from;
}
template <typename T>
void __stcs(T* to, T value) {
  *to = value;
}

namespace hotrow::emulated {

// ld.relaxed, which translate.py makes a call of this. Others may have had their turn before.
inline uint4 LoadQuad(const uint4* from) {
  MayYield();
  unsigned words[4];
  auto* const all = reinterpret_cast<unsigned*>(const_cast<uint4*>(from));
  for (int i = 0; i < 4; ++i) {
    words[i] = std::atomic_ref<unsigned>(all[i]).load(std::memory_order_relaxed);
  }
  return {words[0], words[1], words[2], words[3]};
}

}  // namespace hotrow::emulated

// --- Where threads meet

inline void __syncthreads() { ::hotrow::emulated::SyncThreads(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  ::hotrow::emulated::MeetLanes("__syncwarp", mask, 0);
}
// Nobody is in step with anybody.
inline unsigned __activemask() { return 1u << ::hotrow::emulated::CurrentLane(); }
inline void __nanosleep(unsigned) { ::hotrow::emulated::Yield(); }
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

namespace hotrow::emulated {

template <typename T>
uint64_t ToWord(T value) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(value));
  return word;
}
template <typename T>
T FromWord(uint64_t word) {
  T value;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}
template <typename T>
T Shuffle(const char* what, unsigned mask, T value, int from) {
  const LaneValues& values = MeetLanes(what, mask, ToWord(value));
  if (((mask >> from) & 1) == 0) Fail("a shuffle from a lane that is not in its mask");
  return FromWord<T>(values[static_cast<size_t>(from)]);
}
// Visits the lanes of the mask.
template <typename Visit>
void ForLanes(unsigned mask, const LaneValues& values, Visit&& visit) {
  for (int lane = 0; lane < 32; ++lane) {
    if (((mask >> lane) & 1) != 0) visit(lane, values[static_cast<size_t>(lane)]);
  }
}

}  // namespace hotrow::emulated

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  unsigned votes = 0;
  ::hotrow::emulated::ForLanes(
      mask, ::hotrow::emulated::MeetLanes("__ballot_sync", mask, predicate != 0 ? 1 : 0),
      [&](int lane, uint64_t value) { votes |= static_cast<unsigned>(value) << lane; });
  return votes;
}
inline int __any_sync(unsigned mask, int predicate) {
  bool any = false;
  ::hotrow::emulated::ForLanes(
      mask, ::hotrow::emulated::MeetLanes("__any_sync", mask, predicate != 0 ? 1 : 0),
      [&](int, uint64_t value) { any |= value != 0; });
  return any ? 1 : 0;
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value) {
  const uint64_t word = ::hotrow::emulated::ToWord(value);
  unsigned same = 0;
  ::hotrow::emulated::ForLanes(
      mask, ::hotrow::emulated::MeetLanes("__match_any_sync", mask, word),
      [&](int lane, uint64_t theirs) { same |= static_cast<unsigned>(theirs == word) << lane; });
  return same;
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
  unsigned least = ~0u;
  ::hotrow::emulated::ForLanes(
      mask, ::hotrow::emulated::MeetLanes("__reduce_min_sync", mask, value),
      [&](int, uint64_t theirs) { least = std::min(least, static_cast<unsigned>(theirs)); });
  return least;
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const int lane = ::hotrow::emulated::CurrentLane();
  return ::hotrow::emulated::Shuffle("__shfl_sync", mask, value,
                                     lane / width * width + from % width);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int lane = ::hotrow::emulated::CurrentLane();
  const int from = lane ^ bits;
  if (from / width != lane / width) ::hotrow::emulated::Fail("a shuffle beyond its width");
  return ::hotrow::emulated::Shuffle("__shfl_xor_sync", mask, value, from);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int lane = ::hotrow::emulated::CurrentLane();
  const int from = lane % width < static_cast<int>(by) ? lane : lane - static_cast<int>(by);
  return ::hotrow::emulated::Shuffle("__shfl_up_sync", mask, value, from);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int lane = ::hotrow::emulated::CurrentLane();
  const int from =
      lane % width + static_cast<int>(by) >= width ? lane : lane + static_cast<int>(by);
  return ::hotrow::emulated::Shuffle("__shfl_down_sync", mask, value, from);
}

// --- Atomics

template <typename T>
T atomicAdd(T* sum, std::type_identity_t<T> value) {
  ::hotrow::emulated::MayYield();
  return std::atomic_ref<T>(*sum).fetch_add(value, std::memory_order_relaxed);
}
template <typename T>
T atomicSub(T* sum, std::type_identity_t<T> value) {
  ::hotrow::emulated::MayYield();
  return std::atomic_ref<T>(*sum).fetch_sub(value, std::memory_order_relaxed);
}
template <typename T>
T atomicMax(T* most, std::type_identity_t<T> value) {
  ::hotrow::emulated::MayYield();
  std::atomic_ref<T> ref(*most);
  T old = ref.load(std::memory_order_relaxed);
  while (old < value && !ref.compare_exchange_weak(old, value, std::memory_order_relaxed)) {
  }
  return old;
}

#endif  // HOTROW_TESTS_EMULATED_GPU_CUDA_RUNTIME_H_
