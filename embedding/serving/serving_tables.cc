#include "embedding/serving/serving_tables.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/exec_context.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "embedding/serving/budget_share_impl.h"
#include "embedding/serving/serving_tables_impl.h"
#include "ops/pooled_lookup.h"

namespace hotrow {
using internal::BudgetShare;
using internal::CodeOf;
using internal::IsAffine;
using internal::Narrow;
using internal::ReadPrecision;
using internal::RecordTable;
using internal::RowKeeper;
using internal::ShapeOf;
using internal::Widen;

absl::Status ServingTablesOptions::Validate() const {
  if (tables.empty()) return absl::InvalidArgumentError("ServingTablesOptions.tables is empty");
  if (budget == nullptr && memory_bytes < 1) {
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

ServingTables::ServingTables(const ServingTablesOptions& options)
    : options_(options),
      share_(std::make_unique<BudgetShare>(
          options.budget != nullptr ? options.budget
                                    : std::make_shared<ServingBudget>(options.memory_bytes))) {}
ServingTables::~ServingTables() = default;

int64_t ServingTables::bytes() const { return share_->bytes(); }
const ServingBudget& ServingTables::budget() const { return share_->budget(); }

absl::Status ServingTables::Init() {
  int64_t need = 0;
  for (size_t t = 0; t < options_.expected_rows.size(); ++t) {
    need += RecordTable::BytesFor(options_.expected_rows[t],
                                  ShapeOf(options_.tables[t], options_.keeps_steps));
  }
  const ServingBudget& budget = share_->budget();
  if (need > budget.bytes() - budget.used()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "memory_bytes: the rows of this model need ", need,
        " bytes with their index; the budget is ", budget.bytes(),
        budget.used() > 0 ? absl::StrCat(", of which ", budget.used(), " are taken") : ""));
  }
  for (const ServingTable& table : options_.tables) {
    const int64_t expected =
        options_.expected_rows.empty() ? 0 : options_.expected_rows[rows_.size()];
    rows_.push_back(std::unique_ptr<Table>(
        new Table{.rows = RecordTable({.table = table.name,
                                       .shape = ShapeOf(table, options_.keeps_steps),
                                       .expected_rows = expected,
                                       .share = share_.get()}),
                  .history = nullptr}));
    if (table.optimizer.weight_decay_mode != WeightDecayMode::kTable) continue;
    // Tables of one optimizer have one history.
    for (size_t t = 0; t + 1 < rows_.size(); ++t) {
      if (options_.tables[t].optimizer == table.optimizer) {
        rows_.back()->history = rows_[t]->history;
      }
    }
    if (rows_.back()->history != nullptr) continue;
    auto history =
        std::make_shared<StepHistory>(table.optimizer, static_cast<uint32_t>(options_.first_step));
    for (const LearningRateRun& run : options_.learning_rates) {
      while (history->steps() < run.last_step) history->Append(run.factor);
    }
    rows_.back()->history = std::move(history);
  }
  HOTROW_ASSIGN_OR_RETURN(keeper_, RowKeeper::Create(*this));
  return absl::OkStatus();
}

void ServingTables::MakeView() {
  view_ = std::make_unique<View>();
  for (const std::unique_ptr<Table>& table : rows_) view_->tables.push_back({table->rows.view()});
}

absl::Status ServingTables::CheckTable(const RowKey& key) const {
  if (key.table < options_.tables.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a row of table ", key.table, "; there are ", options_.tables.size()));
}

int64_t ServingTables::rows(uint32_t table) const { return rows_[table]->rows.rows(); }

std::vector<uint64_t> ServingTables::KeysOf(uint32_t table) const {
  std::vector<uint64_t> keys = rows_[table]->rows.Keys();
  std::sort(keys.begin(), keys.end());
  return keys;
}

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

// The first values of scratch->missing, as lookups of the table read them, one behind the other.
absl::Status ServingTables::ReadFirstValues(uint32_t table, Scratch* scratch) const {
  const ServingTable& spec = options_.tables[table];
  const RowLayout& layout = spec.layout;
  const auto missing = std::ssize(scratch->missing);
  HOTROW_RETURN_IF_ERROR(scratch->first_values.Reserve(missing * layout.row_bytes));
  scratch->missing_rows.clear();
  for (int64_t m = 0; m < missing; ++m) {
    scratch->missing_rows.push_back(scratch->first_values.data() + m * layout.row_bytes);
  }
  HOTROW_RETURN_IF_ERROR(FirstValues(table, scratch->missing, scratch->missing_rows));
  const WeightsPrecision precision = ReadPrecision(spec);
  if (precision == layout.precision) return absl::OkStatus();
  const int64_t bytes = RoundUp(layout.dim * WeightBytes(precision), 16);
  HOTROW_RETURN_IF_ERROR(scratch->narrowed.Reserve(missing * bytes));
  HOTROW_RETURN_IF_ERROR(scratch->floats.Reserve(layout.dim));
  for (int64_t m = 0; m < missing; ++m) {
    std::byte*& row = scratch->missing_rows[static_cast<size_t>(m)];
    std::byte* const out = scratch->narrowed.data() + m * bytes;
    HOTROW_RETURN_IF_ERROR(Widen(layout, row, scratch->floats.data()));
    HOTROW_RETURN_IF_ERROR(Narrow(layout.dim, precision, scratch->floats.data(), out));
    row = out;
  }
  return absl::OkStatus();
}

absl::Status ServingTables::Pool(const View& view, const ServingLookup& lookup,
                                 Scratch* scratch) const {
  HOTROW_CHECK(lookup.table < rows_.size());
  const ServingTable& spec = options_.tables[lookup.table];
  const int32_t dim = spec.layout.dim;
  const size_t n = lookup.keys.size();
  if (n > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat(n, " lookups of one feature; at most ", std::numeric_limits<int32_t>::max()));
  }
  scratch->rows.resize(n);
  const View::Table& table = view.tables[lookup.table];
  rows_[lookup.table]->rows.Find(table.rows, lookup.keys, scratch->rows);
  if (table.changes != nullptr) table.changes->Override(lookup.keys, scratch->rows);
  scratch->missing.clear();
  for (size_t i = 0; i < n; ++i) {
    if (scratch->rows[i] == nullptr) scratch->missing.push_back(lookup.keys[i]);
  }
  if (IsAffine(spec.rows)) {
    HOTROW_RETURN_IF_ERROR(scratch->decoded.Reserve(static_cast<int64_t>(n) * dim));
    float* next = scratch->decoded.data();
    for (const std::byte*& row : scratch->rows) {
      if (row == nullptr) continue;
      DecodeAffineRow(CodeOf(spec.rows), row, {next, static_cast<size_t>(dim)});
      row = reinterpret_cast<const std::byte*>(next);
      next += dim;
    }
  }
  if (!scratch->missing.empty()) {
    HOTROW_RETURN_IF_ERROR(ReadFirstValues(lookup.table, scratch));
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
  const JaggedFeature feature = {.dim = dim,
                                 .pooling = lookup.pooling,
                                 .data = lookup.output.data,
                                 .stride = std::max<int64_t>(lookup.output.stride, dim),
                                 .precision = ReadPrecision(spec)};
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
  return builder;
}

absl::Status ServingTables::Builder::Add(const RowKey& key, std::span<const std::byte> row) {
  HOTROW_ASSIGN_OR_RETURN(const RowKeeper::Kept kept, tables_->keeper_->Keep(key, row));
  return tables_->rows_[key.table]->rows.Add(key.key, kept.last_step, kept.row);
}

absl::Status ServingTables::Builder::AddKept(const RowKey& key, std::span<const std::byte> kept) {
  HOTROW_RETURN_IF_ERROR(tables_->CheckTable(key));
  const ServingTable& table = tables_->options_.tables[key.table];
  const int64_t expected = ServingRowBytes(table.rows, table.layout);
  if (std::ssize(kept) != expected) {
    return absl::InvalidArgumentError(absl::StrCat("table \"", table.name, "\": ", kept.size(),
                                                   " bytes of a row, expected ", expected));
  }
  return tables_->rows_[key.table]->rows.Add(key.key, /*last_step=*/0, kept.data());
}

absl::StatusOr<std::unique_ptr<ServingTables>> ServingTables::Builder::Finish() {
  for (const std::unique_ptr<Table>& table : tables_->rows_) {
    HOTROW_RETURN_IF_ERROR(table->rows.Freeze());
  }
  tables_->MakeView();
  return std::move(tables_);
}

}  // namespace hotrow
