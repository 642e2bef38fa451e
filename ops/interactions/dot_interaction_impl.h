#ifndef HOTROW_OPS_INTERACTIONS_DOT_INTERACTION_IMPL_H_
#define HOTROW_OPS_INTERACTIONS_DOT_INTERACTION_IMPL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/macros.h"
#include "base/thread_pool.h"
#include "ops/interactions/dot_interaction.h"

namespace hotrow::internal {

absl::Status DotInteractionCpu(ThreadPool* pool, const DotInteractionArgs& args);
absl::Status DotInteractionGradCpu(ThreadPool* pool, const DotInteractionGradArgs& args);
absl::Status DotInteractionCuda(CudaStream stream, const DotInteractionArgs& args);
absl::Status DotInteractionGradCuda(CudaStream stream, const DotInteractionGradArgs& args);

// The column of the first product.
HOTROW_HOST_DEVICE inline int32_t FirstProduct(const DotInteractionArgs& args) {
  return args.copies_dense ? args.dim : 0;
}

// The pair (i, j), i > j, is column PairPlace(i, j) of the products.
HOTROW_HOST_DEVICE constexpr int64_t PairPlace(int64_t i, int64_t j) { return i * (i - 1) / 2 + j; }

// The pair at each place, for one who walks up the places.
struct PairWalk {
  int64_t i = 1;
  int64_t j = 0;
  // place is not lower than in the call before.
  HOTROW_HOST_DEVICE constexpr void MoveTo(int64_t place) {
    while (PairPlace(i + 1, 0) <= place) ++i;
    j = place - PairPlace(i, 0);
  }
};

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_INTERACTIONS_DOT_INTERACTION_IMPL_H_
