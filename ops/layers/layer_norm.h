#ifndef HOTROW_OPS_LAYERS_LAYER_NORM_H_
#define HOTROW_OPS_LAYERS_LAYER_NORM_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"

// Layer normalization (Ba, Kiros & Hinton 2016, arXiv 1607.06450): each row by the mean and the
// variance of its own columns, so that it does not matter which rows stand beside it.
//
// On the CPU only. The bits do not depend on ctx.pool: sums over a row go in the order of its
// columns, those over rows are of kLayerNormBlockRows rows first and then of the blocks in order.

namespace hotrow {

inline constexpr int64_t kLayerNormBlockRows = 256;
inline constexpr double kLayerNormEpsilon = 1e-5;

// Dimensions: N rows of C columns, of a stride >= C (floats).
//   y = gamma o (x - mean) / sqrt(variance + kLayerNormEpsilon) + beta
struct LayerNormArgs {
  int64_t num_rows = 0;      // N
  int32_t columns = 0;       // C >= 1
  const float* x = nullptr;  // [N, C]
  int64_t x_stride = 0;
  const float* gamma = nullptr;  // [C]
  const float* beta = nullptr;   // [C]
  float* output = nullptr;       // [N, C], overwritten
  int64_t output_stride = 0;

  absl::Status Validate() const;
};
absl::Status LayerNorm(const ExecContext& ctx, const LayerNormArgs& args);

// What LayerNormGrad needs.
int64_t LayerNormGradWorkspaceBytes(int64_t num_rows, int32_t columns);

struct LayerNormGradArgs {
  int64_t num_rows = 0;
  int32_t columns = 0;
  const float* x = nullptr;  // those of LayerNorm
  int64_t x_stride = 0;
  const float* gamma = nullptr;
  const float* output_gradient = nullptr;  // [N, C]
  int64_t output_gradient_stride = 0;
  float* x_gradient = nullptr;  // [N, C], overwritten; may be output_gradient, of the same stride
  int64_t x_gradient_stride = 0;
  float* gamma_gradient = nullptr;  // [C], overwritten; zeros for N = 0
  float* beta_gradient = nullptr;   // [C], the same
  std::byte* workspace = nullptr;   // aligned to 64 bytes
  int64_t workspace_bytes = 0;      // at least LayerNormGradWorkspaceBytes

  absl::Status Validate() const;
};
absl::Status LayerNormGrad(const ExecContext& ctx, const LayerNormGradArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_LAYERS_LAYER_NORM_H_
