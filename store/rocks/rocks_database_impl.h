#ifndef HOTROW_STORE_ROCKS_ROCKS_DATABASE_IMPL_H_
#define HOTROW_STORE_ROCKS_ROCKS_DATABASE_IMPL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/row_key.h"
#include "store/rocks/rocks_dir_impl.h"

namespace rocksdb {
class DB;
class Logger;
class Status;
}  // namespace rocksdb

// A RocksDB database with rows in it, as RocksStore and those who look at its directory read it.
namespace hotrow::internal {

inline constexpr size_t kRocksKeyBytes = 12;
// How many rows there are, written with every batch when counting is exact. Shorter than any row
// key, so that it is none.
inline constexpr std::string_view kRocksCountKey = "rows";

using RocksVisit = absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)>;

// A log that keeps nothing, for every database: RocksDB would log what it does in the directory.
// Where one write of that log fails, as on a full disk, a RocksDB with assertions (Debian's) aborts
// at the next line.
std::shared_ptr<rocksdb::Logger> NewRocksNoLog();

// An error of RocksDB, which is not OK, with this text.
absl::Status RocksErrorWithText(const rocksdb::Status& status, const std::string& text);
// All rows of a database. `path` is the store's, for errors.
absl::Status VisitRocksRows(rocksdb::DB& db, const std::string& path,
                            const std::unordered_map<uint32_t, int64_t>& row_bytes,
                            RocksVisit visit);
// The same from the row of *from on, about `rows` rows. Sets *from to where the next call goes on:
// the first row of all where this one came to the end.
absl::Status VisitSomeRocksRows(rocksdb::DB& db, const std::string& path,
                                const std::unordered_map<uint32_t, int64_t>& row_bytes,
                                int64_t rows, RowKey* from, RocksVisit visit);
// The bytes of a key, which order rows by table, then by key.
std::array<char, kRocksKeyBytes> EncodeRocksKey(const RowKey& key);
// The number of rows that a database has under kRocksCountKey; -1: none is kept.
absl::StatusOr<int64_t> ReadRocksCount(rocksdb::DB& db, const std::string& path);

// Reads all blocks that reads of rows depend on, and compares their checksums. DataLoss.
absl::Status VerifyRocksTableFile(const std::string& path);

struct RocksDatabaseOptions {
  std::string path;         // of the store, for errors
  std::string dir;          // of the database
  int64_t cache_bytes = 0;  // for indexes
  // Whether it opens all files at once, and not when a read needs them: so that RocksDB compares
  // the id of each with the MANIFEST's.
  bool opens_all_files = false;
};

// The database of one directory, opened to be read. Nothing on the disk changes.
class RocksDatabase {
 public:
  static absl::StatusOr<std::unique_ptr<RocksDatabase>> Open(const RocksDatabaseOptions& options);
  ~RocksDatabase();
  RocksDatabase(const RocksDatabase&) = delete;
  RocksDatabase& operator=(const RocksDatabase&) = delete;

  // RocksDB's number of the last write.
  uint64_t sequence() const;
  // DataLoss, naming `dir`, when it lacks writes that a flush had made durable.
  absl::Status CheckSequence(const RocksLive& live, const std::string& dir) const;
  // Rows as the database itself counts; -1: not known.
  int64_t rows() const { return rows_; }
  // Table files, ascending by name, with their checksums where RocksDB knows them.
  std::vector<RocksFile> table_files() const;
  absl::Status Visit(const std::unordered_map<uint32_t, int64_t>& row_bytes,
                     RocksVisit visit) const;

 private:
  RocksDatabase(std::string path, std::unique_ptr<rocksdb::DB> db);

  const std::string path_;
  const std::unique_ptr<rocksdb::DB> db_;
  int64_t rows_ = -1;
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_ROCKS_ROCKS_DATABASE_IMPL_H_
