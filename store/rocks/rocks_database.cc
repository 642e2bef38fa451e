#include "store/rocks/rocks_database_impl.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_checksum.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace hotrow::internal {
namespace {

RowKey DecodeKey(const rocksdb::Slice& bytes) {
  RowKey key;
  for (int i = 0; i < 4; ++i) key.table = key.table << 8 | static_cast<uint8_t>(bytes[i]);
  for (int i = 4; i < 12; ++i) key.key = key.key << 8 | static_cast<uint8_t>(bytes[i]);
  return key;
}

class NoLog final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

// filters: whoever opens a table file reads its filter. RocksDB passes over filters that no policy
// is there for, also where it verifies a file.
rocksdb::Options ReadingOptions(int64_t cache_bytes, bool filters = false) {
  rocksdb::BlockBasedTableOptions table;
  constexpr double kBitsPerKey = 10;  // of filters that are written; any number reads
  if (filters) table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(kBitsPerKey));
  table.block_cache = rocksdb::NewLRUCache(static_cast<size_t>(cache_bytes));
  table.cache_index_and_filter_blocks = true;
  rocksdb::Options options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.paranoid_checks = true;
  options.skip_stats_update_on_db_open = true;  // nothing is compacted
  options.info_log = NewRocksNoLog();
  return options;
}

}  // namespace

std::shared_ptr<rocksdb::Logger> NewRocksNoLog() { return std::make_shared<NoLog>(); }

absl::Status RocksErrorWithText(const rocksdb::Status& status, const std::string& text) {
  switch (status.code()) {
    case rocksdb::Status::kCorruption:
      return absl::DataLossError(text);
    case rocksdb::Status::kIOError:
      return absl::DataLossError(text);
    case rocksdb::Status::kNotSupported:
      return absl::UnimplementedError(text);
    case rocksdb::Status::kInvalidArgument:
      return absl::InvalidArgumentError(text);
    case rocksdb::Status::kShutdownInProgress:
      return absl::FailedPreconditionError(text);
    case rocksdb::Status::kIncomplete:
    case rocksdb::Status::kTimedOut:
    case rocksdb::Status::kBusy:
    case rocksdb::Status::kTryAgain:
    case rocksdb::Status::kAborted:
      return absl::UnavailableError(text);
    default:
      return absl::InternalError(text);
  }
}

absl::Status VisitRocksRows(rocksdb::DB& db, const std::string& path,
                            const std::unordered_map<uint32_t, int64_t>& row_bytes,
                            RocksVisit visit) {
  RowKey first;
  return VisitSomeRocksRows(db, path, row_bytes, std::numeric_limits<int64_t>::max(), &first,
                            visit);
}

absl::Status VisitSomeRocksRows(rocksdb::DB& db, const std::string& path,
                                const std::unordered_map<uint32_t, int64_t>& row_bytes,
                                int64_t rows, RowKey* from, RocksVisit visit) {
  rocksdb::ReadOptions options;
  options.verify_checksums = true;
  options.fill_cache = false;
  options.readahead_size = 512 << 10;
  const std::unique_ptr<rocksdb::Iterator> at(db.NewIterator(options));
  const std::array<char, kRocksKeyBytes> first = EncodeRocksKey(*from);
  *from = {};
  int64_t seen = 0;
  for (at->Seek({first.data(), first.size()}); at->Valid(); at->Next()) {
    if (at->key().size() != kRocksKeyBytes) continue;  // the count of rows
    if (seen++ == rows) {
      *from = DecodeKey(at->key());
      break;
    }
    const RowKey key = DecodeKey(at->key());
    const rocksdb::Slice value = at->value();
    const auto table = row_bytes.find(key.table);
    const int64_t wanted = table == row_bytes.end() ? 0 : table->second;
    if (static_cast<int64_t>(value.size()) != wanted) {
      return absl::DataLossError(absl::StrCat("RocksDB store ", path, ": key ", key.key,
                                              " of table ", key.table, " has ", value.size(),
                                              " bytes, not ", wanted));
    }
    HOTROW_RETURN_IF_ERROR(
        visit(key, {reinterpret_cast<const std::byte*>(value.data()), value.size()}));
  }
  if (at->status().ok()) return absl::OkStatus();
  return RocksErrorWithText(
      at->status(), absl::StrCat("RocksDB store ", path, ": iterate: ", at->status().ToString()));
}

std::array<char, kRocksKeyBytes> EncodeRocksKey(const RowKey& key) {
  std::array<char, kRocksKeyBytes> bytes;
  for (int i = 0; i < 4; ++i) bytes[i] = static_cast<char>(key.table >> (24 - 8 * i));
  for (int i = 0; i < 8; ++i) bytes[4 + i] = static_cast<char>(key.key >> (56 - 8 * i));
  return bytes;
}

absl::StatusOr<int64_t> ReadRocksCount(rocksdb::DB& db, const std::string& path) {
  std::string value;
  const rocksdb::Status status =
      db.Get(rocksdb::ReadOptions(), {kRocksCountKey.data(), kRocksCountKey.size()}, &value);
  if (status.IsNotFound()) return -1;
  if (!status.ok()) {
    return RocksErrorWithText(
        status, absl::StrCat("RocksDB store ", path, ": count rows: ", status.ToString()));
  }
  int64_t rows = 0;
  if (value.size() != sizeof(rows)) {
    return absl::DataLossError(absl::StrCat("RocksDB store ", path, ": the count of rows has ",
                                            value.size(), " bytes, not 8"));
  }
  std::memcpy(&rows, value.data(), sizeof(rows));
  if (rows >= 0) return rows;
  return absl::DataLossError(absl::StrCat("RocksDB store ", path, ": the count of rows is ", rows));
}

absl::Status VerifyRocksTableFile(const std::string& path) {
  constexpr int64_t kCacheBytes = int64_t{1} << 20;
  rocksdb::SstFileReader reader(ReadingOptions(kCacheBytes, /*filters=*/true));
  rocksdb::Status status = reader.Open(path);
  if (status.ok()) {
    rocksdb::ReadOptions options;
    options.readahead_size = 512 << 10;
    status = reader.VerifyChecksum(options);
  }
  if (status.ok()) return absl::OkStatus();
  return RocksErrorWithText(status, status.ToString());
}

RocksDatabase::RocksDatabase(std::string path, std::unique_ptr<rocksdb::DB> db)
    : path_(std::move(path)), db_(std::move(db)) {}

RocksDatabase::~RocksDatabase() = default;

absl::StatusOr<std::unique_ptr<RocksDatabase>> RocksDatabase::Open(
    const RocksDatabaseOptions& options) {
  rocksdb::Options db_options = ReadingOptions(options.cache_bytes);
  db_options.max_open_files = options.opens_all_files ? -1 : 64;
  rocksdb::DB* made = nullptr;
  const rocksdb::Status status = rocksdb::DB::OpenForReadOnly(db_options, options.dir, &made);
  if (!status.ok()) {
    return RocksErrorWithText(status, absl::StrCat("RocksDB store ", options.path, ": open ",
                                                   options.dir, ": ", status.ToString()));
  }
  std::unique_ptr<RocksDatabase> database(
      new RocksDatabase(options.path, std::unique_ptr<rocksdb::DB>(made)));
  HOTROW_ASSIGN_OR_RETURN(database->rows_, ReadRocksCount(*database->db_, options.path));
  return database;
}

uint64_t RocksDatabase::sequence() const { return db_->GetLatestSequenceNumber(); }

absl::Status RocksDatabase::CheckSequence(const RocksLive& live, const std::string& dir) const {
  if (sequence() >= live.sequence) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "RocksDB store ", path_, ": ", dir, ": is damaged: its MANIFEST knows the writes up to ",
      sequence(), ", LIVE says that those up to ", live.sequence, " were flushed"));
}

std::vector<RocksFile> RocksDatabase::table_files() const {
  std::vector<rocksdb::LiveFileMetaData> found;
  db_->GetLiveFilesMetaData(&found);
  std::vector<RocksFile> files;
  for (const rocksdb::LiveFileMetaData& live : found) {
    RocksFile file = {.name = live.relative_filename, .bytes = static_cast<int64_t>(live.size)};
    // Four bytes, the highest first.
    if (live.file_checksum_func_name == rocksdb::kStandardDbFileChecksumFuncName &&
        live.file_checksum.size() == sizeof(uint32_t)) {
      uint32_t crc = 0;
      for (const char c : live.file_checksum) crc = crc << 8 | static_cast<uint8_t>(c);
      file.crc32c = crc;
    }
    files.push_back(std::move(file));
  }
  std::sort(files.begin(), files.end(),
            [](const RocksFile& a, const RocksFile& b) { return a.name < b.name; });
  return files;
}

absl::Status RocksDatabase::Visit(const std::unordered_map<uint32_t, int64_t>& row_bytes,
                                  RocksVisit visit) const {
  return VisitRocksRows(*db_, path_, row_bytes, visit);
}

}  // namespace hotrow::internal
