#ifndef HOTROW_EMBEDDING_ROWS_ROW_ROUNDING_IMPL_H_
#define HOTROW_EMBEDDING_ROWS_ROW_ROUNDING_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/buffer.h"
#include "base/exec_context.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/ranks/row_shuffle_impl.h"

namespace hotrow::internal {

// Rows as they are read where tables are read as serving keeps them: where they lie, or floats in
// `copies`. Kept from step to step, so that its memory is.
struct RoundedRows {
  std::vector<std::byte*> rows;  // empty: all are read where they lie
  HostBuffer<float> copies;
};

// RowRounding is how tables with TableConfig::serve_rows are read: through the form that a serving
// model keeps, so that training sees the weights that are served. Rows themselves, which updates
// write, keep all their bits.
//
// Bits:    each weight has those that ServingTables reads of the same row, with the same
//          `ServingRows`: also in rows that no update has written. Those serving makes from the
//          key, and int8 and int4 leave them as they are. A row without a code, which has weights
//          that are not finite or too far apart, is read as it is.
// Threads: the caller's of the collection. Rows are in host memory, and nothing moves them.
class RowRounding {
 public:
  // plan outlives it.
  explicit RowRounding(const Plan& plan);

  // out->rows[i]: where the weights of key i are to be read, as PlannedTable::read_precision: where
  // `rows` has them, or floats. Empty where no table is read so. round: false: copies have the
  // weights as they are. Errors: ResourceExhausted (memory for copies).
  absl::Status Read(const ExecContext& ctx, const TableKeys& keys, std::span<std::byte* const> rows,
                    bool round, RoundedRows* out) const;

 private:
  const Plan& plan_;
  const bool any_;  // some table is read so
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_ROWS_ROW_ROUNDING_IMPL_H_
