#ifndef HOTROW_OPS_JAGGED_IMPL_H_
#define HOTROW_OPS_JAGGED_IMPL_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/exec_context.h"
#include "base/math.h"
#include "ops/jagged.h"
#include "ops/launch_impl.h"
#include "ops/rows/row_tiles_impl.h"
#include "ops/validate.h"

namespace hotrow::internal {

// What PooledLookup and its gradient both ask of a batch.
inline absl::Status ValidateJagged(std::string_view op, std::span<const JaggedFeature> features,
                                   int64_t batch_size, const int64_t* offsets) {
  if (batch_size < 0) return InvalidField(op, "batch_size", "must be >= 0", batch_size);
  for (size_t f = 0; f < features.size(); ++f) {
    const JaggedFeature& feature = features[f];
    const auto field = [f](const char* name) { return absl::StrCat("features[", f, "].", name); };
    if (feature.dim <= 0) return InvalidField(op, field("dim"), "must be > 0", feature.dim);
    if (feature.stride < feature.dim) {
      return InvalidField(op, field("stride"), absl::StrCat("must be >= dim = ", feature.dim),
                          feature.stride);
    }
    // Without pooling there is a row for each lookup, and there may be none.
    if (feature.data == nullptr && batch_size > 0 && feature.pooling != Pooling::kNone) {
      return NullField(op, field("data"));
    }
  }
  if (!features.empty() && batch_size > 0 && offsets == nullptr) return NullField(op, "offsets");
  return absl::OkStatus();
}

// The check of `data` that ValidateJagged cannot make: it reads offsets, which lie on the device.
inline absl::Status CheckUnpooledData(std::string_view op, std::span<const JaggedFeature> features,
                                      int64_t batch_size, const int64_t* offsets) {
  for (size_t f = 0; f < features.size(); ++f) {
    const int64_t* const bags = offsets + static_cast<int64_t>(f) * batch_size;
    if (features[f].data == nullptr && bags[0] < bags[batch_size]) {
      return NullField(op, absl::StrCat("features[", f, "].data"));
    }
  }
  return absl::OkStatus();
}

// As many features as one launch of a kernel takes.
using FeatureChunk = ParameterChunk<JaggedFeature>;

// Blocks in x of a grid whose y is the feature and whose x walks tiles of at least lanes_min
// threads: one for each block of columns of bags_per_tile bags. Enough for the feature that needs
// most.
inline unsigned FeatureGridBlocks(const FeatureChunk& features, int64_t batch_size,
                                  int32_t lanes_min, int64_t bags_per_tile) {
  unsigned blocks = 1;
  for (int32_t f = 0; f < features.size; ++f) {
    const RowTiles tiles = RowTiles::For(features.v[f].dim, lanes_min);
    blocks = std::max(blocks, GridBlocks(CeilDiv(batch_size, bags_per_tile) * tiles.blocks,
                                         kThreadsPerBlock / tiles.lanes));
  }
  return blocks;
}

// Calls body(f, begin, end) for blocks of samples [begin, end) of each feature, in parallel.
template <typename Body>
void ForEachSampleBlock(const ExecContext& ctx, int64_t num_features, int64_t batch_size,
                        Body&& body) {
  constexpr int64_t kSamplesPerBlock =
      256;  // tens of microseconds of work even with one lookup each
  const int64_t blocks = CeilDiv(batch_size, kSamplesPerBlock);
  ParallelFor(ctx.pool, num_features * blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = i % blocks * kSamplesPerBlock;
      body(i / blocks, sample, std::min(sample + kSamplesPerBlock, batch_size));
    }
  });
}

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_JAGGED_IMPL_H_
