#include "models/saving/portable_tables.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/exec_context.h"
#include "models/saving/portable_tables_impl.h"
#include "ops/rows/row_codec.h"
#include "ops/update/sparse_optimizer.h"

namespace hotrow {
namespace {

constexpr char kLastStep[] = "last_step";
constexpr char kScore[] = "score";
constexpr int64_t kFloatBytes = sizeof(float);

// Weights of 16 bits are converted like rows that ranks exchange.
ExchangeType WireTypeOf(WeightsPrecision precision) {
  return precision == WeightsPrecision::kFp16 ? ExchangeType::kFp16 : ExchangeType::kBf16;
}

}  // namespace

Env& EnvOf(const PortableTablesOptions& options) {
  return options.env != nullptr ? *options.env : PosixEnv();
}

std::vector<PortableColumn> PortableColumnsOf(const RowLayout& layout,
                                              SparseOptimizerKind optimizer) {
  const int64_t dim = layout.dim;
  std::vector<PortableColumn> out;
  out.push_back({{kPortableKeys, "<u8", 0, {}}, -1, sizeof(uint64_t)});
  out.push_back({{"weights", "<f4", dim, {}}, 0, dim * kFloatBytes, layout.precision});
  const auto add_floats = [&](const std::string& name, int64_t columns, int64_t float_offset) {
    out.push_back({{name, "<f4", columns, {}},
                   layout.state_offset + float_offset * kFloatBytes,
                   std::max<int64_t>(columns, 1) * kFloatBytes});
  };
  // The optimizer's state follows the weights: momentum1, momentum2; the row's own comes last.
  const SparseOptimizerFacts& facts = FactsOf(optimizer);
  for (int64_t i = 0; i < facts.column_states + (facts.row_state ? 1 : 0); ++i) {
    add_floats(absl::StrCat("momentum", i + 1), i < facts.column_states ? dim : 0, i * dim);
  }
  out.push_back({{kLastStep, "<u4", 0, {}}, layout.step_offset, sizeof(uint32_t)});
  if (layout.scored()) {
    out.push_back({{kScore, "<f4", 0, {}}, layout.score_offset, kFloatBytes});
  }
  return out;
}

std::vector<PortableColumn> PortableColumnsOf(const PortableTable& table) {
  if (!table.codes.has_value()) return PortableColumnsOf(table.layout(), table.optimizer);
  const int64_t bytes = table.row_bytes();
  return {{{kPortableKeys, "<u8", 0, {}}, -1, sizeof(uint64_t)},
          {{"codes", "|u1", bytes, {}}, 0, bytes}};
}

int64_t HashedBytesOf(const PortableTable& table) {
  return table.codes.has_value() ? table.row_bytes() : table.layout().payload_bytes;
}

std::vector<PortableArray> PortableArraysOf(int32_t dim, SparseOptimizerKind optimizer,
                                            bool scored) {
  std::vector<PortableArray> out;
  const RowLayout layout = RowLayout::For(dim, optimizer, WeightsPrecision::kFp32, scored);
  for (PortableColumn& column : PortableColumnsOf(layout, optimizer)) {
    out.push_back(std::move(column.array));
  }
  return out;
}

int64_t PackedBytes(const std::vector<PortableColumn>& columns) {
  int64_t bytes = 0;
  for (const PortableColumn& column : columns) bytes += column.bytes;
  return bytes;
}

absl::Status ToFile(const PortableColumn& column, const std::byte* in_row, std::byte* in_file) {
  if (column.precision == WeightsPrecision::kFp32) {
    std::memcpy(in_file, in_row, static_cast<size_t>(column.bytes));
    return absl::OkStatus();
  }
  const RowRun run = {.end = 1, .dim = static_cast<int32_t>(column.array.columns)};
  float* const to = reinterpret_cast<float*>(in_file);
  return DecodeRows(
      ExecContext(),
      {.type = WireTypeOf(column.precision), .runs = {&run, 1}, .in = in_row, .rows = &to});
}

absl::Status ToRow(const PortableColumn& column, const std::byte* in_file, std::byte* in_row) {
  if (column.precision == WeightsPrecision::kFp32) {
    std::memcpy(in_row, in_file, static_cast<size_t>(column.bytes));
    return absl::OkStatus();
  }
  const RowRun run = {.end = 1, .dim = static_cast<int32_t>(column.array.columns)};
  const float* const from = reinterpret_cast<const float*>(in_file);
  return EncodeRows(
      ExecContext(),
      {.type = WireTypeOf(column.precision), .runs = {&run, 1}, .rows = &from, .out = in_row});
}

}  // namespace hotrow
