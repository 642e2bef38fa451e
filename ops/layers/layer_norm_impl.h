#ifndef HOTROW_OPS_LAYERS_LAYER_NORM_IMPL_H_
#define HOTROW_OPS_LAYERS_LAYER_NORM_IMPL_H_

#include "absl/status/status.h"
#include "base/thread_pool.h"
#include "ops/layers/layer_norm.h"

namespace hotrow::internal {

absl::Status LayerNormCpu(ThreadPool* pool, const LayerNormArgs& args);
absl::Status LayerNormGradCpu(ThreadPool* pool, const LayerNormGradArgs& args);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_LAYERS_LAYER_NORM_IMPL_H_
