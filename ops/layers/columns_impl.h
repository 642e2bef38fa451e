#ifndef HOTROW_OPS_LAYERS_COLUMNS_IMPL_H_
#define HOTROW_OPS_LAYERS_COLUMNS_IMPL_H_

#include <span>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/thread_pool.h"
#include "ops/layers/columns.h"

namespace hotrow::internal {

absl::Status MoveColumnsCpu(ThreadPool* pool, const MoveColumnsArgs& args);
absl::Status SumColumnsCpu(ThreadPool* pool, const SumColumnsArgs& args);
absl::Status MoveColumnsCuda(CudaStream stream, std::span<const MoveColumnsArgs> moves);
absl::Status SumColumnsCuda(CudaStream stream, const SumColumnsArgs& args);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_LAYERS_COLUMNS_IMPL_H_
