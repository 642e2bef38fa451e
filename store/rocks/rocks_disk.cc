#include "store/rocks/rocks_disk_impl.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_manager.h>
#include <sys/stat.h>

#include <chrono>
#include <map>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/out_of_room.h"
#include "base/status_macros.h"
#include "store/rocks/rocks_dir_impl.h"
#include "store/rocks/rocks_engine_impl.h"

namespace hotrow::internal {
namespace {

// Compacting all for less than this share of the budget takes more than it gives.
constexpr int64_t kWorthWhile = 16;

// The bytes of the files in a directory, by inode, so that hard links count once.
absl::Status AddFiles(const std::string& dir, std::map<uint64_t, int64_t>& bytes_of) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixEnv().ListDir(dir));
  for (const std::string& name : names) {
    struct stat info;
    // RocksDB removes files meanwhile.
    if (::stat(absl::StrCat(dir, "/", name).c_str(), &info) != 0 || !S_ISREG(info.st_mode)) {
      continue;
    }
    bytes_of[info.st_ino] = info.st_size;
  }
  return absl::OkStatus();
}

}  // namespace

RocksDisk::RocksDisk(const RocksStoreOptions& options)
    : options_(options), table_files_(rocksdb::NewSstFileManager(rocksdb::Env::Default())) {}

int64_t RocksDisk::used_bytes() const {
  return static_cast<int64_t>(table_files_->GetTotalSize()) + snapshot_bytes_.load();
}

absl::Status RocksDisk::Recount(const RocksEngine& engine) {
  const std::lock_guard lock(mutex_);
  files_deleted_seen_ = engine.files_deleted();
  std::map<uint64_t, int64_t> snapshots;
  std::map<uint64_t, int64_t> live;
  const std::string snapshots_dir = absl::StrCat(options_.path, "/", kRocksSnapshotsName);
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixEnv().ListDir(snapshots_dir));
  bool any = false;
  for (const std::string& name : names) {
    if (ParseHex16(name) == 0) continue;
    any = true;
    // Not found: dropped just now.
    const absl::Status status = AddFiles(absl::StrCat(snapshots_dir, "/", name), snapshots);
    if (!status.ok() && !absl::IsNotFound(status)) return status;
  }
  HOTROW_RETURN_IF_ERROR(AddFiles(engine.dir(), live));
  int64_t bytes = 0;
  for (const auto& [inode, size] : snapshots) {
    if (!live.contains(inode)) bytes += size;
  }
  snapshot_bytes_ = bytes;
  has_snapshots_ = any;
  return absl::OkStatus();
}

absl::Status RocksDisk::DiskFull(int64_t used, int64_t more, int64_t limit) const {
  const int64_t held = snapshot_bytes_.load();
  return OutOfRoomError(absl::StrCat(
      "RocksDB store ", options_.path, ": the disk budget of ", options_.disk_budget_bytes,
      " bytes is full: rows take ", used - held, " bytes, ", held,
      " more are held by snapshots, and ", more, " are needed where ", limit,
      " may be used; raise ", options_.disk_option, ", drop snapshots or erase rows"));
}

int64_t RocksDisk::UsedWithMemtables(const RocksEngine& engine) const {
  return used_bytes() + engine.Property("rocksdb.cur-size-all-mem-tables");
}

bool RocksDisk::HasRoom(const RocksEngine& engine, int64_t bytes, int64_t limit) const {
  return UsedWithMemtables(engine) + bytes <= limit;
}

void RocksDisk::CompactAll(RocksEngine& engine) {
  erased_since_compaction_ = 0;
  written_since_compaction_ = 0;
  rocksdb::CompactRangeOptions options;
  options.exclusive_manual_compaction = false;
  options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
  engine.db().CompactRange(options, nullptr, nullptr).PermitUncheckedError();
}

void RocksDisk::DropErased(RocksEngine& engine) {
  const int64_t budget = options_.disk_budget_bytes;
  if (budget == 0 || erased_since_compaction_ <= budget / kWorthWhile) return;
  if (!HasRoom(engine, budget / 4, new_rows_limit())) CompactAll(engine);
}

absl::Status RocksDisk::MakeRoom(RocksEngine& engine, int64_t bytes, int64_t limit) {
  bool stale = false;
  {
    const std::lock_guard lock(mutex_);
    stale = files_deleted_seen_ != engine.files_deleted();
  }
  if (stale) HOTROW_RETURN_IF_ERROR(Recount(engine));
  if (HasRoom(engine, bytes, limit)) return absl::OkStatus();
  // Space that is due to come free: compactions that are under way, old versions of rows that were
  // erased or written again.
  constexpr int kPolls = 500;
  for (int poll = 0; poll < kPolls && engine.is_busy() && !HasRoom(engine, bytes, limit); ++poll) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  // Where a snapshot holds the files that are rewritten, compacting them takes more than it gives.
  if (!HasRoom(engine, bytes, limit) &&
      (erased_since_compaction_ > 0 ||
       (!has_snapshots_ && written_since_compaction_ > options_.disk_budget_bytes / kWorthWhile))) {
    CompactAll(engine);
  }
  HOTROW_RETURN_IF_ERROR(Recount(engine));
  const int64_t now = UsedWithMemtables(engine);
  return now + bytes <= limit ? absl::OkStatus() : DiskFull(now, bytes, limit);
}

RocksDisk::Usage RocksDisk::Measure(const RocksEngine& engine) const {
  Usage usage;
  std::map<uint64_t, int64_t> live;
  AddFiles(engine.dir(), live).IgnoreError();
  std::map<uint64_t, int64_t> all = live;
  const std::string snapshots_dir = absl::StrCat(options_.path, "/", kRocksSnapshotsName);
  if (const auto names = PosixEnv().ListDir(snapshots_dir); names.ok()) {
    for (const std::string& name : *names) {
      AddFiles(absl::StrCat(snapshots_dir, "/", name), all).IgnoreError();
    }
  }
  for (const auto& [inode, bytes] : all) {
    usage.all_bytes += bytes;
    if (!live.contains(inode)) usage.snapshot_bytes += bytes;
  }
  return usage;
}

}  // namespace hotrow::internal
