#ifndef HOTROW_OPS_LAYERS_CROSSING_H_
#define HOTROW_OPS_LAYERS_CROSSING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"

// x_0 o t + x, element by element: what a cross layer does with its map t of x.
//
// All pointers are memory of ctx.device. On a CUDA device work is enqueued on ctx.stream; nothing
// is allocated and nothing waited for. Products and sums are rounded one by one on all devices, so
// the bits are those of the CPU.

namespace hotrow {

// Dimensions: B samples of W columns. Strides are in floats from row to row, >= W.
struct CrossingArgs {
  int64_t batch_size = 0;  // B
  int32_t width = 0;       // W >= 1
  const float* x0 = nullptr;
  int64_t x0_stride = 0;
  const float* t = nullptr;
  int64_t t_stride = 0;
  const float* x = nullptr;
  int64_t x_stride = 0;
  float* output = nullptr;  // overwritten; must not overlap an input
  int64_t output_stride = 0;

  absl::Status Validate() const;
};
// output = x0 o t + x.
absl::Status Crossing(const ExecContext& ctx, const CrossingArgs& args);

struct CrossingGradArgs {
  int64_t batch_size = 0;
  int32_t width = 0;
  const float* x0 = nullptr;
  int64_t x0_stride = 0;
  const float* t = nullptr;
  int64_t t_stride = 0;
  const float* output_gradient = nullptr;
  int64_t output_gradient_stride = 0;
  // Each is overwritten and must overlap neither an input nor another one; null: not wanted.
  float* x0_gradient = nullptr;  // output_gradient o t
  int64_t x0_gradient_stride = 0;
  float* t_gradient = nullptr;  // output_gradient o x0
  int64_t t_gradient_stride = 0;
  float* x_gradient = nullptr;  // output_gradient
  int64_t x_gradient_stride = 0;

  absl::Status Validate() const;
};
absl::Status CrossingGrad(const ExecContext& ctx, const CrossingGradArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_LAYERS_CROSSING_H_
