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
  // Opens as this snapshot was; 0 opens the latest state, or an empty store.
  SnapshotId open_at = 0;
  // Known: open_at must have this identity, FailedPrecondition otherwise, and nothing has changed.
  UniqueId open_at_identity;
  // true: Stats() counts rows and rows_erased exactly, as RowStore says. To know whether a key is
  // new, every written key is then looked up first, and batches that write take turns. false:
  // writes are blind; rows is RocksDB's estimate, and rows_erased counts the keys that Erase named.
  bool exact_counts = true;
  // Debian's RocksDB reads a batch one block after the other, so a batch of Find is spread over
  // threads: as many as the device needs requests in flight. [1, 256]; 1 starts none.
  int32_t read_threads = 32;
  int32_t background_jobs = 2;  // of flushes and compactions side by side; [1, 64]
  // Past the page cache, where the file system can: memory is then what the budget says. Where it
  // cannot, the store opens all the same.
  bool direct_io = true;

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

inline constexpr int64_t kRocksMemoryMin = int64_t{4} << 20;

// A RowStore on RocksDB: for those who want its operations and tools, and what SsdStore is compared
// with. Unimplemented in a build without RocksDB (HOTROW_ROCKSDB).
//
// Layout:     path/LIVE names the directory of the live database, path/TABLES lists the tables,
//             path/snapshots/<16 hex digits>/ is one snapshot each. A key is the table, 4 bytes,
//             then the key, 8 bytes, both big-endian, so a table is one range; a value is the row.
// Checksums:  CRC-32C on every block, verified by every read from the device and by compactions. A
//             mismatch is DataLoss as RocksDB names it: file and offset, not the key. A snapshot
//             keeps a list of its files. Opening one compares names and sizes, and the checksums of
//             all files but the table files; VerifyRocksStore reads those, too.
// Damage:     a directory that has lost TABLES, LIVE, the directory that LIVE names, or snapshots/
//             is DataLoss and never taken for an empty one; so is a database that lacks rows which
//             a Flush had made durable. A snapshot can be opened without LIVE and what it names.
// Durability: there is no write-ahead log. The promise of RowStore needs none: Flush() writes the
//             memtables to a table file and syncs it. So a row is written once instead of twice,
//             and what a kill loses is what no Flush promised. Memtables are flushed in the order
//             in which they filled, so what survives is the state after some batch piece.
// Errors:     after a background error that RocksDB does not overcome by itself, every call that
//             writes says so, with RocksDB's words, until the store is opened again. When a full
//             disk was the reason, RocksDB goes on by itself once there is room.
// Memory:     one LRU cache with a strict limit holds data, index and filter blocks, and the
//             memtables are charged to it; an eighth of the budget, at most 32 MiB, is left for
//             what RocksDB does not count: read and write buffers of compactions, table readers,
//             thread stacks. It cannot promise more: a memtable may pass its size by one piece of a
//             batch (about 1 MiB), and allocators round up. Stats().used_bytes counts the cache and
//             the table readers and may exceed budget_bytes by that; it hides nothing.
// Disk:       the table files of the live database and what only snapshots hold are counted before
//             each piece of a batch. Rows may use 3/4 of the budget; the rest is for compactions
//             and erasing. A large compaction may pass the budget while it runs (disk_used_bytes
//             shows it). RocksDB's own limit is not used: a database that reaches it stops for
//             good.
// Threads:    as RowStore says.
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

// What is in the directory of a store. The present state is what the next open shows.
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

// Reads our own files and RocksDB's MANIFESTs, no rows, and changes nothing. What it comes across
// that is damaged is in the report. Errors: NotFound (no store there), DataLoss (the list of tables
// is damaged or gone), FailedPrecondition (open, here or in another process; another version),
// those of the files. Unimplemented in a build without RocksDB.
absl::StatusOr<RocksStoreReport> InspectRocksStore(const std::string& path);
// The same, and reads the present state and all snapshots: table files against their checksums, or
// where RocksDB keeps none (rows of less than about a KiB) against those of their blocks. Counts
// the rows of the present state.
absl::StatusOr<RocksStoreReport> VerifyRocksStore(const std::string& path);
// The same of one snapshot alone: `live`, its figures and disk_bytes are left out. Errors: also
// FailedPrecondition (there is no such snapshot).
absl::StatusOr<RocksStoreReport> VerifyRocksSnapshot(const std::string& path, SnapshotId snapshot);

}  // namespace hotrow

#endif  // HOTROW_STORE_ROCKS_ROCKS_STORE_H_
