#include "ops/jagged_impl.h"
#include "ops/launch_impl.cuh"
#include "ops/pooled_lookup.h"
#include "ops/pooled_lookup_impl.h"
#include "ops/row_sum_impl.cuh"

namespace hotrow::internal {
namespace {

// Of a multiprocessor, at least: bounds the registers of a thread to 64.
constexpr int kBlocksPerProcessor = 4;
constexpr int kRowsInFlight = 4;  // of a thread; bags are short, and more would cost registers

// The tiles of blockIdx.x: one for each bag and block of columns. `bags` are the feature's.
template <WeightsPrecision kPrecision>
__device__ void PoolFeature(const JaggedFeature& feature, int64_t batch_size, const int64_t* bags,
                            const float* weights, const int32_t* inverse,
                            const std::byte* const* rows) {
  const RowTiles tiles = RowTiles::For(feature.dim);
  const auto term = [&](int64_t j) {
    return DeviceScaledRow{rows[inverse[j]], weights == nullptr ? 1.0f : weights[j]};
  };
  const int64_t items = batch_size * tiles.blocks;
  for (int64_t i = tiles.Tile(GridThread()); i < items; i += tiles.Tile(GridThreads())) {
    const int64_t b = tiles.blocks == 1 ? i : i / tiles.blocks;
    const int64_t column =
        tiles.Column(i - b * tiles.blocks, static_cast<int32_t>(threadIdx.x) & (tiles.lanes - 1));
    const int32_t width = RowTiles::Width(feature.dim, column);
    if (width == 0) continue;
    if (feature.pooling == Pooling::kNone) {
      // Lookups are dealt to the tiles one by one, so that long bags do not fall to one of them.
      const int64_t n = bags[batch_size] - bags[0];
      for (int64_t k = b; k < n; k += batch_size) {
        const int64_t j = bags[0] + k;
        const float4 x =
            SumQuads<1, kPrecision>(1, column, width, [&](int64_t) { return term(j); });
        StoreQuad(x, feature.data + k * feature.stride + column, width);
      }
      continue;
    }
    const int64_t begin = bags[b];
    const int64_t length = bags[b + 1] - begin;
    float4 sum = SumQuads<kRowsInFlight, kPrecision>(length, column, width,
                                                     [&](int64_t k) { return term(begin + k); });
    if (feature.pooling == Pooling::kMean && length > 1) {
      const auto divisor = static_cast<float>(length);
      sum = make_float4(sum.x / divisor, sum.y / divisor, sum.z / divisor, sum.w / divisor);
    }
    StoreQuad(sum, feature.data + b * feature.stride + column, width);
  }
}

// blockIdx.y is the feature. `offsets` begins at the first feature of the chunk.
__global__ void __launch_bounds__(kThreadsPerBlock, kBlocksPerProcessor)
    PoolKernel(const __grid_constant__ FeatureChunk features, int64_t batch_size,
               const int64_t* offsets, const float* weights, const int32_t* inverse,
               const std::byte* const* rows) {
  const JaggedFeature& feature = features.v[blockIdx.y];
  const int64_t* const bags = offsets + static_cast<int64_t>(blockIdx.y) * batch_size;
  // The same way for all threads of a block.
  switch (feature.precision) {
    case WeightsPrecision::kFp32:
      return PoolFeature<WeightsPrecision::kFp32>(feature, batch_size, bags, weights, inverse,
                                                  rows);
    case WeightsPrecision::kFp16:
      return PoolFeature<WeightsPrecision::kFp16>(feature, batch_size, bags, weights, inverse,
                                                  rows);
    case WeightsPrecision::kBf16:
      return PoolFeature<WeightsPrecision::kBf16>(feature, batch_size, bags, weights, inverse,
                                                  rows);
  }
}

}  // namespace

absl::Status PooledLookupCuda(const PooledLookupArgs& args, CudaStream stream) {
  return ForEachChunk<FeatureChunk>(
      args.features, [&](const FeatureChunk& chunk, int64_t first) -> absl::Status {
        const dim3 grid(FeatureGridBlocks(chunk, args.batch_size),
                        static_cast<unsigned>(chunk.size));
        PoolKernel<<<grid, kThreadsPerBlock, 0, stream>>>(chunk, args.batch_size,
                                                          args.offsets + first * args.batch_size,
                                                          args.weights, args.inverse, args.rows);
        return LastLaunch("PooledLookup");
      });
}

}  // namespace hotrow::internal
