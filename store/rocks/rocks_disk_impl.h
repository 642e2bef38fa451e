#ifndef HOTROW_STORE_ROCKS_ROCKS_DISK_IMPL_H_
#define HOTROW_STORE_ROCKS_ROCKS_DISK_IMPL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "store/rocks/rocks_store.h"

namespace rocksdb {
class SstFileManager;
}  // namespace rocksdb

namespace hotrow::internal {

class RocksEngine;

// What the files of a RocksStore take on the disk, and the budget for it. RocksDB counts the table
// files of the live database (SstFileManager), but does not know of those that only a snapshot
// names: they are counted here.
//
// Threads: all methods may run concurrently.
class RocksDisk {
 public:
  // `options` outlives it.
  explicit RocksDisk(const RocksStoreOptions& options);

  // For the options of RocksDB.
  const std::shared_ptr<rocksdb::SstFileManager>& table_files() const { return table_files_; }

  // Of the live database and of snapshots, memtables not included.
  int64_t used_bytes() const;

  // Rows of so many bytes are to be written: waits until there is room for them, for a while, and
  // compacts where that may help. ResourceExhausted when there is none.
  absl::Status MakeRoom(RocksEngine& engine, int64_t bytes);
  // What makes compacting worth while.
  void NoteErased(int64_t keys) { erased_since_compaction_ += keys; }

  // Counts what only snapshots hold: after opening, and after a snapshot was made or dropped.
  absl::Status Recount(const RocksEngine& engine);

  // From the directories themselves, for statistics: of all files, and of those that only snapshots
  // hold. What cannot be read counts nothing.
  struct Usage {
    int64_t all_bytes = 0;
    int64_t snapshot_bytes = 0;
  };
  Usage Measure(const RocksEngine& engine) const;

 private:
  absl::Status DiskFull(int64_t used, int64_t more) const;

  const RocksStoreOptions& options_;
  const std::shared_ptr<rocksdb::SstFileManager> table_files_;
  std::atomic<int64_t> erased_since_compaction_{0};
  std::mutex mutex_;  // guards files_deleted_seen_ and the counting of snapshot_bytes_
  int64_t files_deleted_seen_ = -1;
  std::atomic<int64_t> snapshot_bytes_{0};
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_ROCKS_ROCKS_DISK_IMPL_H_
