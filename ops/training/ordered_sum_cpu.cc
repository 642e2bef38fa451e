#include "base/thread_pool.h"
#include "ops/training/ordered_sum_impl.h"

namespace hotrow::internal {

absl::Status OrderedSumCpu(const ExecContext& ctx, const OrderedSumArgs& args) {
  constexpr int64_t kGrain = 4096;
  ParallelFor(ctx.pool, args.size, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) args.sum[i] = SumOfElement(args, i);
  });
  return absl::OkStatus();
}

}  // namespace hotrow::internal
