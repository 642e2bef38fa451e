#include "store/rocks/rocks_snapshots_impl.h"

#include <rocksdb/db.h>
#include <rocksdb/utilities/checkpoint.h>

#include <filesystem>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/env.h"
#include "base/out_of_room.h"
#include "base/status_macros.h"
#include "store/rocks/rocks_database_impl.h"
#include "store/rocks/rocks_dir_impl.h"
#include "store/rocks/rocks_disk_impl.h"
#include "store/rocks/rocks_engine_impl.h"
#include "store/rocks/rocks_options_impl.h"

namespace hotrow::internal {
namespace {

absl::Status Precondition(const std::string& path, absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat("RocksDB store ", path, ": ", what));
}

}  // namespace

std::string RocksSnapshots::Dir() const {
  return absl::StrCat(options_.path, "/", kRocksSnapshotsName);
}

absl::Status RocksSnapshots::CheckExists(SnapshotId snapshot) const {
  HOTROW_ASSIGN_OR_RETURN(const bool exists,
                          PosixEnv().Exists(RocksSnapshotDir(options_.path, snapshot)));
  if (snapshot != 0 && exists) return absl::OkStatus();
  return Precondition(options_.path, absl::StrCat("there is no snapshot ", snapshot));
}

absl::StatusOr<std::vector<SnapshotId>> RocksSnapshots::List() const {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixEnv().ListDir(Dir()));
  std::vector<SnapshotId> ids;  // 16 digits each, so sorted names are sorted numbers
  for (const std::string& name : names) {
    if (const SnapshotId id = ParseHex16(name); id != 0) ids.push_back(id);
  }
  return ids;
}

absl::StatusOr<SnapshotInfo> RocksSnapshots::Describe(SnapshotId snapshot) {
  const std::lock_guard lock(mutex_);
  HOTROW_ASSIGN_OR_RETURN(RocksSnapshot found,
                          ReadRocksSnapshot(options_.path, snapshot, options_.tables));
  return std::move(found.info);
}

// Says what the checkpoint in `dir` consists of, and draws its identity. Opens it for that, as
// whoever resumes from it will, and so finds one that RocksDB did not make whole. last: of a write
// that must be in it.
absl::Status RocksSnapshots::WriteList(SnapshotId snapshot, const std::string& dir, uint64_t last,
                                       int64_t rows_at_open) const {
  RocksSnapshotList list = {
      .id = snapshot, .identity = UniqueId::Random(), .tables = options_.tables};
  const auto fails = [&](absl::string_view what) {
    return absl::InternalError(absl::StrCat("RocksDB store ", options_.path, ": prepare snapshot ",
                                            snapshot, ": RocksDB's checkpoint ", what));
  };
  std::map<std::string, RocksFile> table_files;
  {
    HOTROW_ASSIGN_OR_RETURN(
        const std::unique_ptr<RocksDatabase> database,
        RocksDatabase::Open(
            {.path = options_.path, .dir = dir, .cache_bytes = kRocksLookCacheBytes}));
    list.sequence = database->sequence();
    if (options_.exact_counts) {
      // The first batch after opening writes the count; without one the rows are those of then.
      list.rows = database->rows() >= 0 ? database->rows() : rows_at_open;
    }
    for (RocksFile& file : database->table_files()) table_files[file.name] = std::move(file);
  }
  if (list.sequence < last) {
    return fails(absl::StrCat("has the writes up to ", list.sequence, " only, not up to ", last));
  }
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixEnv().ListDir(dir));
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(dir, "/", name);
    std::error_code error;
    const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
    if (error) return RocksFileError(error, absl::StrCat("RocksDB store: size of ", path));
    RocksFile file = {.name = name, .bytes = bytes};
    if (absl::EndsWith(name, ".sst")) {
      const auto known = table_files.find(name);
      if (known == table_files.end() || known->second.bytes != bytes) {
        return fails(absl::StrCat("has a file ", name, " of ", bytes,
                                  " bytes that its MANIFEST does not know"));
      }
      file.crc32c = known->second.crc32c;
      table_files.erase(known);
    } else {
      HOTROW_ASSIGN_OR_RETURN(file.crc32c, Crc32cOfFile(path, bytes));
    }
    list.files.push_back(std::move(file));
  }
  if (!table_files.empty()) {
    return fails(absl::StrCat("lacks the file ", table_files.begin()->first));
  }
  return WriteFileAtomically(PosixEnv(), absl::StrCat(dir, "/", kRocksListName),
                             RocksSnapshotListToText(list));
}

absl::Status RocksSnapshots::Prepare(SnapshotId snapshot, int64_t rows_at_open,
                                     absl::FunctionRef<void()> captured) {
  if (snapshot == 0) return Precondition(options_.path, "0 is no snapshot id");
  Env& env = PosixEnv();
  const std::lock_guard lock(mutex_);
  const std::string dir = RocksSnapshotDir(options_.path, snapshot);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(dir));
  if (exists) {
    return Precondition(options_.path, absl::StrCat("snapshot ", snapshot, " exists already"));
  }
  const std::string temporary = absl::StrCat(dir, kRocksUnfinished);
  HOTROW_RETURN_IF_ERROR(RemoveRocksTree(temporary));  // of a try that failed
  bool has_name = false;
  const absl::Status status = [&]() -> absl::Status {
    // CreateCheckpoint flushes too, but see FlushMemtables.
    const uint64_t last = engine_.last_sequence();
    HOTROW_RETURN_IF_ERROR(engine_.FlushMemtables(last));
    rocksdb::Checkpoint* made = nullptr;
    const rocksdb::Status created = rocksdb::Checkpoint::Create(&engine_.db(), &made);
    const std::unique_ptr<rocksdb::Checkpoint> checkpoint(made);
    HOTROW_RETURN_IF_ERROR(engine_.ToStatus(created, "prepare a snapshot"));
    // RocksDB syncs what it writes, the names are ours to sync.
    HOTROW_RETURN_IF_ERROR(engine_.ToStatus(checkpoint->CreateCheckpoint(temporary, 0),
                                            absl::StrCat("prepare snapshot ", snapshot)));
    captured();
    HOTROW_RETURN_IF_ERROR(WriteList(snapshot, temporary, last, rows_at_open));
    HOTROW_RETURN_IF_ERROR(env.SyncDir(temporary));
    HOTROW_RETURN_IF_ERROR(env.Rename(temporary, dir));
    has_name = true;
    return env.SyncDir(Dir());
  }();
  if (!status.ok()) {
    // The name goes first: at no moment is there half a snapshot under it.
    absl::Status removed = has_name ? env.Rename(dir, temporary) : absl::OkStatus();
    removed.Update(RemoveRocksTree(temporary));
    removed.Update(RemoveRocksTree(temporary + ".tmp"));  // RocksDB's own
    if (removed.ok()) return status;
    return WithText(status,
                    absl::StrCat(status.message(),
                                 "; its unfinished files are still there: ", removed.message()));
  }
  disk_.Recount(engine_).IgnoreError();  // a figure; the snapshot is there
  return absl::OkStatus();
}

absl::Status RocksSnapshots::Commit(SnapshotId snapshot) {
  const std::lock_guard lock(mutex_);
  HOTROW_RETURN_IF_ERROR(CheckExists(snapshot));
  return WriteFileAtomically(
      PosixEnv(), absl::StrCat(RocksSnapshotDir(options_.path, snapshot), "/", kRocksCommittedName),
      "");
}

absl::Status RocksSnapshots::Drop(SnapshotId snapshot) {
  {
    Env& env = PosixEnv();
    const std::lock_guard lock(mutex_);
    HOTROW_RETURN_IF_ERROR(CheckExists(snapshot));
    // At one moment it is gone whole.
    const std::string dir = RocksSnapshotDir(options_.path, snapshot);
    const std::string temporary = absl::StrCat(dir, kRocksUnfinished);
    HOTROW_RETURN_IF_ERROR(RemoveRocksTree(temporary));
    HOTROW_RETURN_IF_ERROR(env.Rename(dir, temporary));
    HOTROW_RETURN_IF_ERROR(env.SyncDir(Dir()));
    HOTROW_RETURN_IF_ERROR(RemoveRocksTree(temporary));
  }
  disk_.Recount(engine_).IgnoreError();
  return absl::OkStatus();
}

}  // namespace hotrow::internal
