#ifndef HOTROW_OPS_BCE_LOSS_IMPL_H_
#define HOTROW_OPS_BCE_LOSS_IMPL_H_

#include "absl/status/status.h"
#include "base/thread_pool.h"
#include "ops/bce_loss.h"

namespace hotrow::internal {

absl::Status BceWithLogitsCpu(ThreadPool* pool, const BceWithLogitsArgs& args);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_BCE_LOSS_IMPL_H_
