#ifndef HOTROW_OPS_ROWS_INITIALIZER_H_
#define HOTROW_OPS_ROWS_INITIALIZER_H_

#include <cstdint>

#include "absl/status/status.h"

namespace hotrow {

// What the weights of a new row are (ops/rows/row_init.h).
enum class InitializerKind {
  kZeros,
  kConstant,  // `value`
  kUniform,   // [-value, value)
  kNormal,    // mean 0, standard deviation `value`
};

struct Initializer {
  InitializerKind kind = InitializerKind::kUniform;
  float value = 0.01f;

  absl::Status Validate() const;
  // Uniform in +-1/sqrt(rows), as in the reference DLRM. rows > 0.
  static Initializer UniformOfRows(int64_t rows);
};

}  // namespace hotrow

#endif  // HOTROW_OPS_ROWS_INITIALIZER_H_
