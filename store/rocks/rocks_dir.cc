#include "store/rocks/rocks_dir_impl.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/crc32c.h"
#include "base/env.h"
#include "base/errno_status.h"
#include "base/format_version.h"
#include "base/status_macros.h"

namespace hotrow::internal {
namespace {

// The first lines of TABLES and SNAPSHOT are these and a version. That of TABLES is the store's:
// it covers LIVE, which has none.
constexpr absl::string_view kTablesKind = "hotrow rocksdb store ";
constexpr FormatVersions kTablesVersions = {.first = 1, .last = 1};
constexpr absl::string_view kListKind = "hotrow rocksdb snapshot ";
constexpr FormatVersions kListVersions = {.first = 1, .last = 1};

// What the files may take. RocksDB begins a new MANIFEST at 1 GiB.
constexpr int64_t kTablesBytesMax = int64_t{16} << 20;
constexpr int64_t kLiveBytesMax = 4096;
constexpr int64_t kListBytesMax = int64_t{64} << 20;
constexpr int64_t kManifestBytesMax = int64_t{2} << 30;
constexpr int64_t kCurrentBytesMax = 4096;
constexpr int64_t kOtherBytesMax = int64_t{16} << 20;
constexpr int64_t kPieceBytes = int64_t{1} << 20;

absl::string_view AbslView(std::string_view text) { return {text.data(), text.size()}; }
std::span<const std::byte> BytesOf(absl::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Checks the first line of a file whose checksum fits. Version 0: what is no number as it is
// written.
absl::Status CheckVersion(const std::string& path, absl::string_view line, absl::string_view kind,
                          const FormatVersions& readable) {
  uint64_t version = 0;
  if (!absl::ConsumePrefix(&line, kind) || !absl::SimpleAtoi(line, &version) ||
      absl::StrCat(version) != line) {
    version = 0;
  }
  const absl::string_view what = absl::StripSuffix(kind, " ");
  return CheckFormatVersion(absl::StrCat("RocksDB store: ", path), {what.data(), what.size()},
                            version, readable);
}

bool IsTableFile(absl::string_view name) { return absl::EndsWith(name, ".sst"); }

// A log for people: a database can be without it or makes it again, and never reads it.
bool IsLog(absl::string_view name) { return name == "LOG" || absl::StartsWith(name, "LOG."); }

// Our own files in the directory of a snapshot.
bool IsOurs(absl::string_view name) {
  return name == kRocksListName || name == kRocksCommittedName ||
         absl::StripSuffix(name, kRocksUnfinished) == kRocksCommittedName;
}

// Names that RocksDB gives, so that none leads elsewhere.
bool IsFileName(absl::string_view name) {
  const auto allowed = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '.' ||
           c == '-' || c == '_';
  };
  return !name.empty() && name.size() <= 255 && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), allowed) && !IsOurs(name);
}

class OpenFile {
 public:
  explicit OpenFile(int fd) : fd_(fd) {}
  ~OpenFile() { ::close(fd_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

// O_NONBLOCK: a pipe must not keep us waiting for somebody who writes.
absl::StatusOr<std::unique_ptr<OpenFile>> OpenRegular(const std::string& path, struct stat* info) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return ErrnoToStatus(errno, absl::StrCat("RocksDB store: open ", path));
  auto file = std::make_unique<OpenFile>(fd);
  if (::fstat(fd, info) != 0) return ErrnoToStatus(errno, absl::StrCat("fstat ", path));
  if (!S_ISREG(info->st_mode)) {
    return absl::DataLossError(absl::StrCat("RocksDB store: ", path, ": is no regular file"));
  }
  return file;
}

// Calls visit for each piece of the first `bytes` bytes.
template <typename Visit>
absl::Status ReadPieces(const OpenFile& file, const std::string& path, int64_t bytes,
                        const Visit& visit) {
  std::vector<std::byte> piece(static_cast<size_t>(std::clamp<int64_t>(bytes, 1, kPieceBytes)));
  for (int64_t at = 0; at < bytes;) {
    const auto want = static_cast<size_t>(std::min<int64_t>(bytes - at, std::ssize(piece)));
    const ssize_t got = ::pread(file.fd(), piece.data(), want, at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoToStatus(errno, absl::StrCat("read ", path, " at ", at));
    if (got == 0) {
      return absl::DataLossError(absl::StrCat("RocksDB store: ", path, ": ends at offset ", at,
                                              ", ", bytes, " bytes were expected"));
    }
    HOTROW_RETURN_IF_ERROR(visit(std::span(piece).first(static_cast<size_t>(got))));
    at += got;
  }
  return absl::OkStatus();
}

// The text before the line "crc32c N" that ends it; nothing when that is not there or wrong.
std::optional<absl::string_view> WithoutCrc(absl::string_view text) {
  const size_t crc_at = text.rfind("crc32c ");
  uint32_t crc = 0;
  if (crc_at == absl::string_view::npos || (crc_at > 0 && text[crc_at - 1] != '\n') ||
      !absl::SimpleAtoi(text.substr(crc_at + 7), &crc) ||
      crc != Crc32c(BytesOf(text.substr(0, crc_at)))) {
    return std::nullopt;
  }
  return text.substr(0, crc_at);
}

void AppendCrc(std::string* text) {
  absl::StrAppend(text, "crc32c ", Crc32c(BytesOf(*text)), "\n");
}

}  // namespace

std::string Hex16(uint64_t value) {
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016" PRIx64, value);
  return digits;
}

SnapshotId ParseHex16(std::string_view name) {
  uint64_t value = 0;
  if (name.size() != 16 || !absl::SimpleHexAtoi(AbslView(name), &value) || Hex16(value) != name) {
    return 0;
  }
  return value;
}

std::string RocksLiveDirName(uint64_t number) { return absl::StrCat("live-", Hex16(number)); }

std::string RocksSnapshotDir(const std::string& path, SnapshotId id) {
  return absl::StrCat(path, "/", kRocksSnapshotsName, "/", Hex16(id));
}

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, int64_t bytes_max) {
  struct stat info;
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<OpenFile> file, OpenRegular(path, &info));
  if (info.st_size > bytes_max) {
    return absl::DataLossError(absl::StrCat("RocksDB store: ", path, ": is damaged, it has ",
                                            info.st_size, " bytes and may have ", bytes_max));
  }
  std::string text;
  text.reserve(static_cast<size_t>(info.st_size));
  HOTROW_RETURN_IF_ERROR(
      ReadPieces(*file, path, info.st_size, [&](std::span<const std::byte> piece) {
        text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
        return absl::OkStatus();
      }));
  return text;
}

absl::StatusOr<uint32_t> Crc32cOfFile(const std::string& path, int64_t bytes) {
  struct stat info;
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<OpenFile> file, OpenRegular(path, &info));
  uint32_t crc = 0;
  HOTROW_RETURN_IF_ERROR(ReadPieces(*file, path, bytes, [&](std::span<const std::byte> piece) {
    crc = Crc32c(piece, crc);
    return absl::OkStatus();
  }));
  return crc;
}

absl::Status CopyRegularFile(const std::string& from, const std::string& to) {
  struct stat info;
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<OpenFile> source, OpenRegular(from, &info));
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> target,
                          PosixEnv().Open(to, OpenMode::kTruncate));
  int64_t at = 0;
  HOTROW_RETURN_IF_ERROR(
      ReadPieces(*source, from, info.st_size, [&](std::span<const std::byte> piece) {
        const absl::Status written = WriteFull(*target, at, piece);
        at += std::ssize(piece);
        return written;
      }));
  HOTROW_RETURN_IF_ERROR(target->Sync());
  return target->Close();
}

absl::Status RemoveRocksTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return error ? RocksFileError(error, absl::StrCat("remove ", path)) : absl::OkStatus();
}

absl::Status RocksFileError(const std::error_code& error, std::string_view what) {
  return ErrnoToStatus(error.value(), what);
}

absl::StatusOr<std::unique_ptr<RocksDirLock>> RocksDirLock::Take(const std::string& dir,
                                                                 bool reader) {
  const std::string path = dir + "/LOCK";
  const int flags = reader ? O_RDONLY : O_RDWR | O_CREAT;
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0644);
  if (fd < 0 && errno == ENOENT && reader) return nullptr;
  struct stat info;
  if ((fd < 0 && errno == EISDIR) ||
      (fd >= 0 && ::fstat(fd, &info) == 0 && S_ISDIR(info.st_mode))) {
    if (fd >= 0) ::close(fd);
    return absl::DataLossError(absl::StrCat(
        "RocksDB store: ", path, ": is a directory, must be a file that is locked; remove it"));
  }
  if (fd < 0) return ErrnoToStatus(errno, absl::StrCat("RocksDB store: open ", path));
  if (::flock(fd, (reader ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) {
    const int error = errno;
    ::close(fd);
    if (error == EWOULDBLOCK) {
      return absl::FailedPreconditionError(
          absl::StrCat("RocksDB store: ", dir, " is open already, here or in another process"));
    }
    return ErrnoToStatus(error, absl::StrCat("RocksDB store: lock ", path));
  }
  return std::unique_ptr<RocksDirLock>(new RocksDirLock(fd));
}

RocksDirLock::~RocksDirLock() { ::close(fd_); }

// --- TABLES --------------------------------------------------------------------------------------

std::string RocksTablesToText(std::span<const StoreTable> tables) {
  std::string text = absl::StrCat(kTablesKind, kTablesVersions.last, "\n");
  for (const StoreTable& table : tables) {
    absl::StrAppend(&text, "table ", table.table, " row_bytes ", table.row_bytes, "\n");
  }
  AppendCrc(&text);
  return text;
}

absl::StatusOr<std::vector<StoreTable>> ParseRocksTables(const std::string& path,
                                                         const std::string& text) {
  const std::optional<absl::string_view> body = WithoutCrc(text);
  if (!absl::StartsWith(text, kTablesKind) || !body.has_value()) {
    return absl::DataLossError(absl::StrCat(
        "RocksDB store: ", path, ": the table list is damaged (its checksum does not fit)"));
  }
  const std::vector<absl::string_view> lines = absl::StrSplit(*body, '\n', absl::SkipEmpty());
  HOTROW_RETURN_IF_ERROR(CheckVersion(path, lines.empty() ? absl::string_view() : lines[0],
                                      kTablesKind, kTablesVersions));
  std::vector<StoreTable> tables;
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<absl::string_view> words = absl::StrSplit(lines[i], ' ');
    StoreTable table;
    if (words.size() != 4 || words[0] != "table" || words[2] != "row_bytes" ||
        !absl::SimpleAtoi(words[1], &table.table) ||
        !absl::SimpleAtoi(words[3], &table.row_bytes) || table.row_bytes < 1) {
      return absl::DataLossError(absl::StrCat("RocksDB store: ", path, ":", i + 1,
                                              ": expected \"table N row_bytes N\", found \"",
                                              lines[i], "\""));
    }
    tables.push_back(table);
  }
  return tables;
}

absl::StatusOr<std::vector<StoreTable>> ReadRocksTables(const std::string& path) {
  const std::string file = absl::StrCat(path, "/", kRocksTablesName);
  HOTROW_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(file, kTablesBytesMax));
  return ParseRocksTables(file, text);
}

// --- LIVE ----------------------------------------------------------------------------------------

std::string RocksLiveToText(const RocksLive& live) {
  std::string text = absl::StrCat(RocksLiveDirName(live.number), "\n");
  if (live.sequence == 0) return text;
  absl::StrAppend(&text, "sequence ", live.sequence, "\n");
  AppendCrc(&text);
  return text;
}

absl::StatusOr<RocksLive> ParseRocksLive(const std::string& file, const std::string& text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  RocksLive live;
  absl::string_view name = lines[0];
  if (absl::ConsumePrefix(&name, "live-")) live.number = ParseHex16({name.data(), name.size()});
  if (lines.size() > 1) {
    absl::string_view sequence = lines[1];
    if (absl::ConsumePrefix(&sequence, "sequence ") &&
        !absl::SimpleAtoi(sequence, &live.sequence)) {
      live.sequence = 0;
    }
  }
  // Exactly what was written: the first line alone, as an older version left it, or all three.
  if (live.number == 0 || RocksLiveToText(live) != text) {
    return absl::DataLossError(
        absl::StrCat("RocksDB store: ", file, ": is damaged: expected \"live-<16 hex digits>\" ",
                     "with a checksum that fits, found ", text.size(), " other bytes"));
  }
  return live;
}

absl::StatusOr<RocksLive> ReadRocksLive(const std::string& path) {
  const std::string file = absl::StrCat(path, "/", kRocksLiveName);
  HOTROW_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(file, kLiveBytesMax));
  return ParseRocksLive(file, text);
}

// --- SNAPSHOT ------------------------------------------------------------------------------------

std::string RocksSnapshotListToText(const RocksSnapshotList& list) {
  std::string text =
      absl::StrCat(kListKind, kListVersions.last, "\nsnapshot ", list.id, "\nidentity ",
                   list.identity.ToHex(), "\nsequence ", list.sequence, "\n");
  if (list.rows >= 0) absl::StrAppend(&text, "rows ", list.rows, "\n");
  for (const StoreTable& table : list.tables) {
    absl::StrAppend(&text, "table ", table.table, " row_bytes ", table.row_bytes, "\n");
  }
  for (const RocksFile& file : list.files) {
    absl::StrAppend(&text, "file ", file.name, " bytes ", file.bytes);
    if (file.crc32c.has_value()) absl::StrAppend(&text, " crc32c ", *file.crc32c);
    absl::StrAppend(&text, "\n");
  }
  AppendCrc(&text);
  return text;
}

absl::StatusOr<RocksSnapshotList> ParseRocksSnapshotList(const std::string& path,
                                                         const std::string& text) {
  const std::optional<absl::string_view> body = WithoutCrc(text);
  if (!absl::StartsWith(text, kListKind) || !body.has_value()) {
    return absl::DataLossError(absl::StrCat(
        "RocksDB store: ", path, ": the list of files is damaged (its checksum does not fit)"));
  }
  RocksSnapshotList list;
  int64_t number = 0;
  for (const absl::string_view line : absl::StrSplit(*body, '\n')) {
    if (++number == 1) {
      HOTROW_RETURN_IF_ERROR(CheckVersion(path, line, kListKind, kListVersions));
      continue;
    }
    if (line.empty()) continue;  // behind the last; others do not come back as they are
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    const auto is = [&](absl::string_view key, size_t count) {
      return words.size() == count && words[0] == key;
    };
    bool good = false;
    if (is("snapshot", 2)) {
      good = absl::SimpleAtoi(words[1], &list.id);
    } else if (is("identity", 2)) {
      const std::optional<UniqueId> id = UniqueId::FromHex({words[1].data(), words[1].size()});
      good = id.has_value() && id->known();
      if (good) list.identity = *id;
    } else if (is("sequence", 2)) {
      good = absl::SimpleAtoi(words[1], &list.sequence);
    } else if (is("rows", 2)) {
      good = absl::SimpleAtoi(words[1], &list.rows) && list.rows >= 0;
    } else if (is("table", 4)) {
      StoreTable table;
      good = absl::SimpleAtoi(words[1], &table.table) &&
             absl::SimpleAtoi(words[3], &table.row_bytes) && table.row_bytes > 0;
      list.tables.push_back(table);
    } else if (is("file", 4) || is("file", 6)) {
      RocksFile file = {.name = std::string(words[1])};
      good = IsFileName(words[1]) && absl::SimpleAtoi(words[3], &file.bytes) && file.bytes >= 0 &&
             (list.files.empty() || list.files.back().name < file.name);
      if (words.size() == 6) {
        uint32_t crc = 0;
        good = good && absl::SimpleAtoi(words[5], &crc);
        file.crc32c = crc;
      } else {
        good = good && IsTableFile(words[1]);
      }
      list.files.push_back(std::move(file));
    }
    if (!good) {
      return absl::DataLossError(absl::StrCat("RocksDB store: ", path, ":", number,
                                              ": is damaged: \"", line.substr(0, 200),
                                              "\" is no line of a snapshot's list"));
    }
  }
  // One way to write a list, so one way to read it: no line is missing, doubled or out of place.
  if (!list.identity.known() || RocksSnapshotListToText(list) != text) {
    return absl::DataLossError(absl::StrCat("RocksDB store: ", path,
                                            ": is damaged: its lines are not those of a "
                                            "snapshot's list, in their order"));
  }
  return list;
}

absl::StatusOr<RocksSnapshot> ReadRocksSnapshot(const std::string& path, SnapshotId id,
                                                std::span<const StoreTable> tables) {
  Env& env = PosixEnv();
  RocksSnapshot snapshot = {.dir = RocksSnapshotDir(path, id)};
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(snapshot.dir));
  if (id == 0 || !exists) {
    return absl::FailedPreconditionError(
        absl::StrCat("RocksDB store ", path, ": there is no snapshot ", id));
  }
  snapshot.info.id = id;
  HOTROW_ASSIGN_OR_RETURN(snapshot.info.committed,
                          env.Exists(absl::StrCat(snapshot.dir, "/", kRocksCommittedName)));
  const std::string file = absl::StrCat(snapshot.dir, "/", kRocksListName);
  const absl::StatusOr<std::string> text = ReadRegularFile(file, kListBytesMax);
  if (absl::IsNotFound(text.status())) return snapshot;  // of an older version
  HOTROW_RETURN_IF_ERROR(text.status());
  HOTROW_ASSIGN_OR_RETURN(snapshot.list, ParseRocksSnapshotList(file, *text));
  const RocksSnapshotList& list = *snapshot.list;
  if (list.id != id) {
    return absl::DataLossError(absl::StrCat("RocksDB store: ", file, ": is the list of snapshot ",
                                            list.id, ", the directory is that of snapshot ", id));
  }
  const auto sorted = [](std::span<const StoreTable> of) {
    std::set<std::pair<uint32_t, int64_t>> all;
    for (const StoreTable& table : of) all.emplace(table.table, table.row_bytes);
    return all;
  };
  if (sorted(list.tables) != sorted(tables)) {
    return absl::DataLossError(absl::StrCat("RocksDB store: ", file, ": names other tables than ",
                                            path, "/", kRocksTablesName,
                                            "; the snapshot is that of another store"));
  }
  snapshot.info.identity = list.identity;
  if (list.rows == 0) snapshot.info.table_rows.assign(tables.size(), 0);
  if (list.rows > 0 && tables.size() == 1) snapshot.info.table_rows = {list.rows};
  return snapshot;
}

// --- The files of a database ---------------------------------------------------------------------

namespace {

// Adds what is wrong with the kind of a file; nothing when it is a regular one.
absl::StatusOr<std::optional<struct stat>> StatRegular(const std::string& path,
                                                       std::vector<RocksDamage>* damage) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) {
    if (errno != ENOENT && errno != ELOOP) return ErrnoToStatus(errno, absl::StrCat("stat ", path));
    damage->push_back({path, "is missing"});
    return std::nullopt;
  }
  if (!S_ISREG(info.st_mode)) {
    damage->push_back({path, "is no regular file"});
    return std::nullopt;
  }
  return info;
}

// DataLoss is damage, anything else keeps us from looking.
absl::Status NoteUnreadable(const absl::Status& status, const std::string& path,
                            std::vector<RocksDamage>* damage) {
  if (!absl::IsDataLoss(status)) return status;
  damage->push_back({path, absl::StrCat("cannot be read: ", status.message())});
  return absl::OkStatus();
}

// Size and, when `with_crc`, checksum.
absl::Status CheckListedFile(const std::string& path, const RocksFile& file, bool with_crc,
                             RocksCrcCache* cache, std::vector<RocksDamage>* damage) {
  HOTROW_ASSIGN_OR_RETURN(const std::optional<struct stat> info, StatRegular(path, damage));
  if (!info.has_value()) return absl::OkStatus();
  if (info->st_size != file.bytes) {
    damage->push_back(
        {path, absl::StrCat("has ", info->st_size, " bytes, it was written with ", file.bytes)});
    return absl::OkStatus();
  }
  if (!with_crc || !file.crc32c.has_value()) return absl::OkStatus();
  const std::pair<uint64_t, uint64_t> inode(info->st_dev, info->st_ino);
  std::optional<uint32_t> crc;
  if (cache != nullptr) {
    if (const auto known = cache->find(inode); known != cache->end()) crc = known->second;
  }
  if (!crc.has_value()) {
    const absl::StatusOr<uint32_t> read = Crc32cOfFile(path, file.bytes);
    if (!read.ok()) return NoteUnreadable(read.status(), path, damage);
    crc = *read;
    if (cache != nullptr) (*cache)[inode] = *crc;
  }
  if (*crc != *file.crc32c) {
    damage->push_back({path, absl::StrCat("is damaged: its CRC-32C is ", *crc,
                                          ", it was written with ", *file.crc32c)});
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRocksTableFile(const std::string& path, const RocksFile& file,
                                 RocksCrcCache* cache, std::vector<RocksDamage>* damage) {
  return CheckListedFile(path, file, /*with_crc=*/true, cache, damage);
}

absl::Status CheckRocksDatabaseFiles(const std::string& dir, std::vector<RocksDamage>* damage) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixEnv().ListDir(dir));
  for (const std::string& name : names) {
    if (IsLog(name) || IsOurs(name) || absl::EndsWith(name, ".tmp")) continue;
    const std::string path = absl::StrCat(dir, "/", name);
    HOTROW_ASSIGN_OR_RETURN(const std::optional<struct stat> info, StatRegular(path, damage));
    if (!info.has_value() || IsTableFile(name)) continue;
    const int64_t bytes_max = absl::StartsWith(name, "MANIFEST-")       ? kManifestBytesMax
                              : name == "CURRENT" || name == "IDENTITY" ? kCurrentBytesMax
                                                                        : kOtherBytesMax;
    if (info->st_size > bytes_max) {
      damage->push_back({path, absl::StrCat("is damaged: it has ", info->st_size,
                                            " bytes and may have ", bytes_max)});
    }
  }
  if (!damage->empty()) return absl::OkStatus();
  const std::string path = dir + "/CURRENT";
  const absl::StatusOr<std::string> text = ReadRegularFile(path, kCurrentBytesMax);
  if (absl::IsNotFound(text.status())) {
    damage->push_back({path, "is missing"});
    return absl::OkStatus();
  }
  if (!text.ok()) return NoteUnreadable(text.status(), path, damage);
  absl::string_view name = *text;
  if (!absl::StartsWith(name, "MANIFEST-") || !absl::ConsumeSuffix(&name, "\n") ||
      !IsFileName(name)) {
    damage->push_back({path, "is damaged: it names no MANIFEST"});
    return absl::OkStatus();
  }
  if (std::find(names.begin(), names.end(), std::string(name)) == names.end()) {
    damage->push_back({absl::StrCat(dir, "/", name), "is missing"});
  }
  return absl::OkStatus();
}

absl::Status CheckRocksSnapshotFiles(const RocksSnapshot& snapshot, RocksCrcCache* cache,
                                     std::vector<RocksDamage>* damage) {
  if (!snapshot.list.has_value()) return CheckRocksDatabaseFiles(snapshot.dir, damage);
  std::set<std::string> listed;
  for (const RocksFile& file : snapshot.list->files) {
    listed.insert(file.name);
    const bool with_crc = !IsTableFile(file.name) || cache != nullptr;
    HOTROW_RETURN_IF_ERROR(
        CheckListedFile(absl::StrCat(snapshot.dir, "/", file.name), file, with_crc, cache, damage));
  }
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixEnv().ListDir(snapshot.dir));
  for (const std::string& name : names) {
    if (listed.contains(name)) continue;
    const std::string path = absl::StrCat(snapshot.dir, "/", name);
    if (!IsOurs(name)) {
      damage->push_back(
          {path, absl::StrCat("is no file of snapshot ", snapshot.info.id, ", ", kRocksListName,
                              " does not name it; take it out of the directory")});
      continue;
    }
    HOTROW_RETURN_IF_ERROR(StatRegular(path, damage).status());
  }
  return absl::OkStatus();
}

absl::Status RocksDamageToStatus(std::span<const RocksDamage> damage) {
  if (damage.empty()) return absl::OkStatus();
  std::string text = absl::StrCat("RocksDB store: ", damage[0].file, ": ", damage[0].what);
  if (damage.size() > 1) absl::StrAppend(&text, " (and ", damage.size() - 1, " more)");
  return absl::DataLossError(text);
}

// --- The directory as a whole --------------------------------------------------------------------

bool RocksDirectory::is_new() const {
  const bool has_nothing = !has_tables && !has_live && live_dirs.empty() && snapshots.empty();
  return has_nothing || (is_being_made && !has_live && snapshots.empty());
}

absl::StatusOr<RocksDirectory> LookAtRocksDirectory(const std::string& path) {
  Env& env = PosixEnv();
  RocksDirectory directory;
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) return directory;
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(path));
  for (const std::string& name : names) {
    directory.has_tables |= name == kRocksTablesName;
    directory.has_live |= name == kRocksLiveName;
    directory.has_snapshots_dir |= name == kRocksSnapshotsName;
    directory.is_being_made |= name == kRocksMakingName;
    if (absl::StartsWith(name, "live-")) directory.live_dirs.push_back(name);
  }
  if (!directory.has_snapshots_dir) return directory;
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> snapshots,
                          env.ListDir(absl::StrCat(path, "/", kRocksSnapshotsName)));
  for (const std::string& name : snapshots) {  // 16 digits each: sorted names are sorted numbers
    if (const SnapshotId id = ParseHex16(name); id != 0) directory.snapshots.push_back(id);
  }
  return directory;
}

std::string RocksRemedy(const RocksDirectory& directory) {
  constexpr size_t kNamed = 5;  // the newest
  const std::vector<SnapshotId>& ids = directory.snapshots;
  if (ids.empty()) {
    return "; it has no snapshots: bring the file back from a copy, or begin in an empty directory";
  }
  std::string text = ids.size() == 1 ? "; its snapshot" : "; its snapshots";
  for (size_t i = ids.size() > kNamed ? ids.size() - kNamed : 0; i < ids.size(); ++i) {
    absl::StrAppend(&text, " ", ids[i], i + 1 < ids.size() ? "," : "");
  }
  return absl::StrCat(text,
                      " can be opened, as resuming from a checkpoint does; or bring the file "
                      "back from a copy");
}

absl::Status CheckRocksDirectory(const std::string& path, const RocksDirectory& directory,
                                 bool opens_snapshot) {
  const auto damaged = [&](absl::string_view file, absl::string_view what) {
    return absl::DataLossError(
        absl::StrCat("RocksDB store ", path, ": ", path, "/", file, " ", what));
  };
  if (!directory.has_tables) {
    return damaged(kRocksTablesName,
                   "is missing, but the directory has the rows of a store: it is damaged; bring "
                   "the file back from a copy, or begin in an empty directory");
  }
  // Before anything that another version may have changed is called damage.
  const absl::Status tables = ReadRocksTables(path).status();
  if (absl::IsFailedPrecondition(tables)) return tables;
  if (!directory.has_snapshots_dir) {
    return damaged(kRocksSnapshotsName,
                   "is missing: all snapshots are lost; an empty directory of that name lets what "
                   "was written last be opened without them");
  }
  if (opens_snapshot) return absl::OkStatus();
  if (!directory.has_live) {
    return damaged(kRocksLiveName, absl::StrCat("is missing: the store is damaged, not new",
                                                RocksRemedy(directory)));
  }
  const absl::StatusOr<RocksLive> live = ReadRocksLive(path);
  if (absl::IsDataLoss(live.status())) {
    return absl::DataLossError(absl::StrCat(live.status().message(), RocksRemedy(directory)));
  }
  HOTROW_RETURN_IF_ERROR(live.status());
  const std::string name = RocksLiveDirName(live->number);
  const auto& dirs = directory.live_dirs;
  if (std::find(dirs.begin(), dirs.end(), name) != dirs.end()) return absl::OkStatus();
  return damaged(name, absl::StrCat("is missing, LIVE names it: the store is damaged",
                                    RocksRemedy(directory)));
}

}  // namespace hotrow::internal
