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

// ranks[i] = 1 for a miss, else 0; a last 0 makes room for the sum of all.
__global__ void __launch_bounds__(kThreadsPerBlock)
    MarkMissesKernel(const SplitSlotsArgs args, int32_t* ranks, int64_t* hit_lookups) {
  const int64_t thread = GridThread();
  if (thread == 0) ranks[args.num_keys] = 0;
  int64_t lookups = 0;
  for (int64_t i = thread; i < args.num_keys; i += GridThreads()) {
    const bool missed = args.slots[i] < 0;
    ranks[i] = missed ? 1 : 0;
    if (!missed) lookups += args.counts[i];
  }
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    lookups += static_cast<int64_t>(
        __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(lookups), distance));
  }
  static_assert(sizeof(unsigned long long) == sizeof(int64_t));
  if (GroupLane() == 0 && lookups != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(hit_lookups),
              static_cast<unsigned long long>(lookups));
  }
}

// Now ranks[i] is how many misses lie before key i.
__global__ void __launch_bounds__(kThreadsPerBlock)
    EmitKernel(const SplitSlotsArgs args, const int32_t* ranks, const int64_t* hit_lookups) {
  const int64_t thread = GridThread();
  if (thread == 0) *args.totals = {ranks[args.num_keys], *hit_lookups};
  for (int64_t i = thread; i < args.num_keys; i += GridThreads()) {
    const int64_t slot = args.slots[i];
    const int64_t rank = ranks[i];
    if (slot >= 0) {
      args.hit_slots[i - rank] = slot;
      continue;
    }
    args.miss_keys[rank] = args.keys[i];
    args.miss_counts[rank] = args.counts[i];
    args.miss_positions[rank] = static_cast<int32_t>(i);
  }
}

}  // namespace

absl::Status SplitSlotsCuda(const SplitSlotsArgs& args, CudaStream stream) {
  const int64_t n = args.num_keys;
  if (n == 0) {
    HOTROW_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(args.totals, 0, sizeof(SplitSlotsTotals), stream));
    return absl::OkStatus();
  }
  const auto layout = SplitSlotsCudaLayout::For(n);
  auto* const hit_lookups = reinterpret_cast<int64_t*>(args.workspace + layout.hit_lookups);
  auto* const ranks = reinterpret_cast<int32_t*>(args.workspace + layout.ranks);
  HOTROW_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(hit_lookups, 0, sizeof(*hit_lookups), stream));
  MarkMissesKernel<<<GridBlocks(n, kMarksPerBlock), kThreadsPerBlock, 0, stream>>>(args, ranks,
                                                                                   hit_lookups);
  HOTROW_RETURN_IF_ERROR(LastLaunch(kOp));
  HOTROW_RETURN_IF_ERROR(
      Scan(kOp, ranks, n + 1, reinterpret_cast<int32_t*>(args.workspace + layout.scan), stream));
  EmitKernel<<<GridBlocks(n, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(args, ranks,
                                                                               hit_lookups);
  return LastLaunch(kOp);
}

}  // namespace hotrow::internal
