#ifndef HOTROW_OPS_KEYS_SCAN_IMPL_CUH_
#define HOTROW_OPS_KEYS_SCAN_IMPL_CUH_

#include <cstdint>
#include <cuda/atomic>

#include "ops/keys/scan_impl.h"
#include "ops/launch_impl.cuh"

namespace hotrow::internal {

// A block's part in running sums over all items of a launch, in one pass (Merrill and Garland,
// "Single-pass Parallel Prefix Scan with Decoupled Look-back", 2016). Blocks take tiles in order.
// Each tells the sum of its tile, and then, by what the tiles before it told, the sum up to its
// end. A block waits for none that began later, so all of them get on. One word holds a sum and
// what it is of, so no other memory has to be in order with it, and sums are of whole numbers, so
// they are the same whoever is first.
//
// Launch: ScanTiles(n) blocks of kThreadsPerBlock.
// Sums:   below 2^62: a number, or two of 31 bits side by side.
class ScanBlock {
 public:
  // The upper two bits of a tile's word, behind the one that says which tile is next: nothing yet,
  // the tile's own sum, or the sum up to its end.
  static constexpr int kWhat = 62;
  static constexpr uint64_t kNothing = 3;
  static constexpr uint64_t kOwn = 0;
  static constexpr uint64_t kUpToEnd = 1;

  static constexpr int kWarps = kThreadsPerBlock / kWarpThreads;
  struct Shared {
    uint64_t tile;
    uint64_t before;
    uint64_t of_warp[kWarps];
  };

  // Takes the next tile. words: ScanWords(n) of them, with all bytes 0xff when the launch begins.
  __device__ ScanBlock(uint64_t* words, Shared& shared) : words_(words), shared_(shared) {
    if (threadIdx.x == 0) shared.tile = Word(words[0]).fetch_add(1, kRelaxed) + 1;
    __syncthreads();
    tile_ = static_cast<int64_t>(shared.tile);
  }

  // The first item of this thread; the next ones lie kWarpThreads from each other.
  __device__ int64_t first_item() const {
    return tile_ * kScanTile + Warp() * (kWarpThreads * kScanRounds) + GroupLane();
  }

  // The sum over all items before those of this warp; of_warp: over those, in each of its lanes.
  // All threads of the block call it once.
  __device__ uint64_t Before(uint64_t of_warp) {
    if (GroupLane() == 0) shared_.of_warp[Warp()] = of_warp;
    __syncthreads();
    uint64_t in_tile = 0;
    uint64_t of_tile = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const uint64_t sum = shared_.of_warp[w];
      if (w < Warp()) in_tile += sum;
      of_tile += sum;
    }
    if (Warp() == 0) {
      const uint64_t before = BeforeTile(of_tile);
      if (GroupLane() == 0) shared_.before = before;
    }
    __syncthreads();
    return shared_.before + in_tile;
  }

  // The sum over all n > 0 items of a launch that has ended.
  __device__ static uint64_t Total(const uint64_t* words, int64_t n) {
    return words[ScanTiles(n)] & kSum;
  }

 private:
  using Word = cuda::atomic_ref<uint64_t, cuda::thread_scope_device>;
  static constexpr auto kRelaxed = cuda::std::memory_order_relaxed;
  static constexpr uint64_t kSum = (uint64_t{1} << kWhat) - 1;

  __device__ static int Warp() { return static_cast<int>(threadIdx.x) / kWarpThreads; }
  __device__ void Tell(uint64_t what, uint64_t sum) const {
    Word(words_[1 + tile_]).store(what << kWhat | sum, kRelaxed);
  }

  // One warp calls it. Its lanes look at as many tiles at a time, from this one backwards.
  __device__ uint64_t BeforeTile(uint64_t of_tile) const {
    const int lane = GroupLane();
    if (lane == 0) Tell(tile_ == 0 ? kUpToEnd : kOwn, of_tile);
    uint64_t before = 0;
    for (int64_t tile = tile_ - 1 - lane; tile + lane >= 0; tile -= kWarpThreads) {
      uint64_t word = kUpToEnd << kWhat;  // before the first
      if (tile >= 0) {
        const Word told(words_[1 + tile]);
        do {
          word = told.load(kRelaxed);
        } while (word >> kWhat == kNothing);
      }
      const unsigned ends = __ballot_sync(kAllLanes, word >> kWhat == kUpToEnd);
      const bool counts = ends == 0 || lane < __ffs(static_cast<int>(ends));
      before += static_cast<uint64_t>(WarpSum(static_cast<int64_t>(counts ? word & kSum : 0)));
      if (ends != 0) break;
    }
    if (lane == 0 && tile_ > 0) Tell(kUpToEnd, before + of_tile);
    return before;
  }

  uint64_t* const words_;
  Shared& shared_;
  int64_t tile_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_KEYS_SCAN_IMPL_CUH_
