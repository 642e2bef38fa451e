#ifndef HOTROW_STORE_ROW_STORE_H_
#define HOTROW_STORE_ROW_STORE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/row_key.h"
#include "base/row_line_fields.h"
#include "base/row_lines.h"
#include "base/unique_id.h"
#include "store/snapshot.h"

namespace hotrow {

// One table of a store: its number and the size of its rows. Rows are opaque bytes to the store.
struct StoreTable {
  uint32_t table = 0;
  int64_t row_bytes = 0;  // > 0
};

// Counts since the store was opened. Reading does not reset them.
struct RowStoreStats {
  int64_t rows = 0;            // live rows now
  int64_t budget_bytes = 0;    // of memory
  int64_t used_bytes = 0;      // of memory: rows, keys, index, metadata, staging
  int64_t peak_bytes = 0;      // highest used_bytes so far
  int64_t metadata_bytes = 0;  // the part of used_bytes that is neither row nor free row space
  int64_t finds = 0;           // keys asked for
  int64_t found = 0;           // keys that were there
  int64_t rows_written = 0;
  int64_t rows_erased = 0;
  int64_t ios = 0;                    // device reads and writes; 0 for memory
  int64_t bytes_read = 0;             // from the device
  int64_t bytes_written = 0;          // to the device
  int64_t snapshot_bytes = 0;         // held only by retained snapshots
  int64_t payload_bytes_written = 0;  // rows_written times their widths
  int64_t disk_budget_bytes = 0;      // 0: the kind has none, or no limit
  int64_t disk_used_bytes = 0;        // on disk now, snapshots included
};

// The rows of `table` that will not be asked for again: those that have aged by these lines, which
// read the fields of a row that are named here.
struct RowAgeLine {
  uint32_t table = 0;
  RowLines lines;
  RowLineFields fields;

  bool HasAged(const std::byte* row) const { return fields.HasAged(lines, row); }
};

// OK when `wanted` is unknown or is the snapshot's identity. Otherwise FailedPrecondition, which
// names `store` ("SSD store /data/rows"), the snapshot, both identities and the remedy.
absl::Status CheckSnapshotIdentity(std::string_view store, const SnapshotInfo& found,
                                   const UniqueId& wanted);

// RowStore keeps fixed-width rows by {table, key}: the bottom tier, below the cache. It never
// evicts.
//
// Data:       a row is row_bytes(table) opaque bytes. A batch is keys[n] and pointers rows[n]; keys
//             of several tables and widths may be mixed. Batches are the only unit of work.
// Threads:    all methods may run concurrently. Find racing InsertOrAssign on one key sees the old
//             or the new row, never a mixture.
// Durability: rows accepted before a Flush() that returned OK survive process kill and power loss;
//             the next opening shows them. HostStore, which lives in memory, promises this for
//             snapshots only. Opening a snapshot shows exactly that snapshot.
// Errors:     InvalidArgument (sizes disagree, unknown table), ResourceExhausted (memory budget,
//             capacity or disk full; names the store, the budget and the need, and everything
//             stored before is intact), DataLoss (checksum mismatch or EIO; names file, offset and
//             key), FailedPrecondition (a snapshot id that does not fit), Unavailable (may be
//             retried).
//
// Snapshots are two-phase, because one checkpoint spans several stores and ranks.
// PrepareSnapshot(S) makes the present rows durable as snapshot S. When every store of every rank
// has prepared S, the caller makes its own manifest durable: this commits the checkpoint.
// CommitSnapshot(S) then tells the store. If the process dies between the two and the manifest
// names S, the caller opens the store at S (`open_at`): opening a prepared snapshot commits it. The
// manifest also keeps the identity of S; a store whose S has another one is refused
// (FailedPrecondition) before anything in it changes. DropSnapshot drops prepared snapshots that
// the manifest does not name.
class RowStore {
 public:
  virtual ~RowStore() = default;

  // Copies the row of keys[i] to rows[i] and sets found[i] = 1; a missing key sets found[i] = 0 and
  // leaves rows[i] alone. A miss is an answer, not an error. Keys may repeat. On error the contents
  // of rows and found are unspecified.
  virtual absl::Status Find(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                            std::span<uint8_t> found) = 0;

  // Writes all rows. If a key repeats within the batch, its last row wins. On ResourceExhausted the
  // rows of some keys of the batch may have been written, whole; no other row has changed.
  virtual absl::Status InsertOrAssign(std::span<const RowKey> keys,
                                      std::span<const std::byte* const> rows) = 0;

  // Removes the rows; missing keys are fine.
  virtual absl::Status Erase(std::span<const RowKey> keys) = 0;

  // Calls visit for every row, in no particular order. Rows that are written, inserted or erased
  // meanwhile are seen or not, old or new, never torn and never twice. visit must not call the
  // store. Ends early, with its status, when visit returns an error.
  virtual absl::Status Iterate(
      absl::FunctionRef<absl::Status(const RowKey& key, std::span<const std::byte> row)> visit) = 0;

  // See Durability.
  virtual absl::Status Flush() = 0;

  // Optional work ahead of PrepareSnapshot that makes the snapshot small and its capture quick. May
  // take long; batches go on meanwhile. Returns no error: the next call that needs the result
  // reports it. For training loops that capture between two steps.
  virtual void TidyForSnapshot() {}

  // Makes the rows of one moment, the capture, durable as snapshot S. The capture is over when
  // `captured` is called: once, on the calling thread; it must not call the store. The snapshot has
  // the batches that returned before this call, none that began after `captured`, and any rows of
  // batches that ran in between. For the state between two steps, run no batch from the call until
  // `captured`, then go on: returning may take much longer than capturing. On an error `captured`
  // may or may not have been called.
  // Errors: FailedPrecondition when S is 0, was used before, or the store has no place for
  // snapshots. After an error the snapshot does not exist and the store goes on as before.
  virtual absl::Status PrepareSnapshot(SnapshotId snapshot, absl::FunctionRef<void()> captured) = 0;
  // TidyForSnapshot, then PrepareSnapshot without a callback.
  absl::Status PrepareSnapshot(SnapshotId snapshot) {
    TidyForSnapshot();
    return PrepareSnapshot(snapshot, [] {});
  }
  virtual absl::Status CommitSnapshot(SnapshotId snapshot) = 0;
  // Releases what only this snapshot holds.
  virtual absl::Status DropSnapshot(SnapshotId snapshot) = 0;
  // Prepared and committed ones, ascending.
  virtual absl::StatusOr<std::vector<SnapshotId>> ListSnapshots() = 0;
  // Reads no rows. Errors: FailedPrecondition (there is no such snapshot; names it and the store),
  // those of the files.
  virtual absl::StatusOr<SnapshotInfo> DescribeSnapshot(SnapshotId snapshot) = 0;

  // Prepares a quick next opening; some kinds need nothing. Flush makes rows durable, not Close.
  // Only the destructor may follow.
  virtual absl::Status Close() { return absl::OkStatus(); }

  virtual RowStoreStats Stats() const = 0;

  // The tables it was opened with.
  virtual std::span<const StoreTable> tables() const = 0;
  // 0 for a table that the store does not have.
  virtual int64_t row_bytes(uint32_t table) const = 0;

  // From here on the rows that these say may be found or not, counted or not: who asks for one
  // takes it for missing. The store need not drop them, and may do so at any time, but what a
  // snapshot holds stays as it is. A row that is written again is a row like any other. Lines never
  // go down. What these two calls do not say stays as it was; a store may ignore them.
  virtual void SetAgeLines(std::span<const RowAgeLine> /*lines*/) {}
  // Looks at about `rows` rows, on from where the last call ended, and drops those that have aged;
  // at none where that would take waiting. Returns how many were dropped since the last call. Not
  // while a snapshot is being prepared; no address of a row is in use.
  virtual absl::StatusOr<int64_t> DropAged(int64_t /*rows*/) { return 0; }
};

}  // namespace hotrow

#endif  // HOTROW_STORE_ROW_STORE_H_
