#ifndef HOTROW_OPS_LAYERS_GATED_EXPERTS_IMPL_H_
#define HOTROW_OPS_LAYERS_GATED_EXPERTS_IMPL_H_

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/thread_pool.h"
#include "ops/layers/gated_experts.h"

namespace hotrow::internal {

absl::Status GatedExpertsCpu(ThreadPool* pool, const GatedExpertsArgs& args);
absl::Status GatedExpertsGradCpu(ThreadPool* pool, const GatedExpertsGradArgs& args);
absl::Status GatedExpertsCuda(CudaStream stream, const GatedExpertsArgs& args);
absl::Status GatedExpertsGradCuda(CudaStream stream, const GatedExpertsGradArgs& args);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_LAYERS_GATED_EXPERTS_IMPL_H_
