#include "ops/products/dense_precision.h"

#include "base/parse_word.h"

namespace hotrow {

namespace {

constexpr EnumWord<DensePrecision> kDensePrecisions[] = {{"fp32", DensePrecision::kFp32},
                                                         {"tf32", DensePrecision::kTf32},
                                                         {"bf16", DensePrecision::kBf16},
                                                         {"fp16", DensePrecision::kFp16}};

}  // namespace

absl::StatusOr<DensePrecision> ParseDensePrecision(std::string_view name) {
  return ParseWord(kDensePrecisions, "precision", name);
}
std::string_view DensePrecisionName(DensePrecision precision) {
  return WordOf(kDensePrecisions, precision);
}

}  // namespace hotrow
