#ifndef HOTROW_STORE_HOST_HOST_SNAPSHOT_DIR_IMPL_H_
#define HOTROW_STORE_HOST_HOST_SNAPSHOT_DIR_IMPL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/held_directory.h"
#include "base/metrics.h"
#include "store/host/host_memory_impl.h"
#include "store/host/host_rows_impl.h"
#include "store/host/host_store.h"
#include "store/row_store.h"

namespace hotrow::internal {

// The snapshots of a HostStore: one file each in HostStoreOptions::snapshot_dir.
//
// Threads: Init comes first; then all methods may run concurrently, one at a time has its way.
//          While a snapshot is written the rows' writers are held; nobody who holds those may call.
// Errors:  FailedPrecondition (no directory, no such snapshot, or one that is there already), those
//          of the files.
class HostSnapshotDir {
 public:
  // `options` and `rows` outlive it.
  HostSnapshotDir(const HostStoreOptions& options, HostRows& rows);
  // Takes a buffer from the budget, removes what a crash left half written, and loads
  // options.open_at into the rows, where it is not 0. Does nothing for a store without snapshots.
  absl::Status Init(MemoryBudget& budget);

  // The same as the methods of RowStore.
  absl::Status Prepare(SnapshotId snapshot, absl::FunctionRef<void()> captured);
  absl::Status Commit(SnapshotId snapshot);
  absl::Status Drop(SnapshotId snapshot);
  std::vector<SnapshotId> List();
  absl::StatusOr<SnapshotInfo> Describe(SnapshotId snapshot);

  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  int64_t ios() const { return ios_.value(); }
  int64_t bytes_read() const { return bytes_read_.value(); }
  int64_t bytes_written() const { return bytes_written_.value(); }

 private:
  struct SnapshotFile {
    int64_t bytes = 0;
    std::optional<SnapshotInfo> info;  // none: of an earlier run, and not read
  };

  std::string PathOf(SnapshotId snapshot) const;
  absl::Status OpenDir();
  absl::Status Load(SnapshotId snapshot);
  absl::StatusOr<SnapshotFile> Write(SnapshotId snapshot, const std::string& path);
  absl::Status CheckExists(SnapshotId snapshot, std::string_view verb) const;

  const HostStoreOptions& options_;
  std::optional<HeldDirectory> directory_;  // snapshot_dir
  Env& env_;
  HostRows& rows_;

  std::mutex mutex_;                   // guards the two below
  BudgetedBuffer<std::byte> staging_;  // files are read and written through it
  std::map<SnapshotId, SnapshotFile> snapshots_;

  std::atomic<int64_t> bytes_{0};  // of all files
  Counter ios_;
  Counter bytes_read_;
  Counter bytes_written_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_HOST_HOST_SNAPSHOT_DIR_IMPL_H_
