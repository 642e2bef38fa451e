#ifndef HOTROW_EMBEDDING_SERVING_DISK_ROWS_IMPL_H_
#define HOTROW_EMBEDDING_SERVING_DISK_ROWS_IMPL_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
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
#include "embedding/serving/row_levels_impl.h"
#include "embedding/serving/row_sorter_impl.h"
#include "embedding/serving/serving_tables.h"

namespace hotrow::internal {

class DiskRows;

// One version of the rows on a disk. All but the files stays as it is; these become others where
// levels are merged, with the same rows.
class DiskVersion {
 public:
  std::vector<int64_t> rows;        // by table, as the last delta says
  std::vector<uint32_t> age_lines;  // by table
  // How many of the newest files stand before the cache, which must not be asked for their keys.
  std::vector<uint32_t> before_cache;

  std::shared_ptr<const RowLevels> levels() const {
    const std::lock_guard lock(mutex_);
    return levels_;
  }
  void set_levels(std::shared_ptr<const RowLevels> levels) {
    const std::lock_guard lock(mutex_);
    levels_.swap(levels);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const RowLevels> levels_;
};

// What a delta changes in rows on a disk, made while others read them: Put and PutErased, each key
// once; Stage; Fold; the destructor, as of ServingTables::Update. Stage writes a level of each
// table that changes and says in the directory that the next open finds the new version; what it
// has written before an error goes, or is written over by the next try. Fold never fails.
class DiskUpdate {
 public:
  struct After {  // of a table
    int64_t rows = 0;
    uint32_t age_line = 0;
  };
  ~DiskUpdate();

  absl::Status Put(const RowKey& key, uint32_t last_step, const std::byte* row);
  absl::Status PutErased(const RowKey& key);
  // id: of the new version. after: by table.
  absl::StatusOr<std::shared_ptr<const DiskVersion>> Stage(const Hash128& id,
                                                           std::span<const After> after);
  std::shared_ptr<const DiskVersion> Fold();

 private:
  friend class DiskRows;
  DiskUpdate(DiskRows* rows, std::unique_ptr<RowSorter> sorter);
  absl::Status WriteLevels();
  absl::Status FillCache(uint32_t table);

  DiskRows* const rows_;
  std::unique_ptr<RowSorter> sorter_;
  std::vector<std::byte> row_;
  std::vector<std::shared_ptr<const RowFile>> written_;  // by table; null: nothing changes
  std::unique_lock<std::mutex> lock_;                    // of changes, from Stage on
  Hash128 id_;
  std::shared_ptr<DiskVersion> folded_;  // from Stage on
  bool is_folded_ = false;
};

// DiskRows is the rows of all tables in a directory on a disk, with a cache in memory before them.
//
// Files:   one for each table (row_file_impl.h), named by the id, which stands for all that decides
//          the bits of the rows. They are written whole or not at all and never change, so readers
//          need no lock. `hot_keys` has the keys of the cache with their counts, as Save wrote
//          them.
// Changes: with keeps_steps. A delta becomes a file of its rows (a level) before the others, which
//          a thread merges (row_levels_impl.h), no faster than merge_bytes_per_second unless levels
//          become many; `levels` lists the files then. The first change takes the directory's lock
//          and keeps it.
// Filling: where complete() is false, Put all rows; then Finish, in any case.
// Reading: a Reader takes the keys of a whole call, each once; Fetch then brings their rows of a
//          version, from the cache and, all misses at once, from the disk.
// Threads: Fetch any number, each with its own Reader, and Save and stats; all others one at a
//          time.
// Budget:  index and filter of the files, buffers of readers, then the cache takes what is left of
//          limit_bytes; with keeps_steps less what changes need: twice index and filters, and an
//          eighth of limit_bytes, or 256 KiB. While rows are written half of it sorts them. On top
//          come what a Reader keeps of a call (its keys and rows) and 64 KiB while hot keys are
//          written or read.
// Errors:  those of RowFile and RowSorter; FailedPrecondition (another process writes there);
//          ResourceExhausted (the disk is full, or the budget). They name the file.
class DiskRows {
 public:
  struct Options {
    Env* env = nullptr;
    std::string dir;  // made if missing
    // What the rows are to be; behind it what they may be, for an update to make these of.
    std::vector<Hash128> ids;
    std::vector<std::string> tables;  // names
    std::vector<int64_t> row_bytes;   // by table, without the last step
    bool keeps_steps = false;
    int64_t limit_bytes = 0;  // of what is taken of the budget
    int32_t readers = 1;
    int64_t keys_max = 0;                           // of a Fetch, at least 1
    int64_t merge_bytes_per_second = 0;             // 0: nothing is merged but by Merge
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
      bool done = false;         // nothing is to be read any more
      bool asked_cache = false;  // and had it not, unless it is done
      uint32_t file = 0;         // of the table's, where it may lie
      int64_t block = 0;
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
  // The position of their id in `ids`; 0 where they were not there.
  size_t found() const { return found_; }
  absl::Status Put(RowSorter::Kind kind, const RowKey& key, uint32_t last_step,
                   const std::byte* row);
  absl::Status Finish();

  // The version as it is now. Waits for an update that is staged.
  std::shared_ptr<const DiskVersion> current() const;
  // One of `readers`, to be given back before this goes; null: all are taken.
  std::unique_ptr<Reader> TakeReader();
  void GiveBack(std::unique_ptr<Reader> reader);
  absl::Status Fetch(const DiskVersion& version, Reader* reader) const;

  // Takes the lock of the directory, which BeginUpdate does as well. FailedPrecondition: another
  // process has it, or has changed rows there.
  absl::Status LockChanges();
  // Ends merges and gives the lock back, for who writes other rows there.
  void UnlockChanges();
  // Unavailable, or why merges have failed: levels are too many.
  absl::StatusOr<std::unique_ptr<DiskUpdate>> BeginUpdate();
  // Merges what is to be merged; the thread's work.
  absl::Status Merge();

  // Writes the keys of the cache.
  absl::Status SaveHotKeys() const;
  ServingReadStats stats() const;
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  friend class DiskUpdate;
  static constexpr char kSortName[] = "sort.tmp";
  // More would not make the sorting faster: runs are then long enough to be read in one stroke.
  static constexpr int64_t kSortBytesMax = int64_t{256} << 20;
  // A disk writes pieces of this size as fast as larger ones. Where memory is short they are
  // smaller.
  static constexpr int64_t kPieceBytesMax = int64_t{1} << 20;
  // The part of memory for sorting and merging changes, and what these take at least.
  static constexpr int64_t kChangesShare = 8;
  static constexpr int64_t kChangesBytesMin = int64_t{256} << 10;

  explicit DiskRows(const Options& options);
  std::string NameOf(uint32_t table, const Hash128& id) const;
  std::string HotKeysPath() const { return options_.dir + "/hot_keys"; }
  RowFileSpec SpecOf(uint32_t table, const Hash128& id) const;
  // The row with its last step, as files have it; in *buffer, where steps are kept.
  const std::byte* WithStep(const RowKey& key, const std::byte* row, uint32_t last_step,
                            std::vector<std::byte>* buffer) const;
  bool IsAlive(uint32_t table, uint32_t age_line, const std::byte* row) const;
  int64_t PieceBytes(size_t files) const;
  LevelsManifest WholeFiles(const Hash128& id) const;
  void CountLevels(const RowLevels& levels);
  // Looks for files of one of the ids; fills list_ and found_.
  absl::Status FindFiles();
  std::set<std::string> NamesOf(const LevelsManifest& list) const;
  LevelsManifest ListOf(const Hash128& id, const RowLevels& levels,
                        const DiskVersion& version) const;
  // Holding change_mutex_: replaces the directory's list, then removes the files that only an older
  // one has.
  absl::Status WriteList(const LevelsManifest& list);
  void RemoveFile(const std::string& name) const;
  absl::Status TakeLock();
  absl::Status StartWriting();
  absl::Status WithRoomNeeded(const absl::Status& status) const;
  absl::Status WriteFiles();
  absl::Status RemoveOthers(const std::set<std::string>& keep) const;
  absl::Status OpenFiles();
  absl::Status MakeReaders();
  absl::Status MakeCaches();
  bool Seek(const RowLevels& levels, const DiskVersion& version, Reader::Wanted* want,
            std::byte* row) const;
  absl::Status ReadBlocks(const RowLevels& levels, const DiskVersion& version,
                          Reader* reader) const;
  Hash128 TablesDigest() const;
  // What is wrong with the file of hot keys; NotFound: there is none.
  absl::Status ReadHotKeys();

  absl::Status StartMerging();
  void MergeWhenTold();
  // One merge; false: there was nothing to merge.
  absl::StatusOr<bool> MergeOnce();
  absl::StatusOr<std::shared_ptr<const RowFile>> MergeFiles(
      uint32_t table, std::span<const std::shared_ptr<const RowFile>> files, uint32_t age_line,
      bool all);
  // Waits as long as so many bytes may take; Cancelled: merging ends.
  absl::Status Pace(int64_t bytes);

  const Options options_;
  std::vector<int64_t> row_bytes_;  // by table, of files
  int64_t stride_ = 0;              // of rows in a Reader
  int64_t block_bytes_ = 0;         // the longest of all tables
  bool complete_ = false;
  size_t found_ = 0;
  LevelsManifest list_;             // of files that were found or written, until they are open
  std::unique_ptr<FileLock> lock_;  // while files are written, and from the first change on
  std::unique_ptr<RowSorter> sorter_;
  std::vector<std::byte> row_;                      // that is put
  std::vector<std::unique_ptr<CopyCache>> caches_;  // by width
  std::vector<CopyCache*> cache_of_;                // by table
  std::mutex readers_mutex_;
  std::vector<std::unique_ptr<Reader>> readers_;  // that nobody has
  std::vector<std::string> notes_;
  mutable std::mutex save_mutex_;  // one file of hot keys at a time
  mutable Counter hits_, misses_, absent_, reads_, read_bytes_, written_bytes_, merges_failed_;
  std::atomic<int64_t> levels_now_ = 0;  // of the table that has most

  // One change of the version or of its files at a time; guards the following. Held by an update
  // from Stage to its end.
  mutable std::mutex change_mutex_;
  std::shared_ptr<DiskVersion> current_;
  Hash128 id_;                     // of it
  std::set<std::string> listed_;   // files that the directory's list may have
  std::set<std::string> writing_;  // levels that an update writes

  std::mutex merge_mutex_;  // guards the following
  std::condition_variable told_;
  bool is_told_ = false;
  bool merging_ends_ = false;
  absl::Status merged_;  // what came of the last merge
  std::chrono::steady_clock::time_point paced_until_;
  std::thread merging_;  // for who changes rows alone
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_SERVING_DISK_ROWS_IMPL_H_
