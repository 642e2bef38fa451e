#ifndef HOTROW_OPS_BCE_LOSS_H_
#define HOTROW_OPS_BCE_LOSS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"

namespace hotrow {

inline constexpr int64_t kBceChunkSamples = 256;

struct BceWithLogitsArgs {
  const float* logits = nullptr;  // [B]
  const float* labels = nullptr;  // [B], each in [0, 1]: checked, and the error names the sample
  int64_t batch_size = 0;         // B
  float* gradient = nullptr;      // [B] or null: d(mean loss)/d(logit) = (sigmoid(x) - y) / M
  // M, if not 0: at least B, the size of the global batch of which this is a slice, so that the
  // gradients of all slices are those of the mean over the global batch. 0: M = B.
  int64_t mean_over = 0;
  // Mean over these B samples, whatever mean_over says; 0 when B = 0. Summed in double: in sample
  // order within chunks of kBceChunkSamples, then over the chunks in order, so it does not depend
  // on threads.
  double* loss = nullptr;

  absl::Status Validate() const;
};

// loss = max(x, 0) - x*y + log(1 + exp(-|x|)): the form that neither overflows nor cancels.
absl::Status BceWithLogits(const ExecContext& ctx, const BceWithLogitsArgs& args);

// 1 / (1 + exp(-x)), exact at both ends.
double Sigmoid(double x);

}  // namespace hotrow

#endif  // HOTROW_OPS_BCE_LOSS_H_
