#ifndef HOTROW_OPS_LAYERS_LINEAR_TERM_H_
#define HOTROW_OPS_LAYERS_LINEAR_TERM_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/device.h"
#include "base/exec_context.h"

// A linear term of a logit and a bias. All pointers are memory of ctx.device. On a CUDA device work
// is enqueued on ctx.stream; nothing is allocated and nothing waited for.

namespace hotrow {

// Dimensions: B samples of C columns.
struct LinearTermArgs {
  int64_t batch_size = 0;          // B
  int64_t columns = 0;             // C >= 1
  const float* x = nullptr;        // [B, C], row stride x_stride (floats)
  int64_t x_stride = 0;            // >= C
  const float* weights = nullptr;  // [C]
  float* output = nullptr;         // [B], output_stride floats apart; must not overlap an input
  int64_t output_stride = 1;       // >= 1

  absl::Status Validate() const;
};
// output[b] = ((0 + x[b, 0] weights[0]) + x[b, 1] weights[1]) + ..., each product and each sum
// rounded, on all devices.
absl::Status LinearTerm(const ExecContext& ctx, const LinearTermArgs& args);

struct LinearTermInputGradArgs {
  int64_t batch_size = 0;
  int64_t columns = 0;
  const float* weights = nullptr;          // [C]
  const float* output_gradient = nullptr;  // [B], output_gradient_stride floats apart
  int64_t output_gradient_stride = 1;      // >= 1
  float* x_gradient = nullptr;             // [B, C], overwritten
  int64_t x_gradient_stride = 0;           // >= C

  absl::Status Validate() const;
};
// x_gradient[b, i] = output_gradient[b] weights[i].
absl::Status LinearTermInputGrad(const ExecContext& ctx, const LinearTermInputGradArgs& args);

// The bytes that LinearTermWeightGrad, and with one column BiasGrad, need; 0 on the CPU.
int64_t LinearTermWorkspaceBytes(Device device, int64_t batch_size, int64_t columns);

struct LinearTermWeightGradArgs {
  int64_t batch_size = 0;
  int64_t columns = 0;
  const float* x = nullptr;  // [B, C], row stride x_stride
  int64_t x_stride = 0;
  const float* output_gradient = nullptr;  // [B], output_gradient_stride floats apart
  int64_t output_gradient_stride = 1;      // >= 1
  float* weight_gradient = nullptr;        // [C], overwritten; zeros of an empty batch
  std::byte* workspace = nullptr;          // aligned to 64 bytes; null where none is needed
  int64_t workspace_bytes = 0;             // at least LinearTermWorkspaceBytes

  absl::Status Validate() const;
};
// weight_gradient[i] = sum over b of output_gradient[b] x[b, i]: on the CPU in the order of b. On a
// CUDA device sums of chunks of samples are summed, in an order that follows from B alone: equal
// inputs give equal bits there, which differ from the CPU's by the rounding of sums.
absl::Status LinearTermWeightGrad(const ExecContext& ctx, const LinearTermWeightGradArgs& args);

struct BiasGradArgs {
  int64_t batch_size = 0;
  const float* output_gradient = nullptr;  // [B], output_gradient_stride floats apart
  int64_t output_gradient_stride = 1;      // >= 1
  float* bias_gradient = nullptr;          // one number, overwritten; zero of an empty batch
  std::byte* workspace = nullptr;          // as LinearTermWeightGradArgs, with one column
  int64_t workspace_bytes = 0;

  absl::Status Validate() const;
};
// bias_gradient = the sum of output_gradient, in the orders of LinearTermWeightGrad.
absl::Status BiasGrad(const ExecContext& ctx, const BiasGradArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_LAYERS_LINEAR_TERM_H_
