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
  // On GPUs: the same with fp16, which has 3 bits of fraction more than bf16 and ends at 65,504: so
  // the loss is to be scaled (ops/training/loss_scale.h).
  kFp16,
};
// Whether the factors have 16 bits.
constexpr bool HasHalfFactors(DensePrecision precision) {
  return precision == DensePrecision::kBf16 || precision == DensePrecision::kFp16;
}

// "fp32", "tf32", "bf16", "fp16". The error lists them.
absl::StatusOr<DensePrecision> ParseDensePrecision(std::string_view name);
std::string_view DensePrecisionName(DensePrecision precision);

// Whether such products can be had: on the CPU by this machine's processor and this build; every
// GPU that we run on has all. Errors name the precision and the remedy: InvalidArgument (TF32
// or FP16 on the CPU), FailedPrecondition, which says what is missing. option: stands before the
// words of precisions there, for callers who know it by another name: "--precision=".
absl::Status CheckDensePrecision(DensePrecision precision, Device device = Device::kCpu,
                                 std::string_view option = "precision ");

}  // namespace hotrow

#endif  // HOTROW_OPS_PRODUCTS_DENSE_PRECISION_H_
