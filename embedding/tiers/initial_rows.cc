#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/status_macros.h"
#include "embedding/tiers/initial_rows_impl.h"

namespace hotrow::internal {

InitialRows::InitialRows(const TieredTableOptions& options)
    : tables_(options.tables), seed_(options.seed) {
  for (const TieredTableSpec& spec : tables_) {
    step_offsets_.resize(std::max<size_t>(step_offsets_.size(), spec.table + size_t{1}));
    step_offsets_[spec.table] = spec.layout.step_offset;
  }
}

TieredTableOptions RowsOf(const EmbeddingCollectionOptions& options, const Plan& plan) {
  TieredTableOptions out;
  out.seed = options.seed;
  for (const PlannedTable& table : plan.tables) {
    const TableConfig& config = options.tables[static_cast<size_t>(table.config)];
    out.tables.push_back(
        {static_cast<uint32_t>(table.config), table.layout, config.initializer, config.optimizer});
  }
  return out;
}

bool InitialRows::IsInitial(const RowKey& key, const std::byte* row) const {
  uint32_t last_step = 0;
  std::memcpy(&last_step, row + step_offsets_[key.table], sizeof(last_step));
  return last_step == 0;
}

const TieredTableSpec& InitialRows::SpecOf(uint32_t table) const {
  for (const TieredTableSpec& spec : tables_) {
    if (spec.table == table) return spec;
  }
  HOTROW_CHECK(false);
}

absl::Status InitialRows::Enqueue(const ExecContext& here, uint32_t table, const uint64_t* keys,
                                  int64_t n, std::byte* const* rows) const {
  const TieredTableSpec& spec = SpecOf(table);
  return InitRows(here, {.initializer = spec.initializer,
                         .layout = &spec.layout,
                         .initial_accumulator = spec.optimizer.initial_accumulator,
                         .optimizer = spec.optimizer.kind,
                         .seed = seed_,
                         .table = spec.table,
                         .num_rows = n,
                         .keys = keys,
                         .rows = rows});
}

absl::Status InitialRows::Write(const ExecContext& ctx, std::span<const RowKey> keys,
                                std::span<std::byte* const> rows) const {
  std::vector<uint64_t> raw;
  const auto n = static_cast<int64_t>(keys.size());
  for (int64_t begin = 0; begin < n;) {
    int64_t end = begin + 1;
    while (end < n && keys[end].table == keys[begin].table) ++end;
    raw.resize(end - begin);
    for (int64_t i = begin; i < end; ++i) raw[i - begin] = keys[i].key;
    HOTROW_RETURN_IF_ERROR(
        Enqueue(ctx.OnHost(), keys[begin].table, raw.data(), end - begin, rows.data() + begin));
    begin = end;
  }
  return absl::OkStatus();
}

}  // namespace hotrow::internal
