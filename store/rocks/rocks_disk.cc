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
#include "base/status_macros.h"
#include "store/rocks/rocks_dir_impl.h"
#include "store/rocks/rocks_engine_impl.h"

namespace hotrow::internal {
namespace {

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
  for (const std::string& name : names) {
    if (ParseHex16(name) == 0) continue;
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
  return absl::OkStatus();
}

absl::Status RocksDisk::DiskFull(int64_t used, int64_t more) const {
  return absl::ResourceExhaustedError(absl::StrCat(
      "RocksDB store ", options_.path, ": the disk budget is ", options_.disk_budget_bytes,
      " bytes, of which rows may use 3/4; ", used, " are used and ", more,
      " more are needed; raise the budget, or drop snapshots or rows"));
}

absl::Status RocksDisk::MakeRoom(RocksEngine& engine, int64_t bytes) {
  const int64_t limit = options_.disk_budget_bytes - options_.disk_budget_bytes / 4;
  const auto used = [&] {
    return used_bytes() + engine.Property("rocksdb.cur-size-all-mem-tables");
  };
  bool stale = false;
  {
    const std::lock_guard lock(mutex_);
    stale = files_deleted_seen_ != engine.files_deleted();
  }
  if (stale) HOTROW_RETURN_IF_ERROR(Recount(engine));
  if (used() + bytes <= limit) return absl::OkStatus();
  // Space that is due to come free: compactions that are under way, rows that were erased.
  constexpr int kPolls = 500;
  for (int poll = 0; poll < kPolls && engine.is_busy() && used() + bytes > limit; ++poll) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (used() + bytes > limit && erased_since_compaction_.exchange(0) > 0) {
    rocksdb::CompactRangeOptions options;
    options.exclusive_manual_compaction = false;
    options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
    // What it cannot free is refused below.
    engine.db().CompactRange(options, nullptr, nullptr).PermitUncheckedError();
  }
  HOTROW_RETURN_IF_ERROR(Recount(engine));
  const int64_t now = used();
  return now + bytes <= limit ? absl::OkStatus() : DiskFull(now, bytes);
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
