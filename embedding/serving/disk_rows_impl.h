#ifndef HOTROW_EMBEDDING_SERVING_DISK_ROWS_IMPL_H_
#define HOTROW_EMBEDDING_SERVING_DISK_ROWS_IMPL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/env.h"
#include "base/hash.h"
#include "base/io_queue.h"
#include "base/metrics.h"
#include "base/row_key.h"
#include "embedding/serving/budget_share_impl.h"
#include "embedding/serving/copy_cache_impl.h"
#include "embedding/serving/row_file_impl.h"
#include "embedding/serving/row_sorter_impl.h"
#include "embedding/serving/serving_tables.h"

namespace hotrow::internal {

// DiskRows is the rows of all tables in a directory on a disk, with a cache in memory before them.
//
// Files:   one for each table (row_file_impl.h), named by the id, which stands for all that decides
//          the bits of the rows. They are written whole or not at all and never change, so readers
//          need no lock, and files of several ids may lie side by side. `hot_keys` has the keys of
//          the cache with their counts, as Save wrote them.
// Filling: where complete() is false, Put all rows; then Finish, in any case.
// Reading: a Reader takes the keys of a whole call, each once; Fetch then brings their rows, from
//          the cache and, all misses at once, from the disk.
// Threads: Fetch any number, each with its own Reader, and Save and stats; all others one at a
//          time, before.
// Budget:  index and filter of the files, buffers of readers, then the cache takes what is left of
//          limit_bytes. While rows are written half of it sorts them. On top come what a Reader
//          keeps of a call (its keys and rows) and 64 KiB while hot keys are written or read.
// Errors:  those of RowFile and RowSorter; FailedPrecondition (another process writes there);
//          ResourceExhausted (the disk is full, or the budget). They name the file.
class DiskRows {
 public:
  struct Options {
    Env* env = nullptr;
    std::string dir;  // made if missing
    Hash128 id;
    std::vector<std::string> tables;  // names
    std::vector<int64_t> row_bytes;   // by table
    int64_t limit_bytes = 0;          // of what is taken of the budget
    int32_t readers = 1;
    int64_t keys_max = 0;                           // of a Fetch, at least 1
    std::shared_ptr<const std::atomic<bool>> stop;  // as of ServingTablesOptions
    BudgetShare* share = nullptr;                   // outlives this
  };

  // What one call needs; reused. One thread at a time.
  class Reader {
   public:
    // Another call begins.
    void Clear();
    // Asks for the row of a key; returns a number for Row, the same for the same key.
    uint32_t Want(const RowKey& key);
    // After Fetch, until Clear; null: the key has no row. 16-byte aligned.
    const std::byte* Row(uint32_t number) const {
      return wanted_[number].found ? rows_.data() + int64_t{number} * stride_ : nullptr;
    }

   private:
    friend class DiskRows;
    struct Wanted {
      RowKey key;
      bool found = false;
      int64_t block = 0;  // where it may lie
    };
    void GrowIndex();
    std::vector<uint32_t> index_;  // of 1 and a number; 0: free. A power of two, half full at most
    uint64_t salt_ = 0;
    std::vector<Wanted> wanted_;
    int64_t stride_ = 0;
    HostBuffer<std::byte> rows_;   // [wanted]
    std::vector<uint32_t> reads_;  // of wanted_, those that the disk is asked for
    std::vector<IoRequest> requests_;
    std::unique_ptr<IoQueue> queue_;
    HostBuffer<std::byte> blocks_;  // of the budget
  };

  static absl::StatusOr<std::unique_ptr<DiskRows>> Create(const Options& options);
  ~DiskRows();

  // Whether the files were there: then no row is Put.
  bool complete() const { return complete_; }
  absl::Status Put(RowSorter::Kind kind, const RowKey& key, const std::byte* row);
  absl::Status Finish();

  int64_t rows(uint32_t table) const { return files_[table]->rows(); }
  // One of `readers`, to be given back before this goes; null: all are taken.
  std::unique_ptr<Reader> TakeReader();
  void GiveBack(std::unique_ptr<Reader> reader);
  absl::Status Fetch(Reader* reader) const;

  // Writes the keys of the cache.
  absl::Status SaveHotKeys() const;
  ServingReadStats stats() const;
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  explicit DiskRows(const Options& options);
  std::string PathOf(uint32_t table) const;
  std::string HotKeysPath() const { return options_.dir + "/hot_keys"; }
  RowFileSpec SpecOf(uint32_t table) const;
  absl::Status StartWriting();
  absl::Status WithRoomNeeded(const absl::Status& status) const;
  absl::Status WriteFiles();
  absl::Status RemoveOthers() const;
  absl::Status MakeReaders();
  absl::Status MakeCaches();
  absl::Status ReadBlocks(Reader* reader) const;
  Hash128 TablesDigest() const;
  // What is wrong with the file of hot keys; NotFound: there is none.
  absl::Status ReadHotKeys();

  const Options options_;
  int64_t stride_ = 0;       // of rows in a Reader
  int64_t block_bytes_ = 0;  // the longest of all tables
  bool complete_ = false;
  std::unique_ptr<FileLock> lock_;  // while files are written
  std::unique_ptr<RowSorter> sorter_;
  std::vector<std::unique_ptr<RowFile>> files_;     // by table
  std::vector<std::unique_ptr<CopyCache>> caches_;  // by width
  std::vector<CopyCache*> cache_of_;                // by table
  std::mutex readers_mutex_;
  std::vector<std::unique_ptr<Reader>> readers_;  // that nobody has
  std::vector<std::string> notes_;
  mutable std::mutex save_mutex_;  // one file of hot keys at a time
  mutable Counter hits_, misses_, absent_, reads_, read_bytes_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_SERVING_DISK_ROWS_IMPL_H_
