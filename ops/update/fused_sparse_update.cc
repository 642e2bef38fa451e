#include "ops/update/fused_sparse_update.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/jagged_impl.h"
#include "ops/rows/row_layout_impl.h"
#include "ops/update/fused_sparse_update_impl.h"
#include "ops/validate.h"

namespace hotrow {
namespace {

constexpr char kOp[] = "FusedSparseUpdate";

absl::Status ValidateTables(const FusedSparseUpdateArgs& args) {
  int64_t end = 0;
  for (size_t t = 0; t < args.tables.size(); ++t) {
    const FusedTable& table = args.tables[t];
    const auto field = [t](const char* name) { return absl::StrCat("tables[", t, "].", name); };
    HOTROW_RETURN_IF_ERROR(table.config.Validate());
    HOTROW_RETURN_IF_ERROR(internal::CheckRowLayout(kOp, table.layout, table.config.kind));
    if (table.row_begin < end) {
      return internal::InvalidField(
          kOp, field("row_begin"),
          absl::StrCat("must be at least ", end, ", where the rows of ", "the table before end"),
          table.row_begin);
    }
    if (table.row_end < table.row_begin || table.row_end > args.num_rows) {
      return internal::InvalidField(
          kOp, field("row_end"),
          absl::StrCat("must lie in [", table.row_begin, ", ", args.num_rows, "]"), table.row_end);
    }
    if (table.num_lookups < table.row_end - table.row_begin) {
      return internal::InvalidField(
          kOp, field("num_lookups"),
          absl::StrCat("must be at least one a row, ", table.row_end - table.row_begin),
          table.num_lookups);
    }
    if (table.layout->precision != WeightsPrecision::kFp32 && args.keys == nullptr &&
        table.row_begin < table.row_end) {
      return internal::NullField(kOp, "keys");
    }
    if (table.config.weight_decay_mode == WeightDecayMode::kTable) {
      return absl::UnimplementedError(
          "FusedSparseUpdate: weight_decay_mode kTable works on the CPU only");
    }
    end = table.row_end;
  }
  return absl::OkStatus();
}

int32_t WidestOf(std::span<const FusedTable> tables) {
  int32_t widest = 0;
  for (const FusedTable& table : tables) widest = std::max(widest, table.layout->dim);
  return widest;
}

}  // namespace

absl::Status FusedSparseUpdateArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(internal::ValidateJagged(kOp, features, batch_size, offsets));
  if (num_rows < 0) return internal::InvalidField(kOp, "num_rows", "must be >= 0", num_rows);
  if (!(learning_rate_factor >= 0) || !std::isfinite(learning_rate_factor)) {
    return internal::InvalidField(kOp, "learning_rate_factor", "must be finite and >= 0",
                                  learning_rate_factor);
  }
  if (step == 0) return internal::InvalidField(kOp, "step", "must be >= 1", step);
  HOTROW_RETURN_IF_ERROR(ValidateTables(*this));
  if (num_rows == 0) return absl::OkStatus();
  if (features.empty() || batch_size == 0) {
    return internal::InvalidField(kOp, "num_rows", "must be 0 without features or samples",
                                  num_rows);
  }
  // Lookups are numbered by 32 bits.
  constexpr int64_t kLookupsMax = std::numeric_limits<int32_t>::max();
  if (num_lookups < num_rows || num_lookups > kLookupsMax) {
    return internal::InvalidField(kOp, "num_lookups",
                                  absl::StrCat("must lie in [", num_rows, ", ", kLookupsMax, "]"),
                                  num_lookups);
  }
  if (inverse == nullptr) return internal::NullField(kOp, "inverse");
  if (row_offsets == nullptr) return internal::NullField(kOp, "row_offsets");
  if (lookup_order == nullptr) return internal::NullField(kOp, "lookup_order");
  if (rows == nullptr) return internal::NullField(kOp, "rows");
  return internal::CheckWorkspace(
      kOp, workspace, workspace_bytes,
      FusedSparseUpdateWorkspaceBytes(std::ssize(features), num_lookups, WidestOf(tables)));
}

int64_t FusedSparseUpdateWorkspaceBytes(int64_t num_features, int64_t num_lookups,
                                        int32_t dim_max) {
  return internal::FusedWorkspace::For(num_features, num_lookups, dim_max).bytes;
}

namespace internal {

std::vector<FusedTables> GroupTables(std::span<const FusedTable> tables, int64_t num_lookups,
                                     int64_t most) {
  std::vector<FusedTables> groups;
  for (size_t t = 0; t < tables.size(); ++t) {
    const FusedTable& table = tables[t];
    if (table.row_begin == table.row_end) continue;
    if (!groups.empty()) {
      FusedTables& group = groups.back();
      const FusedTable& first = group.tables.front();
      // Layouts follow from these.
      if (&group.tables.back() + 1 == &table && std::ssize(group.tables) < most &&
          group.row_end() == table.row_begin && first.config == table.config &&
          first.layout->dim == table.layout->dim &&
          first.layout->precision == table.layout->precision) {
        group.tables = {group.tables.data(), group.tables.size() + 1};
        group.num_lookups = std::min(group.num_lookups + table.num_lookups, num_lookups);
        continue;
      }
    }
    groups.push_back({{&table, 1}, std::min(table.num_lookups, num_lookups)});
  }
  return groups;
}

}  // namespace internal

absl::Status FusedSparseUpdate(const ExecContext& ctx, const FusedSparseUpdateArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  return internal::Dispatch(
      ctx,
      [&] {
        return absl::UnimplementedError(
            "FusedSparseUpdate: works on a GPU only; the CPU has GradientSegmentSum and "
            "SparseUpdate");
      },
      [&](auto stream) -> absl::Status {
        if (args.num_rows == 0 || args.tables.empty()) return absl::OkStatus();
        return internal::FusedSparseUpdateCuda(args, stream);
      });
}

}  // namespace hotrow
