#include <cstdint>

#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "ops/launch_impl.cuh"
#include "ops/scan_impl.cuh"
#include "ops/split_slots_impl.h"

// Running sums over the misses say where each goes, and so where each hit goes.
namespace hotrow::internal {
namespace {

constexpr char kOp[] = "SplitSlots";
// Each warp ends with an addition to one number, so threads take several keys.
constexpr int64_t kMarksPerBlock = int64_t{8} * kThreadsPerBlock;

// The running sums of a call: how many misses lie before each key, and, where rows are looked for,
// how many that were found.
struct Ranks {
  int32_t* missed;
  int32_t* found;  // null: nothing is
};

// What became of key i.
enum class Fate { kHit, kFound, kMissed };
__device__ inline Fate FateOf(const SplitSlotsArgs& args, int64_t i, int64_t slot) {
  if (slot >= 0) return Fate::kHit;
  return args.rows != nullptr && args.rows[i] != nullptr ? Fate::kFound : Fate::kMissed;
}

__device__ inline void AddTo(int64_t* sum, int64_t number) {
  static_assert(sizeof(unsigned long long) == sizeof(int64_t));
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(number));
}

// 1 for a miss, else 0, and alike for what was found; a last 0 makes room for the sum of all.
__global__ void __launch_bounds__(kThreadsPerBlock)
    MarkMissesKernel(const SplitSlotsArgs args, const Ranks ranks, int64_t* hit_lookups) {
  const int64_t thread = GridThread();
  if (thread == 0) ranks.missed[args.num_keys] = 0;
  if (thread == 0 && ranks.found != nullptr) ranks.found[args.num_keys] = 0;
  int64_t lookups = 0;
  for (int64_t i = thread; i < args.num_keys; i += GridThreads()) {
    const Fate fate = FateOf(args, i, args.slots[i]);
    ranks.missed[i] = fate == Fate::kMissed ? 1 : 0;
    if (ranks.found != nullptr) ranks.found[i] = fate == Fate::kFound ? 1 : 0;
    if (fate == Fate::kHit) lookups += args.counts[i];
  }
  lookups = WarpSum(lookups);
  if (GroupLane() == 0 && lookups != 0) AddTo(hit_lookups, lookups);
}

// Now the sums say how many of a kind lie before key i.
__global__ void __launch_bounds__(kThreadsPerBlock)
    EmitKernel(const SplitSlotsArgs args, const Ranks ranks, const int64_t* hit_lookups) {
  const int64_t thread = GridThread();
  const int64_t misses = ranks.missed[args.num_keys];
  const int64_t found = ranks.found == nullptr ? 0 : ranks.found[args.num_keys];
  if (thread == 0) *args.totals = {misses, *hit_lookups, found};
  for (int64_t i = thread; i < args.num_keys; i += GridThreads()) {
    const int64_t slot = args.slots[i];
    const int64_t rank = ranks.missed[i];
    const int64_t found_rank = ranks.found == nullptr ? 0 : ranks.found[i];
    switch (FateOf(args, i, slot)) {
      case Fate::kHit:
        args.hit_slots[i - rank - found_rank] = slot;
        break;
      case Fate::kFound:
        args.hit_slots[args.num_keys - misses - found + found_rank] = -1;
        args.found_keys[found_rank] = args.keys[i];
        args.found_positions[found_rank] = static_cast<int32_t>(i);
        args.found_rows[found_rank] = args.rows[i];
        break;
      case Fate::kMissed:
        args.miss_keys[rank] = args.keys[i];
        args.miss_counts[rank] = args.counts[i];
        args.miss_positions[rank] = static_cast<int32_t>(i);
        break;
    }
  }
}

// Counts what was found of each table. Keys of a table stand side by side, so that a warp mostly
// has those of one and adds to its counts once.
__global__ void __launch_bounds__(kThreadsPerBlock) CountFoundKernel(const SplitSlotsArgs args) {
  for (int64_t begin = GridGroup() * kWarpThreads; begin < args.num_keys;
       begin += GridGroups() * kWarpThreads) {
    const int64_t i = begin + GroupLane();
    const bool found = i < args.num_keys && FateOf(args, i, args.slots[i]) == Fate::kFound;
    const uint32_t table = found ? args.keys[i].table : 0;
    uint32_t left = __ballot_sync(kAllLanes, found);
    while (left != 0) {
      const uint32_t its = __shfl_sync(kAllLanes, table, __ffs(static_cast<int>(left)) - 1);
      const bool mine = found && table == its;
      const uint32_t lanes = __ballot_sync(kAllLanes, mine);
      const int64_t lookups = WarpSum(mine ? int64_t{args.counts[i]} : int64_t{0});
      if (GroupLane() == 0) {
        AddTo(&args.found_of_table[its].keys, __popc(lanes));
        AddTo(&args.found_of_table[its].lookups, lookups);
      }
      left &= ~lanes;
    }
  }
}

}  // namespace

absl::Status SplitSlotsCuda(const SplitSlotsArgs& args, CudaStream stream) {
  const int64_t n = args.num_keys;
  const bool finds = args.rows != nullptr;
  if (finds) {
    HOTROW_CUDA_RETURN_IF_ERROR(
        cudaMemsetAsync(args.found_of_table, 0,
                        static_cast<size_t>(args.num_tables) * sizeof(FoundOfTable), stream));
  }
  if (n == 0) {
    HOTROW_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(args.totals, 0, sizeof(SplitSlotsTotals), stream));
    return absl::OkStatus();
  }
  const auto layout = SplitSlotsCudaLayout::For(n, finds);
  auto* const hit_lookups = reinterpret_cast<int64_t*>(args.workspace + layout.hit_lookups);
  auto* const scratch = reinterpret_cast<int32_t*>(args.workspace + layout.scan);
  const Ranks ranks = {
      .missed = reinterpret_cast<int32_t*>(args.workspace + layout.ranks),
      .found = finds ? reinterpret_cast<int32_t*>(args.workspace + layout.found_ranks) : nullptr};
  HOTROW_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(hit_lookups, 0, sizeof(*hit_lookups), stream));
  MarkMissesKernel<<<GridBlocks(n, kMarksPerBlock), kThreadsPerBlock, 0, stream>>>(args, ranks,
                                                                                   hit_lookups);
  HOTROW_RETURN_IF_ERROR(LastLaunch(kOp));
  HOTROW_RETURN_IF_ERROR(Scan(kOp, ranks.missed, n + 1, scratch, stream));
  if (finds) {
    HOTROW_RETURN_IF_ERROR(Scan(kOp, ranks.found, n + 1, scratch, stream));
    CountFoundKernel<<<GridBlocks(n, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(args);
    HOTROW_RETURN_IF_ERROR(LastLaunch(kOp));
  }
  EmitKernel<<<GridBlocks(n, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(args, ranks,
                                                                               hit_lookups);
  return LastLaunch(kOp);
}

}  // namespace hotrow::internal
