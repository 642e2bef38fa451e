#ifndef HOTROW_BASE_WARP_CUH_
#define HOTROW_BASE_WARP_CUH_

#include <cstdint>

#include "base/warp.h"

namespace hotrow {

// The lanes of a warp, in one-dimensional blocks of whole warps.
struct CudaWarp {
  static constexpr int kLanes = 32;
  static constexpr uint32_t kAllLanes = 0xffffffffu;

  // threadIdx rather than %laneid: the same in blocks of whole warps, and visible to the compiler.
  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  // 32 when no lane is set, as std::countr_zero says.
  __device__ static int FirstLane(uint32_t mask) { return __clz(static_cast<int>(__brev(mask))); }
  __device__ static int CountLanes(uint32_t mask) { return __popc(mask); }
};

// How BasicCudaThread reads: bytes that nobody changes meanwhile, through all caches ...
struct PlainLoads {
  __device__ static uint4 Load(const uint4* from) { return *from; }
};
// ... or such that other threads of the GPU change: each load sees what the L2 has then. No order
// between loads is promised, and words of four bytes are whole.
struct RelaxedLoads {
  __device__ static uint4 Load(const uint4* from) {
    uint4 words;
    asm volatile("ld.relaxed.gpu.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(from)
                 : "memory");
    return words;
  }
};
// ... or such that may be old: through all caches, and the L2 fetches the line of 128 bytes.
struct LineLoads {
  __device__ static uint4 Load(const uint4* from) {
    uint4 words;
    asm volatile("ld.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(from)
                 : "memory");
    return words;
  }
};

// 32 bytes in registers.
struct CudaWords {
  uint32_t v[8];

  // v[i], and no trip through memory.
  __device__ uint32_t At(int i) const {
    uint32_t word = v[0];
#pragma unroll
    for (int w = 1; w < 8; ++w) word = w == i ? v[w] : word;
    return word;
  }
};

// HostWarp's words for a single thread of a GPU: each thread works on its own bucket, so a warp has
// 32 of them in flight. Four bytes, or two tags, are compared by one intrinsic. Each scan
// loads what it looks at once, or takes what Load has loaded. Loads need 16-byte aligned bytes.
template <typename Loads>
struct BasicCudaThread {
  static constexpr int kLanes = 32;

  __device__ static CudaWords Load(const void* bytes) {
    const auto* const quads = static_cast<const uint4*>(bytes);
    const uint4 a = Loads::Load(quads);
    const uint4 b = Loads::Load(quads + 1);
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
  }

  __device__ static uint32_t MatchByte(const uint8_t* bytes, uint8_t value, uint8_t mask = 0xff) {
    return MatchByte(Load(bytes), value, mask);
  }
  __device__ static uint32_t MatchByte(const CudaWords& words, uint8_t value, uint8_t mask = 0xff) {
    const uint32_t pattern = value * 0x01010101u;
    const uint32_t bits = mask * 0x01010101u;
    uint32_t matches = 0;
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      // 0 or 1 in each byte; the product brings the four of them side by side into the high bits,
      // and no two of its terms meet.
      const uint32_t equal = __vcmpeq4(words.v[w] & bits, pattern) & 0x01010101u;
      matches |= ((equal * 0x10204080u) >> 28) << (4 * w);
    }
    return matches;
  }

  __device__ static uint32_t MatchTag(const uint16_t* tags, uint16_t tag) {
    const uint32_t pattern = tag * 0x00010001u;
    uint32_t mask = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const CudaWords words = Load(tags + 16 * half);
#pragma unroll
      for (int w = 0; w < 8; ++w) {
        const uint32_t equal = __vcmpeq2(words.v[w], pattern) & 0x00020001u;
        mask |= ((equal | equal >> 16) & 3) << (16 * half + 2 * w);
      }
    }
    return mask;
  }

  __device__ static WayScore MinByte(const uint8_t* bytes, uint32_t lanes) {
    return lanes == 0 ? WayScore{} : MinByte(Load(bytes), lanes);
  }
  __device__ static WayScore MinByte(const CudaWords& words, uint32_t lanes) {
    if (lanes == 0) return {};
    uint32_t lowest = ~0u;
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      // The other way round: bit i of four goes to byte i, which becomes 255 when it may not win.
      const uint32_t eligible = (((lanes >> (4 * w)) & 0xf) * 0x00204081u) & 0x01010101u;
      lowest = __vminu4(lowest, words.v[w] | ~(eligible * 0xff));
    }
    lowest = __vminu4(lowest, lowest >> 16);
    lowest = __vminu4(lowest, lowest >> 8);
    const auto score = static_cast<uint8_t>(lowest);
    return {FirstLane(lanes & MatchByte(words, score)), score};
  }

  template <typename Predicate>
  __device__ static uint32_t Ballot(uint32_t lanes, Predicate&& predicate) {
    uint32_t mask = 0;
    for (; lanes != 0; lanes &= lanes - 1) {
      const int lane = FirstLane(lanes);
      mask |= static_cast<uint32_t>(static_cast<bool>(predicate(lane))) << lane;
    }
    return mask;
  }

  __device__ static int FirstLane(uint32_t mask) { return CudaWarp::FirstLane(mask); }
  __device__ static int CountLanes(uint32_t mask) { return CudaWarp::CountLanes(mask); }
  template <typename Body>
  __device__ static void Once(Body&& body) {
    body();
  }
};

using CudaThread = BasicCudaThread<PlainLoads>;
using RacingCudaThread = BasicCudaThread<RelaxedLoads>;

}  // namespace hotrow

#endif  // HOTROW_BASE_WARP_CUH_
