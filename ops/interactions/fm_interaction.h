#ifndef HOTROW_OPS_INTERACTIONS_FM_INTERACTION_H_
#define HOTROW_OPS_INTERACTIONS_FM_INTERACTION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"

namespace hotrow {

// FmInteractionArgs::first_order_column: there is no first-order part.
inline constexpr int32_t kNoFirstOrder = -1;

// Dimensions: B samples, S fields of field_stride columns each, end to end. The first D columns of
// a field are its vector v_s; one of the others may be its first-order weight w_s.
struct FmInteractionArgs {
  int64_t batch_size = 0;         // B
  int32_t num_fields = 0;         // S > 0
  int32_t dim = 0;                // D > 0
  int32_t field_stride = 0;       // >= D
  const float* fields = nullptr;  // [B, S * field_stride], row stride fields_stride (floats)
  int64_t fields_stride = 0;
  int32_t first_order_column = kNoFirstOrder;  // of each field, in [D, field_stride)
  // [B], output_stride floats from one to the next, overwritten; must not overlap the input.
  float* output = nullptr;
  int64_t output_stride = 1;  // >= 1

  absl::Status Validate() const;
};

// The interactions of a factorization machine (Rendle 2010, "Factorization Machines", lemma 3.1)
// for fields that are looked up, so that their features are 1: all pairwise dot products of a
// sample's vectors, in linear time,
//   output[b] = sum_s w_s + 1/2 sum_d ((sum_s v_sd)^2 - sum_s v_sd^2).
// The order of sums depends on D and S alone, so results depend neither on threads nor on the
// batch, and are the same on a CUDA device, whose memory the arrays then are.
absl::Status FmInteraction(const ExecContext& ctx, const FmInteractionArgs& args);

struct FmInteractionGradArgs {
  FmInteractionArgs forward;               // inputs of the forward pass; output is not read
  const float* output_gradient = nullptr;  // [B], output_gradient_stride floats apart
  int64_t output_gradient_stride = 1;      // >= 1
  // [B, S * field_stride], row stride fields_gradient_stride. All columns of a field are
  // overwritten; columns that are neither vector nor first-order weight get zeros.
  float* fields_gradient = nullptr;
  int64_t fields_gradient_stride = 0;

  absl::Status Validate() const;
};
// d(loss)/d(v_s) = output_gradient (sum_t v_t - v_s), d(loss)/d(w_s) = output_gradient.
absl::Status FmInteractionGrad(const ExecContext& ctx, const FmInteractionGradArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_INTERACTIONS_FM_INTERACTION_H_
