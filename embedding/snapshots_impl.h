#ifndef HOTROW_EMBEDDING_SNAPSHOTS_IMPL_H_
#define HOTROW_EMBEDDING_SNAPSHOTS_IMPL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "base/trace.h"
#include "embedding/options.h"
#include "embedding/snapshots.h"
#include "embedding/stats.h"
#include "embedding/tiers/snapshot_rows_impl.h"

namespace hotrow::internal {

// Snapshots takes snapshots of all rows while training goes on: a thread writes the rows that were
// dirty when one began, and another tidies the store up ahead of it.
//
// Threads: the caller's, but AddTo, Commit, Drop, List and Describe, which any thread may call.
class Snapshots final : public EmbeddingSnapshots {
 public:
  // rows outlives this. notify_room is called, on any thread, when a snapshot has let go of rows
  // that it had pinned or held back.
  Snapshots(const EmbeddingCollectionOptions& options, const ExecContext& ctx, SnapshotRows* rows,
            std::function<void()> notify_room);
  ~Snapshots() override { Stop(); }
  Snapshots(const Snapshots&) = delete;
  Snapshots& operator=(const Snapshots&) = delete;

  void Announce() override;
  absl::Status Begin(SnapshotId id) override;
  absl::StatusOr<bool> Prepared() override;
  absl::Status Wait() override;
  absl::Status Prepare(SnapshotId id) override;
  absl::Status Commit(SnapshotId id) override { return rows_->store()->CommitSnapshot(id); }
  absl::Status Drop(SnapshotId id) override { return rows_->store()->DropSnapshot(id); }
  absl::StatusOr<std::vector<SnapshotId>> List() override {
    return rows_->store()->ListSnapshots();
  }
  absl::StatusOr<SnapshotInfo> Describe(SnapshotId id) override {
    return rows_->store()->DescribeSnapshot(id);
  }

  // Waits for the threads.
  void Join();
  // Join, after the snapshot that is being written was told to fail.
  void Stop();
  // Whether none is being written, nor rows that were held back for one.
  bool ended() const;

  void AddTo(EmbeddingStats* stats) const;

 private:
  // The one that was begun last.
  struct State {
    SnapshotId id = 0;
    bool done = true;   // prepared, or failed with `status`
    bool ended = true;  // and nobody is at work on it any more
    absl::Status status;
    int64_t begin_ns = 0;
    // Sums over all snapshots.
    int64_t count = 0;
    int64_t failed = 0;
    int64_t pause_ns = 0;
    int64_t pause_ns_max = 0;
    int64_t prepare_ns = 0;
  };

  absl::Status CheckName(SnapshotId id) const;
  bool done() const;
  void Tidy();
  // What the snapshot's thread does.
  absl::Status Write(SnapshotId id, bool tidy);
  void EndCapture();
  void WriteHeld();
  void SetEnded();
  void Finish(absl::Status status);

  const bool kept_;  // there is a place for them
  const ExecContext ctx_;
  SnapshotRows* const rows_;
  const std::function<void()> notify_room_;

  mutable std::mutex mutex_;          // guards state_
  std::condition_variable finished_;  // state_.done
  State state_;
  bool tidied_ = false;  // since the last snapshot was begun
  std::atomic<bool> stopping_{false};
  std::thread write_thread_;
  std::thread tidy_thread_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_SNAPSHOTS_IMPL_H_
