#ifndef HOTROW_BASE_WARP_CUH_
#define HOTROW_BASE_WARP_CUH_

#include <cstdint>

#include "base/warp.h"

namespace hotrow {

// HostWarp's words on a GPU: a warp of 32 threads runs the code together, lane i looks at way i,
// and every function returns the same value to all lanes. All 32 lanes must call (they are
// warp-uniform), in one-dimensional blocks of whole warps.
struct CudaWarp {
  static constexpr int kLanes = 32;
  static constexpr uint32_t kAllLanes = 0xffffffffu;

  // threadIdx rather than %laneid: the same in blocks of whole warps, and visible to the compiler.
  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % kLanes; }

  __device__ static uint32_t MatchByte(const uint8_t* bytes, uint8_t value) {
    return __ballot_sync(kAllLanes, bytes[Lane()] == value);
  }

  // One reduction finds byte and lane: the byte in the high bits decides, the lane in the low ones
  // breaks ties, and lanes that may not win offer more than any other.
  __device__ static WayScore MinByte(const uint8_t* bytes, uint32_t lanes) {
    const auto lane = static_cast<uint32_t>(Lane());
    const bool eligible = ((lanes >> lane) & 1) != 0;
    const uint32_t offer = eligible ? (static_cast<uint32_t>(bytes[lane]) << 8) | lane : ~0u;
    const uint32_t best = __reduce_min_sync(kAllLanes, offer);
    if (best == ~0u) return {};
    return {static_cast<int>(best & 0xff), static_cast<uint8_t>(best >> 8)};
  }

  template <typename Predicate>
  __device__ static uint32_t Ballot(uint32_t lanes, Predicate&& predicate) {
    const int lane = Lane();
    const bool vote = ((lanes >> lane) & 1) != 0 && static_cast<bool>(predicate(lane));
    return __ballot_sync(kAllLanes, vote);
  }

  // 32 when no lane is set, as std::countr_zero says.
  __device__ static int FirstLane(uint32_t mask) { return __clz(static_cast<int>(__brev(mask))); }
  __device__ static int CountLanes(uint32_t mask) { return __popc(mask); }

  // What the one lane stored is visible to the whole warp afterwards.
  template <typename Body>
  __device__ static void Once(Body&& body) {
    if (Lane() == 0) body();
    __syncwarp();
  }
};

// HostWarp's words for a single thread of a GPU: each thread works on a bucket of its own, so a
// warp has 32 of them in flight, which is what probing many keys wants. Four bytes are compared by
// one instruction. The scans need bytes that are 16-byte aligned.
struct CudaThread {
  static constexpr int kLanes = 32;

  __device__ static uint32_t MatchByte(const uint8_t* bytes, uint8_t value) {
    const uint32_t pattern = value * 0x01010101u;
    const Words words = Load(bytes);
    uint32_t mask = 0;
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      // 0 or 1 in each byte; the product brings the four of them side by side into the high bits,
      // and no two of its terms meet.
      const uint32_t equal = __vcmpeq4(words.v[w], pattern) & 0x01010101u;
      mask |= ((equal * 0x10204080u) >> 28) << (4 * w);
    }
    return mask;
  }

  __device__ static WayScore MinByte(const uint8_t* bytes, uint32_t lanes) {
    if (lanes == 0) return {};
    const Words words = Load(bytes);
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
    return {FirstLane(lanes & MatchByte(bytes, score)), score};
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

  // 32 when no lane is set.
  __device__ static int FirstLane(uint32_t mask) { return __clz(static_cast<int>(__brev(mask))); }
  __device__ static int CountLanes(uint32_t mask) { return __popc(mask); }
  template <typename Body>
  __device__ static void Once(Body&& body) {
    body();
  }

 private:
  struct Words {
    uint32_t v[8];
  };
  __device__ static Words Load(const uint8_t* bytes) {
    const auto* const quads = reinterpret_cast<const uint4*>(bytes);
    const uint4 a = quads[0];
    const uint4 b = quads[1];
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
  }
};

}  // namespace hotrow

#endif  // HOTROW_BASE_WARP_CUH_
