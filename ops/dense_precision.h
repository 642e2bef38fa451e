#ifndef HOTROW_OPS_DENSE_PRECISION_H_
#define HOTROW_OPS_DENSE_PRECISION_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hotrow {

// The type of the factors of matrix products. Sums, parameters, their gradients and optimizer state
// are fp32 with both.
enum class DensePrecision : uint8_t {
  kFp32,
  kBf16,  // factors are rounded to the nearest bf16; so are activations between two products
};

// "fp32", "bf16". The error lists them.
absl::StatusOr<DensePrecision> ParseDensePrecision(std::string_view name);
std::string_view DensePrecisionName(DensePrecision precision);

// Whether this machine's processor and this build have such products. Errors: FailedPrecondition,
// which names the flag --precision, what is missing and the remedy.
absl::Status CheckDensePrecision(DensePrecision precision);

}  // namespace hotrow

#endif  // HOTROW_OPS_DENSE_PRECISION_H_
