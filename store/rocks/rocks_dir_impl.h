#ifndef HOTROW_STORE_ROCKS_ROCKS_DIR_IMPL_H_
#define HOTROW_STORE_ROCKS_ROCKS_DIR_IMPL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/rocks/rocks_store.h"
#include "store/row_store.h"

// The directory of a RocksStore without RocksDB: names, our own text files, and whether the files
// of a database are those that were there when it was made. docs/formats/rocks_store.md.
namespace hotrow::internal {

inline constexpr char kRocksTablesName[] = "TABLES";
inline constexpr char kRocksLiveName[] = "LIVE";
inline constexpr char kRocksMakingName[] = "MAKING";
inline constexpr char kRocksSnapshotsName[] = "snapshots";
inline constexpr char kRocksListName[] = "SNAPSHOT";
inline constexpr char kRocksCommittedName[] = "COMMITTED";
inline constexpr char kRocksUnfinished[] = ".tmp";

std::string Hex16(uint64_t value);
// 0 when the name is not that of a finished snapshot.
SnapshotId ParseHex16(std::string_view name);
std::string RocksLiveDirName(uint64_t number);  // "live-<16 hex digits>"
std::string RocksSnapshotDir(const std::string& path, SnapshotId id);

// Reads a whole file. Errors: NotFound; DataLoss when it is no regular file or larger than
// bytes_max, so that neither a device nor a huge file is read.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path, int64_t bytes_max);
// The checksum of the first `bytes` bytes. DataLoss when there are fewer.
absl::StatusOr<uint32_t> Crc32cOfFile(const std::string& path, int64_t bytes);
// Copies a regular file in pieces and syncs the copy, not its directory.
absl::Status CopyRegularFile(const std::string& from, const std::string& to);
// A directory with all that is in it; none there is fine.
absl::Status RemoveRocksTree(const std::string& path);
// An error of std::filesystem: "what: reason".
absl::Status RocksFileError(const std::error_code& error, std::string_view what);

// Keeps a second store, of this process or another, out of the directory.
class RocksDirLock {
 public:
  // A reader shares the lock with other readers, makes no lock file, and gets null where there is
  // none.
  static absl::StatusOr<std::unique_ptr<RocksDirLock>> Take(const std::string& dir, bool reader);
  ~RocksDirLock();
  RocksDirLock(const RocksDirLock&) = delete;
  RocksDirLock& operator=(const RocksDirLock&) = delete;

 private:
  explicit RocksDirLock(int fd) : fd_(fd) {}
  const int fd_;
};

// --- TABLES --------------------------------------------------------------------------------------

std::string RocksTablesToText(std::span<const StoreTable> tables);
absl::StatusOr<std::vector<StoreTable>> ParseRocksTables(const std::string& path,
                                                         const std::string& text);
absl::StatusOr<std::vector<StoreTable>> ReadRocksTables(const std::string& path);

// --- LIVE ----------------------------------------------------------------------------------------

struct RocksLive {
  uint64_t number = 0;  // of the directory
  // The database holds at least the writes up to this one of RocksDB's numbers; 0: an older version
  // kept none.
  uint64_t sequence = 0;
};
std::string RocksLiveToText(const RocksLive& live);
// `file` is for errors.
absl::StatusOr<RocksLive> ParseRocksLive(const std::string& file, const std::string& text);
absl::StatusOr<RocksLive> ReadRocksLive(const std::string& path);

// --- SNAPSHOT ------------------------------------------------------------------------------------

struct RocksFile {
  std::string name;
  int64_t bytes = 0;
  std::optional<uint32_t> crc32c;  // none: not known, for table files alone
};

// What a snapshot consists of.
struct RocksSnapshotList {
  SnapshotId id = 0;
  UniqueId identity;
  uint64_t sequence = 0;           // RocksDB's number of the last write that is in it
  int64_t rows = -1;               // of all tables; -1: not known
  std::vector<StoreTable> tables;  // as TABLES lists them
  std::vector<RocksFile> files;    // ascending by name
};
std::string RocksSnapshotListToText(const RocksSnapshotList& list);
// Takes exactly what RocksSnapshotListToText gives. Errors: DataLoss, FailedPrecondition (another
// version); both name `path`.
absl::StatusOr<RocksSnapshotList> ParseRocksSnapshotList(const std::string& path,
                                                         const std::string& text);

// A snapshot as its directory tells.
struct RocksSnapshot {
  std::string dir;
  SnapshotInfo info;                      // table_rows in the order of the tables asked with
  std::optional<RocksSnapshotList> list;  // none: written by a version that kept none
};
// Errors: FailedPrecondition (there is no such snapshot), DataLoss (the list is damaged, or that of
// another snapshot or store).
absl::StatusOr<RocksSnapshot> ReadRocksSnapshot(const std::string& path, SnapshotId id,
                                                std::span<const StoreTable> tables);

// --- The files of a database ---------------------------------------------------------------------

// Checksums of files that were read before, by device and inode: a table file has as many names as
// databases use it.
using RocksCrcCache = std::map<std::pair<uint64_t, uint64_t>, uint32_t>;

// Compares the files of a snapshot with its list: exactly those, with their sizes, and the
// checksums of those that are no table files; of table files, too, with a cache. Without a list:
// that they are regular files of sizes that can be. Each fault is appended to `damage`. Errors:
// what keeps it from looking.
absl::Status CheckRocksSnapshotFiles(const RocksSnapshot& snapshot, RocksCrcCache* cache,
                                     std::vector<RocksDamage>* damage);
// The same of a directory without a list.
absl::Status CheckRocksDatabaseFiles(const std::string& dir, std::vector<RocksDamage>* damage);
// Compares one table file with its checksum.
absl::Status CheckRocksTableFile(const std::string& path, const RocksFile& file,
                                 RocksCrcCache* cache, std::vector<RocksDamage>* damage);
// DataLoss when there is damage: the first of it, and how much more.
absl::Status RocksDamageToStatus(std::span<const RocksDamage> damage);

// --- The directory as a whole --------------------------------------------------------------------

struct RocksDirectory {
  bool has_tables = false;
  bool has_live = false;
  bool has_snapshots_dir = false;
  // A store was being made and nothing has been promised yet.
  bool is_being_made = false;
  std::vector<std::string> live_dirs;  // names
  std::vector<SnapshotId> snapshots;   // ascending

  // Whether there is no store, or one that nobody has been given.
  bool is_new() const;
};
// Nothing there is fine.
absl::StatusOr<RocksDirectory> LookAtRocksDirectory(const std::string& path);
// What is missing of a store that is not new: TABLES, LIVE, the directory it names, snapshots/.
// Each is DataLoss, naming the file and the remedy. opens_snapshot: LIVE and what it names may be
// missing or damaged.
absl::Status CheckRocksDirectory(const std::string& path, const RocksDirectory& directory,
                                 bool opens_snapshot);
// "; its snapshots 5 and 9 can still be opened ..."
std::string RocksRemedy(const RocksDirectory& directory);

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_ROCKS_ROCKS_DIR_IMPL_H_
