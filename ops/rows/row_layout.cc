#include "ops/rows/row_layout.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "ops/rows/row_layout_impl.h"
#include "ops/update/sparse_optimizer.h"
#include "ops/validate.h"

namespace hotrow {

RowLayout RowLayout::For(int32_t dim, SparseOptimizerKind optimizer, WeightsPrecision precision,
                         bool scored) {
  HOTROW_CHECK(dim > 0);
  constexpr int64_t kFloatBytes = sizeof(float);
  constexpr int64_t kStepBytes = sizeof(uint32_t);
  constexpr int64_t kRowAlignment = 16;  // one float4 of a GPU lane
  RowLayout layout;
  layout.dim = dim;
  layout.precision = precision;
  layout.state_floats = SparseStateFloats(optimizer, dim);
  layout.state_offset = RoundUp(dim * WeightBytes(precision), kFloatBytes);
  layout.payload_bytes = layout.state_offset + layout.state_floats * kFloatBytes;
  layout.step_offset = layout.payload_bytes;
  int64_t end = layout.step_offset + kStepBytes;
  if (scored) {
    layout.score_offset = end;
    end += kFloatBytes;
  }
  layout.row_bytes = RoundUp(end, kRowAlignment);
  return layout;
}

namespace internal {

absl::Status CheckRowLayout(std::string_view op, const RowLayout* layout,
                            SparseOptimizerKind optimizer) {
  if (layout == nullptr) return NullField(op, "layout");
  if (layout->dim <= 0 || layout->dim > kRowDimMax) {
    return InvalidField(op, "layout->dim", "must lie in [1, 2^30)", layout->dim);
  }
  const RowLayout want =
      RowLayout::For(layout->dim, optimizer, layout->precision, layout->scored());
  const auto check = [&](std::string_view field, int64_t got, int64_t wanted) -> absl::Status {
    if (got == wanted) return absl::OkStatus();
    return InvalidField(
        op, absl::StrCat("layout->", std::string(field)),
        absl::StrCat("must be ", wanted, ", as the optimizer ",
                     std::string(SparseOptimizerName(optimizer)), " with weights of ",
                     std::string(WeightsPrecisionName(layout->precision)), " needs"),
        got);
  };
  HOTROW_RETURN_IF_ERROR(check("state_floats", layout->state_floats, want.state_floats));
  HOTROW_RETURN_IF_ERROR(check("state_offset", layout->state_offset, want.state_offset));
  HOTROW_RETURN_IF_ERROR(check("step_offset", layout->step_offset, want.step_offset));
  HOTROW_RETURN_IF_ERROR(check("score_offset", layout->score_offset, want.score_offset));
  return check("row_bytes", layout->row_bytes, want.row_bytes);
}

}  // namespace internal

}  // namespace hotrow
