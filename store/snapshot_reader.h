#ifndef HOTROW_STORE_SNAPSHOT_READER_H_
#define HOTROW_STORE_SNAPSHOT_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/row_store.h"

namespace hotrow {

class Env;

// Reads one snapshot of a store from end to end, to export or inspect rows. Changes nothing on the
// disk, and needs no permission to. OpenSnapshot (store/open.h) opens a snapshot of any kind of
// store; each kind also has its own factory.
//
// Lock:    none, for a snapshot: what it holds is not written to, so others may have the store
//          open, and neither waits for the other. A reader holds the files of its snapshot: should
//          the snapshot be dropped meanwhile, an SSD store writes over other segments first. A
//          reader that has lost its segments for want of others, or its files, says so
//          (FailedPrecondition); it never gives other rows. The latest state of an SSD store and a
//          RocksDB store is locked while the reader lives, so that no process opens them meanwhile.
// Threads: one at a time.
// Errors:  DataLoss (naming file and offset, and key where it is known), ResourceExhausted (the
//          memory budget; names what is needed), those of the files. Opening one: also NotFound
//          (no store there), FailedPrecondition (the latest state of a store that is open, here or
//          in another process; no such snapshot, or one that was dropped meanwhile; a HostStore has
//          nothing but snapshots, so needs one; another version), InvalidArgument (an option). All
//          name the path.
class SnapshotReader {
 public:
  virtual ~SnapshotReader() = default;

  // The tables in the order in which the store has them; their numbers are distinct.
  virtual std::span<const StoreTable> tables() const = 0;
  // Number of rows that Iterate visits if it finds no damage; -1: not known in advance.
  virtual int64_t rows() const = 0;
  // The store's record of the snapshot. For the latest state: id 0 and what is known.
  virtual const SnapshotInfo& info() const = 0;
  // Calls visit once for every row of the snapshot, in no particular order, after checking the
  // row's checksum. The bytes are valid until visit returns. If visit returns an error, Iterate
  // ends with it. May be called again.
  virtual absl::Status Iterate(
      absl::FunctionRef<absl::Status(const RowKey& key, std::span<const std::byte> row)> visit) = 0;
};

struct SnapshotReaderOptions {
  std::string path;         // required; the directory of the store, of a HostStore its snapshots'
  SnapshotId snapshot = 0;  // prepared or committed; 0: the latest durable state
  // If known, the snapshot must have this identity (FailedPrecondition).
  UniqueId identity;
  // Hard limit of the reader's memory: buffers of some MiB and, for an SSD store, an index of about
  // 10 bytes a row. RocksDB's memory outside its cache is not counted. 0: no limit.
  int64_t memory_budget_bytes = 0;
  const char* memory_option = "SnapshotReaderOptions.memory_budget_bytes";  // a literal, for errors
  Env* env = nullptr;  // not owned, outlives the reader; null = the real file system

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

}  // namespace hotrow

#endif  // HOTROW_STORE_SNAPSHOT_READER_H_
