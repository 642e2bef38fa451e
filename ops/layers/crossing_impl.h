#ifndef HOTROW_OPS_LAYERS_CROSSING_IMPL_H_
#define HOTROW_OPS_LAYERS_CROSSING_IMPL_H_

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/thread_pool.h"
#include "ops/layers/crossing.h"

namespace hotrow::internal {

absl::Status CrossingCpu(ThreadPool* pool, const CrossingArgs& args);
absl::Status CrossingGradCpu(ThreadPool* pool, const CrossingGradArgs& args);
absl::Status CrossingCuda(CudaStream stream, const CrossingArgs& args);
absl::Status CrossingGradCuda(CudaStream stream, const CrossingGradArgs& args);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_LAYERS_CROSSING_IMPL_H_
