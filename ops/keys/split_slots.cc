#include "ops/keys/split_slots.h"

#include <cstdint>
#include <limits>

#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/keys/split_slots_impl.h"
#include "ops/validate.h"

namespace hotrow {

absl::Status SplitSlotsArgs::Validate(Device device) const {
  constexpr char kOp[] = "SplitSlots";
  if (num_keys < 0 || num_keys > std::numeric_limits<int32_t>::max()) {
    return internal::InvalidField(kOp, "num_keys", "must lie in [0, 2^31 - 1]", num_keys);
  }
  if (totals == nullptr) return internal::NullField(kOp, "totals");
  if (rows != nullptr) {
    if (num_tables <= 0) {
      return internal::InvalidField(kOp, "num_tables", "must be > 0", num_tables);
    }
    if (found_of_table == nullptr) return internal::NullField(kOp, "found_of_table");
    if (found_keys == nullptr) return internal::NullField(kOp, "found_keys");
    if (found_positions == nullptr) return internal::NullField(kOp, "found_positions");
    if (found_rows == nullptr) return internal::NullField(kOp, "found_rows");
  }
  if (num_keys == 0) return absl::OkStatus();
  if (keys == nullptr) return internal::NullField(kOp, "keys");
  if (counts == nullptr) return internal::NullField(kOp, "counts");
  if (slots == nullptr) return internal::NullField(kOp, "slots");
  if (hit_slots == nullptr) return internal::NullField(kOp, "hit_slots");
  if (miss_keys == nullptr) return internal::NullField(kOp, "miss_keys");
  static_assert(sizeof(RowKey) == 16);
  if (const auto misaligned = reinterpret_cast<uintptr_t>(miss_keys) % sizeof(RowKey);
      misaligned != 0) {
    return internal::InvalidField(kOp, "miss_keys", "must be aligned to 16 bytes",
                                  absl::StrCat("an address that is off by ", misaligned));
  }
  if (miss_counts == nullptr) return internal::NullField(kOp, "miss_counts");
  if (miss_positions == nullptr) return internal::NullField(kOp, "miss_positions");
  return internal::CheckWorkspace(kOp, workspace, workspace_bytes,
                                  SplitSlotsWorkspaceBytes(num_keys, device));
}

int64_t SplitSlotsWorkspaceBytes(int64_t num_keys, Device device) {
  return device == Device::kCpu ? 0 : internal::SplitSlotsCudaLayout::For(num_keys).bytes;
}

absl::Status SplitSlots(const ExecContext& ctx, const SplitSlotsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate(ctx.device));
  return internal::Dispatch(
      ctx, [&] { return internal::SplitSlotsCpu(ctx, args); },
      [&](auto stream) { return internal::SplitSlotsCuda(args, stream); });
}

}  // namespace hotrow
