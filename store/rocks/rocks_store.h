#ifndef HOTROW_STORE_ROCKS_ROCKS_STORE_H_
#define HOTROW_STORE_ROCKS_ROCKS_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/row_store.h"
#include "store/snapshot_reader.h"

namespace hotrow {

struct RocksStoreOptions {
  std::string path;                 // required; a directory, made if missing
  std::vector<StoreTable> tables;   // required, distinct; the same set for the store's life
  int64_t memory_budget_bytes = 0;  // required, kRocksMemoryMin at least; see Memory below
  int64_t disk_budget_bytes = 0;    // 0: no limit but the disk; see Disk below
  // Opens this snapshot; 0 opens the latest state, or an empty store.
  SnapshotId open_at = 0;
  // If known, open_at must have this identity; otherwise opening returns FailedPrecondition and
  // changes nothing.
  UniqueId open_at_identity;
  // true: Stats() counts rows and rows_erased exactly. Every written key is then looked up first,
  // to know whether it is new, and batches that write take turns. false: writes are blind; rows is
  // RocksDB's estimate, and rows_erased counts the keys passed to Erase.
  bool exact_counts = true;
  // Threads that share a batch of Find, because Debian's RocksDB reads the blocks of a batch one
  // after the other: as many as the device needs requests in flight. [1, 256]; 1 starts none.
  int32_t read_threads = 32;
  int32_t background_jobs = 2;  // concurrent flushes and compactions; [1, 64]
  // What errors call the two budgets.
  std::string memory_option = "RocksStoreOptions.memory_budget_bytes";
  std::string disk_option = "RocksStoreOptions.disk_budget_bytes";

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

inline constexpr int64_t kRocksMemoryMin = int64_t{4} << 20;

// A RowStore on RocksDB: for users of its operations and tools, and as a baseline for SsdStore.
// Unimplemented in a build without RocksDB (HOTROW_ROCKSDB).
//
// Layout:     path/LIVE names the directory of the live database, path/TABLES lists the tables,
//             path/snapshots/<16 hex digits>/ is one snapshot each. A key is the table, 4 bytes,
//             then the key, 8 bytes, both big-endian, so a table is one range; a value is the row.
// Checksums:  CRC-32C on every block, verified by every read from the device and by compactions. A
//             mismatch is DataLoss and names file and offset, but not the key. A snapshot keeps a
//             list of its files. Opening one compares names, sizes, and the checksums of all files
//             but the table files; VerifyRocksStore also reads those.
// Damage:     a directory without TABLES, LIVE, the directory that LIVE names, or snapshots/ is
//             DataLoss, never an empty store; so is a database without rows that a Flush had made
//             durable. A snapshot can be opened without LIVE and its directory.
// Durability: there is no write-ahead log: Flush() writes the memtables to a table file and syncs
//             it, and RowStore promises no more. So a row is written once instead of twice.
//             Memtables are flushed in the order in which they filled: after a kill the store has
//             the state after some piece of a batch.
// Errors:     after a background error that RocksDB cannot recover from, every call that writes
//             returns it, in RocksDB's words, until the store is opened again. After a full disk,
//             RocksDB goes on by itself once there is room.
// Memory:     one LRU cache with a strict limit holds data, index and filter blocks; memtables are
//             charged to it. An eighth of the budget, at most 32 MiB, is left for memory that
//             RocksDB does not count: buffers of compactions, table readers, thread stacks. The
//             limit is not exact: a memtable may exceed its size by one piece of a batch (about
//             1 MiB), and allocators round up. Stats().used_bytes, the cache and the table readers,
//             may exceed budget_bytes by that.
// Disk:       before each piece of a batch the store counts the table files of the live database
//             and the files that only snapshots hold. New rows may use 3/4 of the budget; rows that
//             are there and are written again, as well as new ones that CheckRoom (see
//             store/disk_room.h) has promised room for, may use all of it. CheckRoom ends steps at
//             7/8, so that a cache can still be written and a snapshot made. A large compaction may
//             exceed the budget while it runs (disk_used_bytes shows it), and beside a snapshot of
//             most rows afterwards, too: then rows that a cache changed before are taken beyond it,
//             and steps end until the snapshot is dropped. RocksDB's own limit is
//             not used: a database that reaches it stops for good.
// Threads:    as RowStore.
absl::StatusOr<std::unique_ptr<RowStore>> OpenRocksStore(const RocksStoreOptions& options);

// --- Looking at a store that is not open ---------------------------------------------------------

// Errors: see SnapshotReader; Unimplemented in a build without RocksDB. options.env is not used:
// RocksDB takes the real file system.
absl::StatusOr<std::unique_ptr<SnapshotReader>> OpenRocksSnapshot(
    const SnapshotReaderOptions& options);

struct RocksDamage {
  std::string file;
  std::string what;
};

// The contents of a store's directory. The present state is what the next open shows.
struct RocksStoreReport {
  struct Table {
    uint32_t table = 0;
    int64_t row_bytes = 0;
    int64_t rows = -1;  // of the present state; -1: not known
  };
  std::vector<Table> tables;   // in the order of the store
  int64_t rows = -1;           // of the present state; -1: not known
  std::string live;            // the directory of the present state; empty: there is none
  int64_t table_files = 0;     // of the present state
  int64_t live_bytes = 0;      // of the files of the present state
  int64_t disk_bytes = 0;      // of all files
  int64_t snapshot_bytes = 0;  // of files that only snapshots hold
  struct Snapshot {
    SnapshotInfo info;  // table_rows in the order of `tables`
    int64_t rows = -1;  // of all tables; -1: not known
    int64_t files = 0;
    int64_t bytes = 0;  // of its files; shared with other states
  };
  std::vector<Snapshot> snapshots;  // by id
  std::vector<RocksDamage> damage;
  int64_t damage_left_out = 0;  // beyond the first kDamageMax
  static constexpr int64_t kDamageMax = 100'000;
};

inline int64_t DamageCount(const RocksStoreReport& report) {
  return static_cast<int64_t>(report.damage.size()) + report.damage_left_out;
}

// Reads the store's own files and RocksDB's MANIFESTs, no rows, and changes nothing. The report
// lists damage. Errors: NotFound (no store), DataLoss (the list of tables is damaged or gone),
// FailedPrecondition (open, here or in another process; another version), those of the files.
// Unimplemented in a build without RocksDB.
absl::StatusOr<RocksStoreReport> InspectRocksStore(const std::string& path);
// The same, and reads the present state and all snapshots. Checks table files against their
// checksums; where RocksDB keeps none (rows below about 1 KiB), against those of their blocks.
// Counts the rows of the present state.
absl::StatusOr<RocksStoreReport> VerifyRocksStore(const std::string& path);
// The same of one snapshot alone: `live`, its figures and disk_bytes are left out. Errors: also
// FailedPrecondition (there is no such snapshot).
absl::StatusOr<RocksStoreReport> VerifyRocksSnapshot(const std::string& path, SnapshotId snapshot);

}  // namespace hotrow

#endif  // HOTROW_STORE_ROCKS_ROCKS_STORE_H_
