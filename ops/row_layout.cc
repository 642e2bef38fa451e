#include "ops/row_layout.h"

#include "base/check.h"
#include "base/math.h"

namespace hotrow {

RowLayout RowLayout::For(int32_t dim, SparseOptimizerKind optimizer) {
  HOTROW_CHECK(dim > 0);
  constexpr int64_t kFloatBytes = sizeof(float);
  constexpr int64_t kStepBytes = sizeof(uint32_t);
  constexpr int64_t kRowAlignment = 16;  // one float4 of a GPU lane
  RowLayout layout;
  layout.dim = dim;
  layout.state_floats = SparseStateFloats(optimizer, dim);
  layout.payload_bytes = (int64_t{dim} + layout.state_floats) * kFloatBytes;
  layout.step_offset = layout.payload_bytes;
  layout.row_bytes = RoundUp(layout.step_offset + kStepBytes, kRowAlignment);
  return layout;
}

}  // namespace hotrow
