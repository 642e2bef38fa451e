#include <cstdint>

#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "ops/launch_impl.cuh"
#include "ops/partition.h"
#include "ops/partition_impl.h"
#include "ops/scan_impl.cuh"

// A stable sort of the items' parts, digit by digit. In each pass a tile of items counts its
// digits; running sums over the counts, digit by digit and tile by tile in each, tell where the
// tile's items with a digit go; inside a tile, warps and then rounds and lanes follow the order of
// the items.
namespace hotrow::internal {
namespace {

constexpr char kOp[] = "Partition";
constexpr int kDigitsMax = 1 << PartitionPasses::kDigitBitsMax;
constexpr int kWarps = kPartitionThreads / kWarpThreads;
static_assert(kPartitionThreads == kDigitsMax, "a thread for each digit");

struct Digit {
  int shift;
  int bits;
  __device__ int operator()(int32_t part) const {
    return static_cast<int>((static_cast<uint32_t>(part) >> shift) & ((1u << bits) - 1));
  }
};

// counts[digit][tile]
__global__ void __launch_bounds__(kPartitionThreads)
    CountDigitsKernel(const int32_t* parts, int64_t num_items, Digit digit_of, int64_t num_tiles,
                      int32_t* counts) {
  __shared__ int32_t in_tile[kDigitsMax];
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t tile = blockIdx.x; tile < num_tiles; tile += gridDim.x) {
    in_tile[thread] = 0;
    __syncthreads();
    for (int round = 0; round < kPartitionRounds; ++round) {
      const int64_t i = tile * kPartitionTile + round * kPartitionThreads + thread;
      const unsigned lanes = __ballot_sync(kAllLanes, i < num_items);
      if (i < num_items) {
        // One addition for all lanes with a digit: with few parts they are many.
        const int digit = digit_of(parts[i]);
        const unsigned same = __match_any_sync(lanes, digit);
        if (GroupLane() == __ffs(static_cast<int>(same)) - 1) {
          atomicAdd(in_tile + digit, __popc(same));
        }
      }
      __syncwarp();
    }
    __syncthreads();
    if (thread < (1 << digit_of.bits)) counts[thread * num_tiles + tile] = in_tile[thread];
    __syncthreads();  // before the next tile clears `in_tile`
  }
}

// starts[digit][tile] is where the first item of the tile with that digit goes. items null: item i
// is i.
__global__ void __launch_bounds__(kPartitionThreads)
    MoveItemsKernel(const int32_t* parts, const int32_t* items, int64_t num_items, Digit digit_of,
                    int64_t num_tiles, const int32_t* starts, int32_t* parts_out,
                    int32_t* items_out) {
  // Of each warp's run of items: how many have a digit, then where the next one with it goes.
  __shared__ int32_t next_of_warp[kWarps][kDigitsMax];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = GroupLane();
  const unsigned lanes_before = (1u << lane) - 1;
  int32_t* const next = next_of_warp[thread / kWarpThreads];
  for (int64_t tile = blockIdx.x; tile < num_tiles; tile += gridDim.x) {
    for (int w = 0; w < kWarps; ++w) next_of_warp[w][thread] = 0;
    __syncthreads();
    const int64_t first =
        tile * kPartitionTile + (thread / kWarpThreads) * (kWarpThreads * kPartitionRounds) + lane;
    int32_t part_of[kPartitionRounds];
#pragma unroll
    for (int round = 0; round < kPartitionRounds; ++round) {
      const int64_t i = first + round * kWarpThreads;
      part_of[round] = i < num_items ? parts[i] : 0;
    }
#pragma unroll
    for (int round = 0; round < kPartitionRounds; ++round) {
      const bool is_item = first + round * kWarpThreads < num_items;
      const unsigned lanes = __ballot_sync(kAllLanes, is_item);
      if (is_item) {
        const int digit = digit_of(part_of[round]);
        const unsigned same = __match_any_sync(lanes, digit);
        if (lane == __ffs(static_cast<int>(same)) - 1) next[digit] += __popc(same);
      }
      __syncwarp();
    }
    __syncthreads();
    if (thread < (1 << digit_of.bits)) {
      int32_t sum = starts[thread * num_tiles + tile];
      for (int w = 0; w < kWarps; ++w) {
        const int32_t count = next_of_warp[w][thread];
        next_of_warp[w][thread] = sum;
        sum += count;
      }
    }
    __syncthreads();
#pragma unroll
    for (int round = 0; round < kPartitionRounds; ++round) {
      const int64_t i = first + round * kWarpThreads;
      const unsigned lanes = __ballot_sync(kAllLanes, i < num_items);
      int digit = 0;
      unsigned same = 0;
      int32_t start = 0;
      if (i < num_items) {
        digit = digit_of(part_of[round]);
        same = __match_any_sync(lanes, digit);
        start = next[digit];
      }
      __syncwarp();  // all have read `next`
      if (i < num_items) {
        if (lane == __ffs(static_cast<int>(same)) - 1) next[digit] = start + __popc(same);
        const int32_t place = start + __popc(same & lanes_before);
        parts_out[place] = part_of[round];
        items_out[place] = items == nullptr ? static_cast<int32_t>(i) : items[i];
      }
      __syncwarp();  // `next` is ready for the next round
    }
    __syncthreads();  // before the next tile clears `next_of_warp`
  }
}

// offsets[p] = how many of the sorted parts are less than p.
__global__ void __launch_bounds__(kThreadsPerBlock)
    FindOffsetsKernel(const int32_t* sorted_parts, int64_t num_items, int64_t num_parts,
                      int64_t* offsets) {
  for (int64_t p = GridThread(); p <= num_parts; p += GridThreads()) {
    int64_t low = 0;
    int64_t high = num_items;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (sorted_parts[middle] < p) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    offsets[p] = low;
  }
}

__global__ void __launch_bounds__(kThreadsPerBlock)
    OnePartKernel(int64_t num_items, int64_t* offsets, int32_t* order) {
  const int64_t thread = GridThread();
  if (thread == 0) {
    offsets[0] = 0;
    offsets[1] = num_items;
  }
  for (int64_t i = thread; i < num_items; i += GridThreads()) order[i] = static_cast<int32_t>(i);
}

}  // namespace

absl::Status PartitionCuda(const PartitionArgs& args, CudaStream stream) {
  const int64_t n = args.num_items;
  if (n == 0) {
    HOTROW_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(
        args.offsets, 0, (static_cast<size_t>(args.num_parts) + 1) * sizeof(int64_t), stream));
    return absl::OkStatus();
  }
  const auto passes = PartitionPasses::For(args.num_parts);
  if (passes.num_passes == 0) {
    OnePartKernel<<<GridBlocks(n, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(n, args.offsets,
                                                                                    args.order);
    return LastLaunch(kOp);
  }
  const auto layout = PartitionCudaLayout::For(n, args.num_parts);
  const auto at = [&args](int64_t offset) {
    return reinterpret_cast<int32_t*>(args.workspace + offset);
  };
  const int64_t num_tiles = PartitionCudaLayout::NumTiles(n);
  const unsigned blocks = GridBlocks(num_tiles, 1);
  int32_t* const counts = at(layout.counts);
  const int32_t* parts = args.part;
  const int32_t* items = nullptr;
  for (int pass = 0; pass < passes.num_passes; ++pass) {
    const Digit digit_of = {pass * passes.digit_bits, passes.digit_bits};
    CountDigitsKernel<<<blocks, kPartitionThreads, 0, stream>>>(parts, n, digit_of, num_tiles,
                                                                counts);
    HOTROW_RETURN_IF_ERROR(LastLaunch(kOp));
    HOTROW_RETURN_IF_ERROR(
        Scan(kOp, counts, passes.num_digits() * num_tiles, at(layout.scan), stream));
    int32_t* const parts_out = at(layout.parts[pass % 2]);
    // In turns, so that the last pass writes the order.
    int32_t* const items_out =
        (passes.num_passes - 1 - pass) % 2 == 0 ? args.order : at(layout.items);
    MoveItemsKernel<<<blocks, kPartitionThreads, 0, stream>>>(parts, items, n, digit_of, num_tiles,
                                                              counts, parts_out, items_out);
    HOTROW_RETURN_IF_ERROR(LastLaunch(kOp));
    parts = parts_out;
    items = items_out;
  }
  FindOffsetsKernel<<<GridBlocks(args.num_parts + 1, kThreadsPerBlock), kThreadsPerBlock, 0,
                      stream>>>(parts, n, args.num_parts, args.offsets);
  return LastLaunch(kOp);
}

}  // namespace hotrow::internal
