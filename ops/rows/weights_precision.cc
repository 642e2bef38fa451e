#include "ops/rows/weights_precision.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "ops/half_impl.h"
#include "ops/rows/row_layout.h"

namespace hotrow {

absl::StatusOr<WeightsPrecision> ParseWeightsPrecision(std::string_view name) {
  for (const WeightsPrecision precision :
       {WeightsPrecision::kFp32, WeightsPrecision::kFp16, WeightsPrecision::kBf16}) {
    if (name == WeightsPrecisionName(precision)) return precision;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown weights precision \"", std::string(name),
                                                 "\": must be fp32, fp16 or bf16"));
}

std::string_view WeightsPrecisionName(WeightsPrecision precision) {
  switch (precision) {
    case WeightsPrecision::kFp32:
      return "fp32";
    case WeightsPrecision::kFp16:
      return "fp16";
    case WeightsPrecision::kBf16:
      return "bf16";
  }
  HOTROW_CHECK(false);
  return "";
}

void NarrowWeights(WeightsPrecision precision, std::span<const float> weights, std::byte* out) {
  internal::WithPrecision(precision, [&](auto constant) {
    constexpr WeightsPrecision kPrecision = decltype(constant)::value;
    if constexpr (kPrecision == WeightsPrecision::kFp32) {
      std::memcpy(out, weights.data(), weights.size_bytes());
    } else {
      for (size_t i = 0; i < weights.size(); ++i) {
        const uint16_t half = internal::ToHalf<kPrecision, /*kStochastic=*/false>(weights[i], 0);
        std::memcpy(out + i * sizeof(half), &half, sizeof(half));
      }
    }
  });
}

}  // namespace hotrow
