#ifndef HOTROW_OPS_LAYERS_BATCH_NORM_H_
#define HOTROW_OPS_LAYERS_BATCH_NORM_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"

// Batch normalization in steps, so that a caller with a slice of a batch can add up the sums of the
// slices between them:
//   training:    BatchNormSums, (sums of slices), BatchNormMoments, BatchNorm;
//                BatchNormGradSums, (sums of slices), BatchNormInputGrad; BatchNormEndStep
//   evaluation:  BatchNormRunning, BatchNorm
//
// All pointers are memory of ctx.device. On a CUDA device work is enqueued on ctx.stream; nothing
// is allocated and nothing waited for.
//
// Bits: sums over the batch are double, of kBatchNormBlockRows rows first and then of the blocks in
//       order, so they follow from B alone. Within a block the CPU goes row by row. A CUDA device
//       gives eight threads every eighth row each, adds up the eight, and adds up the blocks in the
//       same way: its sums are other doubles, by the rounding of sums. From equal sums, numbers are
//       equal on all devices.

namespace hotrow {

inline constexpr int64_t kBatchNormBlockRows = 256;
inline constexpr double kBatchNormEpsilon = 1e-5;

// Dimensions: B samples of H columns, in rows of a stride >= H (floats). The arrays of a column:
struct BatchNormScale {  // [H] each
  float* mean = nullptr;
  float* inverse_deviation = nullptr;  // 1 / sqrt(variance + kBatchNormEpsilon)
};

// What BatchNormSums and BatchNormGradSums need, on either device.
int64_t BatchNormWorkspaceBytes(int64_t batch_size, int64_t columns);

struct BatchNormSumsArgs {
  int64_t batch_size = 0;  // B
  int32_t columns = 0;     // H >= 1
  const float* x = nullptr;
  int64_t x_stride = 0;
  double* sums = nullptr;          // [2 H]: of each column, and of its squares; zeros for B = 0
  std::byte* workspace = nullptr;  // aligned to 64 bytes
  int64_t workspace_bytes = 0;     // at least BatchNormWorkspaceBytes

  absl::Status Validate() const;
};
absl::Status BatchNormSums(const ExecContext& ctx, const BatchNormSumsArgs& args);

struct BatchNormMomentsArgs {
  int32_t columns = 0;
  const double* sums = nullptr;  // [2 H]
  int64_t samples = 0;           // over all slices; >= 0
  double* moments = nullptr;     // [2 H]: mean, then variance over `samples`
  BatchNormScale scale;          // from those

  absl::Status Validate() const;
};
// Means and variances of no samples are 0.
absl::Status BatchNormMoments(const ExecContext& ctx, const BatchNormMomentsArgs& args);

struct BatchNormRunningArgs {
  int32_t columns = 0;
  const float* mean = nullptr;      // [H]
  const float* variance = nullptr;  // [H]
  BatchNormScale scale;

  absl::Status Validate() const;
};
// The scale of running statistics.
absl::Status BatchNormRunning(const ExecContext& ctx, const BatchNormRunningArgs& args);

struct BatchNormArgs {
  int64_t batch_size = 0;
  int32_t columns = 0;
  bool relu = false;
  const float* x = nullptr;
  int64_t x_stride = 0;
  BatchNormScale scale;          // only read
  const float* gamma = nullptr;  // [H]
  const float* beta = nullptr;   // [H]
  float* output = nullptr;       // [B, H], overwritten; must not overlap an input
  int64_t output_stride = 0;

  absl::Status Validate() const;
};
// output = gamma ((x - mean) inverse_deviation) + beta, then ReLU. A NaN stays one.
absl::Status BatchNorm(const ExecContext& ctx, const BatchNormArgs& args);

struct BatchNormGradSumsArgs {
  BatchNormArgs forward;  // inputs of the forward pass; output is not read
  const float* output_gradient = nullptr;
  int64_t output_gradient_stride = 0;
  double* sums = nullptr;      // [2 H]: of gradient and normalized x, then of the gradient
  float* gradients = nullptr;  // [2 H]: of gamma, then of beta, which are those sums
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;

  absl::Status Validate() const;
};
// Sums of the gradient of gamma xhat + beta, which is 0 where ReLU gave 0.
absl::Status BatchNormGradSums(const ExecContext& ctx, const BatchNormGradSumsArgs& args);

struct BatchNormInputGradArgs {
  BatchNormArgs forward;
  const float* output_gradient = nullptr;
  int64_t output_gradient_stride = 0;
  const double* sums = nullptr;  // BatchNormGradSums, over all slices
  int64_t samples = 0;           // over all slices
  float* x_gradient = nullptr;   // [B, H], overwritten; must not overlap an input
  int64_t x_gradient_stride = 0;

  absl::Status Validate() const;
};
// With xhat the normalized x, g the gradient of gamma xhat + beta and mean() over the whole batch:
//   x_gradient = gamma inverse_deviation (g - mean(g) - xhat mean(g xhat))
absl::Status BatchNormInputGrad(const ExecContext& ctx, const BatchNormInputGradArgs& args);

struct BatchNormEndStepArgs {
  int32_t columns = 0;
  int64_t samples = 0;              // of the moments; 0: nothing changes
  const double* moments = nullptr;  // BatchNormMoments
  double momentum = 0;              // [0, 1]
  float* mean = nullptr;            // [H], running
  float* variance = nullptr;        // [H], running

  absl::Status Validate() const;
};
// Moves running statistics by `momentum` towards the moments, the variance towards that over
// samples - 1.
absl::Status BatchNormEndStep(const ExecContext& ctx, const BatchNormEndStepArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_LAYERS_BATCH_NORM_H_
