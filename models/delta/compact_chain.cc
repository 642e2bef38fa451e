#include "models/delta/compact_chain.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "models/delta/apply_chain.h"
#include "models/delta/delta_chain.h"
#include "models/saving/partial_dir_impl.h"
#include "models/saving/store_paths_impl.h"

namespace hotrow {
namespace {

constexpr char kLockName[] = "compact.lock";
constexpr char kOldSuffix[] = ".old";

bool IsBaseDirName(const std::string& name) {
  int64_t sequence = 0;
  return absl::SimpleAtoi(name.substr(std::min(name.find('-') + 1, name.size())), &sequence) &&
         name == BaseDirName(sequence);
}

// Whether a compaction that was ended was about to remove it.
bool IsOldLink(const std::string& name) {
  if (!absl::EndsWith(name, kOldSuffix)) return false;
  const std::string link = name.substr(0, name.size() - std::string_view(kOldSuffix).size());
  return IsBaseDirName(link) || ParseDeltaDirName(link).has_value();
}

// Removes a link. It loses its name first, so that nobody reads half of it.
absl::Status Retire(Env& env, const std::string& dir, const std::string& name) {
  const std::string old = absl::StrCat(dir, "/", name, kOldSuffix);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(old));
  if (exists) HOTROW_RETURN_IF_ERROR(RemoveTree(env, old));
  HOTROW_RETURN_IF_ERROR(env.Rename(absl::StrCat(dir, "/", name), old));
  HOTROW_RETURN_IF_ERROR(env.SyncDir(dir));
  return RemoveTree(env, old);
}

absl::Status RemoveOldLinks(Env& env, const ChainManifest& manifest, int64_t keep,
                            CompactSummary* summary) {
  const std::string& dir = summary->chain;
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(dir));
  for (const std::string& name : names) {
    if (IsOldLink(name)) {
      HOTROW_RETURN_IF_ERROR(RemoveTree(env, absl::StrCat(dir, "/", name)));
      continue;
    }
    if (const std::optional<int64_t> sequence = ParseDeltaDirName(name); sequence.has_value()) {
      if (*sequence > manifest.base_sequence - keep) continue;
      HOTROW_RETURN_IF_ERROR(Retire(env, dir, name));
      ++summary->deltas_removed;
    } else if (IsBaseDirName(name) && name != manifest.base_dir) {
      HOTROW_RETURN_IF_ERROR(Retire(env, dir, name));
      ++summary->bases_removed;
    }
  }
  return env.SyncDir(dir);
}

}  // namespace

absl::StatusOr<CompactSummary> CompactChain(const CompactChainOptions& options) {
  Env& env = options.env != nullptr ? *options.env : PosixEnv();
  if (options.keep < 0) {
    return absl::InvalidArgumentError(absl::StrCat("keep must be at least 0, is ", options.keep));
  }
  CompactSummary summary;
  summary.chain = WithoutEndingSlashes(options.chain);
  HOTROW_ASSIGN_OR_RETURN(DeltaChain chain, ReadChain(env, summary.chain));
  HOTROW_ASSIGN_OR_RETURN(
      const std::unique_ptr<FileLock> lock,
      env.LockFile(absl::StrCat(summary.chain, "/", kLockName), LockMode::kExclusive));
  HOTROW_ASSIGN_OR_RETURN(chain, ReadChain(env, summary.chain));  // now nobody compacts it
  const ChainLink head = chain.head();
  ChainManifest manifest = chain.manifest;
  if (!chain.deltas.empty()) {
    manifest.base_dir = BaseDirName(head.sequence);
    manifest.base_step = head.step;
    manifest.base_sequence = head.sequence;
    manifest.base_link = head.digest;
    manifest.base_source = head.source;
    const std::string base = absl::StrCat(summary.chain, "/", manifest.base_dir);
    HOTROW_ASSIGN_OR_RETURN(const bool left_behind, env.Exists(base));
    if (left_behind) HOTROW_RETURN_IF_ERROR(Retire(env, summary.chain, manifest.base_dir));
    HOTROW_RETURN_IF_ERROR(ApplyChain({.chain = summary.chain,
                                       .dir = base,
                                       .until = head.sequence,
                                       .shard_bytes = options.shard_bytes,
                                       .memory_bytes = options.memory_bytes,
                                       .env = &env,
                                       .tell = options.tell})
                               .status());
    HOTROW_ASSIGN_OR_RETURN(const std::string text,
                            ReadWholeFile(env, ManifestPath(base), kManifestBytesMax));
    manifest.base_digest = LinkDigest(text);
    HOTROW_RETURN_IF_ERROR(WriteFileAtomically(
        env, absl::StrCat(summary.chain, "/", kChainManifestName), ChainManifestText(manifest)));
    summary.made_base = true;
  }
  summary.sequence = manifest.base_sequence;
  summary.step = manifest.base_step;
  HOTROW_RETURN_IF_ERROR(RemoveOldLinks(env, manifest, options.keep, &summary));
  return summary;
}

}  // namespace hotrow
