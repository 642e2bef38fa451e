#ifndef HOTROW_OPS_TRAINING_GRADIENT_NORM_H_
#define HOTROW_OPS_TRAINING_GRADIENT_NORM_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/exec_context.h"

namespace hotrow {

// On a CUDA device gradients, norm, scale and workspace are device memory.
struct GradientNormArgs {
  std::span<const float> gradients;  // [n]
  double norm_max = 0;               // > 0
  double* norm = nullptr;            // [1] the Euclidean norm
  // [1] what shortens the gradients to norm_max where they are longer, as a factor of DenseUpdate;
  // otherwise 1, also where the norm is not a number.
  float* scale = nullptr;
  std::byte* workspace = nullptr;  // aligned to 64 bytes; null where none is needed
  int64_t workspace_bytes = 0;     // at least GradientNormWorkspaceBytes

  absl::Status Validate() const;
};

int64_t GradientNormWorkspaceBytes(Device device, int64_t n);  // 0 on the CPU

// The norm of gradients, and what clips them, without a wait: DenseUpdate reads the scale where it
// lies. Squares are added in double, in an order that depends on n alone. The orders of the two
// devices differ, so norms do in their last places.
absl::Status GradientNorm(const ExecContext& ctx, const GradientNormArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_TRAINING_GRADIENT_NORM_H_
