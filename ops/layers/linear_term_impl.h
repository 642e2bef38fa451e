#ifndef HOTROW_OPS_LAYERS_LINEAR_TERM_IMPL_H_
#define HOTROW_OPS_LAYERS_LINEAR_TERM_IMPL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/thread_pool.h"
#include "ops/layers/linear_term.h"

namespace hotrow::internal {

// How a GPU sums over the samples. One thread sums kTermChunkRows of them in one column, sample
// after sample. Lane l of a warp takes the sums of the chunks l, l + 32 ... in
// order, and the lanes' sums are added in a tree. All of that follows from B alone.
inline constexpr int64_t kTermChunkRows = 32;

absl::Status LinearTermCpu(ThreadPool* pool, const LinearTermArgs& args);
absl::Status LinearTermInputGradCpu(ThreadPool* pool, const LinearTermInputGradArgs& args);
absl::Status LinearTermWeightGradCpu(ThreadPool* pool, const LinearTermWeightGradArgs& args);
absl::Status BiasGradCpu(const BiasGradArgs& args);
absl::Status LinearTermCuda(CudaStream stream, const LinearTermArgs& args);
absl::Status LinearTermInputGradCuda(CudaStream stream, const LinearTermInputGradArgs& args);
absl::Status LinearTermWeightGradCuda(CudaStream stream, const LinearTermWeightGradArgs& args);
absl::Status BiasGradCuda(CudaStream stream, const BiasGradArgs& args);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_LAYERS_LINEAR_TERM_IMPL_H_
