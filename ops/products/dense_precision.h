#ifndef HOTROW_OPS_PRODUCTS_DENSE_PRECISION_H_
#define HOTROW_OPS_PRODUCTS_DENSE_PRECISION_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"

namespace hotrow {

// The type of the factors of matrix products. Sums, parameters, their gradients and optimizer state
// are fp32 with all.
enum class DensePrecision : uint8_t {
  kFp32,
  kTf32,  // on GPUs: factors are rounded to 10 bits of fraction where that is faster
  kBf16,  // factors are rounded to the nearest bf16; so are activations between two products
  kFp16,  // on GPUs: as kBf16; it ends at 65,504: so the loss is scaled (ops/training/loss_scale.h)
  kInt8,  // to score with, on CPUs: 8 bits, with a scale for each row of inputs and each output
};
// Whether the factors have 16 bits.
constexpr bool HasHalfFactors(DensePrecision precision) {
  return precision == DensePrecision::kBf16 || precision == DensePrecision::kFp16;
}

// "fp32", "tf32", "bf16", "fp16", "int8". The error lists them.
absl::StatusOr<DensePrecision> ParseDensePrecision(std::string_view name);
std::string_view DensePrecisionName(DensePrecision precision);

// Whether this machine's processor and this build have such products; every GPU that we run on has
// its own. Errors name precision and remedy: InvalidArgument (one of the other device),
// FailedPrecondition (says what is missing). option: stands before words there: "--precision=".
absl::Status CheckDensePrecision(DensePrecision precision, Device device = Device::kCpu,
                                 std::string_view option = "precision ");

}  // namespace hotrow

#endif  // HOTROW_OPS_PRODUCTS_DENSE_PRECISION_H_
