#include "ops/rows/pooled_lookup.h"

#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/jagged_impl.h"
#include "ops/rows/pooled_lookup_impl.h"
#include "ops/validate.h"

namespace hotrow {

absl::Status PooledLookupArgs::Validate() const {
  // inverse and rows may be null when there are no lookups; how many there are stands on the
  // device.
  for (const JaggedFeature& feature : features) {
    if (!adds || feature.pooling == Pooling::kSum) continue;
    return absl::InvalidArgumentError("PooledLookup: adds needs Pooling::kSum");
  }
  return internal::ValidateJagged("PooledLookup", features, batch_size, offsets);
}

absl::Status PooledLookup(const ExecContext& ctx, const PooledLookupArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.adds && ctx.device != Device::kCpu) {
    return absl::UnimplementedError("PooledLookup: adds is for the CPU");
  }
  if (args.features.empty() || args.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::PooledLookupCpu(ctx, args); },
      [&](auto stream) { return internal::PooledLookupCuda(args, stream); });
}

}  // namespace hotrow
