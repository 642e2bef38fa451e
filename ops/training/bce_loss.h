#ifndef HOTROW_OPS_TRAINING_BCE_LOSS_H_
#define HOTROW_OPS_TRAINING_BCE_LOSS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"

namespace hotrow {

inline constexpr int64_t kBceChunkSamples = 256;

// On a CUDA device logits, labels, gradient, loss and workspace are device memory.
struct BceWithLogitsArgs {
  const float* logits = nullptr;  // [B]; of logits, labels and gradient every stride-th is taken
  // [B], each in [0, 1]. The CPU checks them; the error names the sample. On CUDA, which does not
  // wait for a result, a label outside makes the loss NaN.
  const float* labels = nullptr;
  int64_t batch_size = 0;     // B
  float* gradient = nullptr;  // [B] or null: weight * d(mean loss)/d(logit)
                              //   = weight * ((sigmoid(x) - y) / M)
  // M >= B, the size of the global batch of which this is a slice: gradients are then those of the
  // mean over the global batch. 0: M = B.
  int64_t mean_over = 0;
  int64_t stride = 1;  // >= 1
  double weight = 1;   // of the gradient; finite
  // Mean over these B samples, with any mean_over; 0 when B = 0. Summed in double: in sample
  // order within chunks of kBceChunkSamples, then over the chunks in order, so it does not depend
  // on threads.
  double* loss = nullptr;
  uint32_t* lost = nullptr;        // CUDA: null, or set to 1 where the loss is not finite
  std::byte* workspace = nullptr;  // aligned to 64 bytes; null where none is needed
  int64_t workspace_bytes = 0;     // at least BceWithLogitsWorkspaceBytes

  absl::Status Validate() const;
};

int64_t BceWithLogitsWorkspaceBytes(Device device, int64_t batch_size);  // 0 on the CPU

// loss = max(x, 0) - x*y + log(1 + exp(-|x|)), which neither overflows nor cancels. CUDA sums in
// the same order; its exp and log may differ from the CPU's by a few units in the last place of a
// double, and so may loss and gradients (before they are rounded to floats).
absl::Status BceWithLogits(const ExecContext& ctx, const BceWithLogitsArgs& args);

// 1 / (1 + exp(-x)), exact at both ends.
double Sigmoid(double x);

}  // namespace hotrow

#endif  // HOTROW_OPS_TRAINING_BCE_LOSS_H_
