#ifndef HOTROW_OPS_LAYERS_TARGET_ATTENTION_H_
#define HOTROW_OPS_LAYERS_TARGET_ATTENTION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"

// What target attention does beside its MLP: rows of each sample beside a target, weighted sums of
// rows, and their gradients.
//
// All pointers are memory of ctx.device. On a CUDA device work is enqueued on ctx.stream; nothing
// is allocated and nothing waited for. Sums over the rows of a sample go in their order, and each
// product and each sum is rounded, so the bits are those of the CPU, but for the dot products over
// the columns of a row (WeightedRowSumGradArgs::weight_gradient), which a GPU adds up in another
// order, the same each time.

namespace hotrow {

// Dimensions: B samples, N rows of D columns, end to end. Rows of sample b: those of offsets[b] -
// offsets[0] up to offsets[b + 1] - offsets[0]. Shared rows are those of one sample, [N / B, D],
// which all samples have: offsets count them once for each, and so do arrays of N other numbers.
struct JaggedRows {
  int64_t batch_size = 0;            // B
  int32_t dim = 0;                   // D >= 1
  const float* rows = nullptr;       // [N, D]; null: no rows
  const int64_t* offsets = nullptr;  // [B + 1], non-decreasing
  bool shared = false;               // not in gradients

  absl::Status Validate(const char* op) const;
};
// Arrays of N rows may be null where there are none, which Validate() cannot see: on a CUDA device
// the offsets are there.

// A row h and the target t of its sample: pairs = [h, t, h - t, h o t].
struct TargetPairsArgs {
  JaggedRows rows;
  const float* target = nullptr;  // [B, D], row stride target_stride (floats)
  int64_t target_stride = 0;      // >= D
  float* pairs = nullptr;         // [N, 4 D], overwritten; must not overlap an input

  absl::Status Validate() const;
};
absl::Status TargetPairs(const ExecContext& ctx, const TargetPairsArgs& args);

struct WeightedRowSumArgs {
  JaggedRows rows;
  const float* weights = nullptr;  // [N]; null: ones
  float* output = nullptr;         // [B, D], overwritten; must not overlap an input
  int64_t output_stride = 0;       // >= D

  absl::Status Validate() const;
};
// output[b] = the sum of weights[j] rows[j] over its rows; of none zeros.
absl::Status WeightedRowSum(const ExecContext& ctx, const WeightedRowSumArgs& args);

struct RowWeightGradArgs {
  JaggedRows rows;
  const float* output_gradient = nullptr;  // [B, D], of WeightedRowSum
  int64_t output_gradient_stride = 0;      // >= D
  float* weight_gradient = nullptr;        // [N], overwritten

  absl::Status Validate() const;
};
// weight_gradient[j] = output_gradient[b] . rows[j], for the sample b of row j.
absl::Status RowWeightGrad(const ExecContext& ctx, const RowWeightGradArgs& args);

struct RowSumGradArgs {
  JaggedRows rows;                         // only how they are shared out is read
  const float* output_gradient = nullptr;  // [B, D]
  int64_t output_gradient_stride = 0;      // >= D
  float* row_gradient = nullptr;           // [N, D], added to

  absl::Status Validate() const;
};
// row_gradient[j] += output_gradient[b]: of WeightedRowSum without weights.
absl::Status RowSumGrad(const ExecContext& ctx, const RowSumGradArgs& args);

struct TargetAttentionGradArgs {
  JaggedRows rows;
  const float* weights = nullptr;          // [N]
  const float* target = nullptr;           // [B, D]
  int64_t target_stride = 0;               // >= D
  const float* pair_gradient = nullptr;    // [N, 4 D]: g_0, g_1, g_2, g_3
  const float* output_gradient = nullptr;  // [B, D], of WeightedRowSum
  int64_t output_gradient_stride = 0;      // >= D
  float* row_gradient = nullptr;           // [N, D], added to
  float* target_gradient = nullptr;        // [B, D], overwritten; null: not wanted
  int64_t target_gradient_stride = 0;      // >= D

  absl::Status Validate() const;
};
// Gradients of row j, h, of a sample with the target t and output gradient dy:
//   row_gradient[j]    += weights[j] dy + g_0 + g_2 + t o g_3
//   target_gradient[b]  = sum_j g_1 - g_2 + h o g_3
absl::Status TargetAttentionGrad(const ExecContext& ctx, const TargetAttentionGradArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_LAYERS_TARGET_ATTENTION_H_
