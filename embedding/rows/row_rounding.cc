#include "embedding/rows/row_rounding_impl.h"

#include <algorithm>
#include <cstring>

#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "embedding/serving/row_coding.h"
#include "embedding/serving/serving_rows.h"
#include "embedding/serving/serving_tables_impl.h"
#include "ops/rows/row_layout.h"
#include "ops/rows/weights_precision.h"

namespace hotrow::internal {
namespace {

constexpr int64_t kGrain = 64;

bool WasUpdated(const RowLayout& layout, const std::byte* row) {
  uint32_t last_step;
  std::memcpy(&last_step, row + layout.step_offset, sizeof(last_step));
  return last_step > 0;
}

// The form in which this row is read: serving makes the first values itself, and has codes only of
// rows that it keeps.
ServingRows FormOf(ServingRows form, const RowLayout& layout, const std::byte* row) {
  return IsAffine(form) && !WasUpdated(layout, row) ? ServingRows::kAsTrained : form;
}

}  // namespace

RowRounding::RowRounding(const Plan& plan)
    : plan_(plan), any_(std::any_of(plan.tables.begin(), plan.tables.end(), [](const auto& table) {
        return table.serve_rows != ServingRows::kAsTrained;
      })) {}

absl::Status RowRounding::Read(const ExecContext& ctx, const TableKeys& keys,
                               std::span<std::byte* const> rows, bool round,
                               RoundedRows* out) const {
  out->rows.clear();
  if (!any_) return absl::OkStatus();
  out->rows.assign(rows.begin(), rows.end());
  const auto rows_of = [&](size_t t) { return keys.table_offsets[t + 1] - keys.table_offsets[t]; };
  int64_t floats = 0;
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    if (plan_.tables[t].serve_rows == ServingRows::kAsTrained) continue;
    floats += rows_of(t) * plan_.tables[t].layout.dim;
  }
  if (out->copies.size() < floats) {
    // A quarter more, as batches differ in size.
    HOTROW_RETURN_IF_ERROR(out->copies.Reserve(floats + floats / 4, HugePages::kTry));
  }
  float* next = out->copies.data();
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    const PlannedTable& table = plan_.tables[t];
    if (table.serve_rows == ServingRows::kAsTrained) continue;
    const RowLayout& layout = table.layout;
    const ServingRows form = round ? table.serve_rows : ServingRows::kAsTrained;
    const int64_t kept_bytes =
        std::max(ServingRowBytes(form, layout), ServingRowBytes(ServingRows::kAsTrained, layout));
    std::byte** const first = out->rows.data() + keys.table_offsets[t];
    ParallelFor(ctx.pool, rows_of(t), kGrain, [&](int64_t begin, int64_t end) {
      std::vector<std::byte> kept(static_cast<size_t>(kept_bytes));
      for (int64_t i = begin; i < end; ++i) {
        const std::span<float> weights(next + i * layout.dim, static_cast<size_t>(layout.dim));
        const ServingRows of_row = FormOf(form, layout, first[i]);
        // Where there is no code the weights stay as they are, and a loss will say what is wrong.
        // Decoding what was encoded does not fail.
        if (EncodeServingRow(of_row, layout, first[i], weights, kept.data()).ok()) {
          DecodeServingRow(of_row, layout, kept.data(), weights).IgnoreError();
        }
        first[i] = reinterpret_cast<std::byte*>(weights.data());
      }
    });
    next += rows_of(t) * layout.dim;
  }
  return absl::OkStatus();
}

}  // namespace hotrow::internal
