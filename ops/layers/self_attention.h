#ifndef HOTROW_OPS_LAYERS_SELF_ATTENTION_H_
#define HOTROW_OPS_LAYERS_SELF_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/layers/target_attention.h"

// What a transformer over histories does beside its linear maps: a history and its target as one
// sequence, attention of the rows of a sequence to each other, and the row that stands for it. Rows
// of all samples lie end to end, so nothing is padded to the longest.
//
// On the CPU only. Samples are shared out over ctx.pool and each is worked on by one thread, in the
// order of its rows; so the bits do not depend on the pool. Nothing is allocated.

namespace hotrow {

// --- a history and its target as one sequence ---

// Dimensions: B samples, N rows of D columns, end to end (JaggedRows). Sequences have N + B rows:
// those of sample b are its rows, then its target, from row offsets[b] - offsets[0] + b on.
// A row is numbered by its distance from the target, which has number 0; numbers above P - 1 count
// as P - 1. So a row's number does not depend on how long its history is.
struct AppendTargetArgs {
  JaggedRows rows;                   // may be shared
  const float* target = nullptr;     // [B, D], row stride target_stride (floats)
  int64_t target_stride = 0;         // >= D
  const float* positions = nullptr;  // [P, D], row stride position_stride: added to rows by number
  int64_t position_stride = 0;       // >= D
  int64_t num_positions = 0;         // P >= 1
  float* output = nullptr;           // [N + B, D], overwritten; must not overlap an input
  int64_t output_stride = 0;         // >= D

  absl::Status Validate() const;
};
absl::Status AppendTarget(const ExecContext& ctx, const AppendTargetArgs& args);

struct AppendTargetGradArgs {
  JaggedRows rows;                         // only how they are shared out is read
  const float* output_gradient = nullptr;  // [N + B, D]
  int64_t output_gradient_stride = 0;      // >= D
  float* row_gradient = nullptr;           // [N, D], added to
  float* target_gradient = nullptr;        // [B, D], overwritten; null: not wanted
  int64_t target_gradient_stride = 0;      // >= D
  float* position_gradient = nullptr;    // [P, D], overwritten; its sums go by sample, then by row
  int64_t position_gradient_stride = 0;  // >= D
  int64_t num_positions = 0;             // P

  absl::Status Validate() const;
};
absl::Status AppendTargetGrad(const ExecContext& ctx, const AppendTargetGradArgs& args);

// The last row of each sample; of none zeros.
struct LastRowArgs {
  JaggedRows rows;            // not shared
  float* output = nullptr;    // [B, D], overwritten
  int64_t output_stride = 0;  // >= D

  absl::Status Validate() const;
};
absl::Status LastRow(const ExecContext& ctx, const LastRowArgs& args);

struct LastRowGradArgs {
  JaggedRows rows;                         // only how they are shared out is read
  const float* output_gradient = nullptr;  // [B, D]
  int64_t output_gradient_stride = 0;      // >= D
  float* row_gradient = nullptr;           // [N, D], overwritten

  absl::Status Validate() const;
};
absl::Status LastRowGrad(const ExecContext& ctx, const LastRowGradArgs& args);

// --- self-attention ---

enum class AttentionKind : uint8_t {
  kSoftmax,  // a_ij = exp(s_ij) / sum_k exp(s_ik): BST (Chen et al. 2019, arXiv 1905.06874)
  kSilu,     // a_ij = silu(s_ij) / length_bound: HSTU (Zhai et al. 2024, arXiv 2402.17152)
};

// Dimensions: B samples, N rows of H heads of D columns each, end to end; the rows of sample b are
// those of offsets[b] - offsets[0] up to offsets[b + 1] - offsets[0]. In each head, for the rows i
// and j of one sample:
//   s_ij = scale q_i . k_j + position_bias(i - j),   y_i = sum_j a_ij v_j
// over all j, or with `causal` over j <= i.
struct SelfAttentionArgs {
  AttentionKind kind = AttentionKind::kSoftmax;
  bool causal = false;
  int64_t batch_size = 0;            // B
  int32_t num_heads = 0;             // H >= 1
  int32_t head_dim = 0;              // D >= 1
  float scale = 1;                   // of dot products; 1 / sqrt(D) in transformers
  float length_bound = 1;            // > 0; kSilu: the most rows of a sample, of any batch
  const int64_t* offsets = nullptr;  // [B + 1], non-decreasing
  const float* queries = nullptr;    // [N, H D], row_stride floats from row to row, as keys and
  const float* keys = nullptr;       // values have, so that all three may be one product
  const float* values = nullptr;
  int64_t row_stride = 0;  // >= H D
  // Null: none. The same for all heads: [2 P - 1], of the distance i - j = -(P - 1), ..., P - 1;
  // what is further counts as that far.
  const float* position_bias = nullptr;
  int64_t num_positions = 0;  // P >= 1, with position_bias
  float* output = nullptr;    // [N, H D], overwritten; must not overlap an input
  int64_t output_stride = 0;  // >= H D
  // [N, H], overwritten with log(sum_j exp(s_ij)), which the gradient reads; null: not wanted. Not
  // with kSilu.
  float* normalizers = nullptr;

  absl::Status Validate() const;
};
absl::Status SelfAttention(const ExecContext& ctx, const SelfAttentionArgs& args);

// What SelfAttentionGrad needs. num_positions: 0 without position_bias.
int64_t SelfAttentionGradWorkspaceBytes(int64_t batch_size, int64_t num_positions);

// The gradients of queries, keys and values lie as these do. Weights are made again, from scores.
struct SelfAttentionGradArgs {
  SelfAttentionArgs forward;               // with its output; kSoftmax: and normalizers
  const float* output_gradient = nullptr;  // [N, H D]
  int64_t output_gradient_stride = 0;      // >= H D
  float* query_gradient = nullptr;         // [N, H D] each, overwritten
  float* key_gradient = nullptr;
  float* value_gradient = nullptr;
  int64_t gradient_stride = 0;              // >= H D
  float* position_bias_gradient = nullptr;  // [2 P - 1], overwritten, with position_bias
  std::byte* workspace = nullptr;           // aligned to 64 bytes
  int64_t workspace_bytes = 0;              // at least SelfAttentionGradWorkspaceBytes

  absl::Status Validate() const;
};
absl::Status SelfAttentionGrad(const ExecContext& ctx, const SelfAttentionGradArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_LAYERS_SELF_ATTENTION_H_
