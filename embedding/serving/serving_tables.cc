#include "embedding/serving/serving_tables.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/exec_context.h"
#include "base/status_macros.h"
#include "embedding/serving/frozen_rows_impl.h"
#include "ops/pooled_lookup.h"

namespace hotrow {
namespace {

int64_t WeightsBytes(const RowLayout& layout) { return layout.dim * WeightBytes(layout.precision); }

}  // namespace

struct ServingTables::Table {
  internal::FrozenRows rows;
  std::unique_ptr<StepHistory> history;  // null: it does not decay as a whole
};

absl::Status ServingTablesOptions::Validate() const {
  if (tables.empty()) return absl::InvalidArgumentError("ServingTablesOptions.tables is empty");
  if (memory_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("ServingTablesOptions.memory_bytes must be at least 1, is ", memory_bytes));
  }
  if (!expected_rows.empty() && expected_rows.size() != tables.size()) {
    return absl::InvalidArgumentError(absl::StrCat("ServingTablesOptions.expected_rows has ",
                                                   expected_rows.size(), " numbers for ",
                                                   tables.size(), " tables"));
  }
  for (const ServingTable& table : tables) {
    HOTROW_RETURN_IF_ERROR(table.optimizer.Validate());
    HOTROW_RETURN_IF_ERROR(table.initializer.Validate());
  }
  return absl::OkStatus();
}

ServingTables::ServingTables(const ServingTablesOptions& options) : options_(options) {}
ServingTables::~ServingTables() = default;

absl::Status ServingTables::Init() {
  int64_t need = 0;
  for (size_t t = 0; t < options_.expected_rows.size(); ++t) {
    need += internal::FrozenRows::BytesFor(options_.expected_rows[t],
                                           WeightsBytes(options_.tables[t].layout));
  }
  if (need > options_.memory_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("memory_bytes: the rows of this model need ", need,
                     " bytes with their index; the budget is ", options_.memory_bytes));
  }
  for (const ServingTable& table : options_.tables) {
    const int64_t expected =
        options_.expected_rows.empty() ? 0 : options_.expected_rows[rows_.size()];
    rows_.push_back(std::unique_ptr<Table>(
        new Table{.rows = internal::FrozenRows({.table = table.name,
                                                .row_bytes = WeightsBytes(table.layout),
                                                .expected_rows = expected,
                                                .budget_bytes = options_.memory_bytes,
                                                .used_bytes = &used_bytes_}),
                  .history = nullptr}));
    if (table.optimizer.weight_decay_mode != WeightDecayMode::kTable) continue;
    auto history =
        std::make_unique<StepHistory>(table.optimizer, static_cast<uint32_t>(options_.first_step));
    for (const LearningRateRun& run : options_.learning_rates) {
      while (history->steps() < run.last_step) history->Append(run.factor);
    }
    rows_.back()->history = std::move(history);
  }
  return absl::OkStatus();
}

int64_t ServingTables::rows(uint32_t table) const { return rows_[table]->rows.rows(); }

absl::Status ServingTables::CatchUpRows(uint32_t table, std::span<const uint64_t> keys,
                                        std::span<std::byte* const> rows) const {
  const ServingTable& spec = options_.tables[table];
  if (rows_[table]->history == nullptr) return absl::OkStatus();
  return CatchUp({}, {.config = spec.optimizer,
                      .layout = &spec.layout,
                      .history = rows_[table]->history.get(),
                      .num_rows = std::ssize(keys),
                      .rows = rows.data(),
                      .seed = options_.seed,
                      .table = table,
                      .keys = keys.data()});
}

absl::Status ServingTables::FirstValues(uint32_t table, std::span<const uint64_t> keys,
                                        std::span<std::byte* const> rows) const {
  const ServingTable& spec = options_.tables[table];
  HOTROW_RETURN_IF_ERROR(InitRows({}, {.initializer = spec.initializer,
                                       .layout = &spec.layout,
                                       .initial_accumulator = spec.optimizer.initial_accumulator,
                                       .optimizer = spec.optimizer.kind,
                                       .seed = options_.seed,
                                       .table = table,
                                       .num_rows = std::ssize(keys),
                                       .keys = keys.data(),
                                       .rows = rows.data()}));
  return CatchUpRows(table, keys, rows);
}

absl::Status ServingTables::Pool(const ServingLookup& lookup, Scratch* scratch) const {
  HOTROW_CHECK(lookup.table < rows_.size());
  const RowLayout& layout = options_.tables[lookup.table].layout;
  const size_t n = lookup.keys.size();
  if (n > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat(n, " lookups of one feature; at most ", std::numeric_limits<int32_t>::max()));
  }
  scratch->rows.resize(n);
  rows_[lookup.table]->rows.Find(lookup.keys, scratch->rows);
  scratch->missing.clear();
  for (size_t i = 0; i < n; ++i) {
    if (scratch->rows[i] == nullptr) scratch->missing.push_back(lookup.keys[i]);
  }
  if (!scratch->missing.empty()) {
    const auto missing = std::ssize(scratch->missing);
    HOTROW_RETURN_IF_ERROR(scratch->first_values.Reserve(missing * layout.row_bytes));
    scratch->missing_rows.clear();
    for (int64_t m = 0; m < missing; ++m) {
      scratch->missing_rows.push_back(scratch->first_values.data() + m * layout.row_bytes);
    }
    HOTROW_RETURN_IF_ERROR(FirstValues(lookup.table, scratch->missing, scratch->missing_rows));
    size_t next = 0;
    for (const std::byte*& row : scratch->rows) {
      if (row == nullptr) row = scratch->missing_rows[next++];
    }
  }
  // Each lookup has a row of its own: rows that are looked up twice are read twice, in the order in
  // which the trainer reads them.
  const size_t had = scratch->inverse.size();
  if (had < n) {
    scratch->inverse.resize(n);
    std::iota(scratch->inverse.begin() + static_cast<std::ptrdiff_t>(had), scratch->inverse.end(),
              static_cast<int32_t>(had));
  }
  const int64_t* offsets = lookup.offsets.data();
  if (offsets[0] != 0) {
    scratch->offsets.resize(lookup.offsets.size());
    for (size_t b = 0; b < lookup.offsets.size(); ++b) {
      scratch->offsets[b] = offsets[b] - offsets[0];
    }
    offsets = scratch->offsets.data();
  }
  const JaggedFeature feature = {.dim = layout.dim,
                                 .pooling = lookup.pooling,
                                 .data = lookup.output.data,
                                 .stride = std::max<int64_t>(lookup.output.stride, layout.dim),
                                 .precision = layout.precision};
  return PooledLookup({}, {.features = {&feature, 1},
                           .batch_size = lookup.batch_size,
                           .offsets = offsets,
                           .weights = lookup.weights.empty() ? nullptr : lookup.weights.data(),
                           .inverse = scratch->inverse.data(),
                           .rows = scratch->rows.data()});
}

// --- Builder

ServingTables::Builder::~Builder() = default;

absl::StatusOr<std::unique_ptr<ServingTables::Builder>> ServingTables::Builder::Create(
    const ServingTablesOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<Builder> builder(new Builder());
  builder->tables_.reset(new ServingTables(options));
  HOTROW_RETURN_IF_ERROR(builder->tables_->Init());
  int64_t widest = 0;
  for (const ServingTable& table : options.tables) {
    widest = std::max(widest, table.layout.row_bytes);
  }
  HOTROW_ASSIGN_OR_RETURN(builder->row_, HostBuffer<std::byte>::Create(widest));
  return builder;
}

absl::Status ServingTables::Builder::Add(const RowKey& key, std::span<const std::byte> row) {
  const ServingTablesOptions& options = tables_->options_;
  if (key.table >= options.tables.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a row of table ", key.table, "; there are ", options.tables.size()));
  }
  const ServingTable& table = options.tables[key.table];
  if (std::ssize(row) != table.layout.row_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("table \"", table.name, "\": a row of ",
                                                   row.size(), " bytes, expected ",
                                                   table.layout.row_bytes));
  }
  const std::byte* weights = row.data();
  if (options.rows_missed_steps && tables_->rows_[key.table]->history != nullptr) {
    std::memcpy(row_.data(), row.data(), row.size());
    std::byte* const copy = row_.data();
    HOTROW_RETURN_IF_ERROR(tables_->CatchUpRows(key.table, {&key.key, 1}, {&copy, 1}));
    weights = copy;
  }
  return tables_->rows_[key.table]->rows.Add(key.key, weights);
}

absl::StatusOr<std::unique_ptr<const ServingTables>> ServingTables::Builder::Finish() {
  for (const std::unique_ptr<Table>& table : tables_->rows_) {
    HOTROW_RETURN_IF_ERROR(table->rows.Freeze());
  }
  return std::unique_ptr<const ServingTables>(std::move(tables_));
}

}  // namespace hotrow
