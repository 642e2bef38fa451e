#ifndef HOTROW_OPS_INTERACTIONS_FM_INTERACTION_IMPL_H_
#define HOTROW_OPS_INTERACTIONS_FM_INTERACTION_IMPL_H_

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/thread_pool.h"
#include "ops/interactions/fm_interaction.h"

namespace hotrow::internal {

absl::Status FmInteractionCpu(ThreadPool* pool, const FmInteractionArgs& args);
absl::Status FmInteractionGradCpu(ThreadPool* pool, const FmInteractionGradArgs& args);
absl::Status FmInteractionCuda(CudaStream stream, const FmInteractionArgs& args);
absl::Status FmInteractionGradCuda(CudaStream stream, const FmInteractionGradArgs& args);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_INTERACTIONS_FM_INTERACTION_IMPL_H_
