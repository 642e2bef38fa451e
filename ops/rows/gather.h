#ifndef HOTROW_OPS_ROWS_GATHER_H_
#define HOTROW_OPS_ROWS_GATHER_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"

namespace hotrow {

// On a CUDA device all pointers, also those in `rows`, are memory that the device reaches. Rows may
// lie in page-locked host memory; they are then read over the bus. Any addresses and strides work;
// multiples of 16 bytes are fastest.
struct GatherRowsArgs {
  const std::byte* const* rows = nullptr;  // [N]; a null pointer gives zeros
  int64_t num_rows = 0;                    // N
  int64_t row_bytes = 0;                   // bytes copied from each
  std::byte* output = nullptr;  // [N], row i at i * output_stride; must not alias the rows
  int64_t output_stride = 0;    // bytes, >= row_bytes

  absl::Status Validate() const;
};

// Copies scattered rows to consecutive places, with many reads in flight.
absl::Status GatherRows(const ExecContext& ctx, const GatherRowsArgs& args);

// Memory as above.
struct ScatterRowsArgs {
  const std::byte* input = nullptr;  // [N], row i at i * input_stride
  int64_t input_stride = 0;          // bytes, >= row_bytes
  int64_t num_rows = 0;              // N
  int64_t row_bytes = 0;             // bytes copied to each
  std::byte* const* rows = nullptr;  // [N], distinct; must not alias the input. Null: not copied

  absl::Status Validate() const;
};

// The reverse: copies consecutive rows to scattered places.
absl::Status ScatterRows(const ExecContext& ctx, const ScatterRowsArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_ROWS_GATHER_H_
