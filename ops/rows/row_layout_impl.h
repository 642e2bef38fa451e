#ifndef HOTROW_OPS_ROWS_ROW_LAYOUT_IMPL_H_
#define HOTROW_OPS_ROWS_ROW_LAYOUT_IMPL_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "ops/rows/row_layout.h"
#include "ops/update/sparse_optimizer.h"

namespace hotrow::internal {

// The Philox counters of first weights and of rounding have 28 bits for column / 4, and two states
// of a column must be countable in 32.
constexpr int32_t kRowDimMax = (1 << 30) - 1;

// What Validate() of the ops that write rows asks of a layout: that it is RowLayout::For of what it
// says, with this optimizer.
absl::Status CheckRowLayout(std::string_view op, const RowLayout* layout,
                            SparseOptimizerKind optimizer);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_ROWS_ROW_LAYOUT_IMPL_H_
