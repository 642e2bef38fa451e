#include "tools/directory_kind.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/data/packed_format.h"
#include "models/delta/delta_manifest.h"
#include "models/saving/checkpoint.h"
#include "models/saving/portable_manifest.h"
#include "models/saving/portable_model.h"

namespace hotrow {

absl::StatusOr<DirectoryKind> KindOfDirectory(Env& env, const std::string& path) {
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) return DirectoryKind::kMissing;
  const absl::StatusOr<std::vector<std::string>> names = env.ListDir(path);
  if (!names.ok()) {
    if (env.Open(path, OpenMode::kRead).ok() && !env.ListDir(path + "/.").ok()) {
      return DirectoryKind::kFile;
    }
    return names.status();
  }
  if (names->empty()) return DirectoryKind::kEmpty;
  const auto has = [&](std::string_view name) {
    return std::find(names->begin(), names->end(), name) != names->end();
  };
  const auto has_like = [&](std::string_view prefix, std::string_view suffix) {
    return std::any_of(names->begin(), names->end(), [&](const std::string& name) {
      return absl::StartsWith(name, absl::string_view(prefix.data(), prefix.size())) &&
             absl::EndsWith(name, absl::string_view(suffix.data(), suffix.size()));
    });
  };
  if (has("MANIFEST")) return DirectoryKind::kSsdStore;
  // Also one that has lost a part.
  if (has("TABLES") || (has("LIVE") && has("snapshots"))) return DirectoryKind::kRocksStore;
  if (has("manifest.json")) {
    HOTROW_ASSIGN_OR_RETURN(const bool portable, IsPortableModel(env, path));
    return portable ? DirectoryKind::kPortableModel : DirectoryKind::kSavedModel;
  }
  if (has(kChainManifestName)) return DirectoryKind::kDeltaChain;
  if (has(kPackedManifestName)) return DirectoryKind::kPackedData;
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> checkpoints, ListCheckpoints(env, path));
  if (!checkpoints.empty()) return DirectoryKind::kCheckpoints;
  if (has_like("", ".snapshot")) return DirectoryKind::kHostStore;
  // The manifest was lost.
  if (has_like("segment-", "")) return DirectoryKind::kSsdStore;
  return DirectoryKind::kOther;
}

const char* NameOf(DirectoryKind kind) {
  switch (kind) {
    case DirectoryKind::kMissing:
      return "no file or directory";
    case DirectoryKind::kFile:
      return "a file";
    case DirectoryKind::kEmpty:
      return "an empty directory";
    case DirectoryKind::kSsdStore:
      return "an SSD store";
    case DirectoryKind::kRocksStore:
      return "a RocksDB store";
    case DirectoryKind::kHostStore:
      return "the snapshots of a memory store";
    case DirectoryKind::kSavedModel:
      return "a saved model";
    case DirectoryKind::kCheckpoints:
      return "a directory of checkpoints";
    case DirectoryKind::kPortableModel:
      return "a model in the portable form";
    case DirectoryKind::kDeltaChain:
      return "a chain of deltas";
    case DirectoryKind::kPackedData:
      return "packed data";
    case DirectoryKind::kOther:
      break;
  }
  return "a directory of something else";
}

absl::Status ExpectSsdStore(Env& env, const std::string& path) {
  HOTROW_ASSIGN_OR_RETURN(const DirectoryKind kind, KindOfDirectory(env, path));
  if (kind == DirectoryKind::kSsdStore) return absl::OkStatus();
  const std::string what =
      absl::StrCat(path, ": is ", NameOf(kind),
                   "; give a checkpoint, an export, or the directory of an SSD store, the one with "
                   "the file MANIFEST, or of a RocksDB store, the one with the file LIVE");
  return kind == DirectoryKind::kMissing ? absl::NotFoundError(what)
                                         : absl::InvalidArgumentError(what);
}

}  // namespace hotrow
