#include "ops/products/dense_precision.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace hotrow {

absl::StatusOr<DensePrecision> ParseDensePrecision(std::string_view name) {
  for (const DensePrecision precision : {DensePrecision::kFp32, DensePrecision::kTf32,
                                         DensePrecision::kBf16, DensePrecision::kFp16}) {
    if (name == DensePrecisionName(precision)) return precision;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown precision \"", std::string(name),
                                                 "\": must be fp32, tf32, bf16 or fp16"));
}

std::string_view DensePrecisionName(DensePrecision precision) {
  switch (precision) {
    case DensePrecision::kFp32:
      return "fp32";
    case DensePrecision::kTf32:
      return "tf32";
    case DensePrecision::kBf16:
      return "bf16";
    case DensePrecision::kFp16:
      return "fp16";
  }
  HOTROW_CHECK(false);
  return "";
}

}  // namespace hotrow
