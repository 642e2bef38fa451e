#ifndef HOTROW_OPS_LAYERS_SILU_H_
#define HOTROW_OPS_LAYERS_SILU_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"

// What an HSTU does number by number: silu(x) = x / (1 + exp(-x)), and products of rows. On the CPU
// only; the bits do not depend on ctx.pool.

namespace hotrow {

// Dimensions: N rows of C columns, of a stride >= C (floats).
struct SiluArgs {
  int64_t num_rows = 0;      // N
  int32_t columns = 0;       // C >= 1
  const float* x = nullptr;  // [N, C]
  int64_t x_stride = 0;
  float* output = nullptr;  // [N, C], overwritten; may be x, of the same stride
  int64_t output_stride = 0;

  absl::Status Validate() const;
};
absl::Status Silu(const ExecContext& ctx, const SiluArgs& args);

struct SiluGradArgs {
  int64_t num_rows = 0;
  int32_t columns = 0;
  const float* x = nullptr;  // Silu's
  int64_t x_stride = 0;
  float* gradient = nullptr;  // [N, C], that of the output; replaced by that of x
  int64_t gradient_stride = 0;

  absl::Status Validate() const;
};
absl::Status SiluGrad(const ExecContext& ctx, const SiluGradArgs& args);

// output = a o b.
struct RowProductsArgs {
  int64_t num_rows = 0;
  int32_t columns = 0;
  const float* a = nullptr;
  int64_t a_stride = 0;
  const float* b = nullptr;
  int64_t b_stride = 0;
  float* output = nullptr;  // overwritten; may be a or b, of the same stride
  int64_t output_stride = 0;

  absl::Status Validate() const;
};
absl::Status RowProducts(const ExecContext& ctx, const RowProductsArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_LAYERS_SILU_H_
