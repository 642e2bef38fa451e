#ifndef HOTROW_OPS_TRAINING_ORDERED_SUM_H_
#define HOTROW_OPS_TRAINING_ORDERED_SUM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"

// Sums of arrays in a stated order. On a CUDA device all pointers are memory that the device
// reaches.

namespace hotrow {

// Dimensions: P parts of N floats.
struct OrderedSumArgs {
  const float* parts = nullptr;  // [P, stride]: part p at parts + p * stride
  int64_t num_parts = 0;         // P >= 1
  int64_t stride = 0;            // >= N
  int64_t size = 0;              // N
  float* sum = nullptr;          // [N]; must not overlap the parts

  absl::Status Validate() const;
};

// sum[i] = ((part 0 + part 1) + part 2) + ... of element i, each addition rounded once: what
// Communicator::AllReduceSum makes of the parts of as many ranks.
absl::Status OrderedSum(const ExecContext& ctx, const OrderedSumArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_TRAINING_ORDERED_SUM_H_
