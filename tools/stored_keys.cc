#include "tools/stored_keys.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/read_file.h"
#include "base/row_key.h"
#include "base/status_macros.h"
#include "models/delta/delta_chain.h"
#include "models/delta/delta_manifest.h"
#include "models/delta/delta_rows.h"
#include "models/saving/checkpoint.h"
#include "models/saving/portable_manifest.h"
#include "models/saving/portable_tables_reader.h"
#include "models/saving/saved_part.h"
#include "tools/directory_kind.h"

namespace hotrow {
namespace {

constexpr int64_t kKeyListBytesMax = int64_t{4} << 30;
constexpr int64_t kBufferBytes = int64_t{64} << 20;

// The keys as one place numbers its tables, and which of them were met there.
class Wanted {
 public:
  static absl::StatusOr<Wanted> Of(const std::vector<NamedKey>& keys, const std::string& place,
                                   const std::vector<std::string>& tables) {
    Wanted out;
    for (const NamedKey& key : keys) {
      const auto at = std::find(tables.begin(), tables.end(), key.table);
      if (at == tables.end()) {
        return absl::NotFoundError(absl::StrCat(place, ": it has no table \"", key.table,
                                                "\"; its tables are ",
                                                absl::StrJoin(tables, ", ")));
      }
      out.keys_.push_back({key.key, static_cast<uint32_t>(at - tables.begin())});
    }
    std::sort(out.keys_.begin(), out.keys_.end(), ComesBefore);
    out.met_.resize(out.keys_.size(), kNot);
    return out;
  }

  void See(const RowKey& key, bool aged) {
    const auto at = std::lower_bound(keys_.begin(), keys_.end(), key, ComesBefore);
    if (at == keys_.end() || *at != key) return;
    met_[static_cast<size_t>(at - keys_.begin())] = aged ? kAged : kLive;
  }

  void AddTo(const std::string& place, const std::vector<std::string>& tables,
             StoredKeysReport* report) const {
    report->places.push_back(place);
    for (size_t i = 0; i < keys_.size(); ++i) {
      if (met_[i] == kNot) continue;
      report->found.push_back({.place = place,
                               .key = {.table = tables[keys_[i].table], .key = keys_[i].key},
                               .aged = met_[i] == kAged});
    }
  }

 private:
  enum Met : char { kNot, kAged, kLive };
  std::vector<RowKey> keys_;
  std::vector<Met> met_;
};

template <typename Table>
std::vector<std::string> NamesOf(const std::vector<Table>& tables) {
  std::vector<std::string> out;
  for (const Table& table : tables) out.push_back(table.name);
  return out;
}

absl::Status FindInSaved(Env& env, const std::string& path, const std::vector<NamedKey>& keys,
                         int64_t store_bytes, StoredKeysReport* report) {
  HOTROW_ASSIGN_OR_RETURN(const SavedModel saved, ReadCheckpoint(env, path));
  const std::vector<std::string> tables = NamesOf(saved.tables);
  HOTROW_ASSIGN_OR_RETURN(Wanted wanted, Wanted::Of(keys, saved.dir, tables));
  HOTROW_ASSIGN_OR_RETURN(const AgedRows aged, AgedRows::Of(saved));
  for (int32_t rank = 0; rank < static_cast<int32_t>(saved.parts.size()); ++rank) {
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<SnapshotReader> reader,
                            OpenSavedPart(env, saved, rank, store_bytes));
    HOTROW_RETURN_IF_ERROR(reader->Iterate([&](const RowKey& key, std::span<const std::byte> row) {
      wanted.See(key, aged.Has(key, row));
      return absl::OkStatus();
    }));
  }
  wanted.AddTo(saved.dir, tables, report);
  return absl::OkStatus();
}

absl::Status FindInPortable(Env& env, const PortableModel& model, const std::string& dir,
                            const std::vector<NamedKey>& keys, StoredKeysReport* report) {
  const std::vector<std::string> tables = NamesOf(model.tables);
  HOTROW_ASSIGN_OR_RETURN(Wanted wanted, Wanted::Of(keys, dir, tables));
  HOTROW_RETURN_IF_ERROR(ReadPortableTables({.dir = dir, .memory_bytes = kBufferBytes, .env = &env},
                                            model.tables,
                                            [&](const PortableRows& rows) {
                                              for (const RowKey& key : rows.keys)
                                                wanted.See(key, /*aged=*/false);
                                              return absl::OkStatus();
                                            })
                             .status());
  wanted.AddTo(dir, tables, report);
  return absl::OkStatus();
}

absl::Status FindInChain(Env& env, const std::string& path, const std::vector<NamedKey>& keys,
                         StoredKeysReport* report) {
  HOTROW_ASSIGN_OR_RETURN(const DeltaChain chain, ReadChain(env, path));
  HOTROW_RETURN_IF_ERROR(FindInPortable(env, chain.base, chain.base_dir(), keys, report));
  for (const DeltaManifest& delta : chain.deltas) {
    const std::vector<std::string> names = NamesOf(delta.model.tables);
    HOTROW_ASSIGN_OR_RETURN(Wanted wanted, Wanted::Of(keys, delta.model.dir, names));
    HOTROW_ASSIGN_OR_RETURN(const std::vector<DeltaTable> tables, DeltaTablesOf(delta.model));
    const auto num_parts = static_cast<int32_t>(delta.parts.size());
    for (int32_t p = 0; p < num_parts; ++p) {
      const DeltaFileId id = {.base = chain.manifest.base_id,
                              .sequence = delta.sequence,
                              .part = p,
                              .num_parts = num_parts};
      HOTROW_ASSIGN_OR_RETURN(
          const std::unique_ptr<DeltaRowsReader> reader,
          DeltaRowsReader::Open(env, delta.model.dir, delta.parts[static_cast<size_t>(p)], id,
                                chain.manifest.form, tables));
      while (!reader->done()) {
        if (!reader->erased()) wanted.See(reader->key(), /*aged=*/false);
        HOTROW_RETURN_IF_ERROR(reader->Next());
      }
    }
    wanted.AddTo(delta.model.dir, names, report);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<NamedKey>> ReadKeyList(Env& env, const std::string& path) {
  HOTROW_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(env, path, kKeyListBytesMax));
  std::vector<NamedKey> out;
  int64_t number = 0;
  for (const absl::string_view whole : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view line = absl::StripAsciiWhitespace(whole);
    if (line.empty() || line[0] == '#') continue;
    // The last one, so that names of tables may have blanks.
    const size_t at = line.find_last_of(", \t");
    NamedKey key;
    if (at != absl::string_view::npos) {
      key.table = std::string(absl::StripAsciiWhitespace(line.substr(0, at)));
      if (!key.table.empty() && key.table.back() == ',') key.table.pop_back();
    }
    if (key.table.empty() || !absl::SimpleAtoi(line.substr(at + 1), &key.key)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": \"", line.substr(0, 80),
                       "\" is not a table's name and a key from 0 to 18446744073709551615, such as "
                       "\"users,17\""));
    }
    out.push_back(std::move(key));
  }
  if (out.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": names no key; write a line \"users,17\" for each"));
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

absl::StatusOr<StoredKeysReport> FindStoredKeys(Env& env, const std::string& path,
                                                const std::vector<NamedKey>& keys,
                                                int64_t store_bytes) {
  StoredKeysReport report;
  HOTROW_ASSIGN_OR_RETURN(const DirectoryKind kind, KindOfDirectory(env, path));
  if (kind == DirectoryKind::kCheckpoints) {
    HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListCheckpoints(env, path));
    for (const std::string& name : names) {
      HOTROW_RETURN_IF_ERROR(
          FindInSaved(env, absl::StrCat(path, "/", name), keys, store_bytes, &report));
    }
  } else if (kind == DirectoryKind::kSavedModel) {
    HOTROW_RETURN_IF_ERROR(FindInSaved(env, path, keys, store_bytes, &report));
  } else if (kind == DirectoryKind::kPortableModel) {
    HOTROW_ASSIGN_OR_RETURN(const PortableModel model, ReadPortableManifest(env, path, false));
    HOTROW_RETURN_IF_ERROR(FindInPortable(env, model, path, keys, &report));
  } else if (kind == DirectoryKind::kDeltaChain) {
    HOTROW_RETURN_IF_ERROR(FindInChain(env, path, keys, &report));
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is ", NameOf(kind),
                     "; keys have names of tables only in a checkpoint, a directory of them, a "
                     "saved model, an export or a chain of deltas, so give one of these"));
  }
  std::set<NamedKey> found;
  for (const StoredKey& stored : report.found) found.insert(stored.key);
  report.keys_found = std::ssize(found);
  return report;
}

std::string StoredKeysText(const std::string& path, const std::vector<NamedKey>& keys,
                           const StoredKeysReport& report) {
  std::string out;
  for (const StoredKey& stored : report.found) {
    absl::StrAppend(&out, stored.place, ": table \"", stored.key.table, "\" has key ",
                    stored.key.key, stored.aged ? ", aged but not dropped yet\n" : "\n");
  }
  absl::StrAppend(&out, path, ": ", keys.size(), " keys, ", report.places.size(), " places: ");
  if (report.keys_found == 0) return out + "absent\n";
  absl::StrAppend(&out, report.keys_found, " of the keys found\n");
  return out;
}

std::string StoredKeysJson(const std::string& path, const std::vector<NamedKey>& keys,
                           const StoredKeysReport& report) {
  nlohmann::ordered_json found = nlohmann::ordered_json::array();
  for (const StoredKey& stored : report.found) {
    found.push_back({{"place", stored.place},
                     {"table", stored.key.table},
                     {"key", stored.key.key},
                     {"aged", stored.aged}});
  }
  const nlohmann::ordered_json json = {{"path", path},
                                       {"keys", keys.size()},
                                       {"keys_found", report.keys_found},
                                       {"places", report.places},
                                       {"found", std::move(found)}};
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace hotrow
