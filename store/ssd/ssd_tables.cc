#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "store/ssd/ssd_tables_impl.h"

namespace hotrow::internal {

SsdTables::SsdTables(std::span<const StoreTable> asked, std::span<const StoreTable> stored)
    : asked_(asked.begin(), asked.end()) {
  for (const StoreTable& t : stored) {
    indices_.emplace(t.table, static_cast<uint32_t>(row_bytes_.size()));
    numbers_.push_back(t.table);
    row_bytes_.push_back(t.row_bytes);
    row_bytes_longest_ = std::max(row_bytes_longest_, t.row_bytes);
  }
}

std::optional<uint32_t> SsdTables::IndexOf(uint32_t number) const {
  const auto at = indices_.find(number);
  if (at == indices_.end()) return std::nullopt;
  return at->second;
}

absl::Status SsdTables::ToIndexKeys(std::span<const RowKey> keys,
                                    std::vector<RowKey>* index_keys) const {
  index_keys->resize(keys.size());
  uint32_t number = 0;
  std::optional<uint32_t> index;  // of the table with this number
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].table != number || !index.has_value()) {
      number = keys[i].table;
      index = IndexOf(number);
      if (!index.has_value()) {
        return absl::InvalidArgumentError(absl::StrCat("SSD store: key ", keys[i].key,
                                                       " is of table ", number,
                                                       ", which the store does not have"));
      }
    }
    (*index_keys)[i] = {keys[i].key, *index};
  }
  return absl::OkStatus();
}

SnapshotInfo SsdTables::Describe(const SsdSnapshot& snapshot) const {
  SnapshotInfo info = {.id = snapshot.id,
                       .committed = snapshot.committed,
                       .identity = snapshot.identity,
                       .table_rows = {}};
  if (snapshot.table_rows.empty()) return info;
  for (const StoreTable& t : asked_) {
    if (const auto index = IndexOf(t.table); index.has_value()) {
      info.table_rows.push_back(snapshot.table_rows[*index]);
    }
  }
  return info;
}

absl::Status SsdTables::Unreadable(const std::string& file, int64_t offset,
                                   const RowKey& index_key) const {
  return absl::DataLossError(
      absl::StrCat(file, ": offset ", offset, ": the row of key ", index_key.key, " of table ",
                   numbers_[index_key.table],
                   " is damaged, its checksum does not match; `hotrow verify` lists all damage"));
}

absl::Status CheckSsdTables(const std::string& store_path, std::span<const StoreTable> asked,
                            std::span<const StoreTable> stored) {
  const auto find = [](std::span<const StoreTable> list, uint32_t table) -> const StoreTable* {
    const auto at = std::find_if(list.begin(), list.end(),
                                 [&](const StoreTable& t) { return t.table == table; });
    return at == list.end() ? nullptr : &*at;
  };
  for (const StoreTable& t : stored) {
    const StoreTable* const mine = find(asked, t.table);
    if (mine == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(store_path, ": the store has table ", t.table,
                                                     ", which the options leave out"));
    }
    if (mine->row_bytes != t.row_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(store_path, ": table ", t.table,
                                                     " has rows of ", t.row_bytes,
                                                     " bytes, the options say ", mine->row_bytes));
    }
  }
  for (const StoreTable& t : asked) {
    if (find(stored, t.table) == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(store_path, ": the store has no table ", t.table));
    }
  }
  return absl::OkStatus();
}

}  // namespace hotrow::internal
