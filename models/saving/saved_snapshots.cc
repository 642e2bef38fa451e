#include <algorithm>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "models/saving/saved_model_impl.h"
#include "models/saving/saved_snapshots_impl.h"
#include "models/saving/store_paths.h"
#include "models/saving/store_paths_impl.h"

namespace hotrow {

std::vector<StoreTable> StoreTablesOf(const std::vector<PortableTable>& tables) {
  std::vector<StoreTable> out;
  for (size_t i = 0; i < tables.size(); ++i) {
    out.push_back({static_cast<uint32_t>(i), tables[i].layout().row_bytes});
  }
  std::stable_sort(out.begin(), out.end(), [](const StoreTable& a, const StoreTable& b) {
    return a.row_bytes < b.row_bytes;
  });
  return out;
}

SnapshotNames::SnapshotNames(const std::string& owner, bool exclusive) : exclusive_(exclusive) {
  const std::string path = AbsolutePath(owner);
  // 31 bits, not 0: a manifest's numbers are signed to some readers, and 0 names no snapshot.
  const uint64_t hash = HashBytes(0, 0, std::as_bytes(std::span(path))).lo >> 33;
  base_of_path_ = std::max<uint64_t>(hash, 1) << 32;
  base_ = base_of_path_;
  last_ = base_;
}

void SnapshotNames::GoOnWith(SnapshotId id) {
  base_ = id >> 32 << 32;
  last_ = base_;
}

bool SnapshotNames::owns(SnapshotId id) const {
  return exclusive_ || id >> 32 == base_of_path_ >> 32;
}

SnapshotId SnapshotNames::Next(const std::vector<SnapshotId>& existing) {
  for (const SnapshotId id : existing) {
    if (id >> 32 == base_ >> 32) last_ = std::max(last_, id);
  }
  return ++last_;
}

bool IsLeftBehind(const SnapshotInfo& info, std::span<const SnapshotId> named) {
  return std::any_of(named.begin(), named.end(), [&](SnapshotId id) {
    return id >> 32 == info.id >> 32 && (info.id < id || !info.committed);
  });
}

std::string SnapshotFileName(SnapshotId id) {
  return absl::StrFormat("%016x%s", id, kSnapshotSuffix);
}

std::optional<SnapshotId> SnapshotOfFileName(const std::string& name) {
  SnapshotId id = 0;
  if (absl::SimpleHexAtoi(name.substr(0, name.find('.')), &id) && name == SnapshotFileName(id)) {
    return id;
  }
  return std::nullopt;
}

absl::StatusOr<std::vector<SnapshotId>> ListSnapshotFiles(Env& env, const std::string& dir) {
  std::vector<SnapshotId> out;
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(dir));
  for (const std::string& name : names) {
    if (const std::optional<SnapshotId> id = SnapshotOfFileName(name)) out.push_back(*id);
  }
  return out;
}

std::string SnapshotInfoText(const SnapshotInfo& info) {
  return absl::StrCat(info.identity.ToHex(), " ", absl::StrJoin(info.table_rows, " "));
}

absl::Status TakeSnapshotInfo(std::string_view text, SavedModel::Part* part) {
  const std::vector<std::string> words =
      absl::StrSplit(absl::string_view(text.data(), text.size()), ' ', absl::SkipEmpty());
  const auto damaged = [&] {
    return absl::InternalError(
        absl::StrCat("a rank says of its snapshot \"", std::string(text), "\""));
  };
  const auto identity = UniqueId::FromHex(words.empty() ? std::string() : words[0]);
  if (!identity.has_value()) return damaged();
  part->identity = *identity;
  part->table_rows.clear();
  for (size_t i = 1; i < words.size(); ++i) {
    int64_t rows = 0;
    if (!absl::SimpleAtoi(words[i], &rows) || rows < 0) return damaged();
    part->table_rows.push_back(rows);
  }
  return absl::OkStatus();
}

absl::Status RemoveUnnamedSnapshots(Env& env, const std::string& dir,
                                    const std::vector<SavedModel::Part>& named,
                                    const std::set<std::string>& in_use) {
  const std::string root = SavedTablesDir(dir);
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> entries, env.ListDir(root));
  std::vector<std::string> places = {root};
  for (const std::string& name : entries) {
    if (IsRankDirName(name)) places.push_back(absl::StrCat(root, "/", name));
  }
  for (const std::string& place : places) {
    const std::string absolute = AbsolutePath(place);
    if (in_use.contains(absolute)) continue;
    HOTROW_ASSIGN_OR_RETURN(const std::vector<SnapshotId> files, ListSnapshotFiles(env, place));
    for (const SnapshotId id : files) {
      const bool is_named = std::any_of(named.begin(), named.end(), [&](const auto& part) {
        return part.snapshot == id && HasSnapshotFile(part) &&
               AbsolutePath(part.tables_dir) == absolute;
      });
      if (is_named) continue;
      HOTROW_RETURN_IF_ERROR(env.Remove(absl::StrCat(place, "/", SnapshotFileName(id))));
    }
    if (place == root) continue;
    HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> left, env.ListDir(place));
    if (left.empty()) HOTROW_RETURN_IF_ERROR(env.RemoveDir(place));
  }
  return absl::OkStatus();
}

}  // namespace hotrow
