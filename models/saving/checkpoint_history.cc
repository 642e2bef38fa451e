#include <algorithm>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "base/utf8.h"
#include "models/saving/checkpoint.h"
#include "models/saving/checkpoint_dir_impl.h"
#include "models/saving/checkpoint_history_impl.h"
#include "models/saving/manifest.h"
#include "models/saving/saved_model_impl.h"
#include "models/saving/store_paths.h"
#include "models/saving/store_paths_impl.h"

namespace hotrow {

CheckpointHistory::CheckpointHistory(Env& env, const std::string& dir, const RankGroup& group)
    : env_(env), dir_(dir), group_(group) {}

std::string CheckpointHistory::tables_dir() const {
  return SavedTablesDir(dir_, group_.rank(), group_.world_size());
}

absl::Status CheckpointHistory::Attach(EmbeddingCollection* tables, StoreKind store,
                                       const std::string& tables_dir_given, int64_t keep) {
  tables_ = tables;
  own_ = {.store = std::string(StoreKindName(store)), .tables_dir = AbsolutePath(tables_dir_given)};
  HOTROW_RETURN_IF_ERROR(
      group_.Agree(CheckUtf8Path("the directory of the tables", own_.tables_dir)));
  names_.emplace(dir_, /*exclusive=*/own_.tables_dir == AbsolutePath(tables_dir()));
  HOTROW_RETURN_IF_ERROR(GatherPlaces());
  HOTROW_RETURN_IF_ERROR(group_.TogetherOnLeader([&] { return RemoveUnfinished(); }));
  HOTROW_RETURN_IF_ERROR(CheckShared());
  HOTROW_RETURN_IF_ERROR(group_.Together([&] { return ReadCommitted(); }));
  HOTROW_RETURN_IF_ERROR(AgreeOnDamaged());
  HOTROW_RETURN_IF_ERROR(group_.Together([&] { return DropUnnamed(); }));
  // There are too many if the last process ended between a commit and the removal.
  return RemoveOldest(std::ssize(committed_) - keep);
}

absl::Status CheckpointHistory::GatherPlaces() {
  HOTROW_ASSIGN_OR_RETURN(const auto stores, group_.GatherTexts(own_.store));
  HOTROW_ASSIGN_OR_RETURN(const auto dirs, group_.GatherTexts(own_.tables_dir));
  places_.clear();
  for (size_t r = 0; r < dirs.size(); ++r) {
    for (size_t other = 0; other < r; ++other) {
      if (dirs[other] != dirs[r]) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("ranks ", other, " and ", r, " keep their tables in one directory, ",
                       dirs[r], "; give each rank one of its own"));
    }
    places_.push_back({.store = stores[r], .tables_dir = dirs[r]});
  }
  return absl::OkStatus();
}

absl::Status CheckpointHistory::RemoveUnfinished() {
  // The last process may have renamed directories without syncing. These renames must last before
  // anything relies on them.
  HOTROW_RETURN_IF_ERROR(env_.SyncDir(dir_));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> entries, env_.ListDir(dir_));
  for (const std::string& name : entries) {
    if (IsLeftover(name)) {
      HOTROW_RETURN_IF_ERROR(RemoveFlatDir(env_, absl::StrCat(dir_, "/", name)));
    }
  }
  return absl::OkStatus();
}

// If each rank had its own directory under one name, nobody could read their checkpoints.
absl::Status CheckpointHistory::CheckShared() {
  if (group_.world_size() == 1) return absl::OkStatus();
  const std::string path = dir_ + kProbe;
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> tokens, group_.Gather(NowNanos()));
  const std::string token = absl::StrCat("seen by all ranks: ", tokens[0]);
  HOTROW_RETURN_IF_ERROR(group_.TogetherOnLeader([&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env_.Open(path, OpenMode::kTruncate));
    HOTROW_RETURN_IF_ERROR(WriteFull(*file, 0, std::as_bytes(std::span(token))));
    return file->Close();
  }));
  const absl::Status seen = group_.Together([&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const bool exists, env_.Exists(path));
    absl::StatusOr<std::string> text = std::string();
    if (exists) text = ReadWholeFile(env_, path, kSmallFileBytesMax);
    HOTROW_RETURN_IF_ERROR(text.status());
    if (*text == token) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("--checkpoint_dir=", dir_,
                     ": this rank does not see what rank 0 writes there; give a directory that all "
                     "ranks share"));
  });
  const absl::Status removed = group_.TogetherOnLeader([&] { return env_.Remove(path); });
  HOTROW_RETURN_IF_ERROR(seen);
  return removed;
}

// The store may have been moved since.
bool CheckpointHistory::IsOfOwnStore(const SavedModel::Part& part) const {
  if (part.store != own_.store || !part.identity.known()) return false;
  const absl::StatusOr<SnapshotInfo> info = tables_->snapshots().Describe(part.snapshot);
  return info.ok() && info->identity == part.identity;
}

absl::Status CheckpointHistory::ReadCommitted() {
  committed_.clear();
  damaged_.clear();
  notes_.clear();
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> checkpoints, ListCheckpoints(env_, dir_));
  for (const std::string& name : checkpoints) {
    const std::string dir = absl::StrCat(dir_, "/", name);
    absl::StatusOr<SavedModel> saved = ReadSavedModel(env_, dir);
    if (!saved.ok() && name == checkpoints.back()) return saved.status();
    if (!saved.ok()) {
      damaged_.push_back(name);
      notes_.push_back(absl::StrCat(
          dir, " cannot be read and is left alone, with all rows that may be its own: ",
          saved.status().message(), "; remove ", dir, " to free them"));
      continue;
    }
    for (SavedModel::Part& part : saved->parts) {
      part.tables_dir = AbsolutePath(part.tables_dir);
      if (IsOfOwnStore(part)) part.tables_dir = own_.tables_dir;
    }
    committed_.push_back(
        {.step = saved->step, .dir = saved->dir, .parts = std::move(saved->parts)});
  }
  return absl::OkStatus();
}

// No rank counts a checkpoint that some rank could not read, so all remove the same ones.
absl::Status CheckpointHistory::AgreeOnDamaged() {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> of_ranks,
                          group_.GatherTexts(absl::StrJoin(damaged_, ",")));
  for (size_t r = 0; r < of_ranks.size(); ++r) {
    for (const absl::string_view view : absl::StrSplit(of_ranks[r], ',', absl::SkipEmpty())) {
      const std::string name(view);
      if (std::find(damaged_.begin(), damaged_.end(), name) != damaged_.end()) continue;
      damaged_.push_back(name);
      const std::string dir = absl::StrCat(dir_, "/", name);
      notes_.push_back(absl::StrCat(dir, " cannot be read on rank ", r, " and is left alone"));
      std::erase_if(committed_, [&](const CommittedCheckpoint& c) { return c.dir == dir; });
    }
  }
  return absl::OkStatus();
}

// Whether a checkpoint with a damaged manifest may name this snapshot. Names count up, so names
// above the newest checkpoint's were given later; another owner's names tell nothing.
bool CheckpointHistory::MayBeOfDamaged(SnapshotId id) const {
  if (damaged_.empty()) return false;
  for (const SavedModel::Part& part : committed_.back().parts) {
    if (part.store == own_.store && part.tables_dir == own_.tables_dir &&
        part.snapshot >> 32 == id >> 32) {
      return id < part.snapshot;
    }
  }
  return true;
}

// OK if the snapshot is gone already.
absl::Status CheckpointHistory::DropIfThere(SnapshotId id) const {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<SnapshotId> snapshots, tables_->snapshots().List());
  if (std::find(snapshots.begin(), snapshots.end(), id) == snapshots.end()) return absl::OkStatus();
  return tables_->snapshots().Drop(id);
}

// Removes snapshots of this directory that no checkpoint names.
absl::Status CheckpointHistory::DropUnnamed() {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<SnapshotId> snapshots, tables_->snapshots().List());
  std::vector<SavedModel::Part> named;
  for (const CommittedCheckpoint& c : committed_)
    named.insert(named.end(), c.parts.begin(), c.parts.end());
  std::vector<SnapshotId> named_here;
  for (const SavedModel::Part& part : named) {
    if (part.store == own_.store && part.tables_dir == own_.tables_dir) {
      named_here.push_back(part.snapshot);
    }
  }
  if (!named_here.empty()) names_->GoOnWith(named_here.back());
  for (const SnapshotId id : snapshots) {
    const bool is_named = std::find(named_here.begin(), named_here.end(), id) != named_here.end();
    if (is_named || MayBeOfDamaged(id)) continue;
    if (!names_->owns(id)) {
      HOTROW_ASSIGN_OR_RETURN(const SnapshotInfo info, tables_->snapshots().Describe(id));
      if (!IsLeftBehind(info, named_here)) continue;
    }
    HOTROW_RETURN_IF_ERROR(tables_->snapshots().Drop(id));
  }
  names_->Next(snapshots);  // from here on new names are above all of these
  if (!group_.leads() || !damaged_.empty()) return absl::OkStatus();
  // Snapshot files of memory stores of earlier runs that kept their tables elsewhere.
  std::set<std::string> in_use;
  for (const SavedModel::Part& place : places_) {
    if (HasSnapshotFile(place)) in_use.insert(place.tables_dir);
  }
  return RemoveUnnamedSnapshots(env_, dir_, named, in_use);
}

absl::Status CheckpointHistory::Retire(std::span<const CommittedCheckpoint> old) const {
  for (const CommittedCheckpoint& c : old) HOTROW_RETURN_IF_ERROR(RetireCheckpoint(env_, c.dir));
  return env_.SyncDir(dir_);
}

// Drops the tables of a retired checkpoint: each rank those in its own store, and rank 0 those
// taken while the rows lived elsewhere. Those of memory stores are files of ours. A disk store that
// does not belong to this run keeps its snapshot: others may use it, and it may be on another
// machine.
absl::Status CheckpointHistory::ReleaseOne(const CommittedCheckpoint& checkpoint) const {
  absl::Status status;
  for (const SavedModel::Part& part : checkpoint.parts) {
    const auto is_of_part = [&](const SavedModel::Part& place) {
      return place.store == part.store && place.tables_dir == part.tables_dir;
    };
    if (is_of_part(own_)) {
      status.Update(DropIfThere(part.snapshot));
      continue;
    }
    const std::string below = AbsolutePath(SavedTablesDir(dir_));
    if (!group_.leads() || !HasSnapshotFile(part) ||
        (part.tables_dir != below && !absl::StartsWith(part.tables_dir, below + "/")) ||
        std::any_of(places_.begin(), places_.end(), is_of_part)) {
      continue;
    }
    const std::string path = absl::StrCat(part.tables_dir, "/", SnapshotFileName(part.snapshot));
    const absl::StatusOr<bool> exists = env_.Exists(path);
    status.Update(!exists.ok() ? exists.status() : *exists ? env_.Remove(path) : absl::OkStatus());
  }
  return status;
}

absl::Status CheckpointHistory::Release(std::span<const CommittedCheckpoint> old) const {
  absl::Status status;
  for (const CommittedCheckpoint& c : old) status.Update(ReleaseOne(c));
  if (!group_.leads()) return status;
  for (const CommittedCheckpoint& c : old) status.Update(RemoveFlatDir(env_, RetiredDir(c.dir)));
  return status;
}

absl::Status CheckpointHistory::RemoveOldest(int64_t count) {
  if (count <= 0) return absl::OkStatus();
  const std::vector<CommittedCheckpoint> old(committed_.begin(), committed_.begin() + count);
  HOTROW_RETURN_IF_ERROR(group_.TogetherOnLeader([&] { return Retire(old); }));
  ForgetOldest(count);
  return group_.Together([&] { return Release(old); });
}

void CheckpointHistory::ForgetOldest(int64_t count) {
  committed_.erase(committed_.begin(), committed_.begin() + count);
}

}  // namespace hotrow
