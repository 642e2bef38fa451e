#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/status_macros.h"
#include "store/rocks/rocks_database_impl.h"
#include "store/rocks/rocks_dir_impl.h"
#include "store/rocks/rocks_store.h"

// Reading and looking at a RocksStore that is not open.
namespace hotrow {
namespace {

using internal::CheckRocksDatabaseFiles;
using internal::CheckRocksDirectory;
using internal::CheckRocksSnapshotFiles;
using internal::CheckRocksTableFile;
using internal::LookAtRocksDirectory;
using internal::ReadRocksLive;
using internal::ReadRocksSnapshot;
using internal::ReadRocksTables;
using internal::RocksCrcCache;
using internal::RocksDamageToStatus;
using internal::RocksDatabase;
using internal::RocksDirectory;
using internal::RocksDirLock;
using internal::RocksFile;
using internal::RocksLive;
using internal::RocksLiveDirName;
using internal::RocksSnapshot;
using internal::RocksSnapshotDir;

constexpr int64_t kCacheBytes = int64_t{8} << 20;  // of indexes; blocks of rows pass it by

absl::Status CheckThatThereIsAStore(const std::string& path, const RocksDirectory& directory) {
  if (!directory.is_new()) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(path, ": there is no RocksDB store, the file ",
                                          internal::kRocksTablesName, " is missing"));
}

std::unordered_map<uint32_t, int64_t> RowBytesOf(std::span<const StoreTable> tables) {
  std::unordered_map<uint32_t, int64_t> row_bytes;
  for (const StoreTable& table : tables) row_bytes[table.table] = table.row_bytes;
  return row_bytes;
}

// --- Reading -------------------------------------------------------------------------------------

class RocksSnapshotReader final : public SnapshotReader {
 public:
  explicit RocksSnapshotReader(const SnapshotReaderOptions& options) : options_(options) {}

  absl::Status Open();

  std::span<const StoreTable> tables() const override { return tables_; }
  int64_t rows() const override { return database_->rows(); }
  const SnapshotInfo& info() const override { return info_; }
  absl::Status Iterate(
      absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) override {
    return EndedWith(database_->Visit(row_bytes_, visit));
  }

 private:
  // The directory of the database, whose files were checked.
  absl::StatusOr<std::string> CheckSnapshot();
  absl::Status OpenDatabase();
  // What reading came to. What looks like damage may be that of a snapshot that was dropped.
  absl::Status EndedWith(const absl::Status& read) const;

  const SnapshotReaderOptions options_;
  std::unique_ptr<RocksDirLock> lock_;
  std::vector<StoreTable> tables_;
  std::unordered_map<uint32_t, int64_t> row_bytes_;
  SnapshotInfo info_;
  std::unique_ptr<RocksDatabase> database_;
};

absl::StatusOr<std::string> RocksSnapshotReader::CheckSnapshot() {
  HOTROW_ASSIGN_OR_RETURN(RocksSnapshot snapshot,
                          ReadRocksSnapshot(options_.path, options_.snapshot, tables_));
  HOTROW_RETURN_IF_ERROR(CheckSnapshotIdentity(absl::StrCat("RocksDB store ", options_.path),
                                               snapshot.info, options_.identity));
  info_ = snapshot.info;
  std::vector<RocksDamage> damage;
  HOTROW_RETURN_IF_ERROR(CheckRocksSnapshotFiles(snapshot, nullptr, &damage));
  HOTROW_RETURN_IF_ERROR(RocksDamageToStatus(damage));
  return snapshot.dir;
}

absl::Status RocksSnapshotReader::EndedWith(const absl::Status& read) const {
  if (!absl::IsDataLoss(read) || info_.id == 0) return read;
  const absl::StatusOr<RocksSnapshot> there =
      ReadRocksSnapshot(options_.path, options_.snapshot, tables_);
  if (!absl::IsFailedPrecondition(there.status()) &&
      (!there.ok() || there->info.identity == info_.identity)) {
    return read;
  }
  return absl::FailedPreconditionError(absl::StrCat("RocksDB store ", options_.path, ": snapshot ",
                                                    options_.snapshot,
                                                    " was dropped while it was read; read a newer "
                                                    "one"));
}

absl::Status RocksSnapshotReader::Open() {
  const std::string& path = options_.path;
  HOTROW_ASSIGN_OR_RETURN(RocksDirectory directory, LookAtRocksDirectory(path));
  HOTROW_RETURN_IF_ERROR(CheckThatThereIsAStore(path, directory));
  // The files of a snapshot never change, also while the store is open.
  if (options_.snapshot == 0) {
    HOTROW_ASSIGN_OR_RETURN(lock_, RocksDirLock::Take(path, /*reader=*/true));
  }
  HOTROW_ASSIGN_OR_RETURN(directory, LookAtRocksDirectory(path));
  HOTROW_RETURN_IF_ERROR(
      CheckRocksDirectory(path, directory, /*opens_snapshot=*/options_.snapshot != 0));
  HOTROW_ASSIGN_OR_RETURN(tables_, ReadRocksTables(path));
  row_bytes_ = RowBytesOf(tables_);
  return EndedWith(OpenDatabase());
}

absl::Status RocksSnapshotReader::OpenDatabase() {
  const std::string& path = options_.path;
  RocksLive live;
  std::string dir;
  if (options_.snapshot != 0) {
    HOTROW_ASSIGN_OR_RETURN(dir, CheckSnapshot());
  } else {
    HOTROW_ASSIGN_OR_RETURN(live, ReadRocksLive(path));
    dir = absl::StrCat(path, "/", RocksLiveDirName(live.number));
    std::vector<RocksDamage> damage;
    HOTROW_RETURN_IF_ERROR(CheckRocksDatabaseFiles(dir, &damage));
    HOTROW_RETURN_IF_ERROR(RocksDamageToStatus(damage));
  }
  const int64_t cache_bytes = options_.memory_budget_bytes == 0
                                  ? kCacheBytes
                                  : std::min(kCacheBytes, options_.memory_budget_bytes);
  // Files that are open stay, whoever removes their names.
  HOTROW_ASSIGN_OR_RETURN(database_,
                          RocksDatabase::Open({.path = path,
                                               .dir = dir,
                                               .cache_bytes = cache_bytes,
                                               .opens_all_files = options_.snapshot != 0}));
  if (options_.snapshot != 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(database_->CheckSequence(live, dir));
  if (database_->rows() == 0) info_.table_rows.assign(tables_.size(), 0);
  if (database_->rows() > 0 && tables_.size() == 1) info_.table_rows = {database_->rows()};
  return absl::OkStatus();
}

// --- Looking -------------------------------------------------------------------------------------

void AddDamage(RocksStoreReport* report, std::vector<RocksDamage> damage) {
  for (RocksDamage& one : damage) {
    if (std::ssize(report->damage) >= RocksStoreReport::kDamageMax) {
      ++report->damage_left_out;
    } else {
      report->damage.push_back(std::move(one));
    }
  }
}

// DataLoss is damage of `file`; anything else ends the looking.
absl::Status Note(const absl::Status& status, const std::string& file, RocksStoreReport* report) {
  if (!absl::IsDataLoss(status) && !absl::IsNotFound(status)) return status;
  AddDamage(report, {{file, std::string(status.message())}});
  return absl::OkStatus();
}

// The bytes of the regular files of a directory, by device and inode: a hard link counts once.
using BytesOfInode = std::map<std::pair<uint64_t, uint64_t>, int64_t>;
absl::Status AddFiles(const std::string& dir, BytesOfInode* bytes_of) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixEnv().ListDir(dir));
  for (const std::string& name : names) {
    struct stat info;
    if (::stat(absl::StrCat(dir, "/", name).c_str(), &info) != 0 || !S_ISREG(info.st_mode)) {
      continue;
    }
    (*bytes_of)[{info.st_dev, info.st_ino}] = info.st_size;
  }
  return absl::OkStatus();
}
int64_t SumOf(const BytesOfInode& bytes_of) {
  int64_t sum = 0;
  for (const auto& [inode, bytes] : bytes_of) sum += bytes;
  return sum;
}

// Looks at a store that is locked. contents: reads all files.
class Inspector {
 public:
  Inspector(std::string path, bool contents) : path_(std::move(path)), contents_(contents) {}

  absl::StatusOr<RocksStoreReport> Run();
  // Looks at one snapshot alone.
  absl::StatusOr<RocksStoreReport> RunSnapshot(SnapshotId id);

 private:
  absl::Status Begin(bool lock);
  absl::Status LookAtSnapshot(SnapshotId id);
  absl::Status LookAtLive(const RocksDirectory& directory);
  absl::Status LookAtLiveDatabase(const RocksLive& live);
  // Table files that have no checksum as a whole are left to those of their blocks.
  absl::Status VerifyTableFiles(const std::string& dir, const RocksDatabase& database);
  absl::StatusOr<std::map<uint32_t, int64_t>> CountRows(const RocksDatabase& database) const;

  const std::string path_;
  const bool contents_;
  std::unique_ptr<RocksDirLock> lock_;
  std::vector<StoreTable> tables_;
  // By device and inode: table files have as many names as databases use them.
  RocksCrcCache crcs_;
  std::map<std::pair<uint64_t, uint64_t>, absl::Status> verified_;
  RocksStoreReport report_;
};

absl::StatusOr<std::map<uint32_t, int64_t>> Inspector::CountRows(
    const RocksDatabase& database) const {
  std::map<uint32_t, int64_t> rows;
  HOTROW_RETURN_IF_ERROR(database.Visit(RowBytesOf(tables_), [&](const RowKey& key, auto) {
    ++rows[key.table];
    return absl::OkStatus();
  }));
  return rows;
}

int64_t Total(const std::map<uint32_t, int64_t>& rows) {
  int64_t total = 0;
  for (const auto& [table, count] : rows) total += count;
  return total;
}

absl::Status Inspector::VerifyTableFiles(const std::string& dir, const RocksDatabase& database) {
  std::vector<RocksDamage> damage;
  for (const RocksFile& file : database.table_files()) {
    const std::string path = absl::StrCat(dir, "/", file.name);
    const size_t before = damage.size();
    HOTROW_RETURN_IF_ERROR(CheckRocksTableFile(path, file, &crcs_, &damage));
    struct stat info;
    if (file.crc32c.has_value() || damage.size() > before || ::stat(path.c_str(), &info) != 0) {
      continue;
    }
    const auto [at, is_new] =
        verified_.try_emplace({static_cast<uint64_t>(info.st_dev), info.st_ino});
    if (is_new) at->second = internal::VerifyRocksTableFile(path);
    if (at->second.ok()) continue;
    if (!absl::IsDataLoss(at->second)) return at->second;
    damage.push_back({path, absl::StrCat("is damaged: ", at->second.message())});
  }
  AddDamage(&report_, std::move(damage));
  return absl::OkStatus();
}

absl::Status Inspector::LookAtSnapshot(SnapshotId id) {
  RocksStoreReport::Snapshot& out = report_.snapshots.emplace_back();
  out.info.id = id;
  const std::string dir = RocksSnapshotDir(path_, id);
  BytesOfInode bytes;
  HOTROW_RETURN_IF_ERROR(AddFiles(dir, &bytes));
  out.bytes = SumOf(bytes);
  out.files = std::ssize(bytes);
  const absl::StatusOr<RocksSnapshot> snapshot = ReadRocksSnapshot(path_, id, tables_);
  if (!snapshot.ok()) {
    return Note(snapshot.status(), absl::StrCat(dir, "/", internal::kRocksListName), &report_);
  }
  out.info = snapshot->info;
  if (snapshot->list.has_value()) out.rows = snapshot->list->rows;
  std::vector<RocksDamage> damage;
  HOTROW_RETURN_IF_ERROR(CheckRocksSnapshotFiles(*snapshot, contents_ ? &crcs_ : nullptr, &damage));
  const bool good = damage.empty();
  AddDamage(&report_, std::move(damage));
  if (!good || !contents_) return absl::OkStatus();
  const auto database = RocksDatabase::Open(
      {.path = path_, .dir = dir, .cache_bytes = kCacheBytes, .opens_all_files = contents_});
  if (!database.ok()) return Note(database.status(), dir, &report_);
  const int64_t damage_before = DamageCount(report_);
  const absl::Status verified = VerifyTableFiles(dir, **database);
  if (!verified.ok()) return Note(verified, dir, &report_);
  // With a list the rows are those that were written. Otherwise they are counted.
  if (snapshot->list.has_value() || DamageCount(report_) > damage_before) return absl::OkStatus();
  const absl::StatusOr<std::map<uint32_t, int64_t>> rows = CountRows(**database);
  if (!rows.ok()) return Note(rows.status(), dir, &report_);
  const int64_t known = (*database)->rows();
  if (known >= 0 && known != Total(*rows)) {
    AddDamage(&report_,
              {{dir, absl::StrCat("has ", Total(*rows), " rows, it was written with ", known)}});
  }
  out.rows = Total(*rows);
  return absl::OkStatus();
}

absl::Status Inspector::LookAtLiveDatabase(const RocksLive& live) {
  const std::string dir = absl::StrCat(path_, "/", report_.live);
  std::vector<RocksDamage> damage;
  HOTROW_RETURN_IF_ERROR(CheckRocksDatabaseFiles(dir, &damage));
  const bool good = damage.empty();
  AddDamage(&report_, std::move(damage));
  if (!good) return absl::OkStatus();
  const auto database = RocksDatabase::Open(
      {.path = path_, .dir = dir, .cache_bytes = kCacheBytes, .opens_all_files = contents_});
  if (!database.ok()) return Note(database.status(), dir, &report_);
  const absl::Status whole = (*database)->CheckSequence(live, dir);
  if (!whole.ok()) return Note(whole, dir, &report_);
  report_.table_files = std::ssize((*database)->table_files());
  report_.rows = (*database)->rows();
  std::map<uint32_t, int64_t> rows;
  const bool counts = contents_;
  if (contents_) {
    const int64_t damage_before = DamageCount(report_);
    const absl::Status verified = VerifyTableFiles(dir, **database);
    if (!verified.ok()) return Note(verified, dir, &report_);
    if (DamageCount(report_) > damage_before) return absl::OkStatus();
    absl::StatusOr<std::map<uint32_t, int64_t>> counted = CountRows(**database);
    if (!counted.ok()) return Note(counted.status(), dir, &report_);
    rows = *std::move(counted);
    if (report_.rows >= 0 && report_.rows != Total(rows)) {
      AddDamage(&report_,
                {{dir, absl::StrCat("has ", Total(rows), " rows, it counts ", report_.rows)}});
    }
    report_.rows = Total(rows);
  }
  for (RocksStoreReport::Table& table : report_.tables) {
    if (counts) table.rows = rows[table.table];
    if (!counts && report_.rows == 0) table.rows = 0;
    if (!counts && report_.rows > 0 && tables_.size() == 1) table.rows = report_.rows;
  }
  return absl::OkStatus();
}

absl::Status Inspector::LookAtLive(const RocksDirectory& directory) {
  const absl::Status whole = CheckRocksDirectory(path_, directory, /*opens_snapshot=*/false);
  if (!whole.ok()) {
    return Note(whole, absl::StrCat(path_, "/", internal::kRocksLiveName), &report_);
  }
  HOTROW_ASSIGN_OR_RETURN(const RocksLive live, ReadRocksLive(path_));
  report_.live = RocksLiveDirName(live.number);
  return LookAtLiveDatabase(live);
}

absl::Status Inspector::Begin(bool lock) {
  HOTROW_ASSIGN_OR_RETURN(const RocksDirectory directory, LookAtRocksDirectory(path_));
  HOTROW_RETURN_IF_ERROR(CheckThatThereIsAStore(path_, directory));
  if (lock) {
    HOTROW_ASSIGN_OR_RETURN(lock_, RocksDirLock::Take(path_, /*reader=*/true));
  }
  HOTROW_RETURN_IF_ERROR(CheckRocksDirectory(path_, directory, /*opens_snapshot=*/true));
  HOTROW_ASSIGN_OR_RETURN(tables_, ReadRocksTables(path_));
  for (const StoreTable& table : tables_) {
    report_.tables.push_back({.table = table.table, .row_bytes = table.row_bytes});
  }
  return absl::OkStatus();
}

absl::StatusOr<RocksStoreReport> Inspector::Run() {
  HOTROW_RETURN_IF_ERROR(Begin(/*lock=*/true));
  HOTROW_ASSIGN_OR_RETURN(const RocksDirectory directory, LookAtRocksDirectory(path_));
  HOTROW_RETURN_IF_ERROR(LookAtLive(directory));
  BytesOfInode live;
  if (!report_.live.empty()) {
    HOTROW_RETURN_IF_ERROR(AddFiles(absl::StrCat(path_, "/", report_.live), &live));
  }
  report_.live_bytes = SumOf(live);
  BytesOfInode all = live;
  for (const SnapshotId id : directory.snapshots) {
    HOTROW_RETURN_IF_ERROR(LookAtSnapshot(id));
    HOTROW_RETURN_IF_ERROR(AddFiles(RocksSnapshotDir(path_, id), &all));
  }
  report_.snapshot_bytes = SumOf(all) - report_.live_bytes;
  HOTROW_RETURN_IF_ERROR(AddFiles(path_, &all));
  for (const std::string& name : directory.live_dirs) {
    HOTROW_RETURN_IF_ERROR(AddFiles(absl::StrCat(path_, "/", name), &all));
  }
  report_.disk_bytes = SumOf(all);
  return std::move(report_);
}

absl::StatusOr<RocksStoreReport> Inspector::RunSnapshot(SnapshotId id) {
  HOTROW_RETURN_IF_ERROR(Begin(/*lock=*/false));
  const auto check = [&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const bool exists, PosixEnv().Exists(RocksSnapshotDir(path_, id)));
    if (exists) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("RocksDB store ", path_, ": there is no snapshot ", id));
  };
  HOTROW_RETURN_IF_ERROR(check());
  const absl::Status looked = LookAtSnapshot(id);
  HOTROW_RETURN_IF_ERROR(check());  // it may have been dropped meanwhile
  HOTROW_RETURN_IF_ERROR(looked);
  return std::move(report_);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SnapshotReader>> OpenRocksSnapshot(
    const SnapshotReaderOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  auto reader = std::make_unique<RocksSnapshotReader>(options);
  HOTROW_RETURN_IF_ERROR(reader->Open());
  return std::unique_ptr<SnapshotReader>(std::move(reader));
}

absl::StatusOr<RocksStoreReport> InspectRocksStore(const std::string& path) {
  return Inspector(path, /*contents=*/false).Run();
}

absl::StatusOr<RocksStoreReport> VerifyRocksStore(const std::string& path) {
  return Inspector(path, /*contents=*/true).Run();
}

absl::StatusOr<RocksStoreReport> VerifyRocksSnapshot(const std::string& path, SnapshotId snapshot) {
  return Inspector(path, /*contents=*/true).RunSnapshot(snapshot);
}

}  // namespace hotrow
