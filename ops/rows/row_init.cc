#include "ops/rows/row_init.h"

#include <cmath>

#include "base/check.h"
#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/rows/row_init_impl.h"
#include "ops/rows/row_layout_impl.h"
#include "ops/validate.h"

namespace hotrow {

absl::Status Initializer::Validate() const {
  if (!std::isfinite(value)) {
    return internal::InvalidField("Initializer", "value", "must be finite", value);
  }
  if ((kind == InitializerKind::kUniform || kind == InitializerKind::kNormal) && value < 0) {
    return internal::InvalidField("Initializer", "value", "must be >= 0", value);
  }
  return absl::OkStatus();
}

Initializer Initializer::UniformOfRows(int64_t rows) {
  HOTROW_CHECK(rows > 0);
  return {.kind = InitializerKind::kUniform,
          .value = static_cast<float>(1 / std::sqrt(static_cast<double>(rows)))};
}

absl::Status RowInitArgs::Validate() const {
  constexpr char kOp[] = "InitRows";
  HOTROW_RETURN_IF_ERROR(initializer.Validate());
  if (!(initial_accumulator >= 0) || !std::isfinite(initial_accumulator)) {
    return internal::InvalidField(kOp, "initial_accumulator", "must be finite and >= 0",
                                  initial_accumulator);
  }
  HOTROW_RETURN_IF_ERROR(internal::CheckRowLayout(kOp, layout, optimizer));
  if (num_rows < 0) return internal::InvalidField(kOp, "num_rows", "must be >= 0", num_rows);
  if (num_rows == 0) return absl::OkStatus();
  if (keys == nullptr) return internal::NullField(kOp, "keys");
  if (rows == nullptr) return internal::NullField(kOp, "rows");
  return absl::OkStatus();
}

absl::Status InitRows(const ExecContext& ctx, const RowInitArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  return internal::Dispatch(
      ctx, [&] { return internal::InitRowsCpu(ctx, args); },
      [&](auto stream) { return internal::InitRowsCuda(args, stream); });
}

}  // namespace hotrow
