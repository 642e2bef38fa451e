#ifndef HOTROW_STORE_SSD_SSD_COMMITS_IMPL_H_
#define HOTROW_STORE_SSD_SSD_COMMITS_IMPL_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/metrics.h"
#include "store/row_store.h"
#include "store/ssd/ssd_appender_impl.h"
#include "store/ssd/ssd_index_impl.h"
#include "store/ssd/ssd_live_impl.h"
#include "store/ssd/ssd_log_impl.h"
#include "store/ssd/ssd_manifest_impl.h"
#include "store/ssd/ssd_room_impl.h"
#include "store/ssd/ssd_store.h"
#include "store/ssd/ssd_tables_impl.h"

namespace hotrow::internal {

// Owns the manifest: makes states durable, keeps the list of snapshots, and reserves the numbers
// that a run may give out.
//
// Threads: all methods may run concurrently but Begin.
// Locks:   one is held while a manifest is made and replaced, syncs included; before it whoever
//          needs it takes the cleaner's turn, under it the streams' are taken. Another one guards
//          the manifest that readings look at; no other is taken under it, and it is never held
//          over I/O.
// Errors:  those of the files; once a sync has failed, SsdLog::broken. ResourceExhausted from
//          SsdRoom. After an error the durable manifest is the one before.
class SsdCommits {
 public:
  // Whether a round of cleaning may run beside a commit.
  enum class Cleaning { kMayRun, kPaused };

  // `manifest` is the state that was opened. All others outlive it.
  SsdCommits(Env& env, const SsdStoreOptions& options, const SsdTables& tables, SsdLog& log,
             const SsdLive& live, const SsdAppender& appender, const SsdRoom& room,
             SsdManifest manifest);

  // While opening, before anything is written: reserves numbers, makes the opened state the present
  // one, then removes files that belong to no state. The image of the index stays until something
  // is written if it fits this state (has_loaded_image) and takes no room that segments need.
  absl::Status Begin(const SsdIndex& index, bool has_loaded_image,
                     std::vector<std::string> surplus_files);

  // --- States ------------------------------------------------------------------------------------

  // Makes durable what was written so far. False, with kMayRun alone: a round of cleaning is under
  // way that has opened the last free segment; a store that is opened in this state could neither
  // clean nor write, so the caller comes again with the cleaner paused.
  absl::StatusOr<bool> Commit(Cleaning cleaning) { return TryCommit(cleaning, nullptr); }
  // The same, and the state becomes a snapshot that is not committed yet. `captured` is called at
  // most once, when it is decided what the snapshot holds. Errors: also FailedPrecondition (there
  // is one of this number), ResourceExhausted before `captured` (it would hold too many segments).
  absl::StatusOr<bool> PrepareSnapshot(Cleaning cleaning, SnapshotId snapshot,
                                       absl::FunctionRef<void()> captured);
  // These replace the manifest alone; the present state stays the one that was committed last.
  // Errors: also FailedPrecondition (there is none of this number).
  absl::Status CommitSnapshot(SnapshotId snapshot);
  absl::Status DropSnapshot(SnapshotId snapshot);

  // --- The image of the index --------------------------------------------------------------------

  // Before anything is written: the image will not fit what comes, and segments may need its room.
  absl::Status DropImage();
  // The last call: leaves an image of the index, for which free segments make room; none where that
  // is not enough. Nothing may be written any more, and the last state is committed.
  absl::Status WriteImage(const SsdIndex& index);

  // --- Readings, which wait for no disk ----------------------------------------------------------

  std::vector<SnapshotId> ListSnapshots() const;
  // The segments of the one that was captured last; empty: there is none.
  std::vector<SsdSegmentRef> NewestSnapshot() const;
  // Errors: FailedPrecondition (there is none of this number).
  absl::StatusOr<SnapshotInfo> DescribeSnapshot(SnapshotId snapshot) const;
  int64_t manifest_file_bytes() const { return manifest_file_bytes_; }
  // Bytes of manifests and the image, since opening.
  int64_t bytes_written() const { return bytes_written_.value(); }

 private:
  struct Capture {
    SnapshotId id;
    absl::FunctionRef<void()> captured;
  };
  absl::StatusOr<bool> TryCommit(Cleaning cleaning, const Capture* capture);
  absl::Status ChangeManifest(absl::FunctionRef<absl::Status(SsdManifest*)> change);
  absl::Status WriteManifest(SsdManifest next);
  absl::Status NoSnapshot(SnapshotId snapshot, const char* to_do) const;
  std::string ImagePath(uint64_t number) const;

  Env& env_;
  const SsdStoreOptions& options_;
  const SsdTables& tables_;
  SsdLog& log_;
  const SsdLive& live_;
  const SsdAppender& appender_;
  const SsdRoom& room_;
  const std::string manifest_path_;
  // What the manifest said when the store was opened; see SsdManifest.
  const uint64_t life_payload_;
  const uint64_t life_device_;

  std::mutex commit_mutex_;
  mutable std::mutex manifest_mutex_;
  SsdManifest manifest_;  // the durable one; it changes under both locks
  std::atomic<int64_t> manifest_file_bytes_{0};
  std::atomic<bool> has_image_{false};  // whether it names an image of the index
  Counter bytes_written_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_COMMITS_IMPL_H_
