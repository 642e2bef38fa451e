#include <algorithm>
#include <type_traits>

#include "ops/jagged_impl.h"
#include "ops/launch_impl.cuh"
#include "ops/pooled_lookup.h"
#include "ops/pooled_lookup_impl.h"
#include "ops/row_sum_impl.cuh"
#include "ops/tile_threads_impl.cuh"

// A tile takes neighbouring bags, up to as many as it has threads, whose lookups lie side by side.
// Each thread looks up where the row of one lookup lies, so these chains of dependent loads
// (offsets, inverse, address) run side by side; then the whole tile walks the lookups in order,
// kRowsInFlight rows at a time whatever bags they are of, and stores a bag when its last lookup is
// added. Bags of one lookup are so read as fast as long ones.
namespace hotrow::internal {
namespace {

// Of a multiprocessor, at least: bounds the registers of a thread to 128.
constexpr int kBlocksPerProcessor = 2;
// Of a thread, 16 bytes each: 64 KiB of a multiprocessor are so under way, more than twice what its
// share of the bandwidth of an H200 takes at a latency of 0.8 us.
constexpr int kRowsInFlight = 8;
// Tiles of fewer threads would have too few of them to look rows up.
constexpr int32_t kLanesMin = 8;

struct PooledRows {
  const float* weights;
  const int32_t* inverse;
  const std::byte* const* rows;
};

// What a tile shares, an array of the block cut into the parts of tiles.
struct PoolMemory {
  TileTerm* terms;
  int32_t* ends;
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
        width_(RowTiles::Width(feature.dim, column)) {}

  // Output rows [first, first + n), n in [1, tile.lanes].
  __device__ void Pool(int64_t first, int32_t n) {
    const bool pooled = feature_.pooling != Pooling::kNone;
    const int64_t begin = pooled ? bags_[first] : bags_[0] + first;
    // Where the lookups of each output row end, counted from `begin`.
    if (tile_.lane < n) {
      memory_.ends[tile_.lane] =
          pooled ? static_cast<int32_t>(bags_[first + tile_.lane + 1] - begin) : tile_.lane + 1;
    }
    tile_.Sync();
    const int32_t lookups = memory_.ends[n - 1];
    float* output = feature_.data + first * feature_.stride + column_;
    int32_t row = 0;  // the output row that is being summed
    int32_t row_begin = 0;
    int32_t row_end = memory_.ends[0];
    float4 sum = make_float4(0, 0, 0, 0);
    const auto end_row = [&] {
      Store(row_end - row_begin, sum, output);
      output += feature_.stride;
      row_begin = row_end;
      if (++row < n) row_end = memory_.ends[row];
      sum = make_float4(0, 0, 0, 0);
    };
    const auto add = [&](int32_t k, float weight, float4 x) {
      while (k == row_end) end_row();  // rows of no lookups follow it
      sum = AddTerm(k == row_begin, weight, x, sum);
    };
    const auto at = [&](const TileTerm& term) {
      return term.row + column_ * static_cast<int32_t>(WeightBytes(kPrecision));
    };
    for (int32_t base = 0; base < lookups; base += tile_.lanes) {
      const int32_t count = min(lookups - base, tile_.lanes);
      bool aligned = true;
      if (tile_.lane < count) {
        const int64_t j = begin + base + tile_.lane;
        const std::byte* const at_row = rows_.rows[rows_.inverse[j]];
        memory_.terms[tile_.lane] = {at_row, rows_.weights == nullptr ? 1.0f : rows_.weights[j], 0};
        // A quad is where its row is.
        aligned = reinterpret_cast<uintptr_t>(at_row) % kQuadBytes<kPrecision> == 0;
      }
      const bool all_aligned = tile_.Ballot(!aligned) == 0;
      tile_.Sync();
      if (width_ == RowTiles::kColumns && all_aligned) {
        for (int32_t i = 0; i < count; i += kRowsInFlight) {
          float4 x[kRowsInFlight];
#pragma unroll
          for (int q = 0; q < kRowsInFlight; ++q) {
            if (i + q < count) x[q] = LoadWholeQuad<kPrecision>(at(memory_.terms[i + q]));
          }
#pragma unroll
          for (int q = 0; q < kRowsInFlight; ++q) {
            if (i + q < count) add(base + i + q, memory_.terms[i + q].scale, x[q]);
          }
        }
      } else if (width_ > 0) {
#pragma unroll 2
        for (int32_t i = 0; i < count; ++i) {
          const TileTerm& term = memory_.terms[i];
          add(base + i, term.scale, LoadQuadByWeights<kPrecision>(at(term), width_));
        }
      }
      tile_.Sync();  // before the terms are written over
    }
    while (width_ > 0 && row < n) end_row();
    tile_.Sync();  // before the ends are
  }

 private:
  __device__ void Store(int32_t length, float4 sum, float* output) const {
    if (feature_.pooling == Pooling::kMean && length > 1) {
      const auto divisor = static_cast<float>(length);
      sum = make_float4(sum.x / divisor, sum.y / divisor, sum.z / divisor, sum.w / divisor);
    }
    StoreQuad(sum, output, width_);
  }

  const TileThreads& tile_;
  const PoolMemory& memory_;
  const PooledRows& rows_;
  const JaggedFeature& feature_;
  const int64_t* const bags_;
  const int32_t column_;
  const int32_t width_;  // of the thread's columns
};

// The tiles of blockIdx.x: one for each block of columns of `bags_per_tile` bags, or fewer where
// they are long.
template <WeightsPrecision kPrecision>
__device__ void PoolFeature(const JaggedFeature& feature, int64_t batch_size, int64_t bags_per_tile,
                            const int64_t* bags, const PooledRows& rows,
                            const PoolMemory& of_block) {
  const RowTiles tiles = RowTiles::For(feature.dim, kLanesMin);
  const TileThreads tile(tiles.lanes);
  const PoolMemory memory = {tile.Part(of_block.terms), tile.Part(of_block.ends)};
  const int64_t lookups = bags[batch_size] - bags[0];
  int64_t outputs = lookups;
  int64_t each = min(bags_per_tile, static_cast<int64_t>(tiles.lanes));
  if (feature.pooling != Pooling::kNone) {
    outputs = batch_size;
    // About a lookup a thread, so that a few long bags are not one tile's.
    const int64_t hotness = lookups / batch_size;
    if (hotness > 1) each = max(min(each, tiles.lanes / hotness), int64_t{1});
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
  __shared__ TileTerm terms[kThreadsPerBlock];
  __shared__ int32_t ends[kThreadsPerBlock];
  const JaggedFeature& feature = features.v[blockIdx.y];
  const int64_t* const bags = offsets + static_cast<int64_t>(blockIdx.y) * batch_size;
  const auto pool = [&](auto precision) {
    PoolFeature<precision()>(feature, batch_size, bags_per_tile, bags, rows, {terms, ends});
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
  return ForEachChunk<
      FeatureChunk>(args.features, [&](const FeatureChunk& chunk, int64_t first) -> absl::Status {
    const int64_t bags_per_tile = std::clamp(args.batch_size * chunk.size / tiles_wanted,
                                             int64_t{1}, int64_t{RowTiles::kLanesMax});
    const unsigned blocks = FeatureGridBlocks(chunk, args.batch_size, kLanesMin, bags_per_tile);
    const PooledRows rows = {args.weights, args.inverse, args.rows};
    PoolKernel<<<dim3(blocks, static_cast<unsigned>(chunk.size)), kThreadsPerBlock, 0, stream>>>(
        chunk, args.batch_size, bags_per_tile, args.offsets + first * args.batch_size, rows);
    return LastLaunch("PooledLookup");
  });
}

}  // namespace hotrow::internal
