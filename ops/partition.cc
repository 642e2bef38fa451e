#include "ops/partition.h"

#include <limits>

#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/no_cuda.h"
#include "ops/partition_impl.h"
#include "ops/validate.h"

namespace hotrow {

absl::Status PartitionArgs::Validate() const {
  constexpr char kOp[] = "Partition";
  if (num_items < 0 || num_items > std::numeric_limits<int32_t>::max()) {
    return internal::InvalidField(kOp, "num_items", "must lie in [0, 2^31 - 1]", num_items);
  }
  if (num_parts < 0 || (num_parts == 0 && num_items > 0)) {
    return internal::InvalidField(kOp, "num_parts", "must be >= 0, and > 0 when there are items",
                                  num_parts);
  }
  if (offsets == nullptr) return internal::NullField(kOp, "offsets");
  if (num_items == 0) return absl::OkStatus();
  if (part == nullptr) return internal::NullField(kOp, "part");
  if (order == nullptr) return internal::NullField(kOp, "order");
  return absl::OkStatus();
}

absl::Status Partition(const ExecContext& ctx, const PartitionArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  return internal::Dispatch(
      ctx, [&] { return internal::PartitionCpu(ctx, args); },
      [&](auto) { return internal::NoCudaKernel("Partition"); });
}

}  // namespace hotrow
