#include <algorithm>
#include <type_traits>

#include "base/hopper.cuh"
#include "ops/jagged_impl.h"
#include "ops/launch_impl.cuh"
#include "ops/rows/pooled_lookup.h"
#include "ops/rows/pooled_lookup_impl.h"
#include "ops/rows/row_sum_impl.cuh"
#include "ops/rows/tile_threads_impl.cuh"

// A tile takes neighbouring bags, up to kBagsPerTile, whose lookups lie side by side.
// Each thread looks up where the row of one lookup lies, so these chains of dependent loads
// (offsets, inverse, address) run side by side; then the whole tile walks the lookups in order
// (StreamTerms), of any bags, and stores a bag when its last lookup is added. Bags of
// one lookup are so read as fast as long ones.
namespace hotrow::internal {
namespace {

// Blocks of a multiprocessor, at least: bounds the registers of a thread to 64.
constexpr int kBlocksPerProcessor = 4;
// Quads of a thread that are under way, 16 bytes each: 64 KiB of a multiprocessor. What shared
// memory does not take is the L1's, which many find the hottest rows in.
constexpr int kStages = 4;
// How many bags a tile takes at most, and about how many lookups.
constexpr int32_t kBagsPerTile = 32;
// Tiles of fewer threads would have too few of them to look rows up.
constexpr int32_t kLanesMin = 8;

struct PooledRows {
  const float* weights;
  const int32_t* inverse;
  const std::byte* const* rows;
};

// What a tile shares, an array of the block cut into the parts of tiles, and the ring.
struct PoolMemory {
  TileTerm* terms;  // two a thread
  int32_t* ends;
  QuadRing ring;
};

// A tile at work on the bags of a feature. All threads of the tile make each call together.
template <WeightsPrecision kPrecision>
class TilePooler {
 public:
  // bags: of the feature; memory: of the tile.
  __device__ TilePooler(const TileThreads& tile, const PoolMemory& memory, const PooledRows& rows,
                        const JaggedFeature& feature, const int64_t* bags, int32_t column)
      : tile_(tile),
        memory_(memory),
        rows_(rows),
        feature_(feature),
        bags_(bags),
        column_(column),
        width_(RowTiles::Width(feature.dim, column)),
        inverse_(tile, nullptr, 0) {}

  // Output rows [first, first + n), n in [1, kBagsPerTile].
  __device__ void Pool(int64_t first, int32_t n) {
    const bool pooled = feature_.pooling != Pooling::kNone;
    const int64_t begin = pooled ? bags_[first] : bags_[0] + first;
    // Where the lookups of each output row end, counted from `begin`.
    for (int32_t i = tile_.lane; i < n; i += tile_.lanes) {
      memory_.ends[i] = pooled ? static_cast<int32_t>(bags_[first + i + 1] - begin) : i + 1;
    }
    tile_.Sync();
    outputs_ = n;
    row_ = 0;
    row_begin_ = 0;
    row_end_ = memory_.ends[0];
    output_ = feature_.data + first * feature_.stride + column_;
    const int32_t lookups = memory_.ends[n - 1];
    weights_ = rows_.weights == nullptr ? nullptr : rows_.weights + begin;
    inverse_ = IndexAhead(tile_, rows_.inverse + begin, lookups);
    if (tile_.lane < lookups) memory_.terms[tile_.lane] = Find(tile_.lane);
    tile_.Sync();
    StreamTerms<kStages>(tile_, memory_.terms, lookups, *this);
    while (width_ > 0 && row_ < outputs_) EndRow();
    tile_.Sync();  // before the ends are written over
  }

  // What StreamTerms asks of the bags' lookups.
  __device__ TileTerm Find(int32_t i) {
    return {rows_.rows[inverse_(i)], weights_ == nullptr ? 1.0f : weights_[i], 0};
  }
  __device__ void Ask(int32_t stage, const TileTerm& term) const {
    AskQuad<kPrecision, /*kByL1=*/true>(At(term), width_, memory_.ring.At(stage));
  }
  __device__ void Take(int32_t stage, int32_t i, const TileTerm& term) {
    if (width_ == 0) return;
    while (i == row_end_) EndRow();  // rows of no lookups follow it
    const float4 x = TakeQuad<kPrecision>(At(term), width_, memory_.ring.At(stage));
    sum_ = AddTerm(i == row_begin_, term.scale, x, sum_);
  }

 private:
  __device__ const std::byte* At(const TileTerm& term) const {
    return term.row + column_ * static_cast<int32_t>(WeightBytes(kPrecision));
  }
  __device__ void EndRow() {
    const int32_t length = row_end_ - row_begin_;
    if (feature_.pooling == Pooling::kMean && length > 1) {
      const auto divisor = static_cast<float>(length);
      sum_ = make_float4(sum_.x / divisor, sum_.y / divisor, sum_.z / divisor, sum_.w / divisor);
    }
    StoreQuad(sum_, output_, width_);
    output_ += feature_.stride;
    row_begin_ = row_end_;
    if (++row_ < outputs_) row_end_ = memory_.ends[row_];
    sum_ = make_float4(0, 0, 0, 0);
  }

  const TileThreads& tile_;
  const PoolMemory& memory_;
  const PooledRows& rows_;
  const JaggedFeature& feature_;
  const int64_t* const bags_;
  const int32_t column_;
  const int32_t width_;             // of the thread's columns
  IndexAhead inverse_;              // of the lookups
  const float* weights_ = nullptr;  // null: all are 1
  int32_t outputs_ = 0;             // how many output rows there are
  int32_t row_ = 0;                 // the one that is being summed, and its lookups
  int32_t row_begin_ = 0;
  int32_t row_end_ = 0;
  float* output_ = nullptr;
  float4 sum_ = {0, 0, 0, 0};
};

// The tiles of blockIdx.x: one for each block of columns of `bags_per_tile` bags, or fewer where
// they are long.
template <WeightsPrecision kPrecision>
__device__ void PoolFeature(const JaggedFeature& feature, int64_t batch_size, int64_t bags_per_tile,
                            const int64_t* bags, const PooledRows& rows,
                            const PoolMemory& of_block) {
  const RowTiles tiles = RowTiles::For(feature.dim, kLanesMin);
  const TileThreads tile(tiles.lanes);
  const PoolMemory memory = {tile.Part(of_block.terms, 2),
                             tile.Part(of_block.ends, kBagsPerTile / kLanesMin), of_block.ring};
  const int64_t lookups = bags[batch_size] - bags[0];
  int64_t outputs = lookups;
  int64_t each = bags_per_tile;
  if (feature.pooling != Pooling::kNone) {
    outputs = batch_size;
    // So that a few long bags are not one tile's.
    const int64_t hotness = lookups / batch_size;
    if (hotness > 1) each = max(min(each, kBagsPerTile / hotness), int64_t{1});
  }
  const int64_t pieces = (outputs + each - 1) / each;
  for (int64_t i = tiles.Tile(GridThread()); i < pieces * tiles.blocks;
       i += tiles.Tile(GridThreads())) {
    const int64_t piece = tiles.blocks == 1 ? i : i / tiles.blocks;
    const int64_t first = piece * each;
    TilePooler<kPrecision> pooler(
        tile, memory, rows, feature, bags,
        static_cast<int32_t>(tiles.Column(i - piece * tiles.blocks, tile.lane)));
    pooler.Pool(first, static_cast<int32_t>(min(each, outputs - first)));
  }
}

// blockIdx.y is the feature. `offsets` begins at the first feature of the chunk.
__global__ void __launch_bounds__(kThreadsPerBlock, kBlocksPerProcessor)
    PoolKernel(const __grid_constant__ FeatureChunk features, int64_t batch_size,
               int64_t bags_per_tile, const int64_t* offsets,
               const __grid_constant__ PooledRows rows) {
  __shared__ TileTerm terms[2 * kThreadsPerBlock];
  __shared__ int32_t ends[kThreadsPerBlock / kLanesMin * kBagsPerTile];
  const JaggedFeature& feature = features.v[blockIdx.y];
  const int64_t* const bags = offsets + static_cast<int64_t>(blockIdx.y) * batch_size;
  const auto pool = [&](auto precision) {
    PoolFeature<precision()>(feature, batch_size, bags_per_tile, bags, rows,
                             {terms, ends, QuadRing::OfBlock(gpu::DynamicShared())});
  };
  // The same way for all threads of a block.
  switch (feature.precision) {
    case WeightsPrecision::kFp32:
      return pool(std::integral_constant<WeightsPrecision, WeightsPrecision::kFp32>());
    case WeightsPrecision::kFp16:
      return pool(std::integral_constant<WeightsPrecision, WeightsPrecision::kFp16>());
    case WeightsPrecision::kBf16:
      return pool(std::integral_constant<WeightsPrecision, WeightsPrecision::kBf16>());
  }
}

}  // namespace

absl::Status PooledLookupCuda(const PooledLookupArgs& args, CudaStream stream,
                              int64_t tiles_wanted) {
  if (args.batch_size == 0) return absl::OkStatus();
  return ForEachChunk<FeatureChunk>(
      args.features, [&](const FeatureChunk& chunk, int64_t first) -> absl::Status {
        const int64_t bags_per_tile = std::clamp(args.batch_size * chunk.size / tiles_wanted,
                                                 int64_t{1}, int64_t{kBagsPerTile});
        const unsigned blocks = FeatureGridBlocks(chunk, args.batch_size, kLanesMin, bags_per_tile);
        const PooledRows rows = {args.weights, args.inverse, args.rows};
        PoolKernel<<<dim3(blocks, static_cast<unsigned>(chunk.size)), kThreadsPerBlock,
                     QuadRing::Bytes(kStages), stream>>>(
            chunk, args.batch_size, bags_per_tile, args.offsets + first * args.batch_size, rows);
        return LastLaunch("PooledLookup");
      });
}

}  // namespace hotrow::internal
