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

// One snapshot of a store that nobody has open, to be read from end to end: for exporting rows and
// looking at them. Nothing on the disk changes. OpenSnapshot (store/open.h) opens that of any kind
// of store; each kind has a factory of its own beside its store.
//
// Lock:    an SSD store and a RocksDB store are locked while the reader lives, so that no process
//          opens them meanwhile. The snapshots of a HostStore are files that never change.
// Threads: one at a time.
// Errors:  DataLoss (naming file and offset, and key where it is known), ResourceExhausted (the
//          memory budget; names what is needed), those of the files. Of opening one: also NotFound
//          (no store there), FailedPrecondition (it is open, here or in another process; no such
//          snapshot; a HostStore has nothing but snapshots, so needs one; another version),
//          InvalidArgument (an option). All name the path.
class SnapshotReader {
 public:
  virtual ~SnapshotReader() = default;

  // In the order in which the store has them; their numbers are distinct.
  virtual std::span<const StoreTable> tables() const = 0;
  // How many rows Iterate visits if it finds no damage; -1 where that is not known before.
  virtual int64_t rows() const = 0;
  // What the store says of the snapshot; of what was written last id 0 and what is known.
  virtual const SnapshotInfo& info() const = 0;
  // Calls visit for every row of the snapshot, each once, in no particular order, after its
  // checksum was compared. The bytes are there until visit returns. Ends early, with its status,
  // when visit returns an error. May be called again.
  virtual absl::Status Iterate(
      absl::FunctionRef<absl::Status(const RowKey& key, std::span<const std::byte> row)> visit) = 0;
};

struct SnapshotReaderOptions {
  std::string path;         // required; the directory of the store, of a HostStore its snapshots'
  SnapshotId snapshot = 0;  // prepared or committed; 0: what was written last and made durable
  // Known: the snapshot must have this identity, FailedPrecondition otherwise.
  UniqueId identity;
  // Of what the reader keeps: beside buffers of some MiB, for an SSD store an index of about 10
  // bytes a row. A hard limit, but what RocksDB needs beside its cache; 0: none.
  int64_t memory_budget_bytes = 0;
  Env* env = nullptr;  // not owned, outlives the reader; null = the real file system

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

}  // namespace hotrow

#endif  // HOTROW_STORE_SNAPSHOT_READER_H_
