#include "ops/layers/dropout.h"

#include "absl/strings/str_cat.h"
#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/layers/dropout_impl.h"

namespace hotrow {

absl::Status DropoutArgs::Validate() const {
  if (rows < 0) {
    return absl::InvalidArgumentError(absl::StrCat("DropoutArgs: rows must be >= 0, got ", rows));
  }
  if (columns < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("DropoutArgs: columns must be >= 0, got ", columns));
  }
  if (stride < columns) {
    return absl::InvalidArgumentError(
        absl::StrCat("DropoutArgs: stride must be >= columns = ", columns, ", got ", stride));
  }
  if (!(rate >= 0 && rate < 1)) {  // NaN fails too
    return absl::InvalidArgumentError(
        absl::StrCat("DropoutArgs: rate must be in [0, 1), got ", rate));
  }
  if (layer >= kMaxDropoutLayers) {
    return absl::InvalidArgumentError(
        absl::StrCat("DropoutArgs: layer must be < ", kMaxDropoutLayers, ", got ", layer));
  }
  if (first_row < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("DropoutArgs: first_row must be >= 0, got ", first_row));
  }
  if (data == nullptr && rows > 0 && columns > 0) {
    return absl::InvalidArgumentError("DropoutArgs: data must not be null");
  }
  return absl::OkStatus();
}

absl::Status Dropout(const ExecContext& ctx, const DropoutArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.rows == 0 || args.columns == 0 || args.rate == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::DropoutCpu(ctx.pool, args); },
      [&](auto stream) { return internal::DropoutCuda(stream, args); });
}

}  // namespace hotrow
