#ifndef HOTROW_OPS_DOT_INTERACTION_IMPL_H_
#define HOTROW_OPS_DOT_INTERACTION_IMPL_H_

#include "absl/status/status.h"
#include "base/thread_pool.h"
#include "ops/dot_interaction.h"

namespace hotrow::internal {

absl::Status DotInteractionCpu(ThreadPool* pool, const DotInteractionArgs& args);
absl::Status DotInteractionGradCpu(ThreadPool* pool, const DotInteractionGradArgs& args);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_DOT_INTERACTION_IMPL_H_
