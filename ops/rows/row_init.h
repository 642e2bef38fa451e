#ifndef HOTROW_OPS_ROWS_ROW_INIT_H_
#define HOTROW_OPS_ROWS_ROW_INIT_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/rows/initializer.h"
#include "ops/rows/row_layout.h"
#include "ops/update/sparse_optimizer_config.h"

namespace hotrow {

// On a CUDA device keys, rows and the pointers in rows are memory that the device reaches; `layout`
// is host memory on either device, read before the call returns.
struct RowInitArgs {
  Initializer initializer;
  const RowLayout* layout = nullptr;
  float initial_accumulator = 0;  // of the sparse optimizer (Adagrad kinds, FTRL's n)
  SparseOptimizerKind optimizer = SparseOptimizerKind::kSgd;
  uint64_t seed = 0;
  uint32_t table = 0;
  int64_t num_rows = 0;              // U
  const uint64_t* keys = nullptr;    // [U]
  std::byte* const* rows = nullptr;  // [U], layout->row_bytes each, overwritten whole

  absl::Status Validate() const;
};

// Writes each key's row as it is before its first update: weights by Philox keyed by (seed, table,
// key, column), rounded to nearest in layout->precision; the optimizer's initial state; last step
// 0; padding zero. A pure function of its arguments, also across devices, with one exception:
// kNormal computes log, sin and cos in double and rounds once to float. CUDA and glibc differ by up
// to 2 units in the double, so fewer than one number in 10^7 differs in its last bit (before the
// product with `value`).
absl::Status InitRows(const ExecContext& ctx, const RowInitArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_ROWS_ROW_INIT_H_
