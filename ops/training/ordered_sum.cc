#include "ops/training/ordered_sum.h"

#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/training/ordered_sum_impl.h"
#include "ops/validate.h"

namespace hotrow {

absl::Status OrderedSumArgs::Validate() const {
  constexpr char kOp[] = "OrderedSum";
  if (num_parts < 1) return internal::InvalidField(kOp, "num_parts", "must be >= 1", num_parts);
  if (size < 0) return internal::InvalidField(kOp, "size", "must be >= 0", size);
  if (size == 0) return absl::OkStatus();
  if (stride < size) return internal::InvalidField(kOp, "stride", "must be >= size", stride);
  if (parts == nullptr) return internal::NullField(kOp, "parts");
  if (sum == nullptr) return internal::NullField(kOp, "sum");
  return absl::OkStatus();
}

absl::Status OrderedSum(const ExecContext& ctx, const OrderedSumArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::OrderedSumCpu(ctx, args); },
      [&](auto stream) { return internal::OrderedSumCuda(args, stream); });
}

}  // namespace hotrow
