#include <algorithm>
#include <cstdint>

#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "ops/keys/scan_impl.cuh"
#include "ops/keys/split_slots_impl.h"
#include "ops/launch_impl.cuh"

// Running sums over the misses say where each goes, and so where each hit goes. What the host is
// told crosses the bus in whole lines: the first kernel only notes where the misses are, and a
// second one writes them down side by side. Keys that were written one by one, 216,000 of 560,000,
// kept the bus of an H100 busy for 0.74 ms, with all that waited for the memory behind them.
namespace hotrow::internal {
namespace {

constexpr char kOp[] = "SplitSlots";
// So many blocks fill the bus, and leave the rest of the GPU to others.
constexpr unsigned kTellBlocks = 32;

// What became of key i.
enum class Fate { kHit, kFound, kMissed };
__device__ inline Fate FateOf(const SplitSlotsArgs& args, int64_t i, int64_t slot) {
  if (slot >= 0) return Fate::kHit;
  return args.rows != nullptr && args.rows[i] != nullptr ? Fate::kFound : Fate::kMissed;
}

// How many missed and how many were found, side by side in a word.
constexpr int kFoundShift = 31;
__device__ inline uint64_t Pair(unsigned missed, unsigned found) {
  return static_cast<uint64_t>(__popc(found)) << kFoundShift | __popc(missed);
}
__device__ inline int64_t MissedOf(uint64_t pair) {
  return static_cast<int64_t>(pair & ((uint64_t{1} << kFoundShift) - 1));
}
__device__ inline int64_t FoundOf(uint64_t pair) {
  return static_cast<int64_t>(pair >> kFoundShift);
}

__device__ inline void AddTo(int64_t* sum, int64_t number) {
  static_assert(sizeof(unsigned long long) == sizeof(int64_t));
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(number));
}

// hit_lookups begins at -1, as the words do.
__global__ void __launch_bounds__(kThreadsPerBlock)
    ListSlotsKernel(const SplitSlotsArgs args, uint64_t* words, int64_t* hit_lookups) {
  __shared__ ScanBlock::Shared shared;
  ScanBlock scan(words, shared);
  const int64_t first = scan.first_item();
  int64_t slots[kScanRounds];
  unsigned missed[kScanRounds];
  unsigned found[kScanRounds];
#pragma unroll
  for (int round = 0; round < kScanRounds; ++round) {
    const int64_t i = first + round * kWarpThreads;
    slots[round] = i < args.num_keys ? args.slots[i] : 0;
  }
  uint64_t of_warp = 0;
  int64_t lookups = 0;
#pragma unroll
  for (int round = 0; round < kScanRounds; ++round) {
    const int64_t i = first + round * kWarpThreads;
    const Fate fate = FateOf(args, i, slots[round]);
    missed[round] = __ballot_sync(kAllLanes, fate == Fate::kMissed);
    found[round] = __ballot_sync(kAllLanes, fate == Fate::kFound);
    of_warp += Pair(missed[round], found[round]);
    if (fate == Fate::kHit && i < args.num_keys) lookups += args.counts[i];
  }
  uint64_t before = scan.Before(of_warp);
  const unsigned lanes_before = (1u << GroupLane()) - 1;
#pragma unroll
  for (int round = 0; round < kScanRounds; ++round) {
    const int64_t i = first + round * kWarpThreads;
    const uint64_t rank = before + Pair(missed[round] & lanes_before, found[round] & lanes_before);
    before += Pair(missed[round], found[round]);
    if ((missed[round] >> GroupLane() & 1) != 0) {
      args.miss_positions[MissedOf(rank)] = static_cast<int32_t>(i);
    } else if ((found[round] >> GroupLane() & 1) != 0) {
      args.found_keys[FoundOf(rank)] = args.keys[i];
      args.found_positions[FoundOf(rank)] = static_cast<int32_t>(i);
      args.found_rows[FoundOf(rank)] = args.rows[i];
    } else if (i < args.num_keys) {
      args.hit_slots[i - MissedOf(rank) - FoundOf(rank)] = slots[round];
    }
  }
  lookups = WarpSum(lookups);
  if (GroupLane() == 0 && lookups != 0) AddTo(hit_lookups, lookups);
}

// Tells what missed, 16 bytes of a key at a time, and counts what was found of each table. Keys of
// a table stand side by side, so that a warp mostly has those of one and adds to its counts once.
__global__ void __launch_bounds__(kThreadsPerBlock)
    TellMissesKernel(const SplitSlotsArgs args, const uint64_t* words, const int64_t* hit_lookups) {
  const uint64_t total = ScanBlock::Total(words, args.num_keys);
  const int64_t misses = MissedOf(total);
  const int64_t found = FoundOf(total);
  if (GridThread() == 0) *args.totals = {misses, *hit_lookups + 1, found};
  const int64_t tellers = int64_t{min(gridDim.x, kTellBlocks)} * blockDim.x;
  for (int64_t m = GridThread(); m < misses && GridThread() < tellers; m += tellers) {
    const int32_t i = args.miss_positions[m];
    const RowKey key = args.keys[i];
    reinterpret_cast<uint4*>(args.miss_keys)[m] = make_uint4(
        static_cast<uint32_t>(key.key), static_cast<uint32_t>(key.key >> 32), key.table, 0);
    args.miss_counts[m] = args.counts[i];
  }
  for (int64_t begin = GridGroup() * kWarpThreads; begin < found;
       begin += GridGroups() * kWarpThreads) {
    const int64_t f = begin + GroupLane();
    uint32_t table = 0;
    int64_t lookups = 0;
    if (f < found) {
      args.hit_slots[args.num_keys - misses - found + f] = -1;
      table = args.found_keys[f].table;
      lookups = args.counts[args.found_positions[f]];
    }
    uint32_t left = __ballot_sync(kAllLanes, f < found);
    while (left != 0) {
      const uint32_t its = __shfl_sync(kAllLanes, table, __ffs(static_cast<int>(left)) - 1);
      const uint32_t lanes = __ballot_sync(kAllLanes, f < found && table == its);
      const int64_t of_table = WarpSum(table == its ? lookups : int64_t{0});
      if (GroupLane() == 0) {
        AddTo(&args.found_of_table[its].keys, __popc(lanes));
        AddTo(&args.found_of_table[its].lookups, of_table);
      }
      left &= ~lanes;
    }
  }
}

}  // namespace

absl::Status SplitSlotsCuda(const SplitSlotsArgs& args, CudaStream stream) {
  const int64_t n = args.num_keys;
  if (args.rows != nullptr) {
    HOTROW_CUDA_RETURN_IF_ERROR(
        cudaMemsetAsync(args.found_of_table, 0,
                        static_cast<size_t>(args.num_tables) * sizeof(FoundOfTable), stream));
  }
  if (n == 0) {
    HOTROW_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(args.totals, 0, sizeof(SplitSlotsTotals), stream));
    return absl::OkStatus();
  }
  const auto layout = SplitSlotsCudaLayout::For(n);
  auto* const hit_lookups = reinterpret_cast<int64_t*>(args.workspace + layout.hit_lookups);
  auto* const words = reinterpret_cast<uint64_t*>(args.workspace + layout.words);
  HOTROW_CUDA_RETURN_IF_ERROR(
      cudaMemsetAsync(args.workspace, 0xff, static_cast<size_t>(layout.bytes), stream));
  ListSlotsKernel<<<static_cast<unsigned>(ScanTiles(n)), kThreadsPerBlock, 0, stream>>>(
      args, words, hit_lookups);
  HOTROW_RETURN_IF_ERROR(LastLaunch(kOp));
  const unsigned blocks = GridBlocks(n, kThreadsPerBlock);
  TellMissesKernel<<<args.rows == nullptr ? std::min(blocks, kTellBlocks) : blocks,
                     kThreadsPerBlock, 0, stream>>>(args, words, hit_lookups);
  return LastLaunch(kOp);
}

}  // namespace hotrow::internal
