#include "base/status_macros.h"
#include "ops/gradient_segment_sum.h"
#include "ops/gradient_segment_sum_impl.h"
#include "ops/jagged_impl.h"
#include "ops/launch_impl.cuh"
#include "ops/row_sum_impl.cuh"

namespace hotrow::internal {
namespace {

constexpr char kOp[] = "GradientSegmentSum";
constexpr int64_t kLookupsPerBlock = 4 * kThreadsPerBlock;
// Rows that a thread asks for at a time: few where most rows have a lookup or two, and more of them
// fit onto a multiprocessor (64 registers a thread); more where only long sums are left.
constexpr int kLookupsInFlight = 4;
constexpr int kBlocksPerProcessor = 4;
constexpr int kRunsInFlight = 8;

// Describes the lookups of the chunk's features; `offsets` begins at the first of them. Each thread
// looks for the bag of its lookup among those that its block's lookups lie in.
__global__ void __launch_bounds__(kThreadsPerBlock)
    DescribeKernel(const __grid_constant__ FeatureChunk features, int64_t batch_size,
                   const int64_t* offsets, const float* weights, int64_t num_lookups,
                   GradientContribution* contributions) {
  __shared__ int64_t bag_first;
  __shared__ int64_t bag_last;
  const int64_t num_bags = features.size * batch_size;
  const int64_t end = min(offsets[num_bags], num_lookups);
  // The same for all threads of a block, which so stay together.
  for (int64_t base = offsets[0] + blockIdx.x * kLookupsPerBlock; base < end;
       base += gridDim.x * kLookupsPerBlock) {
    const int64_t base_end = min(base + kLookupsPerBlock, end);
    if (threadIdx.x == 0) bag_first = LastAtMost(offsets, 0, num_bags, base);
    if (threadIdx.x == kWarpThreads) bag_last = LastAtMost(offsets, 0, num_bags, base_end - 1);
    __syncthreads();
    for (int64_t j = base + threadIdx.x; j < base_end; j += kThreadsPerBlock) {
      const int64_t bag = LastAtMost(offsets, bag_first, bag_last + 1, j);
      const int64_t f = bag / batch_size;
      contributions[j] =
          DescribeLookup(features.v[f], offsets + f * batch_size, bag - f * batch_size, j, weights);
    }
    __syncthreads();  // before the next round overwrites the bags
  }
}

struct Sums {
  const int64_t* row_offsets;
  const int32_t* lookup_order;
  int64_t num_rows;
  int64_t num_slots;
  const GradientContribution* contributions;
  float* run_sums;  // [num_slots, run_stride]
  int64_t run_stride;
  float* const* gradients;

  struct Run {
    HotRowRun lookups;
    int64_t row;
  };
  // The run of a slot, with index -1 if no row has it.
  __device__ Run RunOf(int64_t slot) const {
    const int64_t lookup = HotRowRun::LookupOf(slot);
    if (lookup >= row_offsets[num_rows]) return {};  // num_lookups was a bound only
    const int64_t u = LastAtMost(row_offsets, 0, num_rows, lookup);
    return {HotRowRun::Of(slot, row_offsets[u], row_offsets[u + 1]), u};
  }
  __device__ int32_t DimOf(int64_t lookup) const { return contributions[lookup_order[lookup]].dim; }
  __device__ float4 SumLookups(int64_t begin, int64_t end, int64_t column, int32_t width) const {
    return SumQuads<kLookupsInFlight>(end - begin, column, width, [&](int64_t k) {
      const GradientContribution c = contributions[lookup_order[begin + k]];
      return DeviceScaledRow{c.gradient, c.scale};
    });
  }
};

// One tile for each block of columns of a slot, then of a row: the long sums begin first.
__global__ void __launch_bounds__(kThreadsPerBlock, kBlocksPerProcessor)
    SumLookupsKernel(const Sums sums, const RowTiles tiles) {
  const int64_t items = (sums.num_slots + sums.num_rows) * tiles.blocks;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) & (tiles.lanes - 1);
  for (int64_t i = tiles.Tile(GridThread()); i < items; i += tiles.Tile(GridThreads())) {
    const int64_t piece = tiles.blocks == 1 ? i : i / tiles.blocks;
    const int64_t column = tiles.Column(i - piece * tiles.blocks, lane);
    int64_t begin;
    int64_t end;
    float* out;
    if (piece < sums.num_slots) {
      const Sums::Run run = sums.RunOf(piece);
      if (run.lookups.index < 0) continue;
      begin = run.lookups.begin;
      end = run.lookups.end;
      out = sums.run_sums + piece * sums.run_stride;
    } else {
      const int64_t u = piece - sums.num_slots;
      begin = sums.row_offsets[u];
      end = sums.row_offsets[u + 1];
      if (begin >= end || HotRowRun::Count(end - begin) > 1) continue;
      out = sums.gradients[u];
    }
    const int32_t width = RowTiles::Width(sums.DimOf(begin), column);
    if (width == 0) continue;
    StoreQuad(sums.SumLookups(begin, end, column, width), out + column, width);
  }
}

// Adds the sums of a row's runs, in order: the tile of the first one's slot does.
__global__ void __launch_bounds__(kThreadsPerBlock)
    SumRunsKernel(const Sums sums, const RowTiles tiles) {
  const int64_t items = sums.num_slots * tiles.blocks;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) & (tiles.lanes - 1);
  for (int64_t i = tiles.Tile(GridThread()); i < items; i += tiles.Tile(GridThreads())) {
    const int64_t slot = tiles.blocks == 1 ? i : i / tiles.blocks;
    const int64_t column = tiles.Column(i - slot * tiles.blocks, lane);
    const Sums::Run run = sums.RunOf(slot);
    if (run.lookups.index != 0) continue;
    const int64_t begin = sums.row_offsets[run.row];
    const int32_t width = RowTiles::Width(sums.DimOf(begin), column);
    if (width == 0) continue;
    const int64_t count = HotRowRun::Count(sums.row_offsets[run.row + 1] - begin);
    const float4 sum = SumQuads<kRunsInFlight>(count, column, width, [&](int64_t k) {
      return DeviceScaledRow{sums.run_sums + (slot + k) * sums.run_stride, 1.0f};
    });
    StoreQuad(sum, sums.gradients[run.row] + column, width);
  }
}

}  // namespace

absl::Status GradientSegmentSumCuda(const GradientSegmentSumArgs& args, CudaStream stream) {
  const int32_t dim_max = WidestDim(args.features);
  const HotRowSums layout = HotRowSums::For(args.num_lookups, dim_max);
  auto* const contributions = reinterpret_cast<GradientContribution*>(args.workspace);
  HOTROW_RETURN_IF_ERROR(ForEachChunk<FeatureChunk>(
      args.features, [&](const FeatureChunk& chunk, int64_t first) -> absl::Status {
        DescribeKernel<<<GridBlocks(args.num_lookups, kLookupsPerBlock), kThreadsPerBlock, 0,
                         stream>>>(chunk, args.batch_size, args.offsets + first * args.batch_size,
                                   args.weights, args.num_lookups, contributions);
        return LastLaunch(kOp);
      }));
  const Sums sums = {.row_offsets = args.row_offsets,
                     .lookup_order = args.lookup_order,
                     .num_rows = args.num_rows,
                     .num_slots = HotRowRun::Slots(args.num_lookups),
                     .contributions = contributions,
                     .run_sums = reinterpret_cast<float*>(args.workspace + layout.offset),
                     .run_stride = layout.stride,
                     .gradients = args.gradients};
  const RowTiles tiles = RowTiles::For(dim_max);
  const int64_t tiles_per_block = kThreadsPerBlock / tiles.lanes;
  SumLookupsKernel<<<GridBlocks((sums.num_slots + sums.num_rows) * tiles.blocks, tiles_per_block),
                     kThreadsPerBlock, 0, stream>>>(sums, tiles);
  HOTROW_RETURN_IF_ERROR(LastLaunch(kOp));
  if (sums.num_slots == 0) return absl::OkStatus();
  SumRunsKernel<<<GridBlocks(sums.num_slots * tiles.blocks, tiles_per_block), kThreadsPerBlock, 0,
                  stream>>>(sums, tiles);
  return LastLaunch(kOp);
}

}  // namespace hotrow::internal
