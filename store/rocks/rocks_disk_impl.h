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

  // Bytes of the live database and of snapshots, memtables not included.
  int64_t used_bytes() const;

  // What new rows may use of the budget. The rest is for rows that are there and are written again,
  // for compactions and for erasing; its last part for what caches have to write when steps have
  // ended, so that a checkpoint, which lets older ones go, always finds room.
  int64_t new_rows_limit() const {
    return options_.disk_budget_bytes - options_.disk_budget_bytes / 4;
  }
  int64_t steps_limit() const {
    return options_.disk_budget_bytes - options_.disk_budget_bytes / 8;
  }
  // Whether so many bytes more fit the limit, as far as can be told without waiting.
  bool HasRoom(const RocksEngine& engine, int64_t bytes, int64_t limit) const;
  // Rows of so many bytes are to be written: waits until they fit the limit, for a while, and
  // compacts where that may help. ResourceExhausted when they do not.
  absl::Status MakeRoom(RocksEngine& engine, int64_t bytes, int64_t limit);
  // Where the budget is nearly used up: compacts what was erased, so that a snapshot to come does
  // not hold it.
  void DropErased(RocksEngine& engine);
  // What makes compacting worth while.
  void NoteErased(int64_t bytes) { erased_since_compaction_ += bytes; }
  void NoteWritten(int64_t bytes) { written_since_compaction_ += bytes; }

  // Counts what only snapshots hold: after opening, and after a snapshot was made or dropped.
  absl::Status Recount(const RocksEngine& engine);

  // Bytes from the directories themselves, for statistics: of all files, and of those that only
  // snapshots hold. What cannot be read counts nothing.
  struct Usage {
    int64_t all_bytes = 0;
    int64_t snapshot_bytes = 0;
  };
  Usage Measure(const RocksEngine& engine) const;

 private:
  // What it cannot free stays.
  void CompactAll(RocksEngine& engine);
  int64_t UsedWithMemtables(const RocksEngine& engine) const;
  absl::Status DiskFull(int64_t used, int64_t more, int64_t limit) const;

  const RocksStoreOptions& options_;
  const std::shared_ptr<rocksdb::SstFileManager> table_files_;
  std::atomic<int64_t> erased_since_compaction_{0};
  std::atomic<int64_t> written_since_compaction_{0};
  std::mutex mutex_;  // guards files_deleted_seen_ and the counting of snapshot_bytes_
  int64_t files_deleted_seen_ = -1;
  std::atomic<int64_t> snapshot_bytes_{0};
  std::atomic<bool> has_snapshots_{false};
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_ROCKS_ROCKS_DISK_IMPL_H_
