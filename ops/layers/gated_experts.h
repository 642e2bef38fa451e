#ifndef HOTROW_OPS_LAYERS_GATED_EXPERTS_H_
#define HOTROW_OPS_LAYERS_GATED_EXPERTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/macros.h"

// The vectors of experts, each times its share, which is the softmax of the numbers of a gate.
//
// All pointers are memory of ctx.device. On a CUDA device work is enqueued on ctx.stream; nothing
// is allocated and nothing waited for.
//
// Bits: on either device results of a sample depend on that sample alone, and equal inputs give
//       equal bits. A GPU has its own exponential, which may be another float than the CPU's,
//       one or two roundings off, and adds what softmax and dot products add in another order; all
//       else is the same.

namespace hotrow {

enum class GatedOutput : uint8_t {
  kSum,     // [B, D]: sum_e share_e x_e, in the order of experts
  kScaled,  // [B, E D]: share_e x_e of each expert, end to end
};

// Dimensions: B samples, E experts, D columns of each. share_e = exp(gate_e - m) / sum, with m the
// largest number of the sample's gate; a NaN in a gate makes all shares of its sample NaN.
struct GatedExpertsArgs {
  GatedOutput kind = GatedOutput::kSum;
  int64_t batch_size = 0;       // B
  int32_t num_experts = 0;      // E >= 1
  int32_t dim = 0;              // D >= 1; E D <= 2^31 - 1
  const float* gate = nullptr;  // [B, E], row stride gate_stride (floats)
  int64_t gate_stride = 0;      // >= E
  const float* x = nullptr;     // [B, E D], one expert after the other
  int64_t x_stride = 0;         // >= E D
  float* output = nullptr;      // overwritten; must not overlap an input
  int64_t output_stride = 0;    // >= the columns of `kind`

  HOTROW_HOST_DEVICE int64_t columns() const { return int64_t{num_experts} * dim; }
  int64_t output_columns() const { return kind == GatedOutput::kSum ? dim : columns(); }
  absl::Status Validate() const;
};
absl::Status GatedExperts(const ExecContext& ctx, const GatedExpertsArgs& args);

struct GatedExpertsGradArgs {
  GatedExpertsArgs forward;                // inputs of the forward pass; output is not read
  const float* output_gradient = nullptr;  // shaped as the output
  int64_t output_gradient_stride = 0;
  // Each is overwritten and must overlap neither an input nor the other; null: not wanted.
  float* gate_gradient = nullptr;  // [B, E]
  int64_t gate_gradient_stride = 0;
  float* x_gradient = nullptr;  // [B, E D]
  int64_t x_gradient_stride = 0;

  absl::Status Validate() const;
};
// With g_e the gradient of what x_e is in (output_gradient, or the part of it that is expert e's)
// and d_e = g_e . x_e:
//   x_gradient_e = share_e g_e,   gate_gradient_e = share_e (d_e - sum_i share_i d_i)
absl::Status GatedExpertsGrad(const ExecContext& ctx, const GatedExpertsGradArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_LAYERS_GATED_EXPERTS_H_
