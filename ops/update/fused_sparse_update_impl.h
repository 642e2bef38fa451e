#ifndef HOTROW_OPS_UPDATE_FUSED_SPARSE_UPDATE_IMPL_H_
#define HOTROW_OPS_UPDATE_FUSED_SPARSE_UPDATE_IMPL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/math.h"
#include "ops/jagged.h"
#include "ops/update/fused_sparse_update.h"
#include "ops/update/gradient_segment_sum_impl.h"

namespace hotrow::internal {

// A feature as kernels find it in the workspace, with any number of features.
struct PlacedFeature {
  JaggedFeature feature;
  int64_t begin;    // its first lookup
  int64_t hotness;  // of a bag on average, rounded down, at least 1: where to look for a bag first
};

// The workspace: PlacedFeature[F], then the sums of the runs of hot rows.
struct FusedWorkspace {
  int64_t sums_offset;  // in bytes
  int64_t sums_stride;  // of a slot, in floats: whole quads
  int64_t bytes;

  static constexpr FusedWorkspace For(int64_t num_features, int64_t num_lookups, int32_t dim_max) {
    constexpr int64_t kAlignment = 64;
    const int64_t offset =
        RoundUp(num_features * static_cast<int64_t>(sizeof(PlacedFeature)), kAlignment);
    const int64_t stride = RoundUp(dim_max, 4);
    return {offset, stride,
            offset + HotRowRun::Slots(num_lookups) * stride * static_cast<int64_t>(sizeof(float))};
  }
};

// Neighbouring tables whose rows one launch updates: equal but for their number.
struct FusedTables {
  std::span<const FusedTable> tables;
  int64_t num_lookups = 0;  // an upper bound

  int64_t row_begin() const { return tables.front().row_begin; }
  int64_t row_end() const { return tables.back().row_end; }
};
// All tables that have rows, in order, `most` at a time.
std::vector<FusedTables> GroupTables(std::span<const FusedTable> tables, int64_t num_lookups,
                                     int64_t most);

absl::Status FusedSparseUpdateCuda(const FusedSparseUpdateArgs& args, CudaStream stream);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_UPDATE_FUSED_SPARSE_UPDATE_IMPL_H_
