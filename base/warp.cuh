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

}  // namespace hotrow

#endif  // HOTROW_BASE_WARP_CUH_
