#ifndef HOTROW_OPS_GATHER_H_
#define HOTROW_OPS_GATHER_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"

namespace hotrow {

struct GatherRowsArgs {
  const std::byte* const* rows = nullptr;  // [N]; a null pointer gives zeros
  int64_t num_rows = 0;                    // N
  int64_t row_bytes = 0;                   // bytes copied from each
  std::byte* output = nullptr;  // [N], row i at i * output_stride; must not alias the rows
  int64_t output_stride = 0;    // bytes, >= row_bytes

  absl::Status Validate() const;
};

// Copies scattered rows side by side, prefetching ahead.
absl::Status GatherRows(const ExecContext& ctx, const GatherRowsArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_GATHER_H_
