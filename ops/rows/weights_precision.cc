#include "ops/rows/weights_precision.h"

#include <cstring>

#include "base/parse_word.h"
#include "ops/half_impl.h"
#include "ops/rows/row_layout.h"

namespace hotrow {

namespace {

constexpr EnumWord<WeightsPrecision> kWeightsPrecisions[] = {{"fp32", WeightsPrecision::kFp32},
                                                             {"fp16", WeightsPrecision::kFp16},
                                                             {"bf16", WeightsPrecision::kBf16}};

}  // namespace

absl::StatusOr<WeightsPrecision> ParseWeightsPrecision(std::string_view name) {
  return ParseWord(kWeightsPrecisions, "weights precision", name);
}
std::string_view WeightsPrecisionName(WeightsPrecision precision) {
  return WordOf(kWeightsPrecisions, precision);
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
