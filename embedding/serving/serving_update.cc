#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "embedding/serving/budget_share_impl.h"
#include "embedding/serving/disk_rows_impl.h"
#include "embedding/serving/serving_tables_impl.h"

namespace hotrow {

using internal::RecordTable;
using internal::RowKeeper;
using internal::RowOverlay;

absl::Status ServingTables::Set(const RowKey& key, std::span<const std::byte> row) {
  HOTROW_CHECK(disk_ == nullptr);
  HOTROW_ASSIGN_OR_RETURN(const RowKeeper::Kept kept, keeper_->Keep(key, row));
  HOTROW_RETURN_IF_ERROR(rows_[key.table]->rows.SetNow(key.key, kept.last_step, kept.row));
  view_->tables[key.table].rows = rows_[key.table]->rows.view();
  return absl::OkStatus();
}

absl::Status ServingTables::Erase(const RowKey& key) {
  HOTROW_CHECK(disk_ == nullptr);
  HOTROW_RETURN_IF_ERROR(CheckTable(key));
  HOTROW_RETURN_IF_ERROR(rows_[key.table]->rows.EraseNow(key.key));
  view_->tables[key.table].rows = rows_[key.table]->rows.view();
  return absl::OkStatus();
}

struct ServingTables::Update::Table {
  Size size;
  std::unique_ptr<RowOverlay> changes;
  int64_t set = 0;     // calls of Set
  int64_t erased = 0;  // calls of Erase
  bool ages = false;   // its line is higher than before
  bool reserved = false;
  int64_t rows_after = 0;
  int64_t rows_erased = 0;
};

ServingTables::Update::Update(ServingTables* tables, std::string rows_source)
    : tables_(tables), rows_source_(std::move(rows_source)), changes_(tables->rows_.size()) {}

absl::StatusOr<std::unique_ptr<ServingTables::Update>> ServingTables::Update::Begin(
    ServingTables* tables, std::span<const Size> sizes, std::string rows_source) {
  HOTROW_CHECK(sizes.size() == tables->rows_.size());
  std::unique_ptr<Update> out(new Update(tables, std::move(rows_source)));
  if (tables->disk_ != nullptr) {
    for (size_t t = 0; t < sizes.size(); ++t) out->changes_[t].size = sizes[t];
    HOTROW_ASSIGN_OR_RETURN(out->disk_, tables->disk_->BeginUpdate());
    return out;
  }
  for (size_t t = 0; t < sizes.size(); ++t) {
    const ServingTable& spec = tables->options_.tables[t];
    Table& table = out->changes_[t];
    table.size = sizes[t];
    int64_t erased = sizes[t].erased;
    if (sizes[t].age_line > 0) {
      HOTROW_CHECK(tables->options_.keeps_steps);
      erased += sizes[t].rows;  // that have aged when they come
      table.ages = sizes[t].age_line > tables->rows_[t]->age_line;
      if (table.ages) {
        tables->rows_[t]->rows.ForEachOlder(sizes[t].age_line, [&](uint64_t) { ++erased; });
      }
    }
    HOTROW_ASSIGN_OR_RETURN(
        table.changes,
        RowOverlay::Create({.table = spec.name,
                            .shape = internal::ShapeOf(spec, tables->options_.keeps_steps),
                            .share = tables->share_.get()},
                           sizes[t].rows, erased));
  }
  return out;
}

absl::Status ServingTables::Update::TooMany(const RowKey& key, const char* what,
                                            int64_t size) const {
  return absl::InvalidArgumentError(
      absl::StrCat("table \"", tables_->options_.tables[key.table].name, "\": more ", what,
                   " in an update than the ", size, " that were announced"));
}

absl::Status ServingTables::Update::Set(const RowKey& key, std::span<const std::byte> row) {
  HOTROW_ASSIGN_OR_RETURN(const RowKeeper::Kept kept, tables_->keeper_->Keep(key, row));
  Table& table = changes_[key.table];
  if (table.set++ == table.size.rows) return TooMany(key, "rows", table.size.rows);
  const bool has_aged = kept.last_step != 0 && kept.last_step < table.size.age_line;
  if (disk_ != nullptr) {
    table.rows_erased += has_aged ? 1 : 0;
    return disk_->Put(key, kept.last_step, kept.row);
  }
  if (has_aged) return table.changes->AddErased(key.key);
  return table.changes->Add(key.key, kept.last_step, kept.row);
}

absl::Status ServingTables::Update::Erase(const RowKey& key) {
  HOTROW_RETURN_IF_ERROR(tables_->CheckTable(key));
  Table& table = changes_[key.table];
  if (table.erased++ == table.size.erased) return TooMany(key, "erased keys", table.size.erased);
  if (disk_ != nullptr) {
    ++table.rows_erased;
    return disk_->PutErased(key);
  }
  return table.changes->AddErased(key.key);
}

absl::StatusOr<std::shared_ptr<const internal::DiskVersion>> ServingTables::Update::StageOnDisk() {
  std::vector<internal::DiskUpdate::After> after;
  const std::shared_ptr<const internal::DiskVersion> before = tables_->disk_->current();
  for (size_t t = 0; t < changes_.size(); ++t) {
    Table& table = changes_[t];
    table.rows_after =
        table.size.rows_after >= 0 ? table.size.rows_after : before->rows[t] + table.set;
    after.push_back({.rows = table.rows_after, .age_line = table.size.age_line});
  }
  return disk_->Stage(tables_->RowsId(rows_source_), after);
}

absl::StatusOr<const ServingTables::View*> ServingTables::Update::Stage() {
  staged_ = std::make_unique<View>();
  if (disk_ != nullptr) {
    HOTROW_ASSIGN_OR_RETURN(staged_->disk, StageOnDisk());
  }
  for (size_t t = 0; disk_ != nullptr && t < changes_.size(); ++t) {
    staged_->tables.push_back({tables_->rows_[t]->rows.view()});
  }
  for (size_t t = 0; disk_ == nullptr && t < changes_.size(); ++t) {
    Table& table = changes_[t];
    RecordTable& rows = tables_->rows_[t]->rows;
    RowOverlay& changes = *table.changes;
    absl::Status status;
    if (table.ages) {
      rows.ForEachOlder(table.size.age_line, [&](uint64_t key) {
        if (!changes.Has(key)) status.Update(changes.AddErased(key));
      });
    }
    HOTROW_RETURN_IF_ERROR(status);
    int64_t new_rows = 0;
    for (int64_t i = 0; i < changes.rows(); ++i) {
      new_rows += rows.Has(changes.shape().key(changes.record(i))) ? 0 : 1;
    }
    for (int64_t i = 0; i < changes.erased(); ++i) {
      table.rows_erased += rows.Has(changes.erased_key(i)) ? 1 : 0;
    }
    HOTROW_RETURN_IF_ERROR(rows.Reserve(new_rows, table.rows_erased));
    table.reserved = true;
    table.rows_after = rows.rows() + new_rows - table.rows_erased;
    const bool changed = changes.rows() + changes.erased() > 0;
    staged_->tables.push_back({rows.view(), changed ? &changes : nullptr});
  }
  // Here, since others read what is staged while Fold is at work: that must not throw.
  folded_ = std::make_unique<View>();
  folded_->tables.resize(changes_.size());
  return staged_.get();
}

const ServingTables::View* ServingTables::Update::Fold() {
  is_folded_ = true;
  if (disk_ != nullptr) {
    folded_->tables = staged_->tables;
    folded_->disk = disk_->Fold();
    return folded_.get();
  }
  for (size_t t = 0; t < changes_.size(); ++t) {
    RecordTable& rows = tables_->rows_[t]->rows;
    const RowOverlay& changes = *changes_[t].changes;
    HOTROW_CHECK(changes_[t].reserved);
    for (int64_t i = 0; i < changes.erased(); ++i) {
      if (rows.Has(changes.erased_key(i))) rows.Erase(changes.erased_key(i));
    }
    for (int64_t i = 0; i < changes.rows(); ++i) {
      const std::byte* const record = changes.record(i);
      const uint32_t last_step =
          changes.shape().keeps_steps ? changes.shape().last_step(record) : 0;
      rows.Set(changes.shape().key(record), last_step, record);
    }
    rows.SwitchIndex();
    if (changes_[t].ages) tables_->rows_[t]->age_line = changes_[t].size.age_line;
    folded_->tables[t] = {rows.view()};
  }
  return folded_.get();
}

ServingTables::Update::~Update() {
  for (size_t t = 0; t < changes_.size(); ++t) {
    if (!changes_[t].reserved) continue;
    RecordTable& rows = tables_->rows_[t]->rows;
    is_folded_ ? rows.Release() : rows.Cancel();
  }
  if (is_folded_) tables_->view_ = std::move(folded_);
}

int64_t ServingTables::Update::rows(uint32_t table) const { return changes_[table].rows_after; }

int64_t ServingTables::Update::rows_erased() const {
  int64_t sum = 0;
  for (const Table& table : changes_) sum += table.rows_erased;
  return sum;
}

}  // namespace hotrow
