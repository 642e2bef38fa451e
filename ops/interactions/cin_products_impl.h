#ifndef HOTROW_OPS_INTERACTIONS_CIN_PRODUCTS_IMPL_H_
#define HOTROW_OPS_INTERACTIONS_CIN_PRODUCTS_IMPL_H_

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/thread_pool.h"
#include "ops/interactions/cin_products.h"

namespace hotrow::internal {

absl::Status TransposeFieldsCpu(ThreadPool* pool, const TransposeFieldsArgs& args);
absl::Status CinProductsCpu(ThreadPool* pool, const CinProductsArgs& args);
absl::Status CinProductsGradCpu(ThreadPool* pool, const CinProductsGradArgs& args);
absl::Status CinSumCpu(ThreadPool* pool, const CinSumArgs& args);
absl::Status CinSumGradCpu(ThreadPool* pool, const CinSumGradArgs& args);
absl::Status TransposeFieldsCuda(CudaStream stream, const TransposeFieldsArgs& args);
absl::Status CinProductsCuda(CudaStream stream, const CinProductsArgs& args);
absl::Status CinProductsGradCuda(CudaStream stream, const CinProductsGradArgs& args);
absl::Status CinSumCuda(CudaStream stream, const CinSumArgs& args);
absl::Status CinSumGradCuda(CudaStream stream, const CinSumGradArgs& args);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_INTERACTIONS_CIN_PRODUCTS_IMPL_H_
