#include "embedding/serving/row_coding.h"

#include <cstring>

#include "ops/rows/affine_rows.h"
#include "ops/rows/row_codec.h"
#include "ops/rows/weights_precision.h"

namespace hotrow {
namespace {

bool IsAffine(ServingRows rows) { return rows == ServingRows::kInt8 || rows == ServingRows::kInt4; }

AffineCode CodeOf(ServingRows rows) {
  return rows == ServingRows::kInt8 ? AffineCode::kInt8 : AffineCode::kInt4;
}

WeightsPrecision PrecisionOf(ServingRows rows, const RowLayout& layout) {
  if (rows == ServingRows::kFp16) return WeightsPrecision::kFp16;
  if (rows == ServingRows::kBf16) return WeightsPrecision::kBf16;
  return layout.precision;
}

ExchangeType TypeOf(WeightsPrecision precision) {
  if (precision == WeightsPrecision::kFp16) return ExchangeType::kFp16;
  if (precision == WeightsPrecision::kBf16) return ExchangeType::kBf16;
  return ExchangeType::kFp32;
}

absl::Status Widen(WeightsPrecision precision, const std::byte* row, std::span<float> weights) {
  const RowRun run = {.end = 1, .dim = static_cast<int32_t>(weights.size())};
  float* const out = weights.data();
  return DecodeRows({}, {.type = TypeOf(precision), .runs = {&run, 1}, .in = row, .rows = &out});
}

}  // namespace

int64_t ServingRowBytes(ServingRows rows, const RowLayout& layout) {
  if (IsAffine(rows)) return AffineRowBytes(CodeOf(rows), layout.dim);
  return layout.dim * WeightBytes(PrecisionOf(rows, layout));
}

std::vector<ServingRows> ServingForms(ServingRows asked, const RowLayout& layout) {
  std::vector<ServingRows> widening = {asked};
  if (asked == ServingRows::kInt4) widening.push_back(ServingRows::kInt8);
  if (asked == ServingRows::kInt4 || asked == ServingRows::kInt8)
    widening.push_back(ServingRows::kFp16);
  std::vector<ServingRows> out = {ServingRows::kAsTrained};
  for (auto form = widening.rbegin(); form != widening.rend(); ++form) {
    if (ServingRowBytes(*form, layout) < ServingRowBytes(out.front(), layout)) {
      out.insert(out.begin(), *form);
    }
  }
  return out;
}

ServingRows ServingForm(ServingRows asked, const RowLayout& layout) {
  return ServingForms(asked, layout).front();
}

absl::Status EncodeServingRow(ServingRows rows, const RowLayout& layout, const std::byte* row,
                              std::span<float> weights, std::byte* kept) {
  if (absl::Status status = Widen(layout.precision, row, weights); !status.ok()) return status;
  if (IsAffine(rows)) {
    if (EncodeAffineRow(CodeOf(rows), weights, kept)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "has weights that are not finite, or too far apart for a code");
  }
  const WeightsPrecision precision = PrecisionOf(rows, layout);
  if (precision == layout.precision) {
    std::memcpy(kept, row, static_cast<size_t>(ServingRowBytes(rows, layout)));
    return absl::OkStatus();
  }
  const RowRun run = {.end = 1, .dim = layout.dim};
  const float* const in = weights.data();
  return EncodeRows({}, {.type = TypeOf(precision), .runs = {&run, 1}, .rows = &in, .out = kept});
}

absl::Status DecodeServingRow(ServingRows rows, const RowLayout& layout, const std::byte* kept,
                              std::span<float> weights) {
  if (!IsAffine(rows)) return Widen(PrecisionOf(rows, layout), kept, weights);
  DecodeAffineRow(CodeOf(rows), kept, weights);
  return absl::OkStatus();
}

}  // namespace hotrow
