#ifndef HOTROW_OPS_UPDATE_FUSED_SPARSE_UPDATE_H_
#define HOTROW_OPS_UPDATE_FUSED_SPARSE_UPDATE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/jagged.h"
#include "ops/rows/row_layout.h"
#include "ops/update/sparse_optimizer.h"

namespace hotrow {

// The rows of a table among those of a batch, and how they move.
struct FusedTable {
  SparseOptimizerConfig config;
  const RowLayout* layout = nullptr;
  int64_t row_begin = 0;  // rows [row_begin, row_end) of the batch
  int64_t row_end = 0;
  int64_t num_lookups = 0;  // of these rows, or an upper bound of it
  uint32_t table = 0;       // as in SparseUpdateArgs
};

// Dimensions: F features, B samples, N lookups, U unique rows.
//
// Memory is as in GradientSegmentSumArgs: arrays lie where the device reaches them, spans and what
// they hold in host memory, read before the call returns.
struct FusedSparseUpdateArgs {
  std::span<const JaggedFeature> features;  // [F]; data holds the gradient of the pooled output
  int64_t batch_size = 0;                   // B
  const int64_t* offsets = nullptr;         // [F*B + 1], as in PooledLookup
  const float* weights = nullptr;           // [N] or null
  const int32_t* inverse = nullptr;         // [N]      the row of each lookup
  const int64_t* row_offsets = nullptr;     // [U + 1]  from Partition(inverse); no row is empty
  const int32_t* lookup_order = nullptr;    // [N]      from Partition(inverse)
  int64_t num_rows = 0;                     // U
  int64_t num_lookups = 0;                  // N, or an upper bound of it

  // Tables in the order of their rows, which do not overlap. Rows of no table stay as they are.
  std::span<const FusedTable> tables;
  std::byte* const* rows = nullptr;  // [U], as in SparseUpdateArgs, as are those that follow
  float learning_rate_factor = 1;
  uint32_t step = 0;
  uint64_t seed = 0;
  const uint64_t* keys = nullptr;  // [U]; needed where a table has weights of 16 bits
  int64_t* new_rows = nullptr;
  // Null, or one number: where it is not 0, nothing changes (ops/training/loss_scale.h).
  const uint32_t* skip = nullptr;

  std::byte* workspace = nullptr;  // FusedSparseUpdateWorkspaceBytes(...), 64-byte aligned
  int64_t workspace_bytes = 0;

  absl::Status Validate() const;
};

int64_t FusedSparseUpdateWorkspaceBytes(int64_t num_features, int64_t num_lookups, int32_t dim_max);

// GradientSegmentSum, then SparseUpdate of each table, in one pass over the lookups of a row: no
// array of the gradients of rows is written and read again. The same bits as the two of them give
// on the device.
//
// For a CUDA device. Unimplemented on the CPU, which has the two (so a caller can look at gradients
// in between), and for WeightDecayMode::kTable.
absl::Status FusedSparseUpdate(const ExecContext& ctx, const FusedSparseUpdateArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_UPDATE_FUSED_SPARSE_UPDATE_H_
