#ifndef HOTROW_OPS_LAYERS_SILU_IMPL_H_
#define HOTROW_OPS_LAYERS_SILU_IMPL_H_

#include "absl/status/status.h"
#include "base/thread_pool.h"
#include "ops/layers/silu.h"

namespace hotrow::internal {

absl::Status SiluCpu(ThreadPool* pool, const SiluArgs& args);
absl::Status SiluGradCpu(ThreadPool* pool, const SiluGradArgs& args);
absl::Status RowProductsCpu(ThreadPool* pool, const RowProductsArgs& args);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_LAYERS_SILU_IMPL_H_
