#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/exec_context.h"
#include "base/status_macros.h"
#include "embedding/serving/row_coding.h"
#include "embedding/serving/serving_tables_impl.h"
#include "ops/rows/row_codec.h"

namespace hotrow::internal {
namespace {

int64_t KeptBytes(const ServingTable& table) { return ServingRowBytes(table.rows, table.layout); }

ExchangeType TypeOf(WeightsPrecision precision) {
  switch (precision) {
    case WeightsPrecision::kFp16:
      return ExchangeType::kFp16;
    case WeightsPrecision::kBf16:
      return ExchangeType::kBf16;
    case WeightsPrecision::kFp32:
      break;
  }
  return ExchangeType::kFp32;
}

}  // namespace

WeightsPrecision ReadPrecision(const ServingTable& table) {
  switch (table.rows) {
    case ServingRows::kFp16:
      return WeightsPrecision::kFp16;
    case ServingRows::kBf16:
      return WeightsPrecision::kBf16;
    case ServingRows::kInt8:
    case ServingRows::kInt4:
      return WeightsPrecision::kFp32;
    case ServingRows::kAsTrained:
      break;
  }
  return table.layout.precision;
}

RecordShape ShapeOf(const ServingTable& table, bool keeps_steps) {
  return {.row_bytes = KeptBytes(table),
          .alignment = IsAffine(table.rows) ? 4 : 16,
          .keeps_steps = keeps_steps};
}

absl::Status Widen(const RowLayout& layout, const std::byte* row, float* weights) {
  const RowRun run = {.end = 1, .dim = layout.dim};
  return DecodeRows(
      {}, {.type = TypeOf(layout.precision), .runs = {&run, 1}, .in = row, .rows = &weights});
}

absl::Status Narrow(int32_t dim, WeightsPrecision precision, const float* weights, std::byte* out) {
  const RowRun run = {.end = 1, .dim = dim};
  return EncodeRows({},
                    {.type = TypeOf(precision), .runs = {&run, 1}, .rows = &weights, .out = out});
}

absl::StatusOr<std::unique_ptr<RowKeeper>> RowKeeper::Create(const ServingTables& tables) {
  std::unique_ptr<RowKeeper> out(new RowKeeper(tables));
  int64_t widest = 0;
  int64_t longest = 0;
  int64_t dim = 0;
  for (const ServingTable& table : tables.tables()) {
    widest = std::max(widest, table.layout.row_bytes);
    longest = std::max(longest, KeptBytes(table));
    dim = std::max<int64_t>(dim, table.layout.dim);
  }
  HOTROW_ASSIGN_OR_RETURN(out->row_, HostBuffer<std::byte>::Create(widest));
  HOTROW_ASSIGN_OR_RETURN(out->weights_, HostBuffer<float>::Create(dim));
  HOTROW_ASSIGN_OR_RETURN(out->code_, HostBuffer<std::byte>::Create(longest));
  return out;
}

absl::StatusOr<RowKeeper::Kept> RowKeeper::Keep(const RowKey& key, std::span<const std::byte> row) {
  HOTROW_RETURN_IF_ERROR(tables_.CheckTable(key));
  const ServingTable& table = tables_.tables()[key.table];
  if (std::ssize(row) != table.layout.row_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("table \"", table.name, "\": a row of ",
                                                   row.size(), " bytes, expected ",
                                                   table.layout.row_bytes));
  }
  Kept out = {.row = row.data()};
  std::memcpy(&out.last_step, row.data() + table.layout.step_offset, sizeof(out.last_step));
  if (tables_.options_.rows_missed_steps && tables_.rows_[key.table]->history != nullptr) {
    std::memcpy(row_.data(), row.data(), row.size());
    std::byte* const copy = row_.data();
    HOTROW_RETURN_IF_ERROR(tables_.CatchUpRows(key.table, {&key.key, 1}, {&copy, 1}));
    out.row = copy;
  }
  const WeightsPrecision precision = ReadPrecision(table);
  if (!IsAffine(table.rows) && precision == table.layout.precision) return out;
  HOTROW_RETURN_IF_ERROR(Widen(table.layout, out.row, weights_.data()));
  const std::span<const float> floats(weights_.data(), static_cast<size_t>(table.layout.dim));
  if (!IsAffine(table.rows)) {
    HOTROW_RETURN_IF_ERROR(Narrow(table.layout.dim, precision, weights_.data(), code_.data()));
  } else if (!EncodeAffineRow(CodeOf(table.rows), floats, code_.data())) {
    return absl::InvalidArgumentError(
        absl::StrCat("table \"", table.name, "\": the row of key ", key.key,
                     " has weights that are not finite, or too far apart for a code"));
  }
  out.row = code_.data();
  return out;
}

}  // namespace hotrow::internal
