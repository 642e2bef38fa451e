#ifndef HOTROW_OPS_LAYERS_TARGET_ATTENTION_IMPL_H_
#define HOTROW_OPS_LAYERS_TARGET_ATTENTION_IMPL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/macros.h"
#include "base/thread_pool.h"
#include "ops/layers/target_attention.h"

namespace hotrow::internal {

// Rows of sample b.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t shift = 0;  // row j lies at j - shift
};
HOTROW_HOST_DEVICE inline RowRange RowsOf(const JaggedRows& rows, int64_t b) {
  const int64_t begin = rows.offsets[b] - rows.offsets[0];
  return {begin, rows.offsets[b + 1] - rows.offsets[0], rows.shared ? begin : 0};
}

absl::Status TargetPairsCpu(ThreadPool* pool, const TargetPairsArgs& args);
absl::Status WeightedRowSumCpu(ThreadPool* pool, const WeightedRowSumArgs& args);
absl::Status RowWeightGradCpu(ThreadPool* pool, const RowWeightGradArgs& args);
absl::Status RowSumGradCpu(ThreadPool* pool, const RowSumGradArgs& args);
absl::Status TargetAttentionGradCpu(ThreadPool* pool, const TargetAttentionGradArgs& args);
absl::Status TargetPairsCuda(CudaStream stream, const TargetPairsArgs& args);
absl::Status WeightedRowSumCuda(CudaStream stream, const WeightedRowSumArgs& args);
absl::Status RowWeightGradCuda(CudaStream stream, const RowWeightGradArgs& args);
absl::Status RowSumGradCuda(CudaStream stream, const RowSumGradArgs& args);
absl::Status TargetAttentionGradCuda(CudaStream stream, const TargetAttentionGradArgs& args);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_LAYERS_TARGET_ATTENTION_IMPL_H_
