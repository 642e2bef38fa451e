#ifndef HOTROW_OPS_DENSE_OPTIMIZER_IMPL_H_
#define HOTROW_OPS_DENSE_OPTIMIZER_IMPL_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/thread_pool.h"
#include "ops/dense_optimizer.h"

namespace hotrow::internal {

absl::Status DenseUpdateCpu(ThreadPool* pool, const DenseOptimizerConfig& config,
                            std::span<const DenseTensor> tensors, float learning_rate_factor,
                            uint32_t step);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_DENSE_OPTIMIZER_IMPL_H_
