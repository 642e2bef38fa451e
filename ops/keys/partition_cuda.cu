#include <cstdint>

#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "ops/keys/partition.h"
#include "ops/keys/partition_impl.h"
#include "ops/keys/scan_impl.cuh"
#include "ops/launch_impl.cuh"

// A stable sort of the items' parts, digit by digit. In each pass a tile of items counts its
// digits; running sums over the counts, digit by digit and tile by tile in each, tell where the
// tile's items with a digit go. Inside a tile, warps and then rounds and lanes follow the order of
// the items: that puts them in order in shared memory, from where neighbours leave together.
//
// Digits have ten bits, so the rows of a batch, up to a million, take two passes. A tile has four
// items of a digit then, which leave side by side.
namespace hotrow::internal {
namespace {

constexpr char kOp[] = "Partition";
constexpr int kDigitBits = PartitionPasses::kDigitBitsMax;
constexpr int kDigitsMax = 1 << kDigitBits;
constexpr int kWarps = kPartitionThreads / kWarpThreads;
constexpr int kDigitsPerThread = kDigitsMax / kPartitionThreads;
static_assert(kPartitionTile < (1 << 16), "counts in a tile have 16 bits");

struct Digit {
  int shift;
  int bits;
  __device__ int operator()(int32_t part) const {
    return static_cast<int>((static_cast<uint32_t>(part) >> shift) & ((1u << bits) - 1));
  }
  __device__ int count() const { return 1 << bits; }
};

// counts[digit][tile]. Makes `words` ready for running sums over them.
__global__ void __launch_bounds__(kPartitionThreads)
    CountDigitsKernel(const int32_t* parts, int64_t num_items, Digit digit_of, int64_t num_tiles,
                      int32_t* counts, uint64_t* words) {
  __shared__ int32_t in_tile[kDigitsMax];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t tile = blockIdx.x;
  for (int digit = thread; digit < kDigitsMax; digit += kPartitionThreads) in_tile[digit] = 0;
  static_assert(kDigitsMax / kScanTile + 2 <= kPartitionThreads, "a tile's share of the words");
  const int64_t word = tile * kPartitionThreads + thread;
  if (word < ScanWords(digit_of.count() * num_tiles)) words[word] = ~uint64_t{0};
  int32_t part_of[kPartitionRounds];
#pragma unroll
  for (int round = 0; round < kPartitionRounds; ++round) {
    const int64_t i = tile * kPartitionTile + round * kPartitionThreads + thread;
    part_of[round] = i < num_items ? parts[i] : -1;
  }
  __syncthreads();
#pragma unroll
  for (int round = 0; round < kPartitionRounds; ++round) {
    if (part_of[round] >= 0) atomicAdd(in_tile + digit_of(part_of[round]), 1);
  }
  __syncthreads();
  for (int digit = thread; digit < digit_of.count(); digit += kPartitionThreads) {
    counts[digit * num_tiles + tile] = in_tile[digit];
  }
}

// numbers[i] becomes the sum of those before it.
__global__ void __launch_bounds__(kThreadsPerBlock)
    SumCountsKernel(int32_t* numbers, int64_t n, uint64_t* words) {
  __shared__ ScanBlock::Shared shared;
  ScanBlock scan(words, shared);
  const int64_t first = scan.first_item();
  int32_t own[kScanRounds];
  int32_t up_to[kScanRounds];  // of the round
#pragma unroll
  for (int round = 0; round < kScanRounds; ++round) {
    const int64_t i = first + round * kWarpThreads;
    own[round] = i < n ? numbers[i] : 0;
  }
  int32_t of_warp = 0;
#pragma unroll
  for (int round = 0; round < kScanRounds; ++round) {
    up_to[round] = WarpPrefix(own[round]);
    of_warp += __shfl_sync(kAllLanes, up_to[round], kWarpThreads - 1);
  }
  auto before = static_cast<int32_t>(scan.Before(static_cast<uint64_t>(of_warp)));
#pragma unroll
  for (int round = 0; round < kScanRounds; ++round) {
    const int64_t i = first + round * kWarpThreads;
    if (i < n) numbers[i] = before + up_to[round] - own[round];
    before += __shfl_sync(kAllLanes, up_to[round], kWarpThreads - 1);
  }
}

// Lanes of the warp with this lane's digit. Bit by bit: what __match_any_sync takes goes by how
// many digits there are.
__device__ inline unsigned LanesWith(int digit) {
  unsigned same = kAllLanes;
#pragma unroll
  for (int bit = 0; bit < kDigitBits; ++bit) {
    const unsigned bits = 0u - (digit >> bit & 1u);  // all or none
    same &= ~(__ballot_sync(kAllLanes, bits) ^ bits);
  }
  return same;
}

// starts[digit][tile] is where the first item of the tile with that digit goes. items null: item i
// is i.
__global__ void __launch_bounds__(kPartitionThreads, 5)
    MoveItemsKernel(const int32_t* parts, const int32_t* items, int64_t num_items, Digit digit_of,
                    int64_t num_tiles, const int32_t* starts, int32_t* parts_out,
                    int32_t* items_out) {
  __shared__ union {
    struct {
      // How many of each warp's run of items have a digit, then where in the tile the first goes.
      uint16_t of_warp[kWarps][kDigitsMax];
      // The digit of each item, then also its rank among its warp's of the digit.
      uint32_t ranks[kPartitionTile];
    } unsorted;
    struct {
      int32_t parts[kPartitionTile];
      int32_t items[kPartitionTile];
    } sorted;
  } shared;
  __shared__ int32_t away[kDigitsMax];  // from a place in the tile to that in the outputs
  __shared__ int32_t sums[kWarps];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = GroupLane();
  const int warp = thread / kWarpThreads;
  const unsigned lanes_before = (1u << lane) - 1;
  const int64_t tile = blockIdx.x;
  const int64_t begin = tile * kPartitionTile;
  const int size = static_cast<int>(min(num_items - begin, kPartitionTile));
  const int first = warp * (kWarpThreads * kPartitionRounds) + lane;
#pragma unroll
  for (int round = 0; round < kPartitionRounds; ++round) {
    const int at = first + round * kWarpThreads;
    // What is beyond the items has the last digit and comes after them, behind all others.
    shared.unsorted.ranks[at] = static_cast<uint32_t>(digit_of(at < size ? parts[begin + at] : -1));
  }
  for (int digit = thread; digit < kDigitsMax; digit += kPartitionThreads) {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) shared.unsorted.of_warp[w][digit] = 0;
  }
  __syncthreads();
#pragma unroll 2
  for (int round = 0; round < kPartitionRounds; ++round) {
    if (first - lane + round * kWarpThreads >= size) break;
    uint32_t& rank = shared.unsorted.ranks[first + round * kWarpThreads];
    const auto digit = static_cast<int>(rank);
    const unsigned same = LanesWith(digit);
    const int before = shared.unsorted.of_warp[warp][digit];
    __syncwarp();  // all have read it
    if ((same & lanes_before) == 0) {
      shared.unsorted.of_warp[warp][digit] = static_cast<uint16_t>(before + __popc(same));
    }
    __syncwarp();
    rank |= static_cast<uint32_t>(before + __popc(same & lanes_before)) << kDigitBits;
  }
  __syncthreads();
  // A thread's digits are neighbours.
  int32_t of_thread = 0;
#pragma unroll
  for (int d = 0; d < kDigitsPerThread; ++d) {
    const int digit = thread * kDigitsPerThread + d;
    for (int w = 0; w < kWarps; ++w) of_thread += shared.unsorted.of_warp[w][digit];
  }
  const int32_t up_to = WarpPrefix(of_thread);
  if (lane == kWarpThreads - 1) sums[warp] = up_to;
  __syncthreads();
  int32_t place = up_to - of_thread;
  for (int w = 0; w < warp; ++w) place += sums[w];
#pragma unroll
  for (int d = 0; d < kDigitsPerThread; ++d) {
    const int digit = thread * kDigitsPerThread + d;
    if (digit < digit_of.count()) away[digit] = starts[digit * num_tiles + tile] - place;
    for (int w = 0; w < kWarps; ++w) {
      const int count = shared.unsorted.of_warp[w][digit];
      shared.unsorted.of_warp[w][digit] = static_cast<uint16_t>(place);
      place += count;
    }
  }
  __syncthreads();
  int places[kPartitionRounds];
#pragma unroll
  for (int round = 0; round < kPartitionRounds; ++round) {
    const uint32_t rank = shared.unsorted.ranks[first + round * kWarpThreads];
    places[round] = static_cast<int>(rank >> kDigitBits) +
                    shared.unsorted.of_warp[warp][rank & (kDigitsMax - 1)];
  }
  __syncthreads();
#pragma unroll
  for (int round = 0; round < kPartitionRounds; ++round) {
    const int at = first + round * kWarpThreads;
    if (at >= size) continue;
    shared.sorted.parts[places[round]] = parts[begin + at];  // out of the L1
    shared.sorted.items[places[round]] =
        items == nullptr ? static_cast<int32_t>(begin) + at : items[begin + at];
  }
  __syncthreads();
  for (int at = thread; at < size; at += kPartitionThreads) {
    const int32_t part = shared.sorted.parts[at];
    const int32_t to = at + away[digit_of(part)];
    parts_out[to] = part;
    items_out[to] = shared.sorted.items[at];
  }
}

// offsets[p] = how many of the sorted parts are less than p: of each item, for its part and those
// without items before it; of the end, for those behind the last.
__global__ void __launch_bounds__(kThreadsPerBlock)
    FindOffsetsKernel(const int32_t* sorted_parts, int64_t num_items, int64_t num_parts,
                      int64_t* offsets) {
  for (int64_t i = GridThread(); i <= num_items; i += GridThreads()) {
    const int64_t end = i == num_items ? num_parts : sorted_parts[i];
    for (int64_t p = i == 0 ? 0 : int64_t{sorted_parts[i - 1]} + 1; p <= end; ++p) offsets[p] = i;
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
  const auto blocks = static_cast<unsigned>(num_tiles);
  int32_t* const counts = at(layout.counts);
  auto* const words = reinterpret_cast<uint64_t*>(args.workspace + layout.words);
  const int64_t num_counts = passes.num_digits() * num_tiles;
  const int32_t* parts = args.part;
  const int32_t* items = nullptr;
  for (int pass = 0; pass < passes.num_passes; ++pass) {
    const Digit digit_of = {pass * passes.digit_bits, passes.digit_bits};
    CountDigitsKernel<<<blocks, kPartitionThreads, 0, stream>>>(parts, n, digit_of, num_tiles,
                                                                counts, words);
    HOTROW_RETURN_IF_ERROR(LastLaunch(kOp));
    SumCountsKernel<<<static_cast<unsigned>(ScanTiles(num_counts)), kThreadsPerBlock, 0, stream>>>(
        counts, num_counts, words);
    HOTROW_RETURN_IF_ERROR(LastLaunch(kOp));
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
  FindOffsetsKernel<<<GridBlocks(n + 1, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(
      parts, n, args.num_parts, args.offsets);
  return LastLaunch(kOp);
}

}  // namespace hotrow::internal
