#include "base/hopper.cuh"
#include "base/status_macros.h"
#include "ops/jagged_impl.h"
#include "ops/launch_impl.cuh"
#include "ops/rows/row_sum_impl.cuh"
#include "ops/rows/tile_threads_impl.cuh"
#include "ops/update/gradient_segment_sum.h"
#include "ops/update/gradient_segment_sum_impl.h"

namespace hotrow::internal {
namespace {

constexpr char kOp[] = "GradientSegmentSum";
constexpr int64_t kLookupsPerBlock = 4 * kThreadsPerBlock;
// A tile has a thread a row of a group.
constexpr int32_t kLanesMin = RowGroup::kRows;
// A row of so many lookups gets its own tile, and these begin first.
constexpr int32_t kLongRow = 32;
// How many rows a thread asks whether they are long.
constexpr int32_t kChecks = 4;
// Quads of a thread that are under way. With kBlocksPerProcessor, which bounds its registers to 64,
// these are 128 KiB of a multiprocessor.
constexpr int kStages = 8;
constexpr int kBlocksPerProcessor = 4;

// Describes the lookups of the chunk's features; `offsets` begins at the first of them. Each thread
// looks for the bag of its lookup among those that its block's lookups lie in. Bags of equal length
// are found at once, others by halving.
__global__ void __launch_bounds__(kThreadsPerBlock)
    DescribeKernel(const __grid_constant__ FeatureChunk features, int64_t batch_size,
                   const int64_t* offsets, const float* weights, int64_t num_lookups,
                   GradientContribution* contributions) {
  __shared__ int64_t bag_first;
  __shared__ int64_t bag_last;
  const int64_t num_bags = features.size * batch_size;
  const int64_t begin = offsets[0];
  const int64_t end = min(offsets[num_bags], num_lookups);
  const auto hotness = static_cast<uint32_t>(max((end - begin) / num_bags, int64_t{1}));
  const auto find = [&](int64_t first, int64_t last, int64_t j) {
    const int64_t guess = static_cast<uint32_t>(j - begin) / hotness;
    return LastAtMostNear(offsets, first, last + 1, min(max(guess, first), last), j);
  };
  // The same for all threads of a block, which so stay together.
  for (int64_t base = begin + blockIdx.x * kLookupsPerBlock; base < end;
       base += gridDim.x * kLookupsPerBlock) {
    const int64_t base_end = min(base + kLookupsPerBlock, end);
    if (threadIdx.x == 0) bag_first = find(0, num_bags - 1, base);
    if (threadIdx.x == kWarpThreads) bag_last = find(0, num_bags - 1, base_end - 1);
    __syncthreads();
    for (int64_t j = base + threadIdx.x; j < base_end; j += kThreadsPerBlock) {
      const int64_t bag = find(bag_first, bag_last, j);
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
  int32_t num_rows;
  int32_t num_checks;  // items of tiles that look for long rows, kChecks a thread
  int32_t num_groups;  // items of RowGroup::kRows rows
  int64_t num_slots;
  const GradientContribution* contributions;
  float* run_sums;  // [num_slots, run_stride]
  int64_t run_stride;
  float* const* gradients;

  __device__ int32_t LookupsBefore(int32_t u) const { return static_cast<int32_t>(row_offsets[u]); }
  // The run of a slot, with index -1 if no row has it.
  __device__ HotRowRun RunOf(int64_t slot) const {
    const int64_t lookup = HotRowRun::LookupOf(slot);
    if (lookup >= row_offsets[num_rows]) return {};  // num_lookups was a bound only
    const int64_t u = LastAtMost(row_offsets, 0, int64_t{num_rows}, lookup);
    return HotRowRun::Of(slot, row_offsets[u], row_offsets[u + 1]);
  }
  __device__ float* RunSum(int64_t slot) const { return run_sums + slot * run_stride; }
  __device__ int32_t DimOf(int64_t k) const { return contributions[lookup_order[k]].dim; }
  __device__ TileTerm Term(int32_t j) const {
    const GradientContribution c = contributions[j];
    return {reinterpret_cast<const std::byte*>(c.gradient), c.scale, 0};
  }
};

// A tile for each block of columns of a slot. Slots that lie side by side, as those of the hottest
// rows do, go to different blocks.
__global__ void __launch_bounds__(kThreadsPerBlock, kBlocksPerProcessor)
    SumRunsKernel(const Sums sums, const RowTiles tiles) {
  __shared__ TileTerm terms[2 * kThreadsPerBlock];
  const TileThreads tile(tiles.lanes);
  const QuadRing ring = QuadRing::OfBlock(gpu::DynamicShared());
  const int64_t items = sums.num_slots * tiles.blocks;
  const int64_t first = tiles.Tile(threadIdx.x) * gridDim.x + blockIdx.x;
  for (int64_t i = first; i < items; i += tiles.Tile(GridThreads())) {
    const int64_t slot = tiles.blocks == 1 ? i : i / tiles.blocks;
    const HotRowRun run = sums.RunOf(slot);
    if (run.index < 0) continue;
    const auto column = static_cast<int32_t>(tiles.Column(i - slot * tiles.blocks, tile.lane));
    const int32_t width = RowTiles::Width(sums.DimOf(run.begin), column);
    const auto n = static_cast<int32_t>(run.end - run.begin);
    IndexAhead order(tile, sums.lookup_order + run.begin, n);
    const float4 sum = SumTileTerms<kStages>(tile, tile.Part(terms, 2), ring, n, column, width,
                                             [&](int32_t k) { return sums.Term(order(k)); });
    if (width > 0) StoreQuad(sum, sums.RunSum(slot) + column, width);
  }
}

// What a tile shares, an array of the block cut into the parts of tiles, and the ring.
struct TileMemory {
  TileTerm* terms;  // two a thread
  RowGroup::Span* spans;
  float** outputs;
  QuadRing ring;
};

// A tile at work on a block of columns of rows. All threads of the tile make each call together.
class TileSummer {
 public:
  // memory: of the block.
  __device__ TileSummer(const Sums& sums, const RowTiles& tiles, const TileMemory& memory)
      : sums_(sums),
        tile_(tiles.lanes),
        memory_{tile_.Part(memory.terms, 2), tile_.Part(memory.spans), tile_.Part(memory.outputs),
                memory.ring},
        group_(memory_.spans) {}

  // The long rows among `first`, first + stride, ..., one a thread.
  __device__ void LongRows(int32_t first, int32_t stride, int32_t column) const {
    const int32_t mine = first + tile_.lane * stride;
    const bool is_long = mine < sums_.num_rows &&
                         sums_.LookupsBefore(mine + 1) - sums_.LookupsBefore(mine) >= kLongRow;
    for (unsigned left = tile_.Ballot(is_long); left != 0; left &= left - 1) {
      const int32_t u = first + (__ffs(static_cast<int>(left)) - 1) * stride;
      const int32_t begin = sums_.LookupsBefore(u);
      const int32_t lookups = sums_.LookupsBefore(u + 1) - begin;
      const auto runs = static_cast<int32_t>(HotRowRun::Count(lookups));
      const int32_t width = RowTiles::Width(sums_.DimOf(begin), column);
      IndexAhead order(tile_, sums_.lookup_order + begin, lookups);
      const float4 sum = SumTileTerms<kStages>(
          tile_, memory_.terms, memory_.ring, runs > 1 ? runs : lookups, column, width,
          [&](int32_t k) {
            if (runs == 1) return sums_.Term(order(k));
            const float* const run = sums_.RunSum(begin / HotRowRun::kLength + k);
            return TileTerm{reinterpret_cast<const std::byte*>(run), 1.0f, 0};
          });
      if (width > 0) StoreQuad(sum, sums_.gradients[u] + column, width);
    }
  }

  // Those of rows `first`, first + stride, ..., RowGroup::kRows of them, that are not long.
  __device__ void Group(int32_t first, int32_t stride, int32_t column) {
    const int32_t u = first + tile_.lane * stride;
    int32_t begin = 0;
    int32_t lookups = 0;
    if (tile_.lane < RowGroup::kRows && u < sums_.num_rows) {
      begin = sums_.LookupsBefore(u);
      lookups = sums_.LookupsBefore(u + 1) - begin;
      memory_.outputs[tile_.lane] = sums_.gradients[u];
      if (lookups >= kLongRow) lookups = 0;
    }
    group_.Place(tile_, begin, lookups);
    tile_.Sync();
    const int32_t n = group_.Count();
    if (tile_.lane < n) memory_.terms[tile_.lane] = Find(tile_.lane);
    tile_.Sync();
    column_ = column;
    StreamTerms<kStages>(tile_, memory_.terms, n, *this);
    tile_.Sync();  // before the next group's
  }

  // What StreamTerms asks of the group's lookups.
  __device__ TileTerm Find(int32_t i) const {
    const RowGroup::Term at = group_.At(i);
    const GradientContribution c = sums_.contributions[sums_.lookup_order[at.lookup]];
    return {reinterpret_cast<const std::byte*>(c.gradient), c.scale,
            (at.is_first ? kFirst : 0) | (at.is_last ? kLast : 0) |
                static_cast<unsigned>(at.row) * kRowOne | static_cast<unsigned>(c.dim) * kDimOne};
  }
  __device__ void Ask(int32_t stage, const TileTerm& term) const {
    AskQuad(At(term), WidthOf(term), memory_.ring.At(stage));
  }
  __device__ void Take(int32_t stage, int32_t, const TileTerm& term) {
    const int32_t width = WidthOf(term);
    if (width == 0) return;
    sum_ = AddTerm((term.flags & kFirst) != 0, term.scale,
                   TakeQuad(At(term), width, memory_.ring.At(stage)), sum_);
    if ((term.flags & kLast) == 0) return;
    float* const output = memory_.outputs[term.flags / kRowOne % RowGroup::kRows];
    StoreQuad(sum_, output + column_, width);
  }

 private:
  static constexpr unsigned kFirst = 1;
  static constexpr unsigned kLast = 2;
  static constexpr unsigned kRowOne = 4;  // times the row's number in the group
  static constexpr unsigned kDimOne = kRowOne * RowGroup::kRows;  // times its columns

  __device__ const std::byte* At(const TileTerm& term) const {
    return term.row + column_ * static_cast<int32_t>(sizeof(float));
  }
  __device__ int32_t WidthOf(const TileTerm& term) const {
    return RowTiles::Width(static_cast<int32_t>(term.flags / kDimOne), column_);
  }

  const Sums& sums_;
  const TileThreads tile_;
  const TileMemory memory_;
  RowGroup group_;
  int32_t column_ = 0;
  float4 sum_ = {0, 0, 0, 0};
};

// Long rows first, then the groups of others, a tile for each block of their columns. Rows of an
// item lie as far apart as there are items, since those of many lookups often are neighbours: the
// first of a table that a batch names.
__global__ void __launch_bounds__(kThreadsPerBlock, kBlocksPerProcessor)
    SumRowsKernel(const __grid_constant__ Sums sums, const __grid_constant__ RowTiles tiles) {
  __shared__ TileTerm terms[2 * kThreadsPerBlock];
  __shared__ RowGroup::Span spans[kThreadsPerBlock];
  __shared__ float* outputs[kThreadsPerBlock];
  TileSummer summer(sums, tiles, {terms, spans, outputs, QuadRing::OfBlock(gpu::DynamicShared())});
  const int32_t lane = static_cast<int32_t>(threadIdx.x) & (tiles.lanes - 1);
  const int64_t items = (int64_t{sums.num_checks} + sums.num_groups) * tiles.blocks;
  for (int64_t i = tiles.Tile(GridThread()); i < items; i += tiles.Tile(GridThreads())) {
    const auto item = static_cast<int32_t>(tiles.blocks == 1 ? i : i / tiles.blocks);
    const auto column = static_cast<int32_t>(tiles.Column(i - int64_t{item} * tiles.blocks, lane));
    if (item >= sums.num_checks) {
      summer.Group(item - sums.num_checks, sums.num_groups, column);
      continue;
    }
    for (int32_t check = 0; check < kChecks; ++check) {
      summer.LongRows(item + check * tiles.lanes * sums.num_checks, sums.num_checks, column);
    }
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
  const RowTiles tiles = RowTiles::For(dim_max, kLanesMin);
  const Sums sums = {
      .row_offsets = args.row_offsets,
      .lookup_order = args.lookup_order,
      .num_rows = static_cast<int32_t>(args.num_rows),
      .num_checks = static_cast<int32_t>(CeilDiv(args.num_rows, int64_t{kChecks} * tiles.lanes)),
      .num_groups = static_cast<int32_t>(CeilDiv(args.num_rows, int64_t{RowGroup::kRows})),
      .num_slots = HotRowRun::Slots(args.num_lookups),
      .contributions = contributions,
      .run_sums = reinterpret_cast<float*>(args.workspace + layout.offset),
      .run_stride = layout.stride,
      .gradients = args.gradients};
  constexpr int32_t kRingBytes = QuadRing::Bytes(kStages);
  if (sums.num_slots > 0) {
    // Whole warps, which find more terms at a time.
    const RowTiles run_tiles = RowTiles::For(dim_max, RowTiles::kLanesMax);
    SumRunsKernel<<<GridBlocks(sums.num_slots * run_tiles.blocks,
                               kThreadsPerBlock / run_tiles.lanes),
                    kThreadsPerBlock, kRingBytes, stream>>>(sums, run_tiles);
    HOTROW_RETURN_IF_ERROR(LastLaunch(kOp));
  }
  SumRowsKernel<<<GridBlocks((int64_t{sums.num_checks} + sums.num_groups) * tiles.blocks,
                             kThreadsPerBlock / tiles.lanes),
                  kThreadsPerBlock, kRingBytes, stream>>>(sums, tiles);
  return LastLaunch(kOp);
}

}  // namespace hotrow::internal
