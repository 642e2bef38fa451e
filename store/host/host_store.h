#ifndef HOTROW_STORE_HOST_HOST_STORE_H_
#define HOTROW_STORE_HOST_HOST_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/device.h"
#include "store/row_store.h"
#include "store/snapshot_reader.h"

namespace hotrow {

class Env;
class ThreadPool;

struct HostStoreOptions {
  std::vector<StoreTable> tables;  // required, distinct
  int64_t budget_bytes = 0;        // required; a hard limit on all memory of the store
  // Where snapshots go, one file each (docs/formats/host_snapshot.md). Empty: PrepareSnapshot
  // refuses.
  std::string snapshot_dir;
  // Loads this snapshot at opening; 0 starts empty. Other snapshots in the directory stay;
  // half-written files that a crash left are removed. Errors of Open: FailedPrecondition (no such
  // snapshot, or a newer format), InvalidArgument (its tables differ), DataLoss (names file and
  // offset).
  SnapshotId open_at = 0;
  // If known, open_at must have this identity; otherwise Open returns FailedPrecondition and
  // changes nothing.
  UniqueId open_at_identity;
  // Directory of the snapshot to open, if not snapshot_dir; nothing is written there.
  std::string open_dir;
  // Device that reads rows at the addresses of FindInPlace. kCuda: the memory of all rows is
  // page-locked so that kernels reach it: all that rows_max ask for, or, with a table that has no
  // such limit, at least a quarter of the budget. A gigabyte of that is locked when the store opens
  // and the rest by a thread while it is used; rows that come sooner wait for it. What goes beyond
  // is locked when a batch needs it, a gigabyte at most at a time, which holds up launches of
  // kernels.
  Device device = Device::kCpu;
  std::string memory_option = "HostStoreOptions.budget_bytes";  // what errors call budget_bytes
  // How many rows each of `tables` can have; 0: not known. Empty: none is known. More are legal.
  std::vector<int64_t> rows_max;
  // kCuda: its threads make the memory present that is locked while the store opens; null: the
  // caller alone. Not used after that.
  ThreadPool* pool = nullptr;
  Env* env = nullptr;  // not owned, outlives the store; null = the real file system

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

// HostStore keeps rows in memory.
//
// Layout:  rows lie in chunks of up to kChunkRows rows of one table, packed, and never move, so
//          that a trainer may update them where they lie (FindInPlace). A chunk's keys stand before
//          its rows. An index of 12-way buckets, one cache line each, holds a one-byte tag and a
//          4-byte row ordinal per way, two choices of bucket, partitioned by hash; metadata is at
//          most 16 bytes a row from 1 M rows up. Chunks and index are carved from large extents on
//          huge pages.
// Growth:  rows are added chunk by chunk. An index partition (about 128 K rows) that is full is
//          rebuilt a quarter larger from its keys, alone; no row is copied. The rows of erased keys
//          are used again by their table; memory is given back when the store closes.
// Budget:  includes rows, keys, index, metadata and the snapshot buffer. Batches need no memory
//          but about 32 KiB of the caller's stack.
// Threads: as RowStore says. There are up to 32 shards by hash, each with one reader-writer lock
//          under which writers go first. A batch that writes holds one of them at a time, once for
//          each 8,192 keys; a find holds all that it needs for 2,048 keys, about 0.3 ms. Exception:
//          no lock guards rows reached through FindInPlace and InsertInPlace.
// Snapshots: one file each, of whole batches. PrepareSnapshot waits for running writes and holds
//          new ones back until the file is synced; that is the capture. Finds go on. Rows must not
//          be updated in place until then. The store does not know which snapshots are committed,
//          only the caller's manifest does: all files are listed and can be opened.
class HostStore final : public RowStore {
 public:
  static constexpr int kChunkRows = 256;

  static absl::StatusOr<std::unique_ptr<HostStore>> Open(const HostStoreOptions& options);
  ~HostStore() override;

  absl::Status Find(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                    std::span<uint8_t> found) override;
  absl::Status InsertOrAssign(std::span<const RowKey> keys,
                              std::span<const std::byte* const> rows) override;
  absl::Status Erase(std::span<const RowKey> keys) override;
  absl::Status Iterate(
      absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) override;
  absl::Status Flush() override;
  using RowStore::PrepareSnapshot;
  absl::Status PrepareSnapshot(SnapshotId snapshot, absl::FunctionRef<void()> captured) override;
  absl::Status CommitSnapshot(SnapshotId snapshot) override;
  absl::Status DropSnapshot(SnapshotId snapshot) override;
  absl::StatusOr<std::vector<SnapshotId>> ListSnapshots() override;
  absl::StatusOr<SnapshotInfo> DescribeSnapshot(SnapshotId snapshot) override;
  RowStoreStats Stats() const override;
  std::span<const StoreTable> tables() const override;
  int64_t row_bytes(uint32_t table) const override;
  void SetAgeLines(std::span<const RowAgeLine> lines) override;
  absl::StatusOr<int64_t> DropAged(int64_t rows) override;

  // InsertOrAssign whose rows the threads of `pool` write side by side; null: the caller alone.
  absl::Status InsertOrAssign(std::span<const RowKey> keys, std::span<const std::byte* const> rows,
                              ThreadPool* pool);
  // The same, and it says where: at[i] is the address of the row of keys[i], which stays good as
  // long as one of FindInPlace, and added[i] whether it was not there before. After an error at[i]
  // is null for those that were not written.
  absl::Status InsertOrAssign(std::span<const RowKey> keys, std::span<const std::byte* const> rows,
                              std::span<std::byte*> at, std::span<uint8_t> added,
                              ThreadPool* pool = nullptr);
  // How many rows DropAged has dropped since the store was opened: for who keeps addresses, since
  // nobody is told which these were.
  int64_t aged_rows() const;

  // Iterate by the threads of `pool`, side by side: `part` in [0, kParts) is of one thread at a
  // time.
  static constexpr int64_t kParts = 32;
  using VisitPart =
      absl::FunctionRef<void(int64_t part, const RowKey& key, std::span<const std::byte> row)>;
  void IterateParts(ThreadPool* pool, VisitPart visit);

  // Sets rows[i] to the address of the row of keys[i], or to null when it is missing. An address
  // stays good until its key is erased, DropAged drops it, or the store closes. Rows are 16-byte
  // aligned when row_bytes is a multiple of 16.
  absl::Status FindInPlace(std::span<const RowKey> keys, std::span<std::byte*> rows);

  // The same, but adds missing rows, zeroed, and sets added[i] = 1 for them. Keys may repeat.
  absl::Status InsertInPlace(std::span<const RowKey> keys, std::span<std::byte*> rows,
                             std::span<uint8_t> added);

 private:
  struct Impl;
  explicit HostStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A snapshot in the directory options.path. Errors: see SnapshotReader.
absl::StatusOr<std::unique_ptr<SnapshotReader>> OpenHostSnapshot(
    const SnapshotReaderOptions& options);

}  // namespace hotrow

#endif  // HOTROW_STORE_HOST_HOST_STORE_H_
