#include <algorithm>
#include <cstring>

#include "base/status_macros.h"
#include "embedding/rows/table_decay_impl.h"
#include "ops/rows/row_layout.h"
#include "ops/update/sparse_optimizer.h"

namespace hotrow::internal {
namespace {

// What Settle holds at a time: rows, and the keys of one pass over the store, 16 bytes each.
constexpr int64_t kSettleBytes = int64_t{16} << 20;
constexpr size_t kSettleKeys = size_t{16} << 20;

uint32_t LastStep(const RowLayout& layout, const std::byte* row) {
  uint32_t last_step;
  std::memcpy(&last_step, row + layout.step_offset, sizeof(last_step));
  return last_step;
}

bool IsStale(const StepHistory& history, uint32_t last_step) {
  return std::max(last_step, history.base()) < history.steps();
}

absl::Status EnsureBytes(int64_t bytes, HostBuffer<std::byte>* buffer) {
  if (buffer->size() >= bytes) return absl::OkStatus();
  *buffer = HostBuffer<std::byte>();
  // A quarter more, as batches differ in size.
  HOTROW_ASSIGN_OR_RETURN(*buffer,
                          HostBuffer<std::byte>::Create(bytes + bytes / 4, HugePages::kTry));
  return absl::OkStatus();
}

}  // namespace

TableDecay::TableDecay(const EmbeddingCollectionOptions& options, const Plan& plan)
    : options_(options), plan_(plan), position_of_(options.tables.size()) {
  const StartOptions& start = options.start;
  const auto base =
      static_cast<uint32_t>(start.learning_rates.empty() ? start.steps : start.settled_steps);
  std::vector<const SparseOptimizerConfig*> configs;
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const int32_t table = plan.tables[t].config;
    position_of_[static_cast<size_t>(table)] = static_cast<int32_t>(t);
    history_of_.push_back(nullptr);
    const SparseOptimizerConfig& config = options.tables[static_cast<size_t>(table)].optimizer;
    if (config.weight_decay_mode != WeightDecayMode::kTable || plan.tables[t].frozen) continue;
    const auto known = std::find_if(configs.begin(), configs.end(),
                                    [&](const auto* other) { return *other == config; });
    if (known == configs.end()) {
      configs.push_back(&config);
      histories_.push_back(std::make_unique<StepHistory>(config, base));
      history_of_.back() = histories_.back().get();
    } else {
      history_of_.back() = histories_[static_cast<size_t>(known - configs.begin())].get();
    }
  }
  uint32_t step = base;
  for (const LearningRateRun& run : start.learning_rates) {
    for (; step < run.last_step; ++step) Append(run.factor);
  }
}

void TableDecay::Append(float learning_rate_factor) {
  if (!any()) return;
  for (const std::unique_ptr<StepHistory>& history : histories_) {
    history->Append(learning_rate_factor);
  }
  if (learning_rates_.empty() || learning_rates_.back().factor != learning_rate_factor) {
    learning_rates_.push_back({.last_step = 0, .factor = learning_rate_factor});
  }
  learning_rates_.back().last_step = histories_.front()->steps();
}

absl::Status TableDecay::CatchUpRows(const ExecContext& ctx, size_t table,
                                     std::span<std::byte* const> rows,
                                     std::span<const uint64_t> keys, bool mark) const {
  const PlannedTable& planned = plan_.tables[table];
  return CatchUp(ctx.OnHost(), {.config = options_.tables[planned.config].optimizer,
                                .layout = &planned.layout,
                                .history = history_of_[table],
                                .num_rows = std::ssize(rows),
                                .rows = rows.data(),
                                .seed = options_.seed,
                                .table = static_cast<uint32_t>(planned.config),
                                .keys = keys.data(),
                                .mark = mark});
}

absl::Status TableDecay::Read(const ExecContext& ctx, const TableKeys& keys,
                              std::span<std::byte* const> rows, DecayedRows* out) const {
  out->rows.clear();
  if (!any()) return absl::OkStatus();
  out->rows.assign(rows.begin(), rows.end());
  // Memory first: copies stay where they are once they are made.
  int64_t bytes = 0;
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    if (history_of_[t] == nullptr) continue;
    bytes += (keys.table_offsets[t + 1] - keys.table_offsets[t]) * plan_.tables[t].layout.row_bytes;
  }
  HOTROW_RETURN_IF_ERROR(EnsureBytes(bytes, &out->copies));
  std::byte* next = out->copies.data();
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    if (history_of_[t] == nullptr) continue;
    const RowLayout& layout = plan_.tables[t].layout;
    out->stale.clear();
    out->stale_keys.clear();
    for (int64_t u = keys.table_offsets[t]; u < keys.table_offsets[t + 1]; ++u) {
      std::byte*& row = out->rows[static_cast<size_t>(u)];
      if (!IsStale(*history_of_[t], LastStep(layout, row))) continue;
      std::memcpy(next, row, static_cast<size_t>(layout.row_bytes));
      row = next;
      next += layout.row_bytes;
      out->stale.push_back(row);
      out->stale_keys.push_back(keys.keys[static_cast<size_t>(u)].key);
    }
    HOTROW_RETURN_IF_ERROR(CatchUpRows(ctx, t, out->stale, out->stale_keys, /*mark=*/false));
  }
  return absl::OkStatus();
}

absl::Status TableDecay::CatchUpCopies(const ExecContext& ctx, std::span<const RowKey> keys,
                                       std::span<std::byte* const> copies, bool mark) const {
  std::vector<std::byte*> part;
  std::vector<uint64_t> part_keys;
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    if (history_of_[t] == nullptr) continue;
    part.clear();
    part_keys.clear();
    for (size_t i = 0; i < keys.size(); ++i) {
      if (static_cast<size_t>(position_of_[keys[i].table]) != t) continue;
      part.push_back(copies[i]);
      part_keys.push_back(keys[i].key);
    }
    HOTROW_RETURN_IF_ERROR(CatchUpRows(ctx, t, part, part_keys, mark));
  }
  return absl::OkStatus();
}

absl::Status TableDecay::SettleRows(const ExecContext& ctx, std::span<const RowKey> keys,
                                    std::span<std::byte* const> copies, RowStore* store) const {
  std::vector<uint8_t> found(keys.size());
  HOTROW_RETURN_IF_ERROR(store->Find(keys, copies, found));
  HOTROW_RETURN_IF_ERROR(CatchUpCopies(ctx, keys, copies, /*mark=*/true));
  return store->InsertOrAssign(keys, std::vector<const std::byte*>(copies.begin(), copies.end()));
}

absl::Status TableDecay::Settle(const ExecContext& ctx, RowStore* store) const {
  if (!any()) return absl::OkStatus();
  int64_t widest = 0;
  for (const PlannedTable& table : plan_.tables) {
    widest = std::max(widest, table.layout.row_bytes);
  }
  const auto rows_max = static_cast<size_t>(std::max<int64_t>(kSettleBytes / widest, 1));
  HOTROW_ASSIGN_OR_RETURN(
      HostBuffer<std::byte> copies,
      HostBuffer<std::byte>::Create(static_cast<int64_t>(rows_max) * widest, HugePages::kTry));
  std::vector<std::byte*> rows(rows_max);
  for (size_t i = 0; i < rows_max; ++i) {
    rows[i] = copies.data() + static_cast<int64_t>(i) * widest;
  }
  std::vector<RowKey> keys;
  // A visitor must not call the store, so a pass lists keys, whose rows are written after it. Those
  // that have been are not stale in the next.
  for (bool full = true; full;) {
    full = false;
    keys.clear();
    const absl::Status visited =
        store->Iterate([&](const RowKey& key, std::span<const std::byte> row) -> absl::Status {
          const auto t = static_cast<size_t>(position_of_[key.table]);
          if (history_of_[t] == nullptr) return absl::OkStatus();
          // A row that no step has updated is not in its table yet, and stays as it was made.
          const uint32_t last_step = LastStep(plan_.tables[t].layout, row.data());
          if (last_step == 0 || !IsStale(*history_of_[t], last_step)) return absl::OkStatus();
          if (keys.size() == kSettleKeys) {
            full = true;
            return absl::CancelledError("");
          }
          keys.push_back(key);
          return absl::OkStatus();
        });
    if (!visited.ok() && !full) return visited;
    for (size_t done = 0; done < keys.size(); done += rows_max) {
      const size_t n = std::min(keys.size() - done, rows_max);
      HOTROW_RETURN_IF_ERROR(
          SettleRows(ctx, std::span(keys).subspan(done, n), std::span(rows).first(n), store));
    }
  }
  return store->Flush();
}

}  // namespace hotrow::internal
