#ifndef HOTROW_OPS_DROPOUT_IMPL_H_
#define HOTROW_OPS_DROPOUT_IMPL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/thread_pool.h"
#include "ops/dropout.h"

namespace hotrow::internal {

absl::Status DropoutCpu(ThreadPool* pool, const DropoutArgs& args);

// Rows [begin, end) of args.data, on this thread. Does not validate.
void DropoutRowsCpu(const DropoutArgs& args, int64_t begin, int64_t end);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_DROPOUT_IMPL_H_
