#ifndef HOTROW_OPS_TRAINING_ORDERED_SUM_IMPL_H_
#define HOTROW_OPS_TRAINING_ORDERED_SUM_IMPL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/macros.h"
#include "ops/training/ordered_sum.h"

namespace hotrow::internal {

HOTROW_HOST_DEVICE inline float SumOfElement(const OrderedSumArgs& args, int64_t i) {
  float sum = args.parts[i];
  for (int64_t p = 1; p < args.num_parts; ++p) sum += args.parts[p * args.stride + i];
  return sum;
}

absl::Status OrderedSumCpu(const ExecContext& ctx, const OrderedSumArgs& args);
absl::Status OrderedSumCuda(const OrderedSumArgs& args, CudaStream stream);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_TRAINING_ORDERED_SUM_IMPL_H_
