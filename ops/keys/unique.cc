#include "ops/keys/unique.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/keys/unique_impl.h"
#include "ops/validate.h"

namespace hotrow {

absl::Status UniqueArgs::Validate(Device device) const {
  constexpr char kOp[] = "Unique";
  if (num_values < 0 || num_values > std::numeric_limits<int32_t>::max()) {
    return internal::InvalidField(kOp, "num_values", "must lie in [0, 2^31 - 1]", num_values);
  }
  if (num_tables < 0) return internal::InvalidField(kOp, "num_tables", "must be >= 0", num_tables);
  if (table_offsets == nullptr) return internal::NullField(kOp, "table_offsets");
  if (segments.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return internal::InvalidField(kOp, "segments", "must be at most 2^31 - 1", segments.size());
  }
  int64_t covered = 0;
  for (size_t s = 0; s < segments.size(); ++s) {
    const LookupSegment& segment = segments[s];
    const auto field = [s](const char* name) { return absl::StrCat("segments[", s, "].", name); };
    if (segment.begin != covered) {
      return internal::InvalidField(
          kOp, field("begin"), absl::StrCat("must be ", covered, ", where the one before ends"),
          segment.begin);
    }
    if (segment.end < segment.begin) {
      return internal::InvalidField(kOp, field("end"), absl::StrCat("must be >= ", segment.begin),
                                    segment.end);
    }
    if (segment.table < 0 || segment.table >= num_tables) {
      return internal::InvalidField(
          kOp, field("table"), absl::StrCat("must lie in [0, ", num_tables, ")"), segment.table);
    }
    covered = segment.end;
  }
  if (covered != num_values) {
    return internal::InvalidField(kOp, "segments",
                                  absl::StrCat("must cover [0, num_values = ", num_values, ")"),
                                  absl::StrCat("[0, ", covered, ")"));
  }
  if (num_values == 0) return absl::OkStatus();
  if (values == nullptr) return internal::NullField(kOp, "values");
  if (unique == nullptr) return internal::NullField(kOp, "unique");
  if (inverse == nullptr) return internal::NullField(kOp, "inverse");
  if (counts == nullptr) return internal::NullField(kOp, "counts");
  return internal::CheckWorkspace(kOp, workspace, workspace_bytes,
                                  UniqueWorkspaceBytes(num_values, device));
}

int64_t UniqueWorkspaceBytes(int64_t num_values, Device device) {
  return device == Device::kCpu ? internal::UniqueCpuWorkspaceBytes(num_values)
                                : internal::UniqueCudaLayout::For(num_values).bytes;
}

absl::Status Unique(const ExecContext& ctx, const UniqueArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate(ctx.device));
  return internal::Dispatch(
      ctx, [&] { return internal::UniqueCpu(ctx, args); },
      [&](auto stream) { return internal::UniqueCuda(args, stream); });
}

}  // namespace hotrow
