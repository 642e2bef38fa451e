#include "store/rocks/rocks_live_state_impl.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/env.h"
#include "base/status_macros.h"
#include "store/rocks/rocks_database_impl.h"
#include "store/rocks/rocks_engine_impl.h"
#include "store/rocks/rocks_options_impl.h"

namespace hotrow::internal {
namespace {

namespace fs = std::filesystem;

// Against those of the directory's list, in any order.
absl::Status CheckTables(const std::string& path, std::span<const StoreTable> listed,
                         std::span<const StoreTable> tables) {
  const auto disagrees = [&](uint32_t table, absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("RocksDB store: ", path, ": table ", table, ": ", what));
  };
  std::map<uint32_t, int64_t> wanted;
  for (const StoreTable& table : tables) wanted[table.table] = table.row_bytes;
  for (const StoreTable& table : listed) {
    const auto found = wanted.find(table.table);
    if (found == wanted.end()) {
      return disagrees(table.table, "is in the store, the options have no such table");
    }
    if (found->second != table.row_bytes) {
      return disagrees(table.table,
                       absl::StrCat("row_bytes is ", table.row_bytes, " in the store and ",
                                    found->second, " in the options"));
    }
    wanted.erase(found);
  }
  if (!wanted.empty()) {
    return disagrees(wanted.begin()->first, "is in the options, the store has no such table");
  }
  return absl::OkStatus();
}

// The number in "live-<16 hex digits>"; 0 when the name is another.
uint64_t LiveNumber(const std::string& name) {
  absl::string_view digits = name;
  if (!absl::ConsumePrefix(&digits, "live-")) return 0;
  return ParseHex16({digits.data(), digits.size()});
}

// Makes a separate database out of a snapshot's files. Table files never change, so they are shared
// by a second name; the few others are copied.
absl::Status RestoreSnapshot(const RocksSnapshot& snapshot, const std::string& to) {
  Env& env = PosixEnv();
  HOTROW_RETURN_IF_ERROR(env.CreateDirs(to));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(snapshot.dir));
  for (const std::string& name : names) {
    if (name == kRocksListName || absl::StartsWith(name, kRocksCommittedName)) continue;
    const std::string source = absl::StrCat(snapshot.dir, "/", name);
    const std::string target = absl::StrCat(to, "/", name);
    if (!absl::EndsWith(name, ".sst")) {
      HOTROW_RETURN_IF_ERROR(CopyRegularFile(source, target));
      continue;
    }
    std::error_code error;
    fs::create_hard_link(source, target, error);
    if (error) return RocksFileError(error, absl::StrCat("RocksDB store: link ", source));
  }
  return env.SyncDir(to);
}

}  // namespace

std::string RocksLiveState::PathOf(std::string_view name) const {
  return absl::StrCat(options_.path, "/", std::string(name));
}

absl::Status RocksLiveState::Open(RocksEngine& engine) {
  HOTROW_RETURN_IF_ERROR(CreateDirsDurably(PosixEnv(), options_.path));
  directory_.emplace(options_.path);
  HOTROW_ASSIGN_OR_RETURN(lock_, RocksDirLock::Take(options_.path, /*reader=*/false));
  HOTROW_ASSIGN_OR_RETURN(const RocksDirectory directory, LookAtRocksDirectory(options_.path));
  return directory.is_new() ? Make(directory, engine) : OpenExisting(directory, engine);
}

// Nothing was promised to anybody until the mark is gone: whoever finds it without LIVE begins
// again.
absl::Status RocksLiveState::Make(const RocksDirectory& directory, RocksEngine& engine) {
  if (options_.open_at != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("RocksDB store ", options_.path, ": there is no snapshot ", options_.open_at));
  }
  Env& env = PosixEnv();
  HOTROW_RETURN_IF_ERROR(WriteFileAtomically(env, PathOf(kRocksMakingName), ""));
  HOTROW_RETURN_IF_ERROR(CreateDirsDurably(env, PathOf(kRocksSnapshotsName)));
  HOTROW_RETURN_IF_ERROR(RemoveUnfinishedSnapshots());
  HOTROW_RETURN_IF_ERROR(RemoveOtherLiveDirs(directory));
  HOTROW_RETURN_IF_ERROR(
      WriteFileAtomically(env, PathOf(kRocksTablesName), RocksTablesToText(options_.tables)));
  const RocksLive live = {.number = 1};
  const std::string dir = PathOf(RocksLiveDirName(live.number));
  HOTROW_RETURN_IF_ERROR(env.CreateDirs(dir));
  HOTROW_RETURN_IF_ERROR(env.SyncDir(options_.path));
  HOTROW_RETURN_IF_ERROR(engine.Open(dir, /*create=*/true));
  HOTROW_RETURN_IF_ERROR(WriteLive(live));
  HOTROW_RETURN_IF_ERROR(env.Remove(PathOf(kRocksMakingName)));
  return env.SyncDir(options_.path);
}

absl::Status RocksLiveState::OpenExisting(const RocksDirectory& directory, RocksEngine& engine) {
  HOTROW_RETURN_IF_ERROR(
      CheckRocksDirectory(options_.path, directory, /*opens_snapshot=*/options_.open_at != 0));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<StoreTable> listed, ReadRocksTables(options_.path));
  HOTROW_RETURN_IF_ERROR(CheckTables(PathOf(kRocksTablesName), listed, options_.tables));
  std::optional<RocksSnapshot> snapshot;
  if (options_.open_at != 0) {
    HOTROW_ASSIGN_OR_RETURN(snapshot, CheckSnapshot());
  } else {
    HOTROW_RETURN_IF_ERROR(CheckLive(directory));
  }
  // Nothing has changed up to here.
  HOTROW_RETURN_IF_ERROR(RemoveUnfinishedSnapshots());
  if (directory.has_live && directory.is_being_made) {
    HOTROW_RETURN_IF_ERROR(PosixEnv().Remove(PathOf(kRocksMakingName)));
  }
  if (snapshot.has_value()) return OpenSnapshot(directory, *snapshot, engine);
  HOTROW_RETURN_IF_ERROR(engine.Open(PathOf(RocksLiveDirName(live_.number)), /*create=*/false));
  return RemoveOtherLiveDirs(directory);
}

// RocksDB would remove table files that a damaged MANIFEST does not name, so it looks before it
// opens.
absl::Status RocksLiveState::CheckLive(const RocksDirectory& directory) {
  HOTROW_ASSIGN_OR_RETURN(live_, ReadRocksLive(options_.path));
  const std::string dir = PathOf(RocksLiveDirName(live_.number));
  const absl::Status status = [&]() -> absl::Status {
    std::vector<RocksDamage> damage;
    HOTROW_RETURN_IF_ERROR(CheckRocksDatabaseFiles(dir, &damage));
    HOTROW_RETURN_IF_ERROR(RocksDamageToStatus(damage));
    HOTROW_ASSIGN_OR_RETURN(
        const std::unique_ptr<RocksDatabase> database,
        RocksDatabase::Open(
            {.path = options_.path, .dir = dir, .cache_bytes = kRocksLookCacheBytes}));
    return database->CheckSequence(live_, dir);
  }();
  if (!absl::IsDataLoss(status)) return status;
  return absl::DataLossError(absl::StrCat(status.message(), RocksRemedy(directory)));
}

absl::StatusOr<RocksSnapshot> RocksLiveState::CheckSnapshot() const {
  HOTROW_ASSIGN_OR_RETURN(RocksSnapshot snapshot,
                          ReadRocksSnapshot(options_.path, options_.open_at, options_.tables));
  HOTROW_RETURN_IF_ERROR(CheckSnapshotIdentity(absl::StrCat("RocksDB store ", options_.path),
                                               snapshot.info, options_.open_at_identity));
  std::vector<RocksDamage> damage;
  HOTROW_RETURN_IF_ERROR(CheckRocksSnapshotFiles(snapshot, nullptr, &damage));
  HOTROW_RETURN_IF_ERROR(RocksDamageToStatus(damage));
  return snapshot;
}

// Snapshots that a crash cut off while they were made or dropped.
absl::Status RocksLiveState::RemoveUnfinishedSnapshots() const {
  const std::string dir = PathOf(kRocksSnapshotsName);
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixEnv().ListDir(dir));
  for (const std::string& name : names) {
    if (!absl::EndsWith(name, kRocksUnfinished)) continue;
    HOTROW_RETURN_IF_ERROR(RemoveRocksTree(absl::StrCat(dir, "/", name)));
  }
  return absl::OkStatus();
}

// Those that LIVE does not name.
absl::Status RocksLiveState::RemoveOtherLiveDirs(const RocksDirectory& directory) const {
  for (const std::string& name : directory.live_dirs) {
    if (live_.number != 0 && name == RocksLiveDirName(live_.number)) continue;
    HOTROW_RETURN_IF_ERROR(RemoveRocksTree(PathOf(name)));
  }
  return absl::OkStatus();
}

absl::Status RocksLiveState::WriteLive(const RocksLive& live) {
  HOTROW_RETURN_IF_ERROR(CheckInPlace());
  HOTROW_RETURN_IF_ERROR(
      WriteFileAtomically(PosixEnv(), PathOf(kRocksLiveName), RocksLiveToText(live)));
  live_ = live;
  return absl::OkStatus();
}

absl::Status RocksLiveState::NoteFlushed(uint64_t last) {
  const std::lock_guard lock(mutex_);
  if (last <= live_.sequence) return absl::OkStatus();
  return WriteLive({.number = live_.number, .sequence = last});
}

// The name in LIVE changes only when the database it names is whole and has opened, so a crash, or
// a snapshot that does not open, leaves the state before.
absl::Status RocksLiveState::OpenSnapshot(const RocksDirectory& directory,
                                          const RocksSnapshot& snapshot, RocksEngine& engine) {
  RocksLive live;
  for (const std::string& name : directory.live_dirs) {
    live.number = std::max(live.number, LiveNumber(name));
  }
  if (const absl::StatusOr<RocksLive> old = ReadRocksLive(options_.path); old.ok()) {
    live.number = std::max(live.number, old->number);
    live_ = *old;
  }
  ++live.number;
  // Remains of a crash. A snapshot is also what helps when LIVE, or what it names, is damaged: then
  // nothing goes before the snapshot has opened.
  if (std::count(directory.live_dirs.begin(), directory.live_dirs.end(),
                 RocksLiveDirName(live_.number)) > 0) {
    HOTROW_RETURN_IF_ERROR(RemoveOtherLiveDirs(directory));
  }
  const std::string dir = PathOf(RocksLiveDirName(live.number));
  HOTROW_RETURN_IF_ERROR(RestoreSnapshot(snapshot, dir));
  HOTROW_RETURN_IF_ERROR(PosixEnv().SyncDir(options_.path));
  HOTROW_RETURN_IF_ERROR(engine.Open(dir, /*create=*/false));
  live.sequence = engine.last_sequence();
  std::error_code error;
  if (fs::is_directory(PathOf(kRocksLiveName), error)) {  // a file cannot be renamed over it
    fs::remove(PathOf(kRocksLiveName), error);
    if (error) return RocksFileError(error, absl::StrCat("remove ", PathOf(kRocksLiveName)));
  }
  HOTROW_RETURN_IF_ERROR(WriteLive(live));
  return RemoveOtherLiveDirs(directory);
}

}  // namespace hotrow::internal
