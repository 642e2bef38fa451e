#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "models/delta/delta_merge_impl.h"
#include "models/delta/delta_row_sorter_impl.h"

namespace hotrow {
namespace {

// Runs keep all of a row.
constexpr DeltaForm kRunForm = {};

}  // namespace

DeltaRowSorter::DeltaRowSorter(Env& env, std::string dir, std::vector<DeltaTable> tables,
                               int64_t memory_bytes)
    : env_(env), dir_(std::move(dir)), tables_(std::move(tables)), memory_bytes_(memory_bytes) {
  for (const DeltaTable& table : tables_) row_bytes_.push_back(table.layout().row_bytes);
}

DeltaRowSorter::~DeltaRowSorter() {
  for (const DeltaPart& run : runs_) {
    Caught("", [&] { return env_.Remove(absl::StrCat(dir_, "/", run.file)); }).IgnoreError();
  }
}

absl::Status DeltaRowSorter::Add(const RowKey& key, std::span<const std::byte> row) {
  if (key.table >= tables_.size() || std::ssize(row) != row_bytes_[key.table]) {
    return absl::InvalidArgumentError(
        absl::StrCat("a delta's row of table ", key.table, " has ", row.size(),
                     " bytes, there are ", tables_.size(), " tables",
                     key.table < tables_.size()
                         ? absl::StrCat(", of which it has rows of ", row_bytes_[key.table])
                         : ""));
  }
  const Entry entry = {.key = key, .offset = std::ssize(rows_)};
  rows_.insert(rows_.end(), row.begin(), row.end());
  return AddEntry(entry);
}

absl::Status DeltaRowSorter::AddErased(const RowKey& key) { return AddEntry({.key = key}); }

// Vectors that double take up to three times their contents while they grow.
absl::Status DeltaRowSorter::AddEntry(const Entry& entry) {
  entries_.push_back(entry);
  const int64_t used =
      std::ssize(rows_) + std::ssize(entries_) * static_cast<int64_t>(sizeof(Entry));
  return used >= memory_bytes_ / 3 ? Spill() : absl::OkStatus();
}

absl::Status DeltaRowSorter::WriteSorted(DeltaRowsWriter& out) {
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return ComesBefore(a.key, b.key); });
  for (const Entry& entry : entries_) {
    if (entry.offset < 0) {
      HOTROW_RETURN_IF_ERROR(out.AddErased(entry.key));
      continue;
    }
    HOTROW_RETURN_IF_ERROR(out.Add(
        entry.key, std::span(rows_).subspan(static_cast<size_t>(entry.offset),
                                            static_cast<size_t>(row_bytes_[entry.key.table]))));
  }
  entries_.clear();
  rows_.clear();
  return absl::OkStatus();
}

absl::Status DeltaRowSorter::Spill() {
  const std::string name = absl::StrCat("run-", runs_.size(), ".tmp");
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<DeltaRowsWriter> run,
                          DeltaRowsWriter::Create(env_, dir_, name, {}, kRunForm, tables_));
  runs_.push_back({.file = name});  // removed in any case
  HOTROW_RETURN_IF_ERROR(WriteSorted(*run));
  HOTROW_ASSIGN_OR_RETURN(runs_.back(), run->Finish());
  return absl::OkStatus();
}

absl::Status DeltaRowSorter::WriteTo(DeltaRowsWriter& out) {
  if (runs_.empty()) return WriteSorted(out);
  if (!entries_.empty()) HOTROW_RETURN_IF_ERROR(Spill());
  std::vector<DeltaMerge::Source> sources;
  for (const DeltaPart& run : runs_) {
    HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<DeltaRowsReader> reader,
                            DeltaRowsReader::Open(env_, dir_, run, {}, kRunForm, tables_));
    sources.push_back({.reader = std::move(reader)});
  }
  HOTROW_ASSIGN_OR_RETURN(DeltaMerge merge, DeltaMerge::Create(std::move(sources)));
  while (!merge.done()) {
    if (merge.erased()) {
      HOTROW_RETURN_IF_ERROR(out.AddErased(merge.key()));
    } else {
      HOTROW_RETURN_IF_ERROR(out.Add(merge.key(), merge.row()));
    }
    HOTROW_RETURN_IF_ERROR(merge.Next());
  }
  return absl::OkStatus();
}

}  // namespace hotrow
