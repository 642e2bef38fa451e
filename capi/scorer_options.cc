#include <chrono>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "capi/call_impl.h"
#include "capi/scorer_options_impl.h"
#include "embedding/serving/serving_tables.h"
#include "ops/products/dense_precision.h"

namespace hotrow::capi {

hotrow_scorer_options DefaultScorerOptions() {
  const ScorerOptions options;
  hotrow_scorer_options out = {};
  out.struct_size = sizeof(out);
  out.memory_bytes = options.memory_bytes;
  out.store_memory_bytes = options.store_bytes;
  out.max_batch_size = options.max_batch_size;
  out.max_concurrency = options.max_concurrency;
  return out;
}

absl::StatusOr<ScorerOptions> TakeScorerOptions(const hotrow_scorer_options* in) {
  HOTROW_ASSIGN_OR_RETURN(const hotrow_scorer_options taken,
                          TakeStruct(in, DefaultScorerOptions(), "options"));
  HOTROW_RETURN_IF_ERROR(NotNull(taken.model, "options.model"));
  if (taken.reserved != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("options.reserved: is ", taken.reserved, ", must be 0"));
  }
  ScorerOptions out = {.model = taken.model,
                       .memory_bytes = taken.memory_bytes,
                       .store_bytes = taken.store_memory_bytes,
                       .max_concurrency = taken.max_concurrency,
                       .max_batch_size = taken.max_batch_size};
  if (taken.rows_dir != nullptr) out.rows_dir = taken.rows_dir;
  if (taken.onnxruntime != nullptr) out.onnxruntime = taken.onnxruntime;
  HOTROW_RETURN_IF_ERROR(TakeWord(kServingRowsWords, taken.rows, "options.rows", &out.rows));
  if (taken.precision != nullptr) {
    DensePrecision precision = DensePrecision::kFp32;
    HOTROW_RETURN_IF_ERROR(
        TakeParsed(ParseDensePrecision, taken.precision, "options.precision", &precision));
    out.precision = precision;
  }
  return out;
}

absl::StatusOr<std::chrono::milliseconds> TakeScoreDeadline(const hotrow_scorer_options* in) {
  HOTROW_ASSIGN_OR_RETURN(const hotrow_scorer_options taken,
                          TakeStruct(in, DefaultScorerOptions(), "options"));
  constexpr int64_t kMost = int64_t{1} << 40;  // 35 years
  if (taken.deadline_ms >= 0 && taken.deadline_ms <= kMost) {
    return std::chrono::milliseconds(taken.deadline_ms);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("options.deadline_ms: must lie in [0, ", kMost, "], is ", taken.deadline_ms));
}

}  // namespace hotrow::capi

extern "C" {

void hotrow_scorer_options_default(hotrow_scorer_options* options, uint64_t struct_size) {
  hotrow::capi::WriteDefault(hotrow::capi::DefaultScorerOptions(), options, struct_size);
}

}  // extern "C"
