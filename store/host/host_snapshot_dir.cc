#include "store/host/host_snapshot_dir_impl.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "store/host/host_snapshot_impl.h"

namespace hotrow::internal {
namespace {

// The size of the buffer that snapshots are written and read through: 1 MiB, less in a small store.
int64_t StagingBytes(const HostStoreOptions& options) {
  return std::clamp(options.budget_bytes / 512 / 4096 * 4096, int64_t{4096}, int64_t{1} << 20);
}

absl::Status NoSnapshotError(std::string_view verb, SnapshotId snapshot, const std::string& dir) {
  return absl::FailedPreconditionError(absl::StrCat("host store: cannot ", std::string(verb),
                                                    " snapshot ", snapshot, ": there is none in '",
                                                    dir, "'"));
}

}  // namespace

HostSnapshotDir::HostSnapshotDir(const HostStoreOptions& options, HostRows& rows)
    : options_(options), env_(options.env == nullptr ? PosixEnv() : *options.env), rows_(rows) {}

absl::Status HostSnapshotDir::Init(MemoryBudget& budget) {
  if (options_.snapshot_dir.empty() && options_.open_at == 0) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(staging_,
                          BudgetedBuffer<std::byte>::Create(StagingBytes(options_), budget));
  if (!options_.snapshot_dir.empty()) HOTROW_RETURN_IF_ERROR(OpenDir());
  return options_.open_at == 0 ? absl::OkStatus() : Load(options_.open_at);
}

std::string HostSnapshotDir::PathOf(SnapshotId snapshot) const {
  return options_.snapshot_dir + "/" + SnapshotFileName(snapshot);
}

absl::Status HostSnapshotDir::OpenDir() {
  HOTROW_RETURN_IF_ERROR(CreateDirsDurably(env_, options_.snapshot_dir));
  directory_.emplace(options_.snapshot_dir);
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                          env_.ListDir(options_.snapshot_dir));
  for (const std::string& name : names) {
    if (const SnapshotId snapshot = ParseSnapshotFileName(name); snapshot != 0) {
      HOTROW_ASSIGN_OR_RETURN(const auto file, env_.Open(PathOf(snapshot), OpenMode::kRead));
      HOTROW_ASSIGN_OR_RETURN(const int64_t bytes, file->Size());
      snapshots_[snapshot] = {.bytes = bytes, .info = std::nullopt};
      bytes_.fetch_add(bytes, std::memory_order_relaxed);
      continue;
    }
    // A snapshot whose writing was cut off by a crash.
    std::string_view stem = name;
    if (!stem.ends_with(kSnapshotTmpSuffix)) continue;
    stem.remove_suffix(kSnapshotTmpSuffix.size());
    if (ParseSnapshotFileName(stem) == 0) continue;
    HOTROW_RETURN_IF_ERROR(env_.Remove(options_.snapshot_dir + "/" + name));
  }
  return absl::OkStatus();
}

absl::Status HostSnapshotDir::Load(SnapshotId snapshot) {
  const std::string& dir = options_.open_dir.empty() ? options_.snapshot_dir : options_.open_dir;
  const std::string path = dir + "/" + SnapshotFileName(snapshot);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env_.Exists(path));
  if (!exists) return NoSnapshotError("open", snapshot, dir);
  SnapshotIo io;
  HOTROW_RETURN_IF_ERROR(ReadSnapshot(
      env_, path, snapshot, options_.open_at_identity, options_.tables, staging_.span(),
      [&](const RowKey& key) { return rows_.AddAlone(key); }, io));
  ios_.Add(io.ios);
  bytes_read_.Add(io.bytes);
  return absl::OkStatus();
}

absl::StatusOr<HostSnapshotDir::SnapshotFile> HostSnapshotDir::Write(SnapshotId snapshot,
                                                                     const std::string& path) {
  const auto gate = rows_.HoldWriters();
  SnapshotInfo info = {.id = snapshot,
                       .committed = false,
                       .identity = UniqueId::Random(),
                       .table_rows = rows_.CountByTable()};
  HOTROW_ASSIGN_OR_RETURN(
      auto writer, SnapshotWriter::Create(env_, path, info, options_.tables, staging_.span()));
  HOTROW_RETURN_IF_ERROR(
      rows_.ForEachChunk([&](uint32_t table_index, std::span<const HostRow> rows) {
        return writer.AddBlock(options_.tables[table_index], rows);
      }));
  HOTROW_RETURN_IF_ERROR(writer.Finish());
  ios_.Add(writer.io().ios);
  bytes_written_.Add(writer.io().bytes);
  return SnapshotFile{.bytes = writer.io().bytes, .info = std::move(info)};
}

absl::Status HostSnapshotDir::CheckExists(SnapshotId snapshot, std::string_view verb) const {
  if (snapshots_.contains(snapshot)) return absl::OkStatus();
  return NoSnapshotError(verb, snapshot, options_.snapshot_dir);
}

absl::Status HostSnapshotDir::Prepare(SnapshotId snapshot, absl::FunctionRef<void()> captured) {
  if (options_.snapshot_dir.empty()) {
    return absl::FailedPreconditionError("host store: it was opened without a snapshot_dir");
  }
  if (snapshot == 0) return absl::FailedPreconditionError("host store: 0 names no snapshot");
  HOTROW_RETURN_IF_ERROR(directory_->CheckInPlace());
  const std::lock_guard lock(mutex_);
  if (snapshots_.contains(snapshot)) {
    return absl::FailedPreconditionError(
        absl::StrCat("host store: there is a snapshot ", snapshot, " already"));
  }
  const std::string path = PathOf(snapshot);
  const std::string tmp_path = path + std::string(kSnapshotTmpSuffix);
  absl::StatusOr<SnapshotFile> file =
      Caught("host store", [&] { return Write(snapshot, tmp_path); });
  absl::Status status = file.status();
  if (status.ok()) status = env_.Rename(tmp_path, path);
  if (!status.ok()) {
    env_.Remove(tmp_path).IgnoreError();  // else the next opening removes it
    return status;
  }
  captured();
  status = env_.SyncDir(options_.snapshot_dir);
  if (!status.ok()) {
    // Should this fail too, the file is whole and no manifest names it: an opening lists it.
    env_.Remove(path).IgnoreError();
    return status;
  }
  bytes_.fetch_add(file->bytes, std::memory_order_relaxed);
  snapshots_[snapshot] = *std::move(file);
  return absl::OkStatus();
}

absl::Status HostSnapshotDir::Commit(SnapshotId snapshot) {
  // A prepared snapshot is complete; that it is committed stands in the caller's manifest alone.
  const std::lock_guard lock(mutex_);
  return CheckExists(snapshot, "commit");
}

absl::Status HostSnapshotDir::Drop(SnapshotId snapshot) {
  const std::lock_guard lock(mutex_);
  HOTROW_RETURN_IF_ERROR(CheckExists(snapshot, "drop"));
  HOTROW_RETURN_IF_ERROR(directory_->CheckInPlace());
  const absl::Status removed = env_.Remove(PathOf(snapshot));
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;  // gone already is good
  bytes_.fetch_sub(snapshots_[snapshot].bytes, std::memory_order_relaxed);
  snapshots_.erase(snapshot);
  return env_.SyncDir(options_.snapshot_dir);
}

std::vector<SnapshotId> HostSnapshotDir::List() {
  const std::lock_guard lock(mutex_);
  std::vector<SnapshotId> ids;
  ids.reserve(snapshots_.size());
  for (const auto& [snapshot, file] : snapshots_) ids.push_back(snapshot);
  return ids;
}

absl::StatusOr<SnapshotInfo> HostSnapshotDir::Describe(SnapshotId snapshot) {
  const std::lock_guard lock(mutex_);
  HOTROW_RETURN_IF_ERROR(CheckExists(snapshot, "describe"));
  const std::optional<SnapshotInfo>& written = snapshots_[snapshot].info;
  if (written.has_value()) return *written;
  HOTROW_ASSIGN_OR_RETURN(SnapshotContents contents,
                          ReadSnapshotContents(env_, PathOf(snapshot), snapshot, staging_.span()));
  // Another run may have written the file, with its tables in another order.
  SnapshotInfo info = std::move(contents.info);
  const std::vector<int64_t> rows = std::exchange(info.table_rows, {});
  for (const StoreTable& table : options_.tables) {
    for (size_t t = 0; t < rows.size(); ++t) {
      if (contents.tables[t].table == table.table) info.table_rows.push_back(rows[t]);
    }
  }
  if (std::ssize(info.table_rows) != std::ssize(options_.tables)) info.table_rows.clear();
  return info;
}

}  // namespace hotrow::internal
