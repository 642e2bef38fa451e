#include "ops/rows/gather.h"

#include "absl/strings/str_cat.h"
#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/rows/gather_impl.h"
#include "ops/validate.h"

namespace hotrow {

absl::Status GatherRowsArgs::Validate() const {
  constexpr char kOp[] = "GatherRows";
  if (num_rows < 0) return internal::InvalidField(kOp, "num_rows", "must be >= 0", num_rows);
  if (row_bytes <= 0) return internal::InvalidField(kOp, "row_bytes", "must be > 0", row_bytes);
  if (output_stride < row_bytes) {
    return internal::InvalidField(
        kOp, "output_stride", absl::StrCat("must be >= row_bytes = ", row_bytes), output_stride);
  }
  if (num_rows == 0) return absl::OkStatus();
  if (rows == nullptr) return internal::NullField(kOp, "rows");
  if (output == nullptr) return internal::NullField(kOp, "output");
  return absl::OkStatus();
}

absl::Status GatherRows(const ExecContext& ctx, const GatherRowsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  return internal::Dispatch(
      ctx, [&] { return internal::GatherRowsCpu(ctx, args); },
      [&](auto stream) { return internal::GatherRowsCuda(args, stream); });
}

absl::Status ScatterRowsArgs::Validate() const {
  constexpr char kOp[] = "ScatterRows";
  if (num_rows < 0) return internal::InvalidField(kOp, "num_rows", "must be >= 0", num_rows);
  if (row_bytes <= 0) return internal::InvalidField(kOp, "row_bytes", "must be > 0", row_bytes);
  if (input_stride < row_bytes) {
    return internal::InvalidField(kOp, "input_stride",
                                  absl::StrCat("must be >= row_bytes = ", row_bytes), input_stride);
  }
  if (num_rows == 0) return absl::OkStatus();
  if (input == nullptr) return internal::NullField(kOp, "input");
  if (rows == nullptr) return internal::NullField(kOp, "rows");
  return absl::OkStatus();
}

absl::Status ScatterRows(const ExecContext& ctx, const ScatterRowsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  return internal::Dispatch(
      ctx, [&] { return internal::ScatterRowsCpu(ctx, args); },
      [&](auto stream) { return internal::ScatterRowsCuda(args, stream); });
}

}  // namespace hotrow
