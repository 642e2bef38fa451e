#ifndef HOTROW_OPS_ROWS_WEIGHTS_PRECISION_H_
#define HOTROW_OPS_ROWS_WEIGHTS_PRECISION_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace hotrow {

// Storage type of a row's weights. Optimizer state and all arithmetic are float:
// weights are widened when they are read and rounded when they are written.
//
// Updates round stochastically and without bias, to one of the two neighbours. Rounding to nearest
// would lose all updates below half a step of the format (Zhang et al. 2018, "Training with
// low-precision embedding tables"; Gupta et al. 2015, "Deep learning with limited numerical
// precision"). The random numbers are a function of seed, table, key, step and column. Initial
// weights are rounded to nearest.
enum class WeightsPrecision {
  kFp32,
  // IEEE binary16, subnormals included: 11 bits, largest 65504. A finite value beyond that becomes
  // +-65504, never infinite; a NaN stays one.
  kFp16,
  // The upper half of an fp32: 8 bits, the range of fp32.
  kBf16,
};

// "fp32", "fp16", "bf16". The error lists them.
absl::StatusOr<WeightsPrecision> ParseWeightsPrecision(std::string_view name);
std::string_view WeightsPrecisionName(WeightsPrecision precision);

// Bytes of one weight: 4, 2, 2.
constexpr int64_t WeightBytes(WeightsPrecision precision) {
  return precision == WeightsPrecision::kFp32 ? 4 : 2;
}

}  // namespace hotrow

#endif  // HOTROW_OPS_ROWS_WEIGHTS_PRECISION_H_
