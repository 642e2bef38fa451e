#ifndef HOTROW_OPS_BCE_LOSS_H_
#define HOTROW_OPS_BCE_LOSS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"

namespace hotrow {

struct BceWithLogitsArgs {
  const float* logits = nullptr;  // [B]
  const float* labels = nullptr;  // [B], each in [0, 1]
  int64_t batch_size = 0;         // B
  float* gradient = nullptr;      // [B] or null: d(mean loss)/d(logit) = (sigmoid(x) - y) / B
  double* loss = nullptr;  // mean over the batch, summed in double in sample order; 0 when B = 0

  absl::Status Validate() const;
};

// loss = max(x, 0) - x*y + log(1 + exp(-|x|)): the form that neither overflows nor cancels.
absl::Status BceWithLogits(const ExecContext& ctx, const BceWithLogitsArgs& args);

// 1 / (1 + exp(-x)), exact at both ends.
double Sigmoid(double x);

}  // namespace hotrow

#endif  // HOTROW_OPS_BCE_LOSS_H_
