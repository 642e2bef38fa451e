#include "ops/row_init.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/row_init_impl.h"
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
  constexpr int32_t kDimMax = 1 << 30;  // the Philox counter has 28 bits for column / 4
  HOTROW_RETURN_IF_ERROR(initializer.Validate());
  if (!(initial_accumulator >= 0) || !std::isfinite(initial_accumulator)) {
    return internal::InvalidField(kOp, "initial_accumulator", "must be finite and >= 0",
                                  initial_accumulator);
  }
  if (layout == nullptr) return internal::NullField(kOp, "layout");
  if (layout->dim <= 0 || layout->dim > kDimMax) {
    return internal::InvalidField(kOp, "layout->dim", "must lie in [1, 2^30]", layout->dim);
  }
  if (layout->state_floats != SparseStateFloats(optimizer, layout->dim)) {
    return internal::InvalidField(
        kOp, "layout->state_floats",
        absl::StrCat("must be ", SparseStateFloats(optimizer, layout->dim), ", as the optimizer ",
                     std::string(SparseOptimizerName(optimizer)), " needs"),
        layout->state_floats);
  }
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
