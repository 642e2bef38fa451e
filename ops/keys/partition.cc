#include "ops/keys/partition.h"

#include <limits>

#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/keys/partition_impl.h"
#include "ops/validate.h"

namespace hotrow {

absl::Status PartitionArgs::Validate(Device device) const {
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
  return internal::CheckWorkspace(kOp, workspace, workspace_bytes,
                                  PartitionWorkspaceBytes(device, num_items, num_parts));
}

int64_t PartitionWorkspaceBytes(Device device, int64_t num_items, int64_t num_parts) {
  return device == Device::kCpu ? 0
                                : internal::PartitionCudaLayout::For(num_items, num_parts).bytes;
}

absl::Status Partition(const ExecContext& ctx, const PartitionArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate(ctx.device));
  return internal::Dispatch(
      ctx, [&] { return internal::PartitionCpu(ctx, args); },
      [&](auto stream) { return internal::PartitionCuda(args, stream); });
}

}  // namespace hotrow
