#ifndef HOTROW_STORE_ROCKS_ROCKS_ENGINE_IMPL_H_
#define HOTROW_STORE_ROCKS_ROCKS_ENGINE_IMPL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "store/rocks/rocks_options_impl.h"
#include "store/rocks/rocks_store.h"

namespace rocksdb {
class Cache;
class DB;
class Statistics;
class Status;
class WriteBatch;
class WriteBufferManager;
struct Options;
}  // namespace rocksdb

namespace hotrow::internal {

class RocksDisk;
class RocksEvents;

// The database of the present state, open, with what it shares with us: cache, memtables,
// statistics, and what it says from its own threads. Knows nothing of snapshots and directories.
//
// Threads: Open comes first; then all methods may run concurrently.
// Errors:  those of RocksDB, by ToStatus.
class RocksEngine {
 public:
  // All outlive it.
  RocksEngine(const RocksStoreOptions& options, const RocksSizes& sizes, const RocksDisk& disk);
  // Flushes what is in memtables; nothing of it was promised, so an error loses nothing promised.
  ~RocksEngine();
  RocksEngine(const RocksEngine&) = delete;
  RocksEngine& operator=(const RocksEngine&) = delete;

  // create: the database is to be made; otherwise one that has gone is an error, not an empty one.
  absl::Status Open(const std::string& dir, bool create);

  rocksdb::DB& db() const { return *db_; }
  const std::string& dir() const { return dir_; }
  uint64_t last_sequence() const;  // RocksDB's number of the last write

  // Writes a batch, without a log. Where RocksDB would wait without end, on a full disk, it is
  // ResourceExhausted.
  absl::Status Write(rocksdb::WriteBatch& batch);
  // Everything up to this number of RocksDB's is in files afterwards.
  absl::Status FlushMemtables(uint64_t last);

  // OK, or RocksDB's error, with what failed and, where a budget is full, its size.
  absl::Status ToStatus(const rocksdb::Status& status, std::string_view what) const;

  // A figure of RocksDB; 0 when it has none of that name.
  int64_t Property(std::string_view name) const;
  // Whether flushes or compactions are under way.
  bool is_busy() const;
  // Table files that RocksDB has removed since opening.
  int64_t files_deleted() const;
  rocksdb::Statistics& statistics() const { return *statistics_; }

  struct Memory {
    int64_t used_bytes = 0;
    int64_t peak_bytes = 0;
    int64_t reader_bytes = 0;  // of table readers, which the cache does not count
  };
  Memory memory() const;
  // The cache counts the memtables, too, in its own steps: after a batch, so that the peak is seen.
  void NotePeak() const;

 private:
  rocksdb::Options MakeOptions(bool direct);
  rocksdb::Status WriteWithoutHanging(rocksdb::WriteBatch& batch);
  void RaisePeak(int64_t used) const;

  const RocksStoreOptions& options_;
  const RocksSizes& sizes_;
  const RocksDisk& disk_;
  const std::shared_ptr<RocksEvents> events_;
  std::shared_ptr<rocksdb::Cache> cache_;
  std::shared_ptr<rocksdb::WriteBufferManager> write_buffers_;
  std::shared_ptr<rocksdb::Statistics> statistics_;
  std::string dir_;
  std::unique_ptr<rocksdb::DB> db_;
  mutable std::atomic<int64_t> peak_bytes_{0};
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_ROCKS_ROCKS_ENGINE_IMPL_H_
