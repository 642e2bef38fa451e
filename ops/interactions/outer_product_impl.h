#ifndef HOTROW_OPS_INTERACTIONS_OUTER_PRODUCT_IMPL_H_
#define HOTROW_OPS_INTERACTIONS_OUTER_PRODUCT_IMPL_H_

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/thread_pool.h"
#include "ops/interactions/outer_product.h"

namespace hotrow::internal {

absl::Status OuterProductCpu(ThreadPool* pool, const OuterProductArgs& args);
absl::Status OuterProductGradCpu(ThreadPool* pool, const OuterProductGradArgs& args);
absl::Status OuterProductCuda(CudaStream stream, const OuterProductArgs& args);
absl::Status OuterProductGradCuda(CudaStream stream, const OuterProductGradArgs& args);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_INTERACTIONS_OUTER_PRODUCT_IMPL_H_
