#ifndef HOTROW_STORE_SSD_SSD_STORE_H_
#define HOTROW_STORE_SSD_SSD_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/io_queue.h"
#include "store/disk_room.h"
#include "store/row_store.h"
#include "store/snapshot_changes.h"
#include "store/snapshot_reader.h"

namespace hotrow {

class Env;

struct SsdStoreOptions {
  std::string path;  // required; directory, made if missing; one store at a time
  // Further directories for segments, on other drives, in the order of their first opening. One
  // that is new is added, and made if missing.
  std::vector<std::string> more_paths;
  std::vector<StoreTable> tables;   // required, distinct; rows of at most kRowBytesMax
  int64_t memory_budget_bytes = 0;  // required; index, buffers and metadata; a hard limit
  int64_t disk_budget_bytes = 0;    // required; all files of the store; a hard limit
  // Opens this snapshot and drops later writes. 0 opens the state of the last Flush, snapshot or
  // Close, or an empty store if there is none.
  SnapshotId open_at = 0;
  // If known, open_at must have this identity; otherwise Open returns FailedPrecondition and
  // changes nothing.
  UniqueId open_at_identity;

  // Sizes; 0: chosen by the budgets. They are fixed when the store is created; an existing store
  // keeps its own.
  int64_t segment_bytes = 0;  // unit of reclaiming space; a multiple of chunk_bytes
  int64_t chunk_bytes = 0;    // unit of writing; a power of two in [16 KiB, 64 MiB]

  // The queue of reads. Deeper than a disk needs, because the reading thread shares processors with
  // computing ones: requests in flight must last until it runs again.
  IoQueueOptions io = {.depth = 512};
  // Cleaning and writing run on the store's threads. false: inside the calls that need them, so
  // that a test sees file calls in one order.
  bool background = true;
  // The cleaner asks it for each row it meets; true drops the row for good. Called under a lock of
  // the index: must be fast, must not call the store, and must give the same answer until the row
  // changes.
  std::function<bool(const RowKey& key, std::span<const std::byte> row)> expired;
  // What errors call the two budgets.
  std::string memory_option = "SsdStoreOptions.memory_budget_bytes";
  std::string disk_option = "SsdStoreOptions.disk_budget_bytes";
  Env* env = nullptr;  // not owned, outlives the store; null = the real file system

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

// Counts of an SSD store beyond RowStoreStats.
struct SsdStoreStats {
  int64_t segments = 0;          // files
  int64_t segments_free = 0;     // of them, ready to be written
  int64_t segments_max = 0;      // that the disk budget allows
  int64_t segments_cleaned = 0;  // since opening
  int64_t live_bytes = 0;        // of records that are the present row of their key
  int64_t index_bytes = 0;
  int64_t tombstones_written = 0;
  int64_t rows_moved = 0;  // by the cleaner
  int64_t rows_expired = 0;
  int64_t merged_reads = 0;  // rows that shared the read of another row
  int64_t write_stalls = 0;  // pieces of batches, up to a chunk each, that waited for the cleaner
  int64_t damaged_segments = 0;  // the cleaner skips them: a record is unreadable
  std::string io;                // "io_uring, direct, blocks of 512 bytes"
};

// SsdStore keeps rows in a log of segment files on an SSD.
//
// Data:       every write appends. An exact index in memory maps each key to its last record in
//             about 10 bytes a row, so misses and overwrites never read the disk. A record has a
//             CRC-32C over key, row and place. docs/formats/ssd_store.md has the bytes.
// Reads:      a batch is sorted by place; neighbours within 16 KiB share a read; up to io.depth
//             reads are in flight. Rows that are not on the disk yet come from the write buffers.
// Drives:     the first directory is the home: manifest, index image, LOCK. Others have segments
//             alone. A new segment goes to the directory after that of the one before; the manifest
//             says where each is, so a directory can be added at any opening: what is there stays,
//             what is new is striped over all. Each has a random identity, which the manifest
//             lists in order: one that is missing, foreign, swapped or given twice is refused
//             before anything is written, and all may move to any paths. Each has its own queue
//             of reads, and a thread in each Find. Where one is full, segments go to the others. A
//             store of one directory has the files that it always had.
// Space:      a background cleaner copies live rows out of the segments where that gains most and
//             reuses their files. While the last free segments are in use, it slows writes down to
//             its pace. They are refused (ResourceExhausted) when cleaning cannot make room.
// Threads:    as RowStore. Writes and erasures take turns; up to two Finds read at a time, others
//             wait.
// Durability: Flush, PrepareSnapshot and Close make all earlier writes durable and then replace the
//             manifest atomically. CommitSnapshot and DropSnapshot only replace the manifest. After
//             a crash the store opens in the state of the last of these calls. A failed write is
//             tried again by the next call that needs it. After a failed sync every call that
//             would write fails; reads go on.
// Snapshots:  the capture waits for the disk only while a manifest is being replaced, and for a
//             round of cleaning when the last free segments are in use. Batches and finds go on
//             while the captured rows are written and synced. TidyForSnapshot moves rows out of
//             segments that are mostly garbage, so that the snapshot holds at most about twice what
//             its rows need. If the disk is short, PrepareSnapshot itself moves rows before the
//             capture, until all rows could be written again next to the snapshot. If older
//             snapshots leave no room for that, it returns ResourceExhausted.
// Errors:     as RowStore.
class SsdStore final : public RowStore, public DiskRoom {
 public:
  static constexpr int64_t kRowBytesMax = int64_t{4} << 20;

  // Errors: FailedPrecondition (open elsewhere, no such snapshot, a newer format), InvalidArgument
  // (its tables differ; names the table), DataLoss (names file and offset), ResourceExhausted (a
  // budget too small for this store; says what it needs).
  static absl::StatusOr<std::unique_ptr<SsdStore>> Open(const SsdStoreOptions& options);
  // Without Close, rows that were not flushed are lost.
  ~SsdStore() override;

  absl::Status Find(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                    std::span<uint8_t> found) override;
  absl::Status InsertOrAssign(std::span<const RowKey> keys,
                              std::span<const std::byte* const> rows) override;
  absl::Status Erase(std::span<const RowKey> keys) override;
  // Cleaning waits meanwhile.
  absl::Status Iterate(
      absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) override;
  absl::Status Flush() override;
  void TidyForSnapshot() override;
  using RowStore::PrepareSnapshot;
  absl::Status PrepareSnapshot(SnapshotId snapshot, absl::FunctionRef<void()> captured) override;
  absl::Status CommitSnapshot(SnapshotId snapshot) override;
  absl::Status DropSnapshot(SnapshotId snapshot) override;
  absl::StatusOr<std::vector<SnapshotId>> ListSnapshots() override;
  absl::StatusOr<SnapshotInfo> DescribeSnapshot(SnapshotId snapshot) override;
  RowStoreStats Stats() const override;
  std::span<const StoreTable> tables() const override;
  int64_t row_bytes(uint32_t table) const override;
  // Aged rows are dropped where the cleaner meets them, too, also while a snapshot is being
  // prepared.
  void SetAgeLines(std::span<const RowAgeLine> lines) override;
  absl::StatusOr<int64_t> DropAged(int64_t rows) override;

  SsdStoreStats SsdStats() const;

  absl::Status CheckRoom(std::span<const RowsToCome> to_come) override;
  bool IsTight(std::span<const RowsToCome> to_come, bool in_snapshot) override;

  // Cleans until cleaning gains no more. For tests and before measuring.
  absl::Status CleanAll();

  // Flushes and writes an image of the index, so that the next Open is fast; without it the index
  // is rebuilt from the segments' footers. Only the destructor may follow.
  absl::Status Close() override;

 private:
  struct Impl;
  explicit SsdStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// --- Looking at a store that is not open --------------------------------------------------------

struct SsdDamage {
  std::string file;
  int64_t offset = 0;
  std::string what;  // with table and key where they are known
};

// The contents of a store's directory. The present state is what the next Open shows.
struct SsdStoreReport {
  uint32_t format_version = 0;
  uint64_t generation = 0;  // of the manifest: how often the store was committed
  int64_t segment_bytes = 0;
  int64_t chunk_bytes = 0;
  struct Table {
    uint32_t table = 0;
    int64_t row_bytes = 0;
    int64_t rows = 0;  // live; -1: damage prevents counting
  };
  std::vector<Table> tables;             // in the order of the store
  std::vector<std::string> directories;  // the home first
  int64_t segments = 0;                  // of the present state
  int64_t segment_files = 0;             // with free ones and those that snapshots hold
  int64_t records = 0;         // of the present state, with old versions and tombstones; or -1
  int64_t live_bytes = 0;      // of the live rows alone; or -1
  int64_t used_bytes = 0;      // of the present state's segments, up to the end of their records
  int64_t disk_bytes = 0;      // of all files in the directories
  int64_t snapshot_bytes = 0;  // of segment files that only snapshots hold
  // Rows written times their widths, over the store's life up to the last commit, and bytes written
  // to the device, cleaning and manifests included. Their ratio is the write amplification.
  int64_t payload_bytes_written = 0;
  int64_t device_bytes_written = 0;
  struct Snapshot {
    SnapshotId id = 0;
    bool committed = false;
    int64_t segments = 0;
    int64_t bytes = 0;  // as used_bytes; shared with other states
    UniqueId identity;
    std::vector<int64_t> table_rows;  // in the order of the store; empty: not known
  };
  std::vector<Snapshot> snapshots;  // by id
  bool has_index_image = false;
  std::vector<SsdDamage> damage;  // by file and offset
  int64_t damage_left_out = 0;    // beyond the first kDamageMax
  static constexpr int64_t kDamageMax = 100'000;
};

// Reads manifest and footers in some 300 MiB of memory and changes nothing. The report lists
// damage. Nobody may write to the store meanwhile. Errors: NotFound (no store), DataLoss (no copy
// of the manifest is whole; names file and offset), FailedPrecondition (another version; the store
// changed meanwhile), ResourceExhausted, those of the files.
absl::StatusOr<SsdStoreReport> InspectSsdStore(Env& env, const std::string& path);
// The same, and checks every byte that an open may read: the records of all segments of the present
// state and of snapshots, each against the footer that lists it, both copies of the manifest, and
// the index image. It skips free segments, bytes after the records of a segment, and files that the
// manifest does not name.
absl::StatusOr<SsdStoreReport> VerifySsdStore(Env& env, const std::string& path);

// Errors: see SnapshotReader.
absl::StatusOr<std::unique_ptr<SnapshotReader>> OpenSsdSnapshot(
    const SnapshotReaderOptions& options);
// What a snapshot has that `parent`, another of the same store, has not: from the segments that
// were written since. Null: it cannot be told (there is no such parent, or the segment with its
// last record is gone: cleaned, or the store was opened at an older snapshot since), or not within
// memory_budget_bytes: about 130 bytes for each record written since. Errors: see SnapshotChanges.
absl::StatusOr<std::unique_ptr<SnapshotChanges>> OpenSsdChanges(
    const SnapshotReaderOptions& options, const ParentSnapshot& parent);
// The manifest's record of a snapshot. Reads only the manifest; the store may be open. Errors: the
// same.
absl::StatusOr<SnapshotInfo> DescribeSsdSnapshot(const SnapshotReaderOptions& options);

}  // namespace hotrow

#endif  // HOTROW_STORE_SSD_SSD_STORE_H_
